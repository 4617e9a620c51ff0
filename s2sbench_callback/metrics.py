"""Figures from a table of losses: the published protocol, nothing else.

Which interval a figure has was chosen by how often it holds the truth. Of 2,000 intervals of 95 % each, with 100 / 240 / 1,871 questions, in %
(``benchmarks/intervals.py`` has more)::

    figure                              closed form         percentile          BCa                 with imagined questions
    accuracy about 0.5                  95.3 / 94.3 / 95.8  95.0 / 94.2 / 95.4  95.0 / 94.1 / 95.2  95.1 / 94.2 / 95.5
    accuracy about 0.98                 96.3 / 95.7 / 95.8  84.4 / 89.9 / 94.3  83.0 / 94.2 / 95.3  93.7 / 95.1 / 95.2
    the same, 3 comparisons a question  94.4 / 93.8 / 94.5  85.7 / 91.2 / 94.1  91.5 / 93.7 / 94.3  90.8 / 93.8 / 94.8
    degradation from 0.8 to 0.7         96.0 / 94.8 / 95.3  96.0 / 95.0 / 95.1  95.9 / 95.0 / 94.6  95.5 / 94.7 / 95.2
    degradation from 0.98 to 0.975      99.8 / 99.2 / 95.7  68.4 / 90.9 / 94.5  64.0 / 87.8 / 93.9  99.7 / 98.0 / 95.3
    ability lost from 0.65 to 0.55      95.7 / 95.5 / 94.7  95.0 / 95.3 / 94.6  39.6 / 87.5 / 94.5  95.3 / 95.0 / 94.5
    ability lost from 0.98 to 0.975     83.2 / 92.7 / 95.2  68.4 / 90.9 / 94.5  64.0 / 87.4 / 93.9  99.7 / 98.0 / 95.3
    loss, log-normal, sigma 0.4         94.8 / 94.4 / 95.0  94.5 / 94.3 / 94.8  94.3 / 93.8 / 95.0  –
    loss, log-normal, sigma 1           91.2 / 93.2 / 95.1  91.8 / 92.9 / 94.6  92.2 / 92.8 / 94.8  –

So accuracies have Wilson's interval, which a bootstrap does not match near 1; everything else has the percentiles of a cluster bootstrap, differences
and shares of accuracies with four imagined questions among the real ones. Means over sets join the sets' intervals (MOVER): averages of draws do
worse near 1, 84 % against 94.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from s2sbench_callback.bootstrap import Columns, estimate
from s2sbench_callback.items import Benchmark, TieRule
from s2sbench_callback.prompts import Modality
from s2sbench_callback.scoring import LossTable
from s2sbench_callback.significance import Estimate, proportion

MAX_INVALID_SHARE = 0.5
CHANCE = 0.5
# Both right, both wrong, only the first, only the second: without them, conditions that differ nowhere would be said to be equal for sure.
IMAGINED: Columns = {"first": np.array([1.0, 0.0, 1.0, 0.0]), "second": np.array([1.0, 0.0, 0.0, 1.0]), "count": np.ones(4)}


@dataclass(frozen=True)
class Comparisons:
    """Every (answer, other) comparison, summed up by question.

    Attributes:
        wins: ``[Q]`` comparisons that the answer wins.
        count: ``[Q]`` comparisons.
        ties: ``[Q]`` comparisons of equal losses.
        positive: ``[Q]`` loss of the answer, NaN where the question has a loss that is not finite.
        negative: ``[Q]`` mean loss of the others, likewise.
        invalid: ``[Q]`` whether a loss of the question is NaN or infinite.
    """

    wins: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    ties: npt.NDArray[np.int64]
    positive: npt.NDArray[np.float64]
    negative: npt.NDArray[np.float64]
    invalid: npt.NDArray[np.bool_]

    @property
    def share(self) -> npt.NDArray[np.float64]:
        """``[Q]`` share of its comparisons that each question wins."""
        return np.asarray(self.wins / self.count)

    def by_question(self, figure: str) -> npt.NDArray[np.float64]:
        """``[Q]`` what each question adds to a figure.

        Args:
            figure: ``accuracy``, ``question_accuracy``, ``positive_loss``, ``negative_loss`` or ``positive_minus_negative``.
        """
        values: dict[str, npt.NDArray[np.float64]] = {
            "accuracy": self.share,
            "question_accuracy": (self.wins == self.count).astype(np.float64),
            "positive_loss": self.positive,
            "negative_loss": self.negative,
            "positive_minus_negative": self.positive - self.negative,
        }
        return values[figure]


def compare(table: LossTable, tie_rule: TieRule) -> Comparisons:
    """Holds each answer against the other candidates of its question.

    A comparison in which either loss is NaN or infinite is lost.

    Args:
        table: The losses.
        tie_rule: Whether equal losses count as lost (story sets) or won (lettered sets).
    """
    losses = table.losses
    rows = np.arange(len(losses))
    other = table.tokens > 0
    other[rows, table.answers] = False
    answer = losses[rows, table.answers][:, None]
    comparable = other & np.isfinite(losses) & np.isfinite(answer)
    with np.errstate(invalid="ignore"):
        better = answer < losses
        equal = answer == losses
    ties = (equal & comparable).sum(1)
    wins = (better & comparable).sum(1) + (ties if tie_rule == "win" else 0)
    invalid = ~(np.isfinite(losses) | (table.tokens == 0)).all(1)
    count = other.sum(1)
    positive = np.where(invalid, np.nan, answer[:, 0])
    negative = np.where(invalid, np.nan, np.where(other & ~invalid[:, None], losses, 0.0).sum(1) / count)
    return Comparisons(wins, count, ties, positive, negative, invalid)


@dataclass(frozen=True)
class ConditionFigures:
    """One set in one condition.

    Attributes:
        accuracy: Share of comparisons that the answer wins.
        question_accuracy: Share of questions in which it wins all of them.
        positive_loss: Mean loss of the answers over the comparisons, nats per token.
        negative_loss: Mean loss of the others over the comparisons, nats per token.
        positive_minus_negative: Difference of the two; below 0 when the model is right.
        ties: Comparisons of equal losses; many mean a broken model.
        invalid: Questions with a NaN or infinite loss; each comparison that such a loss takes part in is lost, and the question stays out of the mean
            losses.
        questions: Questions asked.
    """

    accuracy: Estimate
    question_accuracy: Estimate
    positive_loss: Estimate
    negative_loss: Estimate
    positive_minus_negative: Estimate
    ties: int
    invalid: int
    questions: int


def condition_figures(table: LossTable, tie_rule: TieRule) -> ConditionFigures:
    """All figures of one set in one condition.

    Accuracies have Wilson's interval, losses that of the cluster bootstrap.

    Args:
        table: The losses.
        tie_rule: Whether equal losses count as lost or won.
    """
    compared = compare(table, tie_rule)
    count = compared.count.astype(np.float64)
    once = np.ones(len(count))

    return ConditionFigures(
        accuracy=proportion(compared.share, count, table.groups),
        question_accuracy=proportion((compared.wins == compared.count).astype(np.float64), once, table.groups),
        positive_loss=_mean_loss(compared.positive, compared, table.groups),
        negative_loss=_mean_loss(compared.negative, compared, table.groups),
        positive_minus_negative=_mean_loss(compared.positive - compared.negative, compared, table.groups),
        ties=int(compared.ties.sum()),
        invalid=int(compared.invalid.sum()),
        questions=len(count),
    )


def _mean_loss(values: npt.NDArray[np.float64], compared: Comparisons, groups: Sequence[str]) -> Estimate:
    """Mean over the comparisons of questions whose losses are all finite."""
    counted = ~compared.invalid
    count = compared.count[counted].astype(np.float64)
    columns = {"sum": values[counted] * count, "count": count}
    return estimate(lambda sums: sums["sum"] / sums["count"], columns, [group for group, keep in zip(groups, counted, strict=True) if keep])


def accuracy_difference(first: LossTable, second: LossTable, tie_rule: TieRule) -> Estimate:
    """Accuracy of the first minus accuracy of the second, with the interval of the cluster bootstrap, paired by question.

    Args:
        first: Losses in one condition or at one step.
        second: Losses of the same questions in another.
        tie_rule: Whether equal losses count as lost or won.

    Raises:
        ValueError: If the two tables hold different questions.
    """
    return estimate(lambda sums: (sums["first"] - sums["second"]) / sums["count"], *_paired(first, second, tie_rule))


def ability_lost(t2t: LossTable, s2t: LossTable, tie_rule: TieRule) -> Estimate:
    """Share of the above-chance ability in text that is lost in speech, ``(T→T - S→T) / (T→T - 0.5)`` in accuracies.

    0 where speech loses nothing, 1 where it leaves chance. The interval is that of the cluster bootstrap, paired by question, and without bounds on a
    side where T→T falls to chance in too many draws.

    Args:
        t2t: Losses with a written context.
        s2t: Losses of the same questions with a spoken context.
        tie_rule: Whether equal losses count as lost or won.

    Returns:
        NaN where T→T is not above chance beyond its own 95 % interval: a share of nothing.

    Raises:
        ValueError: If the two tables hold different questions.
    """
    columns, groups, imagined = _paired(t2t, s2t, tie_rule)
    if not proportion(columns["first"] / columns["count"], columns["count"], groups).low > CHANCE:
        return Estimate(math.nan, math.nan, math.nan)
    return estimate(lambda sums: share_lost(sums["first"], sums["second"], sums["count"]), columns, groups, imagined)


def share_lost(t2t: npt.NDArray[np.float64], s2t: npt.NDArray[np.float64], count: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ability lost from sums of comparisons; infinite, with the sign of what is lost, where T→T is at chance or below.

    Args:
        t2t: Comparisons won with a written context.
        s2t: Comparisons won with a spoken context.
        count: Comparisons.
    """
    lost, above = t2t - s2t, t2t - CHANCE * count
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(above > 0, lost / above, np.copysign(np.inf, lost))


