"""Is one checkpoint, run or strategy better than another? Paired tests on the questions that both were asked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from s2sbench_callback.bootstrap import DRAWS, SEED, Resampling, percentile_interval
from s2sbench_callback.items import TieRule
from s2sbench_callback.metrics import compare
from s2sbench_callback.paired_tests import ERROR_RATE, groups_needed, holm, mcnemar, sign_flip_test, smallest_detectable
from s2sbench_callback.prompts import CONDITIONS, Condition
from s2sbench_callback.report import ProbeReport, Tables
from s2sbench_callback.scoring import LossTable
from s2sbench_callback.seeds import pooled_difference
from s2sbench_callback.significance import Estimate, paired_difference

Array = npt.NDArray[np.float64]
Verdict = Literal["better", "worse", "different", "no difference can be told"]

# 1 where higher is better, -1 where lower is, 0 where neither is.
DIRECTIONS = {"accuracy": 1, "question_accuracy": 1, "positive_loss": -1, "negative_loss": 0, "positive_minus_negative": -1, "degradation": -1}
# What changes a figure although the weights are the same, by its place in the signature.
_CHANGES_FIGURES = ("prompt", "normalisation", "adapter", "precision", "weights")


@dataclass(frozen=True)
class Probed:
    """One checkpoint that was probed.

    Attributes:
        name: For messages.
        report: Its report.
        tables: Its losses.
    """

    name: str
    report: ProbeReport
    tables: Tables


@dataclass(frozen=True)
class Row:
    """One figure of two sides.

    Attributes:
        set: The set.
        condition: The condition, or ``None`` for a figure across conditions.
        figure: The figure.
        first: The first side's, averaged over its seeds.
        second: The second side's.
        difference: Second minus first, with its 95 % interval.
        p: Two-sided p-value of no difference.
        corrected_p: The same, corrected for all rows of the comparison.
        test: Name of the test.
        verdict: What can be said of the second side.
        smallest_detectable: True difference that so many questions would show four times out of five.
        questions: Questions that count.
        questions_needed: Questions that would show the asked difference as often; NaN where none was asked.
        by_questions: Standard error owed to the choice of questions.
        by_seeds: Standard error owed to the seeds; NaN where a side has one alone.
    """

    set: str
    condition: Condition | None
    figure: str
    first: float
    second: float
    difference: Estimate
    p: float
    test: str
    smallest_detectable: float
    questions: int
    questions_needed: float
    by_questions: float
    by_seeds: float
    corrected_p: float = math.nan
    verdict: Verdict = "no difference can be told"


@dataclass(frozen=True)
class Comparison:
    """All rows of two sides.

    Attributes:
        first: Names of the first side's checkpoints.
        second: Names of the second side's.
        rows: A row a set, condition and figure.
        warnings: What makes the two hard to compare.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]


def compare_sides(
    first: Sequence[Probed], second: Sequence[Probed], difference: float | None = None, draws: int = DRAWS, seed: int = SEED
) -> Comparison:
    """Holds two sides against each other, on the sets and conditions that both were asked.

    With one checkpoint a side: McNemar's exact test where each question is one comparison, else a permutation test of the signs of the groups of
    questions; intervals of losses by bootstrap. With several seeds a side: questions and seeds as crossed random effects. P-values are corrected
    over all rows by Holm's method.

    Args:
        first: One checkpoint, or one of each seed.
        second: What is held against it.
        difference: A difference, in units of the figure, of which to say how many questions would show it.
        draws: Draws of the bootstrap.
        seed: Of bootstrap and permutation.

    Raises:
        ValueError: If the sides have nothing in common, or were asked different questions.
    """
    rows = [
        _row(name, condition, figure, values, difference, draws, seed)
        for name in _shared_sets(first, second)
        for condition, figure, values in _figures(name, first, second)
    ]
    if not rows:
        raise ValueError(f"{_names(first)} and {_names(second)} were not asked one set in one condition that both have")
    return Comparison(_labels(first), _labels(second), _judged(rows), tuple(_warnings([*first, *second])))


