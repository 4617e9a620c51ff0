"""The paper's panels: accuracy and losses over steps, one row a set, and what the stages were decided from."""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections.abc import Sequence

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from s2sbench_callback.prompts import CONDITION_NAMES, Condition
from s2sbench_callback.report import PREFIX, ProbeReport
from s2sbench_callback.significance import Estimate

# Different in their lightness too, so that they can be told apart without colour.
_COLOURS: dict[Condition, str] = {"s2t": "#e8703a", "t2t": "#1f3b63", "s2s": "#e3b23c", "t2s": "#7a5c94"}
_MARKERS: dict[Condition, str] = {"s2t": "o", "t2t": "s", "s2s": "^", "t2s": "D"}
_STYLES: dict[Condition, str] = {"s2t": "-", "t2t": "--", "s2s": "-.", "t2s": ":"}
_RUN_COLOURS = ("#1f3b63", "#e8703a", "#3a9278", "#a83e6c", "#8a8a1d", "#6aa5d8", "#7a4b25", "#999999")
_MOST_MARKERS = 25

Runs = Sequence[tuple[str, Sequence[ProbeReport]]]


def panels(history: Sequence[ProbeReport]) -> Figure:
    """Accuracy, the two losses of each condition, and their difference, over optimizer steps.

    Bands are 95 % intervals by question. A dotted line marks each change of stage. Where a rule decides on it, the lowest panel shows the
    improvement that it estimated, with its interval, against the threshold.

    Args:
        history: Reports of one run in order of steps; at least one.
    """
    return panels_of_runs([("", history)])


def panels_of_runs(runs: Runs) -> Figure:
    """The same for several runs on the same axes, each name of a run in its colour.

    Args:
        runs: Name and reports of each run; runs of one name, seeds of a strategy for example, share a colour.
    """
    names, asked = _asked(runs)
    columns = 2 + max(len(conditions) for conditions in asked.values())
    decided = [report for report in runs[0][1] if report.verdict and report.verdict.decision] if len(runs) == 1 else []
    rows = len(names) + bool(decided)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows + 0.4 * (len(runs) > 1)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(rows, columns)
    for row, name in enumerate(names):
        axes = [figure.add_subplot(grid[row, column]) for column in range(columns)]
        _accuracy(axes[0], runs, name, asked[name])
        for axis, condition in zip(axes[1:-1], asked[name], strict=False):
            _losses(axis, runs, name, condition)
        for axis in axes[1 + len(asked[name]) : -1]:
            axis.set_visible(False)
        _difference(axes[-1], runs, name, asked[name])
        for axis in axes:
            _finish(axis, runs)
    if decided:
        axis = figure.add_subplot(grid[-1, :])
        _decisions(axis, decided)
        _finish(axis, runs)
        # Beside the panels above, not as wide as its own stage.
        axis.set_xlim(figure.axes[0].get_xlim())
    _name_the_runs(figure, runs)
    return figure


def lost_panels(runs: Runs) -> Figure | None:
    """What is lost, a panel a set: T→T minus S→T at each step, and either against the reference.

    Args:
        runs: Name and reports of each run.

    Returns:
        ``None`` where no run was asked in both conditions.
    """
    figures = {"degradation": "T→T minus S→T", "intelligence_loss": "reference minus S→T", "t2t_change": "T→T minus reference"}
    names = [name for name in _asked(runs)[0] if any(f"{PREFIX}/{name}/{key}" in report.metrics for _, h in runs for report in h for key in figures)]
    if not names:
        return None
    figure = Figure(figsize=(5.6 * len(names), 3.6 + 0.4 * (len(runs) > 1)), layout="constrained")
    FigureCanvasAgg(figure)
    lines = zip(figures.items(), ("-", "--", ":"), ("o", "^", "s"), ("#e8703a", "#8f2d56", "#1f3b63"), strict=True)
    drawn = list(lines)
    for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for number, (label, history) in enumerate(runs):
            for (key, words), style, marker, colour in drawn:
                reports = [report for report in history if f"{PREFIX}/{name}/{key}" in report.metrics]
                ink = colour if len(runs) == 1 else _run_colour(runs, label)
                points = [(report.step, report.figure(name, None, key)) for report in reports]
                _band(axis, points, words if not number else None, ink, style, marker, 0.15 if len(runs) <= 2 else 0.05)
        axis.axhline(0.0, color="#888888", linewidth=0.8)
        axis.set(title=f"{name}: what is lost", ylabel="accuracy")
        axis.legend(frameon=False, fontsize=8)
        _finish(axis, runs)
    _name_the_runs(figure, runs)
    return figure


