"""Cluster bootstrap: whole groups of questions are drawn again and again, and a figure is computed anew from each draw.

A figure is a function of sums over questions, so that one product of the drawn counts with the groups' sums serves every column at once. The
same number of groups and the same seed give the same draws: what is computed from the same questions is paired, whichever call it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from s2sbench_callback.significance import Estimate

Array = npt.NDArray[np.float64]
Columns = Mapping[str, Array]
Statistic = Callable[[Columns], Array]

DRAWS = 2_000
SEED = 0
COVERAGE = 0.95
# Draws whose counts are widened at once: 8 MB at the size of the largest published set.
_AT_ONCE = 256


def estimate(
    statistic: Statistic, columns: Columns, groups: Sequence[str], imagined: Columns | None = None, draws: int = DRAWS, seed: int = SEED
) -> Estimate:
    """A figure with its percentile interval.

    Args:
        statistic: The figure as a function of sums; each sum is one number, or ``[draws]``. Infinite where it is beyond all bounds.
        columns: ``[Q]`` each, by name: what is summed over questions.
        groups: ``[Q]`` cluster of each question.
        imagined: Questions that are drawn from along with the real ones, each a group of its own, by column. They widen the interval where hardly
            any question differs, and leave the figure as it is.
        draws: How often the groups are drawn.
        seed: Of the draws.

    Returns:
        NaN where there are no questions; an interval of NaN where a single group says nothing about its spread.
    """
    if not len(groups):
        return Estimate(math.nan, math.nan, math.nan)
    names, by_group = list(columns), sums_by_group(columns, groups)
    value = float(statistic(dict(zip(names, by_group.sum(0), strict=True))))
    if imagined is not None:
        by_group = np.concatenate([by_group, np.stack([imagined[name] for name in names], axis=1)])
    if len(by_group) < 2:
        return Estimate(value, math.nan, math.nan)
    drawn = statistic(dict(zip(names, drawn_sums(by_group, draws, seed).T, strict=True)))
    return Estimate(value, *percentiles(drawn))


def sums_by_group(columns: Columns, groups: Sequence[str]) -> Array:
    """``[G, K]`` sums of each column over the questions of each group."""
    numbers = np.unique(np.asarray(groups), return_inverse=True)[1]
    return np.stack([np.bincount(numbers, weights=column) for column in columns.values()], axis=1)


def drawn_sums(by_group: Array, draws: int = DRAWS, seed: int = SEED) -> Array:
    """Sums over the groups of each draw.

    Args:
        by_group: ``[G, K]`` sums of K columns over the questions of each group.
        draws: How often as many groups as there are are drawn, with replacement.
        seed: Of the draws.

    Returns:
        ``[draws, K]``.
    """
    counts = cluster_counts(len(by_group), draws, seed)
    return np.concatenate([counts[start : start + _AT_ONCE].astype(np.float64) @ by_group for start in range(0, draws, _AT_ONCE)])


@lru_cache(maxsize=8)
def cluster_counts(groups: int, draws: int = DRAWS, seed: int = SEED) -> npt.NDArray[np.uint8]:
    """``[draws, groups]`` how often each group is in each draw; kept, as every probe of a run needs the same."""
    generator = np.random.default_rng(seed)
    counts = np.empty((draws, groups), dtype=np.uint8)
    for start in range(0, draws, _AT_ONCE):
        rows = min(_AT_ONCE, draws - start)
        chosen = generator.integers(groups, size=(rows, groups)) + groups * np.arange(rows)[:, None]
        counts[start : start + rows] = np.bincount(chosen.ravel(), minlength=rows * groups).reshape(rows, groups)
    counts.flags.writeable = False
    return counts


def percentiles(drawn: Array, coverage: float = COVERAGE) -> tuple[float, float]:
    """The middle share of what was drawn.

    Args:
        drawn: ``[draws]`` the figure in each draw; NaN, where a draw holds nothing to compute it from, does not count.
        coverage: Probability that the interval is to hold the true value, 0..1.
    """
    found = drawn[~np.isnan(drawn)]
    if not len(found):
        return math.nan, math.nan
    # A draw itself, as between a finite one and infinity there is nothing to interpolate.
    low, high = np.quantile(found, [(1 - coverage) / 2, (1 + coverage) / 2], method="nearest")
    return float(low), float(high)