def compare_conditions(probed: Probed, difference: float | None = None, draws: int = DRAWS, seed: int = SEED) -> Comparison:
    """Holds hearing against reading in one checkpoint: S→T minus T→T.

    Args:
        probed: The checkpoint.
        difference: As in :func:`compare_sides`.
        draws: Draws of the bootstrap.
        seed: Of bootstrap and permutation.

    Raises:
        ValueError: If no set was asked in both conditions.
    """
    rows = []
    for name, by_condition in probed.tables.items():
        if "s2t" in by_condition and "t2t" in by_condition:
            written, spoken = (_values(by_condition[condition], _tie_rule(probed, name)) for condition in ("t2t", "s2t"))
            for figure in written:
                values = _Values.of([written[figure]], [spoken[figure]], by_condition["t2t"].groups)
                rows.append(_row(name, None, figure, values, difference, draws, seed))
    if not rows:
        raise ValueError(f"{probed.name} has no set that was asked in S→T and in T→T")
    return Comparison((f"{probed.name} T→T",), (f"{probed.name} S→T",), _judged(rows), ())


@dataclass(frozen=True)
class _Values:
    """A figure by question: ``first [S, Q]``, ``second [T, Q]``, ``weights [Q]``, ``groups [Q]``."""

    first: Array
    second: Array
    weights: Array
    groups: tuple[str, ...]

    @classmethod
    def of(cls, first: Sequence[tuple[Array, Array]], second: Sequence[tuple[Array, Array]], groups: Sequence[str]) -> _Values:
        """Without the questions that have no finite value everywhere."""
        one, two = (np.stack([values for values, _ in side]) for side in (first, second))
        keep = np.isfinite(np.concatenate([one, two])).all(axis=0)
        return cls(one[:, keep], two[:, keep], first[0][1][keep], tuple(group for group, kept in zip(groups, keep, strict=True) if kept))


def _values(table: LossTable, tie_rule: TieRule) -> dict[str, tuple[Array, Array]]:
    """Each figure by question, with the questions' weights; a question with a loss that is not finite has no loss, and lost its comparisons."""
    compared = compare(table, tie_rule)
    count, once = compared.count.astype(np.float64), np.ones(len(compared.count))
    figures = {"accuracy": (compared.share, count)}
    if (compared.count > 1).any():
        figures["question_accuracy"] = ((compared.wins == compared.count).astype(np.float64), once)
    figures["positive_loss"] = (compared.positive, count)
    figures["negative_loss"] = (compared.negative, count)
    figures["positive_minus_negative"] = (compared.positive - compared.negative, count)
    return figures


def _figures(name: str, first: Sequence[Probed], second: Sequence[Probed]) -> Iterator[tuple[Condition | None, str, _Values]]:
    probes = [*first, *second]
    shared = [condition for condition in CONDITIONS if all(condition in probed.tables[name] for probed in probes)]
    found: dict[Condition, tuple[list[dict[str, tuple[Array, Array]]], list[dict[str, tuple[Array, Array]]]]] = {}
    for condition in shared:
        sides = tuple([_values(probed.tables[name][condition], _tie_rule(probed, name)) for probed in side] for side in (first, second))
        found[condition] = (sides[0], sides[1])
        groups = first[0].tables[name][condition].groups
        for figure in sides[0][0]:
            yield condition, figure, _Values.of([each[figure] for each in sides[0]], [each[figure] for each in sides[1]], groups)
    if "s2t" in found and "t2t" in found:
        lost = [
            [
                (written["accuracy"][0] - spoken["accuracy"][0], written["accuracy"][1])
                for written, spoken in zip(found["t2t"][side], found["s2t"][side], strict=True)
            ]
            for side in (0, 1)
        ]
        yield None, "degradation", _Values.of(lost[0], lost[1], first[0].tables[name]["t2t"].groups)


