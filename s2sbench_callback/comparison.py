"""Two sides held against each other: every figure with its difference, how sure that is, and what could have been seen at all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from s2sbench_callback.bootstrap import DRAWS, SEED, estimate, sums_by_group
from s2sbench_callback.measures import DIRECTIONS, Measure, between_conditions, between_sides
from s2sbench_callback.paired_tests import FLIPS, holm, mcnemar, sign_flip
from s2sbench_callback.power import LEVEL, detectable, questions_needed
from s2sbench_callback.seeds import Spread, spread
from s2sbench_callback.sides import RecordedProbe
from s2sbench_callback.significance import Estimate

MCNEMAR = "McNemar, exact"
SIGN_FLIPS = "sign flips by question"
STUDENT = "Student's t over questions and seeds"
NOTHING_TOLD = "no difference can be told"
# Whatever else the signature holds does not change a figure.
_CHANGES_FIGURES = ("prompt", "normalisation", "adapter", "precision", "weights", "package")


@dataclass(frozen=True)
class Row:
    """One figure of one set on both sides.

    Attributes:
        set: The set.
        condition: The condition, or ``None`` for figures across conditions.
        figure: For example ``accuracy``.
        first: The first side's figure, averaged over its trainings.
        second: The second side's.
        difference: Second minus first.
        low: Lower end of its 95 % interval.
        high: Upper end.
        p: Two-sided p-value of the test.
        corrected: The same, corrected for all tests of the comparison.
        test: Which test.
        verdict: ``better``, ``worse`` (of the second), ``higher`` or ``lower`` where neither is good, or that nothing can be told.
        detectable: Smallest true difference that would be found with 80 % power, at 5 % two-sided, uncorrected.
        needed: Questions it would take to find the difference asked for; ``None`` where none was asked for, infinite where no number suffices.
        questions: Questions that count.
        questions_variance: Share of the difference's variance that comes from the questions; NaN with one training a side.
        seeds_variance: Share that comes from the seeds.
        rest_variance: Share that comes from both together.
    """

    set: str
    condition: str | None
    figure: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    p: float
    corrected: float
    test: str
    verdict: str
    detectable: float
    needed: float | None
    questions: int
    questions_variance: float = math.nan
    seeds_variance: float = math.nan
    rest_variance: float = math.nan

    @property
    def key(self) -> str:
        """Condition and figure as in the metric keys, for example ``s2t/accuracy``."""
        return f"{self.condition}/{self.figure}" if self.condition else self.figure


@dataclass(frozen=True)
class Comparison:
    """What was compared, what was found, and what to mind.

    Attributes:
        first: Probes of the first side, ``FOLDER@STEP``.
        second: Those of the second; the same where conditions are compared.
        is_within: Whether the other conditions (second) were held against T→T (first) of the same probes.
        rows: What was found.
        warnings: What makes the sides differ besides their weights, and what could not be compared.
        draws: Of the bootstrap.
        seed: Of the bootstrap and of the sign flips.
        sought: The difference asked for, where there is one.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    is_within: bool
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    draws: int
    seed: int
    sought: float | None = None
    correction: str = "Holm"

    @property
    def has_seeds(self) -> bool:
        """Whether a side has several trainings."""
        return max(len(self.first), len(self.second)) > 1

    def to_state(self) -> dict[str, Any]:
        """Plain data for JSON; what is not finite becomes null."""
        return {
            **asdict(self),
            "rows": [
                {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in asdict(row).items()}
                for row in self.rows
            ],
        }


def compare(
    first: Sequence[RecordedProbe], second: Sequence[RecordedProbe] | None = None, sought: float | None = None, draws: int = DRAWS, seed: int = SEED
) -> Comparison:
    """Holds the second side against the first, or other conditions against T→T where there is one side.

    Args:
        first: One probe, or one of each of several trainings that differ by their seed.
        second: Those to hold against it.
        sought: A difference, of which is said how many questions it would take to find it.
        draws: Of the bootstrap.
        seed: Of the bootstrap and of the sign flips.

    Raises:
        ValueError: If the sides were asked other questions, or the same probe stands on both.
    """
    probes = [*first, *(second or ())]
    warnings = [*_signature_warnings(probes)]
    if second is not None:
        shared = {probe.title for probe in first} & {probe.title for probe in second}
        if shared:
            raise ValueError(f"{', '.join(sorted(shared))} stands on both sides, and does not differ from itself")
    names, missing = _sets(probes)
    warnings += missing
    measures: list[Measure] = []
    for name in names:
        for found in between_sides(name, first, second) if second is not None else between_conditions(name, first):
            if isinstance(found, str):
                warnings.append(found)
            elif not len(found.groups):
                warnings.append(f"{name}: no question has finite losses everywhere, so its {found.figure.replace('_', ' ')} cannot be compared")
            else:
                measures.append(found)
    if not measures:
        raise ValueError(f"there is nothing to compare: {'; '.join(warnings) or 'the probes have no condition in common'}")
    rows = [_row(measure, sought, draws, seed) for measure in measures]
    rows = [
        replace(row, corrected=p, verdict=_verdict(DIRECTIONS[row.figure], row.difference, p))
        for row, p in zip(rows, holm([row.p for row in rows]), strict=True)
    ]
    sides = (tuple(probe.title for probe in first), tuple(probe.title for probe in (first if second is None else second)))
    return Comparison(*sides, second is None, tuple(rows), tuple(warnings), draws, seed, sought)


