"""What the loggers of one run are shown at each probe; one that fails is named loudly, and costs neither the training nor the others anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from s2sbench_callback.findings import damage_findings
from s2sbench_callback.flips import flips
from s2sbench_callback.items import Benchmark
from s2sbench_callback.loggers import send, send_end
from s2sbench_callback.plots import panels, pixels, png
from s2sbench_callback.prompts import CONDITIONS
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import ProbeReport, Tables
from s2sbench_callback.showing import Showing


class Dashboards:
    """Pictures and loggers of one run, on rank 0.

    Args:
        benchmarks: The sets by name.
    """

    def __init__(self, benchmarks: Mapping[str, Benchmark]) -> None:
        self._benchmarks = benchmarks
        self._history: list[ProbeReport] = []
        self._previous: Tables | None = None
        self._is_first = True
        self._kept: dict[int, dict[str, Any]] = {}
        self._resumed_at: int | None = None
        self._place = 0

    def go_on(self, record: RunRecord, resumed_at: int | None = None, place: int = 0) -> None:
        """Takes up what the record has already.

        Args:
            record: The run's record.
            resumed_at: Step that the run goes on from, if it is resumed.
            place: Number from 0 of the callback that probes, among those of its trainer.
        """
        self._resumed_at, self._place = resumed_at, place
        self._history = record.history()
        if self._history and record.losses_path(self._history[-1].step).is_file():
            self._previous = record.losses(self._history[-1].step)

    def show(self, loggers: Sequence[Any], report: ProbeReport, tables: Tables, record: RunRecord | None) -> None:
        """Shows a probe everywhere.

        Args:
            loggers: Lightning loggers of either namespace.
            report: The probe.
            tables: Its losses.
            record: Gets the panels too.
        """
        before = self._history[-1] if self._history else None
        self._history.append(report)
        attempt("show the figures", partial(self._show, loggers, report, tables, record, before))
        self._previous = tables
        self._is_first = False

    def end(self, loggers: Sequence[Any]) -> None:
        """Tells the loggers where the run has ended.

        Args:
            loggers: Lightning loggers of either namespace.
        """
        for logger in loggers if self._history else ():
            attempt(f"tell {type(logger).__name__} of the end", partial(send_end, logger, self._history[-1]))

    def _show(self, loggers: Sequence[Any], report: ProbeReport, tables: Tables, record: RunRecord | None, before: ProbeReport | None) -> None:
        figure = panels(self._history)
        if record:
            attempt("write the panels", partial(record.write_panels, png(figure)))
        changed = [flips(benchmark, condition, self._previous, tables) for benchmark in self._benchmarks.values() for condition in CONDITIONS]
        # A guard that watches has said so itself.
        guarded = report.verdict is not None and bool(report.verdict.notes)
        known = damage_findings(before)
        alarms = {} if guarded else {name: words for name, words in damage_findings(report).items() if name not in known}
        showing = Showing(tuple(self._history), pixels(figure), changed, alarms, self._is_first, self._resumed_at, self._place)
        for logger in loggers:
            attempt(f"send the figures to {type(logger).__name__}", partial(send, logger, showing, self._kept.setdefault(id(logger), {})))


def attempt(what: str, action: Callable[[], object]) -> None:
    """Does something that must not cost a training anything when it fails.

    Args:
        what: For the warning.
        action: What to do.
    """
    try:
        action()
    except Exception as error:
        rank_zero_warn(f"S2SBench could not {what}: {type(error).__name__}: {error}. Training goes on.")