def svg(figure: Figure) -> str:
    """The figure as an SVG element, the same for the same figure."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": PREFIX, "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    content = buffer.getvalue()
    return content[content.index("<svg") :]


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


def _asked(runs: Runs) -> tuple[list[str], dict[str, list[Condition]]]:
    """Sets, and the conditions that any run was asked of each."""
    reports = [report for _, history in runs for report in history]
    names = list(dict.fromkeys(name for report in reports for name in report.sets))
    return names, {name: [c for c in CONDITION_NAMES if any(c in report.sets.get(name, ()) for report in reports)] for name in names}


def _run_colour(runs: Runs, label: str) -> str:
    labels = list(dict.fromkeys(name for name, _ in runs))
    return _RUN_COLOURS[labels.index(label) % len(_RUN_COLOURS)]


def _name_the_runs(figure: Figure, runs: Runs) -> None:
    if len(runs) > 1:
        labels = list(dict.fromkeys(name for name, _ in runs))
        handles = [Line2D([], [], color=_run_colour(runs, label), linewidth=3, label=label) for label in labels]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)


def _band(axis: Axes, points: Sequence[tuple[int, Estimate]], label: str | None, colour: str, style: str, marker: str, band: float = 0.15) -> None:
    steps, estimates = [step for step, _ in points], [estimate for _, estimate in points]
    often = max(1, math.ceil(len(steps) / _MOST_MARKERS))
    line = {"linewidth": 1.6, "linestyle": style, "color": colour, "label": label or "_"}
    axis.plot(steps, [e.value for e in estimates], marker=marker, markersize=4, markevery=often, **line)  # type: ignore[arg-type]
    axis.fill_between(steps, [e.low for e in estimates], [e.high for e in estimates], alpha=band, linewidth=0, color=colour)


def _curves(axis: Axes, runs: Runs, name: str, condition: Condition, figure: str, words: str, style: str, marker: str) -> None:
    """One figure of every run."""
    for number, (label, history) in enumerate(runs):
        points = [(report.step, report.figure(name, condition, figure)) for report in history if condition in report.sets.get(name, ())]
        colour = _COLOURS[condition] if len(runs) == 1 else _run_colour(runs, label)
        # Bands of many runs would hide each other.
        _band(axis, points, words if not number else None, colour, style, marker, 0.15 if len(runs) <= 2 else 0.06)


def _accuracy(axis: Axes, runs: Runs, name: str, conditions: Sequence[Condition]) -> None:
    for condition in conditions:
        style = "-" if len(runs) == 1 else _STYLES[condition]
        _curves(axis, runs, name, condition, "accuracy", CONDITION_NAMES[condition], style, _MARKERS[condition])
    axis.axhline(0.5, color="#888888", linewidth=0.8, linestyle="--", label="chance")
    axis.set(title=f"{name}: accuracy", ylabel="share of comparisons won")
    axis.legend(frameon=False)


def _losses(axis: Axes, runs: Runs, name: str, condition: Condition) -> None:
    _curves(axis, runs, name, condition, "positive_loss", "positive (answer)", "-", "o")
    _curves(axis, runs, name, condition, "negative_loss", "negative (others)", "--", "v")
    axis.set(title=f"{name}: losses, {CONDITION_NAMES[condition]}", ylabel="nats per token")
    axis.legend(frameon=False)


def _difference(axis: Axes, runs: Runs, name: str, conditions: Sequence[Condition]) -> None:
    for condition in conditions:
        style = "-" if len(runs) == 1 else _STYLES[condition]
        _curves(axis, runs, name, condition, "positive_minus_negative", CONDITION_NAMES[condition], style, _MARKERS[condition])
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


def _finish(axis: Axes, runs: Runs) -> None:
    for label, history in runs:
        _stage_lines(axis, history, "#555555" if len(runs) == 1 else _run_colour(runs, label), named=len(runs) == 1)
    axis.set_xlabel("optimizer step")
    axis.grid(True, color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.02)


def _stage_lines(axis: Axes, history: Sequence[ProbeReport], colour: str, named: bool) -> None:
    for before, after in itertools.pairwise(history):
        if before.stage != after.stage and before.stage is not None:
            step = after.verdict.stage_since if after.verdict else before.step
            axis.axvline(step, color=colour, linewidth=1.0, linestyle=":")
            if named:
                axis.annotate(f"stage {after.stage}", (step, 0.98), xycoords=("data", "axes fraction"), fontsize=7, va="top", ha="left")
