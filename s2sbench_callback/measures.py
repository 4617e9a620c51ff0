"""A figure as numbers by question and training, so that every figure is compared by the same means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from s2sbench_callback.bootstrap import Columns, Statistic
from s2sbench_callback.metrics import CHANCE, IMAGINED, Comparisons, compare, share_lost
from s2sbench_callback.prompts import CANDIDATES, CONDITION_NAMES, CONDITIONS, Condition
from s2sbench_callback.sides import RecordedProbe
from s2sbench_callback.significance import proportion

Array = npt.NDArray[np.float64]

# Of each figure: 1 where higher is better, -1 where lower is, 0 where neither can be said.
DIRECTIONS = {
    "accuracy": 1,
    "question_accuracy": 1,
    "positive_loss": -1,
    "negative_loss": 0,
    "positive_minus_negative": -1,
    "degradation": -1,
    "ability_lost": -1,
}
ACCURACIES = ("accuracy", "question_accuracy")
LOSSES = ("positive_loss", "negative_loss", "positive_minus_negative")
# Both right, both wrong, only one side: what a question can add to a difference of shares.
_IMAGINED_DIFFERENCES = IMAGINED["second"] - IMAGINED["first"]


@dataclass(frozen=True)
class Measure:
    """One figure of one set on two sides.

    Attributes:
        name: The set.
        condition: The condition, or ``None`` for figures across conditions.
        figure: For example ``accuracy``.
        first: ``[S, Q]`` the figure of each question in each training of the first side; its weighted mean over questions is the training's figure.
        second: ``[S, Q]`` of the second side.
        weights: ``[Q]`` weight of each question; those that have a loss that is not finite anywhere are left out.
        groups: ``[Q]`` cluster of each question.
        imagined: Differences of imagined questions, for figures made of shares.
        is_same: Whether both sides are the same trainings, in two conditions.
        columns: What the difference is resampled from where each side is one training.
        statistic: The difference as a function of those sums.
        padding: Imagined questions in those columns.
    """

    name: str
    condition: Condition | None
    figure: str
    first: Array
    second: Array
    weights: Array
    groups: tuple[str, ...]
    imagined: Array
    is_same: bool
    columns: Columns
    statistic: Statistic
    padding: Columns | None

    @property
    def sides(self) -> tuple[Array, ...]:
        """What varies independently: both sides, or their difference where they are the same trainings."""
        return (self.second - self.first,) if self.is_same else (self.first, self.second)

    @property
    def differences(self) -> Array:
        """``[Q]`` second minus first, each averaged over its trainings."""
        return np.asarray(self.second.mean(0) - self.first.mean(0))

    @property
    def is_yes_or_no(self) -> bool:
        """Whether each side is one training, each question stands for itself, and is either right or wrong."""
        whole = all(np.isin(side, (0.0, 1.0)).all() for side in (self.first, self.second))
        return self.figure in ACCURACIES and whole and len(set(self.groups)) == len(self.groups)


def between_sides(name: str, first: Sequence[RecordedProbe], second: Sequence[RecordedProbe]) -> Iterator[Measure | str]:
    """Every figure of one set that both sides have; a sentence in place of one that cannot be compared.

    Args:
        name: The set.
        first: Trainings of the first side.
        second: Those of the second.
    """
    sides = (first, second)
    asked = [condition for condition in CONDITIONS if all(condition in probe.tables[name] for side in sides for probe in side)]
    compared = {condition: [[_compared(probe, name, condition) for probe in side] for side in sides] for condition in asked}
    groups = first[0].tables[name][asked[0]].groups if asked else ()
    for condition, (of_first, of_second) in compared.items():
        for figure in _figures(of_first[0], LOSSES):
            yield _mean_figure(name, condition, figure, of_first, of_second, groups)
    if "s2t" in compared and "t2t" in compared:
        pairs = [list(zip(compared["t2t"][side], compared["s2t"][side], strict=True)) for side in (0, 1)]
        yield _degradation(name, pairs, groups)
        chance = [probe.title for side, of_side in zip(sides, pairs, strict=True) for probe, (t2t, _) in zip(side, of_side, strict=True)
                  if not proportion(t2t.share, t2t.count.astype(np.float64), groups).low > CHANCE]  # fmt: skip
        if chance:
            yield f"{name}: T→T of {', '.join(chance)} is not above chance, so there is no ability to lose"
        else:
            yield _ability_lost(name, pairs, groups)


def between_conditions(name: str, side: Sequence[RecordedProbe]) -> Iterator[Measure | str]:
    """Every figure of one set in the other conditions (second) against T→T (first); losses only where the candidates are written in both.

    Args:
        name: The set.
        side: The trainings.
    """
    written = [_compared(probe, name, "t2t") for probe in side if "t2t" in probe.tables[name]]
    if len(written) < len(side):
        yield f"{name}: not every probe has T→T, so there is nothing to hold the other conditions against"
        return
    groups = side[0].tables[name]["t2t"].groups
    for condition in CONDITIONS:
        if condition == "t2t" or not all(condition in probe.tables[name] for probe in side):
            continue
        spoken = [_compared(probe, name, condition) for probe in side]
        if CANDIDATES[condition] != "text":
            yield f"{name}: losses of {CONDITION_NAMES[condition]} are per audio token, and not held against those of T→T"
        for figure in _figures(written[0], LOSSES if CANDIDATES[condition] == "text" else ()):
            yield _mean_figure(name, condition, figure, written, spoken, groups, is_same=True)


def _mean_figure(
    name: str,
    condition: Condition | None,
    figure: str,
    first: Sequence[Comparisons],
    second: Sequence[Comparisons],
    groups: tuple[str, ...],
    is_same: bool = False,
) -> Measure:
    """A figure that each training of either side has by question."""
    values = [np.stack([compared.by_question(figure) for compared in side]) for side in (first, second)]
    finite = np.isfinite(values[0]).all(0) & np.isfinite(values[1]).all(0)
    weights = np.where(finite, 1.0 if figure == "question_accuracy" else first[0].count, 0.0)
    one, other = (np.where(finite, side, 0.0) for side in values)
    imagined = np.array([]) if figure in LOSSES else _IMAGINED_DIFFERENCES
    return _linear(name, condition, figure, one, other, weights, groups, imagined, is_same)


def _linear(
    name: str,
    condition: Condition | None,
    figure: str,
    first: Array,
    second: Array,
    weights: Array,
    groups: tuple[str, ...],
    imagined: Array,
    is_same: bool,
) -> Measure:
    """A figure that is a weighted mean over questions, of those that have a weight."""
    counted = weights > 0
    first, second, weights = first[:, counted], second[:, counted], weights[counted]
    groups = tuple(group for group, keep in zip(groups, counted, strict=True) if keep)
    columns = {"difference": weights * (second.mean(0) - first.mean(0)), "weight": weights}
    typical = float(weights.sum()) / max(1, len(weights))
    padding = {"difference": typical * imagined, "weight": np.full(len(imagined), typical)} if len(imagined) else None

    def statistic(sums: Columns) -> Array:
        with np.errstate(invalid="ignore"):
            return np.asarray(sums["difference"] / sums["weight"])

    return Measure(name, condition, figure, first, second, weights, groups, imagined, is_same, columns, statistic, padding)


def _degradation(name: str, pairs: Sequence[Sequence[tuple[Comparisons, Comparisons]]], groups: tuple[str, ...]) -> Measure:
    first, second = (np.stack([t2t.share - s2t.share for t2t, s2t in side]) for side in pairs)
    return _linear(name, None, "degradation", first, second, pairs[0][0][0].count.astype(np.float64), groups, _IMAGINED_DIFFERENCES, is_same=False)


def _ability_lost(name: str, pairs: Sequence[Sequence[tuple[Comparisons, Comparisons]]], groups: tuple[str, ...]) -> Measure:
    """The share lost, linearised by question for what needs a mean; its bootstrap is that of the share itself."""
    weights = pairs[0][0][0].count.astype(np.float64)
    sides: list[Array] = []
    above: list[float] = []
    for side in pairs:
        rows = []
        for t2t, s2t in side:
            lost, gain = t2t.share - s2t.share, t2t.share - CHANCE
            mean_lost, mean_gain = (float(values @ weights / weights.sum()) for values in (lost, gain))
            share = mean_lost / mean_gain
            rows.append(share + (lost - share * gain) / mean_gain)
            above.append(mean_gain)
        sides.append(np.stack(rows))
    won = {f"{condition}{number}": pairs[number][0][index].wins.astype(np.float64) for number in (0, 1) for index, condition in enumerate(("t", "s"))}
    typical = float(weights.mean())
    # Each side in all four ways, never both sides the same way.
    imagined = {"t0": [1, 1, 0, 0], "s0": [1, 0, 0, 1], "t1": [1, 1, 0, 0], "s1": [0, 1, 1, 0], "count": [1, 1, 1, 1]}

    def statistic(sums: Columns) -> Array:
        with np.errstate(invalid="ignore"):
            return share_lost(sums["t1"], sums["s1"], sums["count"]) - share_lost(sums["t0"], sums["s0"], sums["count"])

    return Measure(
        name,
        None,
        "ability_lost",
        sides[0],
        sides[1],
        weights,
        groups,
        _IMAGINED_DIFFERENCES / float(np.mean(above)),
        False,
        {**won, "count": weights},
        statistic,
        {key: typical * np.array(column, dtype=np.float64) for key, column in imagined.items()},
    )


def _compared(probe: RecordedProbe, name: str, condition: Condition) -> Comparisons:
    return compare(probe.tables[name][condition], probe.tie_rules[name])


def _figures(compared: Comparisons, losses: Sequence[str]) -> list[str]:
    """With one comparison a question, both accuracies are one."""
    return [*(ACCURACIES if (compared.count > 1).any() else ACCURACIES[:1]), *losses]
