"""Questions that changed sides from one probe to the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from s2sbench_callback.items import Audio, Benchmark, TieRule
from s2sbench_callback.metrics import compare
from s2sbench_callback.prompts import Condition
from s2sbench_callback.report import Tables
from s2sbench_callback.scoring import LossTable


@dataclass(frozen=True)
class Changed:
    """A question that was right before and is wrong now, or the other way round.

    Attributes:
        index: Its place in the table.
        is_right: Whether it is right now.
        answer_loss: Loss of the answer, nats per token.
        best_other_loss: Lowest loss of the others.
        answer_loss_before: The answer's at the probe before.
        best_other_loss_before: The others' lowest at the probe before.
    """

    index: int
    is_right: bool
    answer_loss: float
    best_other_loss: float
    answer_loss_before: float
    best_other_loss_before: float

    @property
    def margin_change(self) -> float:
        """How much better the answer stands against the best other than before, nats per token."""
        return (self.best_other_loss - self.answer_loss) - (self.best_other_loss_before - self.answer_loss_before)


@dataclass(frozen=True)
class Flip:
    """A question that changed sides since the probe before, with what it says.

    Attributes:
        set: The set.
        condition: The condition.
        item: Name of the question.
        changed: How it stands.
        context: Its text.
        answer: The right candidate.
        others: The other candidates.
        audio: The recording of the context, where the model heard one.
    """

    set: str
    condition: Condition
    item: str
    changed: Changed
    context: str
    answer: str
    others: tuple[str, ...]
    audio: Audio | None


def flips(benchmark: Benchmark, condition: Condition, before: Tables | None, now: Tables) -> list[Flip]:
    """Those of one set and condition, the greatest change first.

    Args:
        benchmark: The set.
        condition: The condition.
        before: Tables of the probe before, where there is one.
        now: Tables of this probe.
    """
    table = now.get(benchmark.name, {}).get(condition)
    earlier = before.get(benchmark.name, {}).get(condition) if before else None
    if table is None or earlier is None or table.item_ids != earlier.item_ids:
        return []
    found = []
    for changed in changed_questions(earlier, table, benchmark.tie_rule):
        item = benchmark.items[changed.index]
        context = item.contexts[item.answer]
        others = tuple(candidate for index, candidate in enumerate(item.candidates) if index != item.answer)
        audio = context.audio if condition in ("s2t", "s2s") else None
        found.append(Flip(benchmark.name, condition, item.id, changed, context.text, item.candidates[item.answer], others, audio))
    return found


def changed_questions(before: LossTable, now: LossTable, tie_rule: TieRule) -> list[Changed]:
    """Questions that changed sides between two tables of the same questions, the greatest change first."""
    right, was_right = (found.wins == found.count for found in (compare(each, tie_rule) for each in (now, before)))
    changed = []
    for question in map(int, np.flatnonzero(right != was_right)):
        losses = (*_answer_and_best_other(now, question), *_answer_and_best_other(before, question))
        changed.append(Changed(question, bool(right[question]), *losses))
    return sorted(changed, key=lambda each: (-abs(each.margin_change), each.index))


def _answer_and_best_other(table: LossTable, question: int) -> tuple[float, float]:
    losses, answer = table.losses[question], table.answers[question]
    others = [index for index in np.flatnonzero(table.tokens[question]) if index != answer]
    return float(losses[answer]), float(np.min(losses[others]))
