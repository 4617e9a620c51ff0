"""How fast a figure has improved lately, with an interval that knows the noise of the questions and that of the training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq  # type: ignore[import-untyped]
from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]

from s2sbench_callback.decisions import QuestionSeries, StageHistory
from s2sbench_callback.significance import clustered

Array = npt.NDArray[np.float64]

MIN_PROBES = 6
# Older probes say little about the recent past, and the computation grows with the cube of their number.
MAX_PROBES = 90
WINDOW_RATIO = 1.5
CORRELATIONS = np.linspace(0.0, 0.95, 11)


@dataclass(frozen=True)
class Rate:
    """An improvement per 1,000 steps.

    Attributes:
        gain: Positive when the figure gets better.
        low: Lower end of its interval.
        high: Upper end of its interval.
        confidence: Coverage of the interval, 0..1.
        probes: Number of probes that it is taken from, the newest included.
        first_step: Step of the oldest of them.
        last_step: Step of the newest.
    """

    gain: float
    low: float
    high: float
    confidence: float
    probes: int
    first_step: int
    last_step: int


def recent_rate(history: StageHistory, sign: int, error_rate: float) -> Rate | None:
    """The improvement rate of the recent past.

    Several windows end at the newest probe: all probes of the stage up to :data:`MAX_PROBES`, two thirds of them, and so on down to
    :data:`MIN_PROBES`. The one with the lowest upper end counts, and each end is set for as many windows as were looked at (Bonferroni).

    Args:
        history: The probes of the stage.
        sign: 1 where higher is better, -1 where lower is.
        error_rate: Probability that the upper end lies below the true rate; the lower end above it likewise.

    Returns:
        ``None`` where there are too few probes, or too few questions whose losses are finite at all of them.
    """
    steps = np.asarray(history.steps, dtype=np.float64)
    windows = list(_windows(len(steps)))
    sets = [(series, _group_numbers(series.groups)) for series in history.sets.values()]
    rates = []
    for probes in windows:
        interval = _interval(steps[-probes:] / 1000, [(_last(series, probes), groups) for series, groups in sets], error_rate / len(windows))
        if interval is not None:
            gain, half = sign * interval[0], interval[1]
            rates.append(Rate(gain, gain - half, gain + half, 1 - 2 * error_rate, probes, history.steps[-probes], history.steps[-1]))
    return min(rates, key=lambda rate: rate.high, default=None)


def _windows(probes: int) -> Iterator[int]:
    length = float(min(probes, MAX_PROBES))
    while round(length) >= MIN_PROBES:
        yield round(length)
        length /= WINDOW_RATIO


@lru_cache(maxsize=16)
def _group_numbers(groups: tuple[str, ...]) -> npt.NDArray[np.intp]:
    return np.unique(np.asarray(groups), return_inverse=True)[1]


def _last(series: QuestionSeries, probes: int) -> QuestionSeries:
    return QuestionSeries(series.values[-probes:], series.weights, series.groups)


def _interval(times: Array, sets: list[tuple[QuestionSeries, npt.NDArray[np.intp]]], error_rate: float) -> tuple[float, float] | None:
    """Least-squares slope of the figure averaged over sets, and the half width of its interval.

    What the choice of questions does to the slope, and what the noise from probe to probe does, are joined like independent errors. The
    questions' share of the latter counts twice; it is the smaller part.
    """
    slope_of = _slope_weights(times)
    means, variance, units = np.zeros(len(times)), 0.0, []
    for series, groups in sets:
        finite = np.isfinite(series.values).all(0)
        values = series.values if finite.all() else np.where(finite, series.values, 0.0)
        weights = series.weights * finite
        of_set, count = _clustered_variance(slope_of @ values, weights, groups)
        if count < 2:
            return None
        means += values @ weights / weights.sum() / len(sets)
        variance += of_set / len(sets) ** 2
        units.append(count)
    if not units:
        return None
    by_questions = -float(stdtrit(min(units) - 1, error_rate)) * math.sqrt(variance)
    return float(slope_of @ means), math.hypot(by_questions, noise_margin(times, means, error_rate))


def _slope_weights(times: Array) -> Array:
    centred = times - times.mean()
    return np.asarray(centred / (centred @ centred))


def _clustered_variance(values: Array, weights: Array, groups: npt.NDArray[np.intp]) -> tuple[float, int]:
    """Variance of the weighted mean of questions with groups as independent units, and the number of groups that count."""
    units = int(np.count_nonzero(np.bincount(groups, weights=weights)))
    if units < 2:
        return math.nan, units
    return clustered(values, weights, groups)[1] * units / (units - 1), units


def noise_margin(times: Array, means: Array, error_rate: float) -> float:
    """How far noise that all questions share may have moved the slope.

    The scatter about the line is taken for an autoregressive process of first order. Neither its size nor its correlation is known: with
    flat priors on the line, on the logarithm of the size and on the correlation, the slope follows Student's t for each correlation, and
    the mixture over correlations as the scatter supports them is what the margin is read from. With few probes that makes it wide.

    Args:
        times: ``[w]`` ascending.
        means: ``[w]`` the figure at each.
        error_rate: Probability that noise has moved the slope further down than the margin.

    Returns:
        The margin, in units of the figure a unit of time.
    """
    spacing = float(np.median(np.diff(times)))
    model = _noise_model(tuple(np.round((times - times[0]) / spacing, 6).tolist()))
    freedom = len(times) - 2
    scatter = np.maximum(np.square(model.whitened_residuals @ means).sum(1), np.finfo(np.float64).tiny)
    support = model.log_support - freedom / 2 * np.log(scatter)
    support = np.exp(support - support.max())
    errors = np.sqrt(scatter / freedom * model.slope_variances) / spacing
    largest = float(errors.max())

    def excess(margin: float) -> float:
        return float(support @ stdtr(freedom, -margin * largest / errors) / support.sum()) - error_rate

    # For the largest error alone the margin could be no wider.
    return largest * float(brentq(excess, 0.0, -1.001 * stdtrit(freedom, error_rate), xtol=1e-6))


@dataclass(frozen=True)
class _NoiseModel:
    """What follows from the moments of the probes alone, for each of the :data:`CORRELATIONS`.

    Attributes:
        whitened_residuals: ``[R, w, w]``; takes the figure to residuals about the line that are independent under that correlation.
        slope_variances: ``[R]`` variance of the least-squares slope for noise of variance 1.
        log_support: ``[R]`` what the likelihood owes to determinants.
    """

    whitened_residuals: Array
    slope_variances: Array
    log_support: Array


@lru_cache(maxsize=64)
def _noise_model(positions: tuple[float, ...]) -> _NoiseModel:
    times = np.asarray(positions)
    line = np.stack([np.ones_like(times), times], axis=1)
    slope_of = _slope_weights(times)
    residuals, variances, support = [], [], []
    for correlation in CORRELATIONS:
        covariance = correlation ** np.abs(times[:, None] - times)
        root = np.linalg.cholesky(covariance)
        whitened_line = np.linalg.solve(root, line)
        basis, triangle = np.linalg.qr(whitened_line)
        whitener = np.linalg.inv(root)
        residuals.append(whitener - basis @ (basis.T @ whitener))
        variances.append(slope_of @ covariance @ slope_of)
        support.append(-np.log(np.diag(root)).sum() - np.log(np.abs(np.diag(triangle))).sum())
    return _NoiseModel(np.stack(residuals), np.asarray(variances), np.asarray(support))
