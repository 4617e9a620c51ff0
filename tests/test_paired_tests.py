from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import permutation_test
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from s2sbench_callback.paired_tests import holm, mcnemar, sign_flip


def answers(both: int, only_first: int, only_second: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    first = np.repeat([1.0, 1.0, 0.0, 0.0], [both, only_first, only_second, neither])
    second = np.repeat([1.0, 0.0, 1.0, 0.0], [both, only_first, only_second, neither])
    return first, second


def test_mcnemars_exact_test_of_a_published_table() -> None:
    """Airway hyper-responsiveness before and after transplantation, 21 children: 0.0703 (Fagerland, Lydersen and Laake 2013)."""
    assert mcnemar(*answers(1, 1, 7, 12)) == pytest.approx(0.0703, abs=5e-5)


@pytest.mark.parametrize("cells", [(30, 4, 9, 7), (0, 20, 5, 3), (100, 3, 3, 100), (10, 0, 6, 2)])
def test_mcnemars_exact_test_is_that_of_statsmodels(cells: tuple[int, int, int, int]) -> None:
    both, only_first, only_second, neither = cells
    theirs = statsmodels_mcnemar([[both, only_first], [only_second, neither]], exact=True).pvalue
    assert mcnemar(*answers(*cells)) == pytest.approx(min(1.0, theirs))


def test_sides_that_agree_everywhere_do_not_differ() -> None:
    assert mcnemar(*answers(10, 0, 0, 5)) == 1.0
    assert sign_flip(np.zeros(10)) == 1.0


def test_few_differences_are_flipped_in_every_way() -> None:
    # Of the eight ways to set the signs of 1, 2 and 3, two reach a sum of 6; of those of 1, 2 and -3, all do 0.
    assert sign_flip(np.array([1.0, 2.0, 3.0])) == 2 / 8
    assert sign_flip(np.array([1.0, 2.0, -3.0])) == 1.0
    values = np.random.default_rng(0).normal(0.5, 1, size=9)
    theirs = permutation_test((values,), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue
    assert sign_flip(values) == pytest.approx(theirs)


def test_many_differences_are_flipped_at_random_as_scipy_does() -> None:
    values = np.random.default_rng(3).normal(0.4, 1, size=80)
    theirs = permutation_test((values,), np.sum, permutation_type="samples", n_resamples=20_000, rng=1).pvalue
    assert 0.005 < theirs < 0.2
    assert sign_flip(values, 20_000) == pytest.approx(theirs, abs=0.006)
    assert sign_flip(values) == sign_flip(values)
    assert sign_flip(values, seed=1) != sign_flip(values, seed=2)
    assert sign_flip(np.full(80, 1.0)) == 1 / 10_001


def test_the_permutation_test_finds_what_is_not_there_as_seldom_as_it_says() -> None:
    draw = np.random.default_rng(0)
    found = [sign_flip(draw.gamma(1, 1, size=40) - draw.gamma(1, 1, size=40), 999) < 0.05 for _ in range(1000)]
    assert np.mean(found) == pytest.approx(0.05, abs=0.02)


def test_holms_correction_by_hand() -> None:
    # Ascending: 0.005 four times, 0.01 three times, 0.03 twice, 0.04 once but not below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
