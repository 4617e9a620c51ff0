from __future__ import annotations

import math

import numpy as np
import pytest

from s2sbench_callback.significance import Estimate, average, mean, paired_difference, proportion

ONCE = np.ones(100)
NAMES = [str(index) for index in range(100)]


def answers(right: int) -> np.ndarray:
    return (np.arange(100) < right).astype(float)


@pytest.mark.parametrize(
    ("right", "low", "high"),
    # Wilson (1927) for n = 100, worked out from the closed formula with z = 1.96.
    [(50, 0.4038, 0.5962), (90, 0.8256, 0.9448), (100, 0.9630, 1.0), (0, 0.0, 0.0370)],
)
def test_shares_of_single_comparisons_have_wilsons_interval(right: int, low: float, high: float) -> None:
    estimate = proportion(answers(right), ONCE, NAMES)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((right / 100, low, high), abs=1e-4)


def test_comparisons_that_go_together_count_as_one() -> None:
    """Three comparisons a question that always agree are worth one."""
    one = proportion(answers(70), ONCE, NAMES)
    three = proportion(answers(70), ONCE * 3, NAMES)
    assert (three.low, three.high) == pytest.approx((one.low, one.high))
    pairs = proportion(np.repeat(answers(70)[::2], 2), ONCE, [str(index // 2) for index in range(100)])
    assert pairs.high - pairs.low > 1.3 * (one.high - one.low)


def test_wilsons_interval_covers_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    covered = 0
    for _ in range(2_000):
        # Three comparisons a question, correlated through the question's own difficulty.
        chance = draw.beta(4, 2, size=100)
        estimate = proportion(draw.binomial(3, chance) / 3, ONCE * 3, NAMES)
        covered += estimate.low <= 4 / 6 <= estimate.high
    assert covered / 2_000 == pytest.approx(0.95, abs=0.015)


def test_means_have_the_textbook_interval() -> None:
    values = np.random.default_rng(0).normal(2.0, 0.5, size=100)
    estimate = mean(values, ONCE, NAMES)
    half = 1.959964 * values.std(ddof=1) / 10
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((values.mean(), values.mean() - half, values.mean() + half))


def test_questions_of_weight_zero_do_not_count() -> None:
    values, weights = np.array([1.0, 3.0, 99.0]), np.array([1.0, 1.0, 0.0])
    assert mean(values, weights, ["a", "b", "c"]) == mean(values[:2], weights[:2], ["a", "b"])
    assert math.isnan(mean(values, np.zeros(3), ["a", "b", "c"]).value)


def test_paired_difference_by_hand() -> None:
    """Bonett and Price: 20 questions only the first wins, 5 only the second, 100 in all."""
    first, second = answers(60), (np.arange(100) >= 20).astype(float) * (np.arange(100) < 65)
    estimate = paired_difference(first, second, ONCE, NAMES)
    p12, p21 = 21 / 102, 6 / 102
    half = 1.959964 * math.sqrt((p12 + p21 - (p12 - p21) ** 2) / 102)
    assert estimate.value == pytest.approx(0.15)
    assert (estimate.low, estimate.high) == pytest.approx((p12 - p21 - half, p12 - p21 + half))


def test_equal_conditions_are_not_said_to_be_equal_for_sure() -> None:
    estimate = paired_difference(answers(80), answers(80), ONCE, NAMES)
    assert estimate.low < 0 == estimate.value < estimate.high
    assert estimate.high == pytest.approx(1.959964 * math.sqrt(2 / 102 / 102), rel=1e-3)


def test_average_over_sets() -> None:
    joined = average([Estimate(0.5, 0.4, 0.6), Estimate(0.7, 0.6, 0.9)])
    assert (joined.value, joined.low, joined.high) == pytest.approx((0.6, 0.6 - math.sqrt(0.02) / 2, 0.6 + math.sqrt(0.05) / 2))
    alone = average([Estimate(0.5, 0.4, 0.7)])
    assert (alone.value, alone.low, alone.high) == pytest.approx((0.5, 0.4, 0.7))
    assert math.isnan(average([]).value)
