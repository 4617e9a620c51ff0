"""Questions that changed sides from one probe to the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from s2sbench_callback.items import Audio, Benchmark
from s2sbench_callback.metrics import compare
from s2sbench_callback.prompts import Condition
from s2sbench_callback.report import Tables


@dataclass(frozen=True)
class Flip:
    """A question that was right at the probe before and is wrong now, or the other way round.

    Attributes:
        set: The set.
        condition: The condition.
        item: Name of the question.
        is_right: Whether it is right now.
        answer_loss: Loss of the answer, nats per token.
        best_other_loss: Lowest loss of the others.
        margin_change: How much better the answer stands against the best other than before.
        context: Its text.
        answer: The right candidate.
        others: The other candidates.
        audio: The recording of the context, where the model heard one.
    """

    set: str
    condition: Condition
    item: str
    is_right: bool
    answer_loss: float
    best_other_loss: float
    margin_change: float
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
    right, was_right = (found.wins == found.count for found in (compare(each, benchmark.tie_rule) for each in (table, earlier)))
    found = []
    for question in np.flatnonzero(right != was_right):
        item = benchmark.items[question]
        others = [index for index in range(len(item.candidates)) if index != item.answer]
        margins = [float(np.min(each.losses[question, others]) - each.losses[question, item.answer]) for each in (table, earlier)]
        context = item.contexts[item.answer]
        found.append(
            Flip(
                benchmark.name,
                condition,
                item.id,
                bool(right[question]),
                float(table.losses[question, item.answer]),
                float(np.min(table.losses[question, others])),
                margins[0] - margins[1],
                context.text,
                item.candidates[item.answer],
                tuple(item.candidates[index] for index in others),
                context.audio if condition in ("s2t", "s2s") else None,
            )
        )
    return sorted(found, key=lambda flip: (-abs(flip.margin_change), flip.item))
