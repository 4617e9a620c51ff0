"""Cluster bootstrap: how a figure would vary with other questions, for figures that have no closed form.

Groups of questions are drawn with replacement, all at once and from a seed. What is computed from one :class:`Resampling` is paired: each draw has
the same questions in every condition, at every step and in every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from s2sbench_callback.significance import Estimate

Array = npt.NDArray[np.float64]

DRAWS = 2000
SEED = 0


class Resampling:
    """Draws of as many groups as there are, with replacement.

    Args:
        groups: ``[Q]`` cluster of each question.
        draws: Number of draws.
        seed: The same seed gives the same draws.
    """

    def __init__(self, groups: Sequence[str], draws: int = DRAWS, seed: int = SEED) -> None:
        self._numbers = np.unique(np.asarray(groups), return_inverse=True)[1]
        size = int(self._numbers.max()) + 1
        drawn = np.random.default_rng(seed).integers(size, size=(draws, size))
        drawn += np.arange(draws)[:, None] * size
        self._counts = np.bincount(drawn.ravel(), minlength=draws * size).reshape(draws, size).astype(np.float64)

    def sums(self, *columns: npt.ArrayLike) -> list[Array]:
        """Sums over the questions of each draw.

        Args:
            columns: ``[Q]`` each, a value a question.

        Returns:
            ``[draws]`` for each column.
        """
        by_group = [np.bincount(self._numbers, weights=np.asarray(column, dtype=np.float64)) for column in columns]
        return list((self._counts @ np.stack(by_group, axis=1)).T)


def percentile_interval(value: float, draws: Array) -> Estimate:
    """A figure with the middle 95 % of its draws; NaN where a draw of those has no such figure.

    Args:
        value: The figure over all questions.
        draws: The figure in each draw.
    """
    if not np.isfinite(draws).all():
        # NaN stands for beyond all bounds: it takes the tail that it may be on.
        unbounded = np.mean(~np.isfinite(draws))
        if unbounded >= 0.025:
            return Estimate(value, math.nan, math.nan)
        draws = draws[np.isfinite(draws)]
    low, high = np.quantile(draws, (0.025, 0.975))
    return Estimate(value, float(low), float(high))


def ability_lost(written: Array, spoken: Array, weights: Array, groups: Sequence[str], chance: float = 0.5) -> Estimate:
    """Share of the ability above chance that is lost by hearing: ``(T→T - S→T) / (T→T - chance)``.

    Args:
        written: ``[Q]`` share of its comparisons that each question wins in T→T.
        spoken: ``[Q]`` the same in S→T.
        weights: ``[Q]`` comparisons of each question.
        groups: ``[Q]`` cluster of each question.
        chance: Accuracy of guessing.

    Returns:
        1 where S→T is at chance, 0 where nothing is lost; NaN where T→T cannot be told from chance, so that there is no ability to lose.
    """

    def ratio(sums: Sequence[Array]) -> Array:
        right, heard, total = sums
        above = right / total - chance
        return np.divide((right - heard) / total, above, out=np.full_like(above, np.nan), where=above > 0)

    columns = (weights * written, weights * spoken, weights)
    value = float(ratio([np.asarray([column.sum()]) for column in columns])[0])
    estimate = percentile_interval(value, ratio(Resampling(groups).sums(*columns)))
    return estimate if math.isfinite(estimate.low) else Estimate(math.nan, math.nan, math.nan)
