"""How sure a figure is, with the question as the unit: comparisons of one question are not independent of each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval; NaN where there is nothing to estimate it from."""

    value: float
    low: float
    high: float


def clustered(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], groups: npt.NDArray[np.intp]) -> tuple[float, float, int]:
    """Weighted mean, the variance of that mean with groups as independent units, and the number of groups.

    The mean is a ratio of two sums over groups, linearised; without the small-sample factor, so that for one yes-or-no answer a
    group the variance is p(1 - p)/n exactly.

    Args:
        values: ``[Q]``.
        weights: ``[Q]``.
        groups: ``[Q]`` number of each question's group, from 0.
    """
    total = weights.sum()
    mean = float((values * weights).sum() / total)
    residuals = np.bincount(groups, weights=weights * (values - mean))
    return mean, float((residuals**2).sum() / total**2), len(residuals)


def _clustered(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], groups: Sequence[str]) -> tuple[float, float, int]:
    """The same, by names of groups."""
    return clustered(values, weights, np.unique(np.asarray(groups), return_inverse=True)[1])


def proportion(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], groups: Sequence[str]) -> Estimate:
    """Share with Wilson's score interval on the effective number of questions.

    With one comparison a question this is Wilson's interval; with several the number of questions is corrected by the design
    effect (Kish). Where every answer agrees there is no variance to measure and each group counts once.

    Args:
        values: ``[Q]`` share of its comparisons that each question wins.
        weights: ``[Q]`` number of comparisons of each question.
        groups: ``[Q]`` cluster of each question.
    """
    if not weights.sum():
        return Estimate(math.nan, math.nan, math.nan)
    share, variance, units = _clustered(values, weights, groups)
    # Never more than there are comparisons, however well they happen to balance within questions.
    n = min(share * (1 - share) / variance, float(weights.sum())) if variance > 0 else float(units)
    centre = (share + Z_95**2 / (2 * n)) / (1 + Z_95**2 / n)
    half = Z_95 / (1 + Z_95**2 / n) * math.sqrt(share * (1 - share) / n + Z_95**2 / (4 * n**2))
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half))


def mean(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], groups: Sequence[str]) -> Estimate:
    """Mean with a normal interval over groups.

    Args:
        values: ``[Q]``.
        weights: ``[Q]``; a question of weight 0 does not count.
        groups: ``[Q]`` cluster of each question.
    """
    if not weights.sum():
        return Estimate(math.nan, math.nan, math.nan)
    counted = weights > 0
    average, variance, units = _clustered(values[counted], weights[counted], [group for group, keep in zip(groups, counted, strict=True) if keep])
    if units < 2:
        return Estimate(average, math.nan, math.nan)
    half = Z_95 * math.sqrt(variance * units / (units - 1))
    return Estimate(average, average - half, average + half)


def paired_difference(
    first: npt.NDArray[np.float64], second: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], groups: Sequence[str]
) -> Estimate:
    """Difference of two shares on the same questions, with an adjusted Wald interval.

    Two imagined questions, one that only the first wins and one that only the second wins, keep the interval honest where the
    two hardly differ (Bonett and Price 2012, for one comparison a question).

    Args:
        first: ``[Q]`` share of its comparisons that each question wins in the one condition.
        second: ``[Q]`` the same in the other.
        weights: ``[Q]`` number of comparisons of each question.
        groups: ``[Q]`` cluster of each question.
    """
    if not weights.sum():
        return Estimate(math.nan, math.nan, math.nan)
    difference = first - second
    exact = float((difference * weights).sum() / weights.sum())
    typical = float(weights.sum()) / np.count_nonzero(weights)
    padded_groups = [*(f"q{group}" for group in groups), "first wins", "second wins"]
    average, variance, _ = _clustered(np.append(difference, (1.0, -1.0)), np.append(weights, (typical, typical)), padded_groups)
    half = Z_95 * math.sqrt(variance)
    return Estimate(exact, max(-1.0, average - half), min(1.0, average + half))


def average(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of independent figures; the intervals are joined side by side (MOVER, Zou and Donner 2008)."""
    n = len(estimates)
    if not n:
        return Estimate(math.nan, math.nan, math.nan)
    value = sum(estimate.value for estimate in estimates) / n
    below = math.sqrt(sum((estimate.value - estimate.low) ** 2 for estimate in estimates)) / n
    above = math.sqrt(sum((estimate.high - estimate.value) ** 2 for estimate in estimates)) / n
    return Estimate(value, value - below, value + above)
