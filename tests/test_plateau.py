from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist
from typing import Any
from unittest import mock

import numpy as np
import pytest
from scipy.special import stdtrit

from s2sbench_callback import improvement
from s2sbench_callback.decisions import QuestionSeries, StageHistory
from s2sbench_callback.improvement import CORRELATIONS, MIN_PROBES, noise_margin, recent_rate
from s2sbench_callback.plateau import Plateau
from s2sbench_callback.significance import Z_95, mean


def series(values: np.ndarray, weights: np.ndarray | None = None, groups: list[str] | None = None) -> QuestionSeries:
    questions = values.shape[1]
    names = [f"q{number}" for number in range(questions)] if groups is None else groups
    return QuestionSeries(values, np.ones(questions) if weights is None else weights, tuple(names))


def every_thousand(probes: int) -> tuple[int, ...]:
    return tuple(range(1000, 1000 * probes + 1, 1000))


def history(course: np.ndarray, questions: int = 4) -> StageHistory:
    """Questions that differ in level and in nothing else."""
    return StageHistory(0, every_thousand(len(course)), {"mini": series(course[:, None] + np.arange(questions))})


def autoregression(draw: np.random.Generator, probes: int, correlation: float) -> np.ndarray:
    noise = draw.normal(size=probes)
    for probe in range(1, probes):
        noise[probe] = correlation * noise[probe - 1] + math.sqrt(1 - correlation**2) * noise[probe]
    return noise


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_gain": 0.0}, "plateau: min_gain must be above 0, got 0.0; no number of probes can show that a stage gains nothing at all"),
        ({"min_gain": -0.1}, "min_gain must be above 0, got -0.1"),
        ({"min_gain": math.nan}, "min_gain must be above 0, got nan"),
        ({"patience": 0}, "plateau: patience must be at least 1, got 0"),
        ({"error_rate": 0.0}, "plateau: error_rate must lie between 0 and 0.5, got 0.0"),
        ({"error_rate": 0.5}, "error_rate must lie between 0 and 0.5, got 0.5"),
        ({"min_steps": -1}, "plateau: min_steps must be at least 0, got -1"),
        ({"max_steps": 0}, "plateau: max_steps must be at least 1 and no less than min_steps 0, got 0"),
        ({"min_steps": 500, "max_steps": 400}, "max_steps must be at least 1 and no less than min_steps 500, got 400"),
        ({"figure": "loss"}, "plateau: unknown figure 'loss'; the figures are positive_minus_negative, positive_loss, accuracy"),
        ({"condition": "x2s"}, "plateau: unknown condition 'x2s'; the conditions are s2t, t2t, s2s, t2s"),
        ({"sets": []}, "plateau: sets is empty; name at least one, or leave it out for all"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Plateau(**settings)


# The interval


@pytest.mark.parametrize("sign", [1, -1])
def test_the_rate_is_the_slope_of_the_weighted_mean(sign: int) -> None:
    """Over unequal spacing, against numpy's own fit."""
    draw = np.random.default_rng(0)
    steps = (1000, 1500, 3500, 4000, 4200, 7000)
    values, weights = draw.normal(size=(6, 30)), draw.integers(1, 4, size=30).astype(float)
    rate = recent_rate(StageHistory(0, steps, {"mini": series(values, weights)}), sign, 0.05)
    slope = np.polyfit(np.asarray(steps) / 1000, np.average(values, axis=1, weights=weights), 1)[0]
    assert rate is not None
    assert rate.gain == pytest.approx(sign * slope)
    assert rate.gain - rate.low == pytest.approx(rate.high - rate.gain)
    assert (rate.probes, rate.first_step, rate.last_step) == (6, 1000, 7000)
    assert rate.confidence == pytest.approx(0.9)


def test_sets_count_equally_whatever_their_size() -> None:
    fast, slow = np.arange(6.0)[:, None] * np.full(100, -0.3), np.arange(6.0)[:, None] * np.full(4, -0.1)
    rate = recent_rate(StageHistory(0, every_thousand(6), {"large": series(fast), "small": series(slow)}), -1, 0.05)
    assert rate is not None
    assert rate.gain == pytest.approx(0.2)


@pytest.mark.parametrize(("probes", "windows"), [(6, 1), (9, 2), (14, 3), (200, 7)])
def test_questions_with_slopes_of_their_own_have_the_textbook_interval(probes: int, windows: int) -> None:
    """Straight lines leave no noise from probe to probe, so what remains is the spread of the questions' own slopes, set for each window."""
    draw = np.random.default_rng(0)
    slopes, weights = draw.normal(-0.1, 0.3, size=40), draw.integers(1, 4, size=40).astype(float)
    groups = [f"story {number // 2}" for number in range(40)]
    values = np.arange(float(probes))[:, None] * slopes
    one = recent_rate(StageHistory(0, every_thousand(probes), {"mini": series(values, weights, groups)}), -1, 0.01)
    textbook = mean(-slopes, weights, groups)
    half = (textbook.high - textbook.value) / Z_95 * -stdtrit(19, 0.01 / windows)
    assert one is not None
    assert (one.gain, one.low, one.high) == pytest.approx((textbook.value, textbook.value - half, textbook.value + half))
    two = recent_rate(StageHistory(0, every_thousand(probes), {name: series(values, weights, groups) for name in "ab"}), -1, 0.01)
    assert two is not None
    assert two.high - two.gain == pytest.approx(half / math.sqrt(2))


def slow_tail(times: np.ndarray, figure: np.ndarray, margin: float) -> float:
    """Posterior probability that the slope is off by more than the margin, by brute force over the noise's size and correlation.

    The likelihood is that of the contrasts that a straight line does not touch.
    """
    line = np.stack([np.ones_like(times), times], axis=1)
    contrasts = np.linalg.svd(line)[0][:, 2:]
    slope_of = np.linalg.pinv(line)[1]
    observed = contrasts.T @ figure
    logs, tails = [], []
    for correlation in CORRELATIONS:
        distance = np.abs(times[:, None] - times) / np.median(np.diff(times))
        covariance = np.array([[correlation**gap if gap else 1.0 for gap in row] for row in distance])
        for size in np.geomspace(1e-3, 1e4, 1500) * figure.std():
            of_contrasts = size**2 * contrasts.T @ covariance @ contrasts
            logs.append(-0.5 * np.linalg.slogdet(of_contrasts)[1] - 0.5 * observed @ np.linalg.solve(of_contrasts, observed))
            tails.append(NormalDist(0, size * math.sqrt(slope_of @ covariance @ slope_of)).cdf(-margin))
    support = np.exp(np.asarray(logs) - max(logs))
    return float(support @ tails / support.sum())


@pytest.mark.parametrize("times", [np.arange(6.0), np.array([0.0, 1.0, 1.5, 4.0, 5.0, 6.0, 9.0, 9.5]), 0.02 * np.arange(12.0)])
@pytest.mark.parametrize("error_rate", [0.05, 0.002])
def test_the_margin_of_common_noise_is_that_of_the_slow_computation(times: np.ndarray, error_rate: float) -> None:
    figure = autoregression(np.random.default_rng(len(times)), len(times), 0.5)
    assert slow_tail(times, figure, noise_margin(times, figure, error_rate)) == pytest.approx(error_rate, rel=0.01)


def test_the_margin_knows_only_the_scatter_about_a_line() -> None:
    times, noise = np.arange(10.0), np.random.default_rng(0).normal(size=10)
    margin = noise_margin(times, noise, 0.01)
    assert noise_margin(times, 5 - 3 * times + noise, 0.01) == pytest.approx(margin)
    assert noise_margin(times, 100 * noise, 0.01) == pytest.approx(100 * margin)
    assert noise_margin(10 * times, noise, 0.01) == pytest.approx(margin / 10)
    assert noise_margin(times, noise, 0.001) > 1.3 * margin
    assert noise_margin(times, 0 * noise, 0.01) == pytest.approx(0, abs=1e-12)


def test_slow_noise_has_a_wider_margin_than_fast_noise() -> None:
    draw = np.random.default_rng(0)
    fast, slow = ([noise_margin(np.arange(30.0), autoregression(draw, 30, each), 0.01) for _ in range(100)] for each in (0.0, 0.9))
    assert np.median(slow) > 1.3 * np.median(fast)


def test_the_window_shrinks_to_what_is_flat() -> None:
    course = np.concatenate([-np.arange(20.0), np.full(20, -19.0)]) + 0.01 * np.random.default_rng(0).normal(size=40)
    rate = recent_rate(history(course), -1, 0.01)
    assert rate is not None
    assert (rate.probes, rate.last_step) == (18, 40_000)
    assert rate.first_step == 23_000
    assert rate.high < 0.02


def test_questions_that_are_not_finite_do_not_count() -> None:
    draw = np.random.default_rng(0)
    values = draw.normal(size=(10, 20))
    broken = values.copy()
    broken[-1, 3], broken[7, 11] = math.nan, math.inf
    kept = np.delete(np.arange(20), [3, 11])
    without = recent_rate(StageHistory(0, every_thousand(10), {"mini": series(values[:, kept])}), -1, 0.05)
    found = recent_rate(StageHistory(0, every_thousand(10), {"mini": series(broken)}), -1, 0.05)
    assert found is not None
    assert without is not None
    assert (found.gain, found.high) == pytest.approx((without.gain, without.high))


def test_a_question_counts_again_once_its_fault_has_left_the_window() -> None:
    course = np.concatenate([-5 * np.arange(10.0), np.full(6, -45.0)])
    whole = course[:, None] + 0.01 * np.random.default_rng(0).normal(size=(16, 20))
    broken = whole.copy()
    broken[2, :10] = math.nan
    rates = [recent_rate(StageHistory(0, every_thousand(16), {"mini": series(values)}), -1, 0.05) for values in (whole, broken)]
    assert rates[0] == rates[1]
    assert rates[0] is not None
    assert rates[0].probes < 14


# The rule


def test_a_line_without_noise_is_decided_as_soon_as_it_can_be() -> None:
    """Six probes for a rate, and three that agree."""
    rule = Plateau(min_gain=0.1)
    flat, steep = history(-0.09 * np.arange(12.0)), history(-0.11 * np.arange(12.0))
    assert [rule.decide(flat.first(probes)).advance for probes in range(13)] == [False] * 8 + [True] * 5
    assert not any(rule.decide(steep.first(probes)).advance for probes in range(13))
    decision = rule.decide(flat)
    assert (decision.gain, decision.low, decision.high, decision.min_gain) == pytest.approx((0.09, 0.09, 0.09, 0.1))
    assert [Plateau(min_gain=0.1, patience=1).decide(flat.first(probes)).advance for probes in range(8)] == [False] * 6 + [True] * 2


@pytest.mark.parametrize(("figure", "direction"), [("positive_minus_negative", -1), ("positive_loss", -1), ("accuracy", 1)])
def test_losses_are_to_fall_and_accuracy_is_to_rise(figure: Any, direction: int) -> None:
    rule = Plateau(min_gain=0.1, figure=figure)
    better, worse = (rule.decide(history(way * direction * np.arange(8.0))) for way in (1, -1))
    assert (better.advance, better.gain) == (False, pytest.approx(1))
    assert (worse.advance, worse.gain) == (True, pytest.approx(-1))


def test_the_reason_tells_the_numbers() -> None:
    rule = Plateau(min_gain=0.1, condition="t2t", figure="positive_loss")
    flat = history(3 + 0 * np.arange(8.0))
    assert rule.decide(flat.first(0)).reason == "0 probes so far, a rate needs at least 6"
    assert rule.decide(flat.first(1)).reason == "1 probe so far, a rate needs at least 6"
    figures = "T→T positive loss improved by 0 [0, 0] per 1,000 steps over the last {} probes (steps {} to {}), below min_gain 0.1 at {} in a row{}"
    assert [rule.decide(flat.first(probes)).reason for probes in (6, 7, 8)] == [
        figures.format(6, 1000, 6000, "1 probe", ", of 3 needed"),
        figures.format(7, 1000, 7000, "2 probes", ", of 3 needed"),
        figures.format(8, 1000, 8000, "3 probes", ""),
    ]
    steep = replace(rule, condition="s2t", figure="accuracy").decide(history(0.5 * np.arange(8.0)))
    assert steep.reason == (
        "S→T accuracy improved by 0.5 [0.5, 0.5] per 1,000 steps over the last 8 probes (steps 1000 to 8000), which still allows min_gain 0.1"
    )


def test_too_few_finite_questions_make_no_rate() -> None:
    values = np.zeros((8, 3))
    values[-1, :2] = math.nan
    decision = Plateau().decide(StageHistory(0, every_thousand(8), {"mini": series(values)}))
    assert (decision.advance, decision.reason) == (False, "too few questions have finite losses at all of the last 6 probes for a rate")
    assert math.isnan(decision.gain)
    assert math.isnan(decision.high)
    assert not Plateau().decide(StageHistory(0, every_thousand(8), {})).advance


def test_min_steps_count_from_the_start_of_the_stage() -> None:
    rule = Plateau(min_gain=0.1, min_steps=9000)
    later = replace(history(np.zeros(12)), start=500)
    assert [rule.decide(later.first(probes)).advance for probes in (8, 9, 10)] == [False, False, True]
    assert rule.decide(later.first(9)).reason.endswith("below min_gain 0.1 at 3 probes in a row, but min_steps 9000 is not reached")


def test_max_steps_end_the_stage_with_a_reason_of_their_own() -> None:
    rule = Plateau(min_gain=0.1, max_steps=6000)
    steep = replace(history(-np.arange(12.0)), start=1000)
    assert [rule.decide(steep.first(probes)).advance for probes in (6, 7)] == [False, True]
    reason = rule.decide(steep.first(7)).reason
    assert reason.startswith("max_steps 6000 is reached: S→T positive minus negative improved by 1 [1, 1] per 1,000 steps")
    assert reason.endswith("which still allows min_gain 0.1")
    early = Plateau(max_steps=2000).decide(replace(steep, start=0).first(3))
    assert (early.advance, early.reason) == (True, "max_steps 2000 is reached: 3 probes so far, a rate needs at least 6")
    flat = Plateau(min_gain=0.1, max_steps=6000).decide(history(np.zeros(8)))
    assert flat.advance
    assert "max_steps" not in flat.reason


def test_decisions_depend_on_the_history_alone() -> None:
    draw = np.random.default_rng(0)
    values = 0.05 * draw.normal(size=(20, 30)) + 0.02 * autoregression(draw, 20, 0.5)[:, None]
    whole, rule = StageHistory(0, every_thousand(20), {"mini": series(values)}), Plateau(min_gain=0.02)
    forwards = [rule.decide(whole.first(probes)) for probes in range(21)]
    backwards = [rule.decide(StageHistory(0, every_thousand(probes), {"mini": series(values[:probes].copy())})) for probes in range(20, -1, -1)]
    # NaN equals nothing, so decisions are compared as they are written.
    assert list(map(repr, forwards)) == list(map(repr, reversed(backwards)))
    assert {each.advance for each in forwards} == {False, True}


def test_all_looks_together_spend_no_more_than_the_error_rate() -> None:
    """Any three looks in a row hold one whose number is a multiple of three; those are the ones that count."""
    rule = Plateau(error_rate=0.04)
    long = history(np.zeros(2000))
    charged = [rule.rate(long.first(MIN_PROBES - 1 + look)) for look in range(3, 1200, 3)]
    spent = [(1 - rate.confidence) / 2 for rate in charged if rate is not None]
    assert spent[0] == pytest.approx(0.04 / 5)
    assert spent == sorted(spent, reverse=True)
    assert 0.98 * 0.04 < sum(spent) < 0.04
    between = [rule.rate(long.first(MIN_PROBES - 1 + look)) for look in (1, 2, 3)]
    assert len({rate.confidence for rate in between if rate is not None}) == 1


# How often it is wrong


def ended_early(rule: Plateau, course: Callable[[np.random.Generator], np.ndarray], histories: int) -> float:
    """Share of simulated stages that are ended within their 30 probes."""
    draw = np.random.default_rng(0)
    count = 0
    for _ in range(histories):
        figure = course(draw)
        values = figure[:, None] + draw.normal(size=40) + 0.5 * draw.normal(size=(len(figure), 40))
        stage = StageHistory(0, every_thousand(len(figure)), {"mini": series(values)})
        count += any(rule.decide(stage.first(probes)).advance for probes in range(8, len(figure) + 1))
    return count / histories


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_a_stage_at_the_threshold_is_hardly_ever_ended(correlation: float) -> None:
    """And would be, if the interval knew only the questions."""
    rule = Plateau(min_gain=0.1)

    def improving(draw: np.random.Generator) -> np.ndarray:
        return 0.3 * autoregression(draw, 30, correlation) - 0.1 * np.arange(30.0)

    assert ended_early(rule, improving, 120) <= 0.05
    with mock.patch.object(improvement, "noise_margin", return_value=0.0):
        assert ended_early(rule, improving, 40) > 0.2


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_stairs_are_not_taken_for_a_plateau(noise: float) -> None:
    rule = Plateau(min_gain=0.1)

    def stairs(draw: np.random.Generator) -> np.ndarray:
        return noise * autoregression(draw, 30, 0.5) - 0.3 * ((np.arange(30) + draw.integers(3)) // 3)

    assert ended_early(rule, stairs, 60) <= 0.05


@pytest.mark.parametrize(("noise", "probes"), [(0.02, 12), (0.2, 30)])
def test_a_flat_stage_is_ended(noise: float, probes: int) -> None:
    rule = Plateau(min_gain=0.2)
    assert ended_early(rule, lambda draw: noise * autoregression(draw, probes, 0.5), 40) > 0.8
