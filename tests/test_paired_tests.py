from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.power import TTestPower

from s2sbench_callback.paired_tests import groups_needed, holm, mcnemar, sign_flip_test, smallest_detectable


@pytest.mark.parametrize(("both", "first", "second", "neither"), [(30, 12, 3, 9), (5, 0, 6, 0), (8, 4, 4, 8), (0, 1, 0, 0)])
def test_mcnemar_is_that_of_statsmodels(both: int, first: int, second: int, neither: int) -> None:
    right = np.repeat([[True, True], [True, False], [False, True], [False, False]], [both, first, second, neither], axis=0)
    expected = statsmodels_mcnemar([[both, first], [second, neither]], exact=True).pvalue
    assert mcnemar(right[:, 0], right[:, 1]) == pytest.approx(expected)


def test_mcnemar_by_hand() -> None:
    """Six questions changed, all to the better: 2 / 2**6."""
    before = np.array([False] * 6 + [True] * 10)
    assert mcnemar(before, np.ones(16, dtype=bool)) == pytest.approx(2 / 64)
    assert mcnemar(before, before) == 1.0


def test_few_signs_are_all_tried() -> None:
    differences = np.array([0.3, -0.1, 0.5, 0.2, 0.0, 0.7, -0.05])
    totals = [abs(np.dot(signs, differences)) for signs in itertools.product((1, -1), repeat=7)]
    expected = np.mean([total >= abs(differences.sum()) - 1e-12 for total in totals])
    assert sign_flip_test(differences) == pytest.approx(expected)
    assert sign_flip_test(np.zeros(5)) == 1.0


def test_many_signs_give_about_the_p_of_a_t_test_and_the_same_each_time() -> None:
    differences = np.random.default_rng(0).normal(0.12, 1.0, size=300)
    expected = stats.ttest_1samp(differences, 0).pvalue
    assert 0.001 < expected < 0.2
    assert sign_flip_test(differences) == pytest.approx(expected, rel=0.25)
    assert sign_flip_test(differences) == sign_flip_test(differences)


def test_holm_by_hand() -> None:
    # Ascending 0.01, 0.02, 0.04 of three: times 3, 2, 1, never falling.
    assert holm([0.04, 0.01, math.nan, 0.02])[:2] == pytest.approx([0.04, 0.03])
    assert math.isnan(holm([0.04, 0.01, math.nan, 0.02])[2])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([math.nan])[0] is not None
    assert holm([]) == []


def test_power_is_that_of_a_paired_t_test() -> None:
    """Cohen's table: 34 pairs show a medium effect of 0.5 four times out of five."""
    assert groups_needed(1.0, 0.5) == 34
    assert groups_needed(2.0, 0.4) == math.ceil(TTestPower().solve_power(effect_size=0.2, alpha=0.05, power=0.8))
    assert smallest_detectable(1.0, 34) == pytest.approx(0.5, abs=0.01)
    assert smallest_detectable(3.0, 199) == pytest.approx(0.6, abs=0.01)
    draws = np.random.default_rng(1).normal(smallest_detectable(1.0, 50), 1.0, size=(4000, 50))
    assert np.mean(stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.025)


def test_power_at_its_edges() -> None:
    assert groups_needed(0.0, 0.1) == 2
    assert groups_needed(1.0, 100.0) == 2
    assert math.isnan(groups_needed(math.nan, 0.1))
    assert math.isnan(smallest_detectable(1.0, 1))
    with pytest.raises(ValueError, match="the difference to be found must be above 0, got -1"):
        groups_needed(1.0, -1)