def worse_rows(comparison: Comparison, figures: Sequence[str]) -> list[Row]:
    """Rows of given figures in which the second side is significantly worse.

    Args:
        comparison: What was found.
        figures: Figures as ``s2t/accuracy``, or ``accuracy`` for every condition.

    Raises:
        ValueError: If a figure is in no row, or has no better and worse.
    """
    known = list(dict.fromkeys(row.key for row in comparison.rows if DIRECTIONS[row.figure]))
    unknown = [figure for figure in figures if not any(figure in (key, key.rpartition("/")[2]) for key in known)]
    if unknown:
        raise ValueError(f"nothing was compared that is called {', '.join(unknown)} and can be worse; there are {', '.join(known)}")
    return [row for row in comparison.rows if row.verdict == "worse" and {row.key, row.figure} & set(figures)]


def _row(measure: Measure, sought: float | None, draws: int, seed: int) -> Row:
    found = spread(measure.sides, measure.weights, measure.groups, measure.imagined)
    difference, p, test = _judge(measure, found, draws, seed)
    by_group = len(measure.weights) / found.groups
    needed = None
    if sought is not None:
        groups = questions_needed(sought, lambda number: ((at := found.with_groups(number)).error, at.freedom))
        needed = math.inf if groups is None else math.ceil(groups * by_group)
    known = not math.isnan(found.seeds)
    first, second = (float((side @ measure.weights / measure.weights.sum()).mean()) for side in (measure.first, measure.second))
    return Row(
        measure.name,
        measure.condition,
        measure.figure,
        first,
        second,
        difference.value,
        difference.low,
        difference.high,
        p,
        p,
        test,
        "",
        detectable(found.error, found.freedom),
        needed,
        len(measure.weights),
        *((part / found.error**2 if known and found.error else math.nan) for part in (found.questions, found.seeds, found.rest)),
    )


def _judge(measure: Measure, found: Spread, draws: int, seed: int) -> tuple[Estimate, float, str]:
    """Difference with its interval, p-value and the test's name."""
    if not math.isnan(found.seeds):
        value = float(measure.differences @ measure.weights / measure.weights.sum())
        half = found.half_width()
        return Estimate(value, value - half, value + half), found.p_value(value), STUDENT
    difference = estimate(measure.statistic, measure.columns, measure.groups, measure.padding, draws, seed)
    if measure.is_yes_or_no:
        return difference, mcnemar(measure.first[0], measure.second[0]), MCNEMAR
    sums = sums_by_group({"difference": measure.differences * measure.weights}, measure.groups)[:, 0]
    return difference, sign_flip(sums, FLIPS, seed), SIGN_FLIPS


def _verdict(direction: int, difference: float, p: float) -> str:
    if not p < LEVEL or not difference:
        return NOTHING_TOLD
    if not direction:
        return "higher" if difference > 0 else "lower"
    return "better" if direction * difference > 0 else "worse"


def _sets(probes: Sequence[RecordedProbe]) -> tuple[list[str], list[str]]:
    """Sets that all probes have, all with the same questions, and a word on those that they do not."""
    names = list(dict.fromkeys(name for probe in probes for name in probe.tables))
    common = [name for name in names if all(name in probe.tables for probe in probes)]
    for name in common:
        for one, other in itertools.pairwise(probes):
            if one.fingerprints[name] != other.fingerprints[name] or _ids(one, name) != _ids(other, name):
                said = " and ".join(f"{len(_ids(probe, name))} of fingerprint {probe.fingerprints[name]}" for probe in (one, other))
                raise ValueError(
                    f"{one.title} and {other.title} were not asked the same questions of {name!r} ({said}), so they cannot be paired; score both on "
                    "the same set, with the same max_questions"
                )
    if not common:
        raise ValueError(f"the probes have no set in common; they have {'; '.join(', '.join(probe.tables) for probe in probes)}")
    return common, [
        f"{name} is not compared: {', '.join(p.title for p in probes if name not in p.tables)} did not ask it" for name in names if name not in common
    ]


def _ids(probe: RecordedProbe, name: str) -> tuple[str, ...]:
    return next(iter(probe.tables[name].values())).item_ids


def _signature_warnings(probes: Sequence[RecordedProbe]) -> Iterator[str]:
    for key in _CHANGES_FIGURES:
        values: dict[str, str] = {}
        for probe in probes:
            values.setdefault(str(probe.signature.get(key, "not recorded")), probe.title)
        if len(values) > 1:
            said = "; ".join(f"{title}: {value}" for value, title in values.items())
            yield f"the probes differ in {key}, which can change figures by itself ({said})"
