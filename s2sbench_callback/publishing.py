"""Where a probe shows: record, pictures, loggers, callback metrics, console."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from s2sbench_callback.dashboards import Dashboards, attempt
from s2sbench_callback.findings import control_findings
from s2sbench_callback.items import Benchmark
from s2sbench_callback.loggers import Level, send_skipped, send_words
from s2sbench_callback.metrics import invalid_items
from s2sbench_callback.prompts import CONDITION_NAMES
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import PREFIX, ProbeReport, Tables

_NAMED = 10


class Publisher:
    """Shows the probes of one run. A place that fails is named loudly and costs neither the training nor the other places anything.

    Args:
        benchmarks: The sets by name.

    Attributes:
        record: The files of the run, once opened.
    """

    def __init__(self, benchmarks: Mapping[str, Benchmark]) -> None:
        self.record: RunRecord | None = None
        self._dashboards = Dashboards(benchmarks)
        self._published: dict[str, float] = {}

    def open(self, dirpath: Path, from_step: int, trainer: pl.Trainer, place: int) -> None:
        """Opens the record, and puts aside what an earlier run wrote there beyond the step that this one starts from.

        Args:
            dirpath: The folder, the same on every rank.
            from_step: Steps that are done, or -1 for a new run.
            trainer: Only its rank 0 reads and writes.
            place: Number from 0 of the callback that probes, among those of its trainer.
        """
        self.record = RunRecord(dirpath)
        if not trainer.is_global_zero:
            return
        try:
            moved = self.record.supersede_after(from_step)
            self._dashboards.go_on(self.record, from_step if from_step >= 0 else None, place)
        except OSError as error:
            rank_zero_warn(f"The S2SBench record in {dirpath} cannot be gone on with: {error}. Training goes on.")
            return
        if moved:
            name = self.record.superseded_path.name
            rank_zero_info(f"{moved} earlier probe(s) in {dirpath} are not of this run's weights and moved to {name}.")

    def show(self, trainer: pl.Trainer, report: ProbeReport, tables: Tables, controls: Tables) -> None:
        """Shows a probe: in ``callback_metrics`` and on the console of every rank, on disk and in the loggers from rank 0."""
        self._published = dict(report.metrics)
        self.publish(trainer)
        _name_the_invalid(tables)
        rank_zero_info(_summary(report))
        for finding in control_findings(report):
            rank_zero_warn(finding)
        if trainer.is_global_zero:
            if self.record:
                attempt("write the record", partial(self.record.append, report, tables, controls))
            self._dashboards.show(trainer.loggers, report, tables, self.record)

    def publish(self, trainer: pl.Trainer) -> None:
        """Puts the newest figures where ``ModelCheckpoint`` and ``EarlyStopping`` look; Lightning clears that place now and then."""
        device = trainer.strategy.root_device
        trainer.callback_metrics.update({key: torch.tensor(value, device=device) for key, value in self._published.items()})

    def end(self, trainer: pl.Trainer) -> None:
        """Tells the loggers where the run has ended, from rank 0."""
        if trainer.is_global_zero:
            self._dashboards.end(trainer.loggers)

    def show_skipped(self, trainer: pl.Trainer, skipped: int, error: Exception) -> None:
        """Says that a probe failed; the figures of the one before stay where they are, with their own ``step``."""
        rank_zero_warn(f"The S2SBench probe at step {trainer.global_step} was skipped: {type(error).__name__}: {error}")
        self._published |= {f"{PREFIX}/skipped": float(skipped)}
        self.publish(trainer)
        for logger in trainer.loggers if trainer.is_global_zero else []:
            attempt(f"tell {type(logger).__name__} of it", partial(send_skipped, logger, skipped, trainer.global_step))


def tell_loggers(trainer: pl.Trainer, title: str, words: str, level: Level = "INFO") -> None:
    """Tells every logger something that calls for a person, from rank 0.

    Args:
        trainer: Holds the loggers.
        title: A few words.
        words: What there is to say.
        level: Of the alert, where a logger has alerts.
    """
    for logger in trainer.loggers if trainer.is_global_zero else []:
        attempt(f"tell {type(logger).__name__} of it", partial(send_words, logger, title, words, trainer.global_step, level))


def _name_the_invalid(tables: Tables) -> None:
    for name, by_condition in tables.items():
        for condition, table in by_condition.items():
            names = invalid_items(table)
            if names:
                more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
                rank_zero_warn(f"{name}/{condition}: a NaN or infinite loss in {', '.join(names[:_NAMED])}{more}; comparisons with it count as lost")


def _summary(report: ProbeReport) -> str:
    """One line a set: ``step 300 | mini | S→T 0.562 [0.498, 0.625] | T→T 0.971 [...] | degradation ...``."""
    lines = []
    for name, conditions in report.sets.items():
        parts = [f"S2SBench step {report.step}", *([f"stage {report.stage}"] if report.stage is not None else []), name]
        for condition in conditions:
            accuracy = report.figure(name, condition, "accuracy")
            gap = report.figure(name, condition, "positive_minus_negative")
            parts.append(f"{CONDITION_NAMES[condition]} {accuracy.value:.3f} [{accuracy.low:.3f}, {accuracy.high:.3f}], pos-neg {gap.value:+.3f}")
        for figure in ("degradation", "intelligence_loss"):
            if f"{PREFIX}/{name}/{figure}" in report.metrics:
                parts.append(f"{figure.replace('_', ' ')} {report.figure(name, None, figure).value:+.3f}")
        lines.append(" | ".join(parts))
    if report.verdict and report.verdict.decision:
        decision = report.verdict.decision
        lines.append(f"S2SBench step {report.step} | stage {report.stage} {'ends' if decision.advance else 'goes on'}: {decision.reason}")
    return "\n".join(lines)
