"""What several voices say about a set: figures over all of them, and whether they differ by less than is lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from s2sbench_callback.items import Benchmark
from s2sbench_callback.metrics import CHANCE, Comparisons, accuracy_difference, compare
from s2sbench_callback.prompts import Condition
from s2sbench_callback.scoring import LossTable
from s2sbench_callback.seeds import spread
from s2sbench_callback.significance import Estimate, proportion

Array = npt.NDArray[np.float64]
Figures = dict[str, Estimate | int | float]
SHARES = ("accuracy", "question_accuracy")
FIGURES = (*SHARES, "positive_loss", "negative_loss", "positive_minus_negative")


def across_voices(benchmark: Benchmark, tables: Sequence[Mapping[Condition, LossTable]], reference: LossTable | None) -> Figures:
    """Figures of a set that was asked in several voices, averaged over them, keyed as those of a set.

    Intervals hold for other questions and other voices of the kind (a two-way random-effects model, as for several seeds).

    Args:
        benchmark: The set in any of the voices.
        tables: Losses by condition, of each voice.
        reference: T→T losses that T→T and S→T are held against, where there are any.
    """
    figures: Figures = {}
    compared: dict[Condition, list[Comparisons]] = {
        condition: [compare(each[condition], benchmark.tie_rule) for each in tables]
        for condition in tables[0]
        if all(condition in each for each in tables)
    }
    groups = next(iter(tables[0].values())).groups
    for condition, of_voices in compared.items():
        for figure in FIGURES:
            values = np.stack([each.by_question(figure) for each in of_voices])
            weights = np.ones(len(groups)) if figure == "question_accuracy" else of_voices[0].count.astype(np.float64)
            if figure in SHARES and (values == values[0]).all():
                # Written contexts are the same in every voice.
                figures[f"{condition}/{figure}"] = proportion(values[0], weights, groups)
            else:
                figures[f"{condition}/{figure}"] = _mean(values, weights, groups, limits=(0.0, 1.0) if figure in SHARES else None)
        figures[f"{condition}/ties"] = int(sum(each.ties.sum() for each in of_voices))
        figures[f"{condition}/invalid"] = int(sum(each.invalid.sum() for each in of_voices))
    if "t2t" in compared and reference is not None:
        figures["t2t_change"] = accuracy_difference(tables[0]["t2t"], reference, benchmark.tie_rule)
    if "s2t" in compared:
        heard = np.stack([each.share for each in compared["s2t"]])
        weights = compared["s2t"][0].count.astype(np.float64)
        against = {"degradation": compared["t2t"][0]} if "t2t" in compared else {}
        if reference is not None:
            against["intelligence_loss"] = compare(reference, benchmark.tie_rule)
        for figure, read in against.items():
            figures[figure] = _mean(read.share - heard, weights, groups, limits=(-1.0, 1.0))
        if "t2t" in compared:
            figures["ability_lost"] = _ability_lost(compared["t2t"][0].share, heard, weights, groups)
        variance = spread([heard], weights, groups).seeds * len(heard)
        figures.update(_of_voices([float(row @ weights / weights.sum()) for row in heard], variance, figures.get("degradation")))
    return figures


def _ability_lost(read: Array, heard: Array, weights: Array, groups: Sequence[str]) -> Estimate:
    """The share of the ability above chance that is lost, linearised by question; NaN where there is none to lose."""
    if not proportion(read, weights, groups).low > CHANCE:
        return Estimate(math.nan, math.nan, math.nan)
    lost, gain = read - heard, read - CHANCE
    mean_gain = float(gain @ weights / weights.sum())
    shares = (lost @ weights / weights.sum())[:, None] / mean_gain
    return _mean(shares + (lost - shares * gain) / mean_gain, weights, groups, limits=None)


def rotated(benchmark: Benchmark, table: LossTable, degradation: Estimate | int | float | None) -> tuple[Figures, dict[str, Figures]]:
    """What the turns of a rotating set say about its voices.

    Args:
        benchmark: The set; its items name their voices.
        table: Its losses in S→T.
        degradation: Of the whole set.

    Returns:
        Figures of the set, and S→T accuracy of each voice by ``<set>@<voice>``.
    """
    compared = compare(table, benchmark.tie_rule)
    voices = [item.voice for item in benchmark.items]
    by_voice: dict[str, Estimate] = {}
    errors = []
    for voice in dict.fromkeys(voices):
        kept = [each == voice for each in voices]
        mine = np.array(kept)
        groups = [group for group, keep in zip(table.groups, kept, strict=True) if keep]
        by_voice[voice] = proportion(compared.share[mine], compared.count[mine].astype(np.float64), groups)
        errors.append(float(compared.share[mine].var(ddof=1) / mine.sum()) if mine.sum() > 1 else math.nan)
    values = [estimate.value for estimate in by_voice.values()]
    # Each voice spoke other questions, so their choice is part of what differs.
    variance = max(0.0, float(np.var(values, ddof=1)) - float(np.mean(errors)))
    return _of_voices(values, variance, degradation), {f"{benchmark.name}@{voice}": {"s2t/accuracy": value} for voice, value in by_voice.items()}


def _of_voices(accuracies: Sequence[float], variance: float, degradation: Estimate | int | float | None) -> Figures:
    reach = max(accuracies) - min(accuracies)
    figures: Figures = {"voices": len(accuracies), "voice_range": reach, "voice_deviation": math.sqrt(variance)}
    if isinstance(degradation, Estimate):
        figures["degradation_exceeds_voices"] = float(degradation.low > reach)
    return figures


def _mean(values: Array, weights: Array, groups: Sequence[str], limits: tuple[float, float] | None) -> Estimate:
    """Over questions and voices, of those questions that are finite in every voice."""
    finite: npt.NDArray[np.bool_] = np.asarray(np.isfinite(values).all(0))
    values, weights = values[:, finite], weights[finite]
    if not weights.sum():
        return Estimate(math.nan, math.nan, math.nan)
    kept = [group for group, keep in zip(groups, finite, strict=True) if keep]
    value = float((values @ weights).mean() / weights.sum())
    half = spread([values], weights, kept).half_width()
    low, high = value - half, value + half
    return Estimate(value, max(limits[0], low), min(limits[1], high)) if limits else Estimate(value, low, high)
