from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from s2sbench_callback.bootstrap import Resampling, ability_lost, percentile_interval
from s2sbench_callback.items import Benchmark, Context, Item
from s2sbench_callback.report import build_report
from s2sbench_callback.scoring import LossTable


def test_sums_are_those_of_a_slow_loop_over_drawn_groups() -> None:
    groups = ["b", "a", "b", "c", "a", "d"]
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    sums, counts = Resampling(groups, draws=50, seed=3).sums(values, np.ones(6))
    by_group = {group: sum(value for value, of in zip(values, groups, strict=True) if of == group) for group in groups}
    drawn = np.random.default_rng(3).integers(4, size=(50, 4))
    expected = [sum(by_group["abcd"[number]] for number in draw) for draw in drawn]
    np.testing.assert_array_equal(sums, expected)
    sizes = {"a": 2, "b": 2, "c": 1, "d": 1}
    np.testing.assert_array_equal(counts, [sum(sizes["abcd"[number]] for number in draw) for draw in drawn])


def test_the_interval_of_a_mean_is_that_of_scipy() -> None:
    values = np.random.default_rng(5).exponential(size=80)
    groups = [str(number) for number in range(80)]
    sums, counts = Resampling(groups, draws=20_000).sums(values, np.ones(80))
    ours = percentile_interval(values.mean(), sums / counts)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=1).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)
    again, _ = Resampling(groups, draws=20_000).sums(values, np.ones(80))
    np.testing.assert_array_equal(sums, again)
    other, _ = Resampling(groups, draws=20_000, seed=1).sums(values, np.ones(80))
    assert not np.array_equal(sums, other)


def test_comparisons_of_one_question_do_not_count_as_three() -> None:
    """Each group's three values are equal, so there is as much to know as from one of them."""
    values = np.random.default_rng(2).normal(size=60)
    alone = Resampling([str(number) for number in range(60)]).sums(values, np.ones(60))
    threes = Resampling([str(number // 3) for number in range(180)]).sums(np.repeat(values, 3), np.ones(180))
    spread = [np.std(sums / counts) for sums, counts in (alone, threes)]
    assert spread[1] == pytest.approx(spread[0], rel=0.05)


def test_ability_lost_by_hand_and_by_the_delta_method() -> None:
    # 800 of 1,000 read right; of those 600 heard right, and 100 of the others.
    written = np.repeat([1.0, 1.0, 0.0, 0.0], [600, 200, 100, 100])
    spoken = np.repeat([1.0, 0.0, 1.0, 0.0], [600, 200, 100, 100])
    found = ability_lost(written, spoken, np.ones(1000), [str(number) for number in range(1000)])
    ratio = (0.8 - 0.7) / (0.8 - 0.5)
    assert found.value == pytest.approx(ratio)
    influence = ((written - spoken) - ratio * (written - 0.5)) / 0.3
    half = 1.96 * influence.std() / math.sqrt(1000)
    assert (found.low, found.high) == pytest.approx((ratio - half, ratio + half), abs=0.02)


def test_no_ability_cannot_be_lost() -> None:
    coin = np.tile([1.0, 0.0], 50)
    groups = [str(number) for number in range(100)]
    for written in (coin, np.zeros(100), np.where(np.arange(100) < 55, 1.0, 0.0)):
        found = ability_lost(written, coin[::-1].copy(), np.ones(100), groups)
        assert math.isnan(found.value)
        assert math.isnan(found.low)
        assert math.isnan(found.high)
    assert ability_lost(np.ones(100), np.ones(100), np.ones(100), groups).value == 0.0


def test_the_report_holds_it_under_its_key() -> None:
    items = tuple(Item(f"q{number}", (Context("c"),) * 2, ("a", "b"), 0) for number in range(100))
    names = tuple(item.id for item in items)

    def table(rights: int) -> LossTable:
        nats = np.where((np.arange(100) < rights)[:, None], [1.0, 2.0], [2.0, 1.0])
        return LossTable(names, names, np.zeros(100, dtype=np.int64), nats, np.ones((100, 2), dtype=np.int64))

    metrics = build_report({"mine": Benchmark("mine", "en", items)}, {"mine": {"s2t": table(70), "t2t": table(90)}}, {}, 0, None, {}, {}).metrics
    assert metrics["s2sbench/mine/ability_lost"] == pytest.approx(0.5)
    assert metrics["s2sbench/mine/ability_lost_low"] < 0.5 < metrics["s2sbench/mine/ability_lost_high"]
    assert metrics["s2sbench/mean/ability_lost"] == metrics["s2sbench/mine/ability_lost"]
