from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from s2sbench_callback.bootstrap import cluster_counts, drawn_sums, estimate, percentiles
from s2sbench_callback.metrics import IMAGINED, share_lost


def names(questions: int) -> list[str]:
    return [str(number) for number in range(questions)]


def share(sums: dict) -> np.ndarray:
    return sums["sum"] / sums["count"]


def test_figures_of_draws_equal_slow_loops_over_questions() -> None:
    draw = np.random.default_rng(0)
    groups = ["a", "b", "a", "c", "c", "c", "d"]
    values, weights = draw.normal(size=7), draw.integers(1, 4, size=7).astype(float)
    counts = cluster_counts(4, 50, 3)
    assert (counts.sum(1) == 4).all()
    slow = []
    for times in counts:
        total = weight = 0.0
        for group, often in zip("abcd", times, strict=True):
            for _ in range(often):
                for question in range(7):
                    if groups[question] == group:
                        total += values[question] * weights[question]
                        weight += weights[question]
        slow.append(total / weight)
    found = estimate(share, {"sum": values * weights, "count": weights}, groups, draws=50, seed=3)
    slow.sort()
    assert found.value == pytest.approx((values * weights).sum() / weights.sum())
    # The nearest draws to 2.5 and 97.5 % of the way from the first to the last of 50.
    assert (found.low, found.high) == pytest.approx((slow[round(0.025 * 49)], slow[round(0.975 * 49)]))


def test_groups_are_drawn_with_equal_chances_and_replacement() -> None:
    counts = cluster_counts(200, 3000, 1).astype(float)
    assert (counts.sum(1) == 200).all()
    assert counts.mean(0) == pytest.approx(1, abs=0.1)
    # A multinomial count of 200 with chance 1/200.
    assert counts.var() == pytest.approx(199 / 200, abs=0.02)


def test_intervals_are_those_of_scipy() -> None:
    values = np.random.default_rng(1).lognormal(size=60)
    found = estimate(share, {"sum": values, "count": np.ones(60)}, names(60), draws=20_000)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=2).confidence_interval
    width = theirs.high - theirs.low
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.03 * width)


def test_comparisons_of_one_question_are_one_cluster() -> None:
    values = np.random.default_rng(0).normal(size=50)
    once = estimate(share, {"sum": values, "count": np.ones(50)}, names(50))
    thrice = estimate(share, {"sum": np.repeat(values, 3), "count": np.ones(150)}, list(np.repeat(names(50), 3)))
    apart = estimate(share, {"sum": np.repeat(values, 3), "count": np.ones(150)}, names(150))
    assert (thrice.value, thrice.low, thrice.high) == pytest.approx((once.value, once.low, once.high))
    assert apart.high - apart.low < 0.7 * (thrice.high - thrice.low)


def test_everything_comes_from_the_same_draws_and_the_seed_alone() -> None:
    values = np.random.default_rng(0).normal(size=40)
    shifted = {"sum": values + 1, "other": values, "count": np.ones(40)}
    found = estimate(lambda sums: (sums["sum"] - sums["other"]) / sums["count"], shifted, names(40))
    assert (found.value, found.low, found.high) == pytest.approx((1, 1, 1))
    np.testing.assert_array_equal(drawn_sums(values[:, None], 100, 5), drawn_sums(values[:, None], 100, 5))
    assert (drawn_sums(values[:, None], 100, 5) != drawn_sums(values[:, None], 100, 6)).any()


def test_imagined_questions_widen_the_interval_and_leave_the_figure() -> None:
    same = {"first": np.ones(30), "second": np.ones(30), "count": np.ones(30)}
    difference = lambda sums: (sums["first"] - sums["second"]) / sums["count"]  # noqa: E731
    bare, padded = estimate(difference, same, names(30)), estimate(difference, same, names(30), IMAGINED)
    assert (bare.low, bare.value, bare.high) == (0, 0, 0)
    assert padded.low < padded.value == 0 < padded.high


def test_a_share_of_what_may_be_nothing_has_no_bound() -> None:
    """T→T is right in 16 of 30, so that many draws leave it at chance or below."""
    written, spoken = (np.arange(30) < 16).astype(float), (np.arange(30) < 12).astype(float)
    columns = {"first": written, "second": spoken, "count": np.ones(30)}
    found = estimate(lambda sums: share_lost(sums["first"], sums["second"], sums["count"]), columns, names(30))
    assert found.value == pytest.approx(4)
    assert found.high == math.inf
    assert 0 < found.low < 4
    above = share_lost(np.array([9.0, 9.0, 9.0, 5.0]), np.array([9.0, 7.0, 5.0, 3.0]), np.array([10.0] * 4))
    np.testing.assert_allclose(above, [0, 0.5, 1, np.inf])


def test_what_cannot_be_known_is_nan() -> None:
    nothing = estimate(share, {"sum": np.array([]), "count": np.array([])}, [])
    assert math.isnan(nothing.value)
    single = estimate(share, {"sum": np.array([1.0, 3.0]), "count": np.ones(2)}, ["a", "a"])
    assert single.value == 2
    assert math.isnan(single.low)
    assert percentiles(np.array([np.nan, 1.0, 1.0])) == (1, 1)
    assert all(math.isnan(end) for end in percentiles(np.array([np.nan])))


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Clusters of three correlated comparisons whose conditions differ by 0.1, and skewed losses."""
    draw = np.random.default_rng(0)
    held = {"difference": 0, "loss": 0}
    for _ in range(400):
        chance = draw.beta(4, 2, size=120)
        columns = {"first": draw.binomial(3, chance), "second": draw.binomial(3, chance * 0.85), "count": np.full(120, 3.0)}
        padding = {name: 3 * column for name, column in IMAGINED.items()}
        found = estimate(lambda sums: (sums["first"] - sums["second"]) / sums["count"], columns, names(120), padding)
        held["difference"] += found.low <= 0.15 * 4 / 6 <= found.high
        loss = estimate(share, {"sum": draw.gamma(2, 1, size=120), "count": np.ones(120)}, names(120))
        held["loss"] += loss.low <= 2 <= loss.high
    assert held["difference"] / 400 == pytest.approx(0.95, abs=0.025)
    assert held["loss"] / 400 == pytest.approx(0.945, abs=0.025)
