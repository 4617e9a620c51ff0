"""The end of a run in words: where it began, where it ended, where to look."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from s2sbench_callback.prompts import CONDITION_NAMES
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import PREFIX, ProbeReport

_FIGURES = ("accuracy", "positive_loss", "negative_loss", "positive_minus_negative")


def outcome(record: RunRecord, log_dirs: Sequence[str] = ()) -> str:
    """A table of the first probe, the last of each stage and the last, why each stage began, and the places to look at.

    Args:
        record: The run's record.
        log_dirs: Folders of the run's loggers.

    Raises:
        ValueError: If the record holds no probes.
    """
    history = record.history()
    if not history:
        raise ValueError(f"{record.dirpath} holds no probes")
    last_of_stage = [before for before, after in itertools.pairwise(history) if before.stage != after.stage]
    shown = list(dict.fromkeys(report.step for report in (history[0], *last_of_stage, history[-1])))
    by_step = {report.step: report for report in history}
    lines: list[str] = []
    for name, conditions in history[-1].sets.items():
        rows = [(f"{CONDITION_NAMES[c]} {figure.replace('_', ' ')}", f"{name}/{c}/{figure}") for c in conditions for figure in _FIGURES]
        across = [(figure.replace("_", " "), f"{name}/{figure}") for figure in ("degradation", "intelligence_loss")]
        rows += [(label, key) for label, key in across if f"{PREFIX}/{key}" in history[-1].metrics]
        lines.append(f"{name:<28}" + "".join(f"{_heading(by_step[step]):>24}" for step in shown))
        lines += [f"{label:<28}" + "".join(f"{_cell(by_step[step], key):>24}" for step in shown) for label, key in rows]
    verdicts = {report.verdict.stage: report.verdict for report in history if report.verdict}
    lines += [f"stage {stage}   from step {verdict.stage_since}: {verdict.entered}" for stage, verdict in sorted(verdicts.items()) if verdict.entered]
    lines += ["", f"record    {record.probes_path}", f"pictures  {record.dirpath / 'panels.png'}"]
    lines += [f"log       {folder}" for folder in log_dirs]
    lines += [f"look      tensorboard --logdir {log_dirs[0]}  (tab 'Custom Scalars')"] if log_dirs else []
    return "\n".join(lines)


def _heading(report: ProbeReport) -> str:
    return f"step {report.step}" + (f", stage {report.stage}" if report.stage is not None else "")


def _cell(report: ProbeReport, key: str) -> str:
    full = f"{PREFIX}/{key}"
    value, low, high = (report.metrics.get(part, float("nan")) for part in (full, f"{full}_low", f"{full}_high"))
    return f"{value:.3f} [{low:.3f},{high:.3f}]"