def _paired(first: LossTable, second: LossTable, tie_rule: TieRule) -> tuple[Columns, tuple[str, ...], Columns]:
    """Comparisons won in two conditions by question, the questions' clusters, and the imagined questions."""
    if first.item_ids != second.item_ids:
        raise ValueError("two loss tables can only be paired over the same questions in the same order")
    one, other = compare(first, tie_rule), compare(second, tie_rule)
    columns = {name: column.astype(np.float64) for name, column in (("first", one.wins), ("second", other.wins), ("count", one.count))}
    typical = float(columns["count"].mean())
    return columns, first.groups, {name: typical * column for name, column in IMAGINED.items()}


def invalid_items(table: LossTable) -> list[str]:
    """Names of the questions with a NaN or infinite loss."""
    invalid = ~(np.isfinite(table.losses) | (table.tokens == 0)).all(1)
    return [name for name, bad in zip(table.item_ids, invalid, strict=True) if bad]


def normalised_accuracies(table: LossTable, benchmark: Benchmark, candidate: Modality = "text") -> dict[str, float]:
    """Accuracy by other normalisations of the same nats: by whole candidate, and of written ones by character and by byte of UTF-8.

    Args:
        table: The losses.
        benchmark: The questions they belong to.
        candidate: How the candidates were given.
    """

    def accuracy(lengths: Callable[[str], int]) -> float:
        counts = np.zeros_like(table.tokens)
        for question, item in enumerate(benchmark.items):
            counts[question, : len(item.candidates)] = [lengths(candidate) for candidate in item.candidates]
        compared = compare(replace(table, tokens=counts), benchmark.tie_rule)
        return float(compared.wins.sum() / compared.count.sum())

    if candidate == "speech":
        return {"sum": accuracy(lambda _: 1)}
    return {"sum": accuracy(lambda _: 1), "per_character": accuracy(len), "per_byte": accuracy(lambda text: len(text.encode()))}


def refuse_if_mostly_invalid(table: LossTable, where: str) -> None:
    """Raises when a model says so little that its figures would only mislead.

    Args:
        table: The losses.
        where: Set and condition, for the message.

    Raises:
        FloatingPointError: If half of the questions or more have a NaN or infinite loss.
    """
    names = invalid_items(table)
    if len(names) >= MAX_INVALID_SHARE * len(table.item_ids):
        raise FloatingPointError(
            f"{where}: {len(names)} of {len(table.item_ids)} questions have a NaN or infinite loss ({', '.join(names[:5])}, ...); the model is "
            "broken at this step, or the precision of the probe is too low for it"
        )
