"""Tests of a difference on the same questions, and what they could have found."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats  # type: ignore[import-untyped]

from s2sbench_callback.bootstrap import SEED

Array = npt.NDArray[np.float64]

RESAMPLES = 9999
ERROR_RATE, POWER = 0.05, 0.8


def mcnemar(first_right: npt.NDArray[np.bool_], second_right: npt.NDArray[np.bool_]) -> float:
    """McNemar's exact test: two-sided p-value of the questions that only one of two got right.

    Args:
        first_right: ``[Q]`` whether each question was right the one time.
        second_right: ``[Q]`` whether it was the other time.
    """
    only_first, only_second = int((first_right & ~second_right).sum()), int((second_right & ~first_right).sum())
    if not only_first + only_second:
        return 1.0
    return float(stats.binomtest(only_first, only_first + only_second).pvalue)


def sign_flip_test(differences: Array, seed: int = SEED) -> float:
    """Permutation test of paired differences: two-sided p-value where each difference could as well have had the other sign.

    All signs are tried where that is at most as much work as :data:`RESAMPLES` random ones.

    Args:
        differences: ``[G]`` one for each independent group of questions.
        seed: Of the random signs.
    """
    differences = differences[differences != 0]
    if not len(differences):
        return 1.0

    def total(values: Array, axis: int) -> Array:
        return np.asarray(values.sum(axis=axis))

    found = stats.permutation_test((differences,), total, permutation_type="samples", vectorized=True, n_resamples=RESAMPLES, batch=500, rng=seed)
    return float(min(1.0, found.pvalue))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected by Holm's step-down method; NaN stays NaN and does not count.

    Args:
        p_values: Of all tests that are read together.
    """
    from statsmodels.stats.multitest import multipletests

    tested = [p for p in p_values if not math.isnan(p)]
    corrected = iter(multipletests(tested, method="holm")[1] if tested else ())
    return [p if math.isnan(p) else float(next(corrected)) for p in p_values]


def smallest_detectable(standard_deviation: float, groups: int) -> float:
    """The true difference that a paired t test would find four times out of five, at an error rate of 5 %.

    Args:
        standard_deviation: Of the differences of groups of questions.
        groups: Number of independent groups.

    Returns:
        In units of the standard deviation's; NaN for fewer than 2 groups.
    """
    if groups < 2 or not math.isfinite(standard_deviation):
        return math.nan
    return standard_deviation * _effect_size(groups)


def groups_needed(standard_deviation: float, difference: float) -> float:
    """How many independent groups of questions it takes to find a true difference four times out of five.

    Args:
        standard_deviation: Of the differences of groups of questions.
        difference: To be found; above 0.

    Returns:
        A whole number, at least 2; NaN where the standard deviation is not known.

    Raises:
        ValueError: If the difference is not above 0.
    """
    if not difference > 0:
        raise ValueError(f"the difference to be found must be above 0, got {difference}")
    if not math.isfinite(standard_deviation):
        return math.nan
    low, high = 2, 2
    while _effect_size(high) > difference / standard_deviation if standard_deviation else False:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if standard_deviation * _effect_size(middle) <= difference else (middle + 1, high)
    return float(high)


def _effect_size(groups: int) -> float:
    from statsmodels.stats.power import TTestPower

    return float(TTestPower().solve_power(nobs=groups, alpha=ERROR_RATE, power=POWER, alternative="two-sided"))
