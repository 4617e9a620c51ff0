"""Figures from a table of losses: the published protocol, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from s2sbench_callback.items import Benchmark, TieRule
from s2sbench_callback.prompts import Modality
from s2sbench_callback.scoring import LossTable
from s2sbench_callback.significance import Estimate, mean, paired_difference, proportion

MAX_INVALID_SHARE = 0.5


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

    Args:
        table: The losses.
        tie_rule: Whether equal losses count as lost or won.
    """
    compared = compare(table, tie_rule)
    count = compared.count.astype(np.float64)
    finite = np.where(compared.invalid, 0.0, count)
    once = np.ones(len(count))

    def loss(values: npt.NDArray[np.float64]) -> Estimate:
        return mean(np.where(compared.invalid, 0.0, values), finite, table.groups)

    return ConditionFigures(
        accuracy=proportion(compared.share, count, table.groups),
        question_accuracy=proportion((compared.wins == compared.count).astype(np.float64), once, table.groups),
        positive_loss=loss(compared.positive),
        negative_loss=loss(compared.negative),
        positive_minus_negative=loss(compared.positive - compared.negative),
        ties=int(compared.ties.sum()),
        invalid=int(compared.invalid.sum()),
        questions=len(count),
    )


def accuracy_difference(first: LossTable, second: LossTable, tie_rule: TieRule) -> Estimate:
    """Accuracy of the first minus accuracy of the second, paired by question.

    Args:
        first: Losses in one condition or at one step.
        second: Losses of the same questions in another.
        tie_rule: Whether equal losses count as lost or won.

    Raises:
        ValueError: If the two tables hold different questions.
    """
    if first.item_ids != second.item_ids:
        raise ValueError("two loss tables can only be paired over the same questions in the same order")
    one, other = compare(first, tie_rule), compare(second, tie_rule)
    return paired_difference(one.share, other.share, one.count.astype(np.float64), first.groups)


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
