from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from s2sbench_callback.power import detectable, power, questions_needed


@pytest.mark.parametrize("questions", [5, 100, 240, 3742])
def test_the_smallest_difference_found_is_that_of_statsmodels(questions: int) -> None:
    theirs = TTestPower().solve_power(nobs=questions, alpha=0.05, power=0.8, alternative="two-sided")
    assert detectable(1 / math.sqrt(questions), questions - 1) == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("effect", [0.5, 0.1, 0.02])
def test_the_questions_needed_are_those_of_statsmodels(effect: float) -> None:
    theirs = TTestPower().solve_power(effect_size=effect, alpha=0.05, power=0.8, alternative="two-sided")
    assert questions_needed(effect, lambda number: (1 / math.sqrt(number), number - 1)) == math.ceil(theirs)


def test_power_by_simulation() -> None:
    samples = np.random.default_rng(0).normal(0.3, 1, size=(4000, 60))
    found = (stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05).mean()
    assert power(0.3, 1 / math.sqrt(60), 59) == pytest.approx(found, abs=0.02)
    assert power(0.0, 1.0, 10) == pytest.approx(0.05)
    assert power(1.0, 0.001, 5) == 1.0
    assert power(2.8, 1.0, 99_999) == pytest.approx(power(2.8, 1.0, 100_001), abs=1e-4)


def test_no_number_of_questions_makes_up_for_seeds_that_vary() -> None:
    assert questions_needed(0.01, lambda number: (math.sqrt(1 / number + 0.01), 4)) is None
    assert questions_needed(1.0, lambda number: (math.sqrt(1 / number + 0.01), 4)) is not None


def test_ends_of_what_can_be_asked() -> None:
    assert detectable(0.0, 10) == 0
    assert math.isnan(detectable(math.nan, 10))
    assert math.isnan(detectable(1.0, 0))
    assert 10 < detectable(1.0, 1) < 20
    assert questions_needed(100.0, lambda number: (0.01, 1e4)) == 2