def _row(name: str, condition: Condition | None, figure: str, values: _Values, difference: float | None, draws: int, seed: int) -> Row:
    questions = len(values.weights)
    if not questions:
        nothing = Estimate(math.nan, math.nan, math.nan)
        return Row(name, condition, figure, math.nan, math.nan, nothing, math.nan, "none", math.nan, 0, math.nan, math.nan, math.nan)
    share = values.weights / values.weights.sum()
    first, second = (float((side @ share).mean()) for side in (values.first, values.second))
    pooled = pooled_difference(values.first, values.second, values.weights, values.groups)
    groups = len(set(values.groups))
    # Of one group's difference, as a mean over all groups sees it.
    deviation = pooled.by_questions * math.sqrt(groups)
    needed = groups_needed(deviation, difference) * questions / groups if difference else math.nan
    if len(values.first) > 1 or len(values.second) > 1:
        estimate, p, test = pooled.estimate, pooled.p, "Student's t, questions and seeds crossed"
        if math.isnan(pooled.by_seeds):
            test = "Student's t, questions alone: a side has one seed"
    else:
        estimate, p, test = _of_one_pair(figure, values, groups, draws, seed)
    power = smallest_detectable(deviation, groups)
    return Row(name, condition, figure, first, second, estimate, p, test, power, questions, needed, pooled.by_questions, pooled.by_seeds)


def _of_one_pair(figure: str, values: _Values, groups: int, draws: int, seed: int) -> tuple[Estimate, float, str]:
    first, second, weights = values.first[0], values.second[0], values.weights
    change = weights * (second - first)
    if figure in ("accuracy", "question_accuracy"):
        estimate = paired_difference(second, first, weights, values.groups)
        if (weights == 1).all() and groups == len(weights):
            return estimate, mcnemar(first == 1, second == 1), "McNemar, exact"
    else:
        sums, total = Resampling(values.groups, draws, seed).sums(change, weights)
        estimate = percentile_interval(float(change.sum() / weights.sum()), sums / total)
    by_group = np.bincount(np.unique(np.asarray(values.groups), return_inverse=True)[1], weights=change).astype(np.float64)
    return estimate, sign_flip_test(by_group, seed), "permutation of signs"


def _judged(rows: Sequence[Row]) -> tuple[Row, ...]:
    judged = []
    for row, p in zip(rows, holm([row.p for row in rows]), strict=True):
        verdict: Verdict = "no difference can be told"
        if p < ERROR_RATE:
            good = DIRECTIONS[row.figure] * row.difference.value
            verdict = "better" if good > 0 else "worse" if good < 0 else "different"
        judged.append(replace(row, corrected_p=p, verdict=verdict))
    return tuple(judged)


def _shared_sets(first: Sequence[Probed], second: Sequence[Probed]) -> list[str]:
    probes = [*first, *second]
    shared = [name for name in first[0].tables if all(name in probed.tables for probed in probes)]
    for name in shared:
        fingerprint = _asked(first[0], name)
        for probed in probes[1:]:
            if _asked(probed, name) != fingerprint:
                raise ValueError(f"{probed.name} was asked other questions of {name!r} than {first[0].name}: the two cannot be paired")
    return shared


def _asked(probed: Probed, name: str) -> tuple[str | None, tuple[str, ...]]:
    """What was asked of a set: its fingerprint, and the items, which ``max_questions`` may have cut."""
    table = next(iter(probed.tables[name].values()))
    return probed.report.signature.get("sets", {}).get(name, {}).get("fingerprint"), table.item_ids


def _tie_rule(probed: Probed, name: str) -> TieRule:
    sets: Mapping[str, Any] = probed.report.signature.get("sets", {})
    if name not in sets:
        raise ValueError(f"{probed.name}: its signature does not say how {name!r} counts ties, so its record was not written by a probe")
    rule: TieRule = sets[name]["tie_rule"]
    return rule


def _warnings(probes: Sequence[Probed]) -> Iterator[str]:
    for key in _CHANGES_FIGURES:
        values = {str(probed.report.signature.get(key)) for probed in probes}
        if len(values) > 1:
            yield f"the two sides differ in more than their weights: {key} is {' and '.join(sorted(values))}"
    everywhere: list[set[str]] = [set(probed.tables) for probed in probes]
    left_out = set[str]().union(*everywhere) - everywhere[0].intersection(*everywhere)
    if left_out:
        yield f"left out, since not all were asked: {', '.join(sorted(left_out))}"


def _labels(side: Sequence[Probed]) -> tuple[str, ...]:
    return tuple(probed.name for probed in side)


def _names(side: Sequence[Probed]) -> str:
    return ", ".join(_labels(side))
