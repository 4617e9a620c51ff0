"""Several trainings that differ by their seed alone: what their average says, and how much of its uncertainty is whose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats  # type: ignore[import-untyped]

from s2sbench_callback.significance import Estimate, clustered

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pooled:
    """The difference of two sides, pooled over questions and seeds.

    Attributes:
        estimate: Second side minus first, with a 95 % interval for other questions and, where it is known, other seeds.
        p: Two-sided p-value of no difference.
        by_questions: Standard error owed to the choice of questions.
        by_seeds: Standard error owed to the seeds; NaN where a side has one alone.
    """

    estimate: Estimate
    p: float
    by_questions: float
    by_seeds: float


def pooled_difference(first: Array, second: Array, weights: Array, groups: Sequence[str]) -> Pooled:
    """Second side minus first on the same questions.

    Questions and seeds are crossed random effects: their variances are estimated as in an analysis of variance and added, and the interval is
    Student's with Satterthwaite's degrees of freedom. Where a side has one seed alone, the result holds for these checkpoints only.

    Args:
        first: ``[S, Q]`` a figure of each question in each of the first side's trainings.
        second: ``[T, Q]`` the same of the second side's.
        weights: ``[Q]``.
        groups: ``[Q]`` cluster of each question.
    """
    numbers = np.unique(np.asarray(groups), return_inverse=True)[1]
    difference = second.mean(0) - first.mean(0)
    value, variance, units = clustered(difference, weights, numbers)
    if units < 2:
        return Pooled(Estimate(value, math.nan, math.nan), math.nan, math.nan, math.nan)
    of_questions = variance * units / (units - 1)
    parts = [(of_questions, units - 1)]
    of_seeds = math.nan
    if len(first) > 1 and len(second) > 1:
        by_side = [_variance_of_seeds(side, weights, numbers) / len(side) for side in (first, second)]
        of_seeds = sum(by_side)
        parts += [(part, len(side) - 1) for part, side in zip(by_side, (first, second), strict=True)]
    total = sum(part for part, _ in parts)
    by_questions, by_seeds = math.sqrt(of_questions), math.sqrt(of_seeds)
    if not total:
        return Pooled(Estimate(value, value, value), 1.0 if value == 0 else 0.0, by_questions, by_seeds)
    freedom = total**2 / sum(part**2 / degrees for part, degrees in parts)
    half = float(stats.t.ppf(0.975, freedom)) * math.sqrt(total)
    p = float(2 * stats.t.sf(abs(value) / math.sqrt(total), freedom))
    return Pooled(Estimate(value, value - half, value + half), p, by_questions, by_seeds)


def _variance_of_seeds(values: Array, weights: Array, numbers: npt.NDArray[np.intp]) -> float:
    """Variance of the true means of trainings: that of the found means, less what single questions have added to it."""
    share = weights / weights.sum()
    means = values @ share
    residuals = values - values.mean(0) - (means - means.mean())[:, None]
    units = int(numbers.max()) + 1
    of_residuals = sum(clustered(each, weights, numbers)[1] for each in residuals) / (len(values) - 1) * units / (units - 1)
    return max(0.0, float(means.var(ddof=1)) - of_residuals)
