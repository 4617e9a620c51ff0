from __future__ import annotations

import math

import numpy as np
import pytest

from s2sbench_callback.seeds import pooled_difference


def names(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_variances_by_hand() -> None:
    """Two seeds a side, three questions, worked out by hand.

    First side: seeds' means 1 and 3, no residuals: variance of seeds 2. Second side: all 0. Differences of questions: -1, -2, -3.
    """
    first = np.array([[0.0, 1.0, 2.0], [2.0, 3.0, 4.0]])
    found = pooled_difference(first, np.zeros((2, 3)), np.ones(3), names(3))
    assert found.estimate.value == -2
    assert found.by_questions == pytest.approx(math.sqrt(1 / 3))
    assert found.by_seeds == pytest.approx(math.sqrt(2 / 2))


def test_what_single_questions_add_is_not_taken_for_the_seeds() -> None:
    """Seeds that differ by independent noise in each question alone have no variance of their own, on average."""
    draw = np.random.default_rng(0)
    found = [pooled_difference(draw.normal(size=(3, 40)), draw.normal(size=(3, 40)), np.ones(40), names(40)).by_seeds ** 2 for _ in range(300)]
    # Cut off at 0, so a little above it: the means of such seeds have a variance of 2 / (3 * 40) = 0.017.
    assert np.mean(found) < 0.01
    assert np.median(found) < 0.006


def test_intervals_cover_the_truth_for_new_questions_and_new_seeds() -> None:
    draw = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        questions = draw.normal(size=60)
        sides = [
            level + draw.normal(0, 0.3, size=(4, 1)) + questions * slope + draw.normal(0, 0.5, size=(4, 60))
            for level, slope in ((0.0, 1.0), (0.5, 1.3))
        ]
        estimate = pooled_difference(sides[0], sides[1], np.ones(60), names(60)).estimate
        covered += estimate.low <= 0.5 <= estimate.high
    assert 0.92 <= covered / 400 <= 0.99


def test_one_seed_is_a_paired_t_test_and_says_nothing_of_seeds() -> None:
    from scipy.stats import ttest_rel

    draw = np.random.default_rng(2)
    first, second = draw.normal(size=(1, 30)), draw.normal(0.3, 1, size=(1, 30))
    found = pooled_difference(first, second, np.ones(30), names(30))
    assert found.p == pytest.approx(ttest_rel(second[0], first[0]).pvalue)
    assert math.isnan(found.by_seeds)


def test_nothing_differs_and_nothing_to_tell() -> None:
    same = pooled_difference(np.ones((1, 5)), np.ones((1, 5)), np.ones(5), names(5))
    assert (same.estimate.value, same.estimate.low, same.estimate.high, same.p) == (0, 0, 0, 1)
    assert math.isnan(pooled_difference(np.ones((1, 1)), np.zeros((1, 1)), np.ones(1), ["a"]).p)
