"""The paper's panels: accuracy and losses over steps, one row a set, and what the stages were decided from."""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from s2sbench_callback.prompts import CONDITION_NAMES, Condition
from s2sbench_callback.report import ProbeReport

_COLOURS: dict[Condition, str] = {"s2t": "#d1495b", "t2t": "#30638e", "s2s": "#edae49", "t2s": "#8d6a9f"}


def panels(history: Sequence[ProbeReport]) -> Figure:
    """Accuracy, the two losses of each condition, and their difference, over optimizer steps.

    Bands are 95 % intervals by question. A dotted line marks each change of stage. Where a rule decides on it, the lowest panel shows the
    improvement that it estimated, with its interval, against the threshold.

    Args:
        history: Reports of one run in order of steps; at least one.
    """
    names = list(dict.fromkeys(name for report in history for name in report.sets))
    asked = {name: [c for c in CONDITION_NAMES if any(c in report.sets.get(name, ()) for report in history)] for name in names}
    columns = 2 + max(len(conditions) for conditions in asked.values())
    decided = [report for report in history if report.verdict and report.verdict.decision]
    rows = len(names) + bool(decided)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(rows, columns)
    for row, name in enumerate(names):
        axes = [figure.add_subplot(grid[row, column]) for column in range(columns)]
        _accuracy(axes[0], history, name, asked[name])
        for axis, condition in zip(axes[1:-1], asked[name], strict=False):
            _losses(axis, history, name, condition)
        for axis in axes[1 + len(asked[name]) : -1]:
            axis.set_visible(False)
        _difference(axes[-1], history, name, asked[name])
        for axis in axes:
            _finish(axis, history)
    if decided:
        axis = figure.add_subplot(grid[-1, :])
        _decisions(axis, decided)
        _finish(axis, history)
        # Beside the panels above, not as wide as its own stage.
        axis.set_xlim(figure.axes[0].get_xlim())
    return figure


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def pixels(figure: Figure) -> npt.NDArray[np.uint8]:
    """The figure as ``[H, W, 3]``."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _curve(
    axis: Axes, history: Sequence[ProbeReport], name: str, condition: Condition, figure: str, label: str, color: str, linestyle: str = "-"
) -> None:
    reports = [report for report in history if condition in report.sets.get(name, ())]
    estimates = [report.figure(name, condition, figure) for report in reports]
    steps = [report.step for report in reports]
    axis.plot(steps, [e.value for e in estimates], marker="o", markersize=3, linewidth=1.6, label=label, color=color, linestyle=linestyle)
    axis.fill_between(steps, [e.low for e in estimates], [e.high for e in estimates], alpha=0.15, linewidth=0, color=color)


def _accuracy(axis: Axes, history: Sequence[ProbeReport], name: str, conditions: Sequence[Condition]) -> None:
    for condition in conditions:
        _curve(axis, history, name, condition, "accuracy", CONDITION_NAMES[condition], color=_COLOURS[condition])
    axis.axhline(0.5, color="#888888", linewidth=0.8, linestyle="--", label="chance")
    axis.set(title=f"{name}: accuracy", ylabel="share of comparisons won")
    axis.legend(frameon=False)


def _losses(axis: Axes, history: Sequence[ProbeReport], name: str, condition: Condition) -> None:
    colour = _COLOURS[condition]
    _curve(axis, history, name, condition, "positive_loss", "positive (answer)", color=colour)
    _curve(axis, history, name, condition, "negative_loss", "negative (others)", color=colour, linestyle="--")
    axis.set(title=f"{name}: losses, {CONDITION_NAMES[condition]}", ylabel="nats per token")
    axis.legend(frameon=False)


def _difference(axis: Axes, history: Sequence[ProbeReport], name: str, conditions: Sequence[Condition]) -> None:
    for condition in conditions:
        _curve(axis, history, name, condition, "positive_minus_negative", CONDITION_NAMES[condition], color=_COLOURS[condition])
    axis.axhline(0.0, color="#888888", linewidth=0.8, linestyle="--")
    axis.set(title=f"{name}: positive minus negative", ylabel="nats per token, below 0 is right")
    axis.legend(frameon=False)


def _decisions(axis: Axes, decided: Sequence[ProbeReport]) -> None:
    decisions = [(report.step, report.verdict.decision) for report in decided if report.verdict and report.verdict.decision]
    steps = [step for step, _ in decisions]
    axis.plot(
        steps, [each.gain for _, each in decisions], marker="o", markersize=3, linewidth=1.6, color="#2a7f62", label="improvement per 1,000 steps"
    )
    axis.fill_between(steps, [each.low for _, each in decisions], [each.high for _, each in decisions], alpha=0.15, linewidth=0, color="#2a7f62")
    axis.plot(steps, [each.min_gain for _, each in decisions], color="#888888", linewidth=0.8, linestyle="--", label="min_gain")
    # Early intervals, from few probes, are so wide that they would flatten the rest.
    gains = np.array([gain for _, each in decisions for gain in (each.gain, each.min_gain) if np.isfinite(gain)])
    if len(gains):
        reach = 3 * max(float(np.ptp(gains)), float(np.abs(gains).max()) / 4, 1e-6)
        axis.set_ylim(float(gains.min()) - reach / 2, float(gains.max()) + reach / 2)
    title = textwrap.fill(f"step {steps[-1]}: {decisions[-1][1].reason}", 130)
    axis.set_title(title, fontsize=9)
    axis.set_ylabel("gain per 1,000 steps")
    axis.legend(frameon=False, loc="lower left")


def _finish(axis: Axes, history: Sequence[ProbeReport]) -> None:
    _stage_lines(axis, history)
    axis.set_xlabel("optimizer step")
    axis.grid(True, color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.02)


def _stage_lines(axis: Axes, history: Sequence[ProbeReport]) -> None:
    for before, after in itertools.pairwise(history):
        if before.stage != after.stage and before.stage is not None:
            step = after.verdict.stage_since if after.verdict else before.step
            axis.axvline(step, color="#555555", linewidth=1.0, linestyle=":")
            axis.annotate(f"stage {after.stage}", (step, 0.98), xycoords=("data", "axes fraction"), fontsize=7, va="top", ha="left")
