"""The files of a run: reports as lines, losses as one archive a probe; each written whole or not at all."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from s2sbench_callback.prompts import CONDITIONS, Condition
from s2sbench_callback.report import PREFIX, ProbeReport, Tables
from s2sbench_callback.scoring import LossTable


class RunRecord:
    """``probes.jsonl`` and ``losses/`` of one run.

    Args:
        dirpath: The folder; made when first written to.
    """

    def __init__(self, dirpath: Path) -> None:
        self.dirpath = dirpath

    @property
    def probes_path(self) -> Path:
        """One report a line, in order of steps."""
        return self.dirpath / "probes.jsonl"

    @property
    def superseded_path(self) -> Path:
        """Reports of weights that are gone since the run was resumed from an earlier step."""
        return self.dirpath / "probes.superseded.jsonl"

    def losses_path(self, step: int) -> Path:
        """Losses of one probe."""
        return self.dirpath / "losses" / f"step={step:08d}.npz"

    def controls_path(self, step: int) -> Path:
        """Losses of one probe's controls, where they were asked."""
        return self.dirpath / "controls" / f"step={step:08d}.npz"

    def history(self) -> list[ProbeReport]:
        """All reports so far, in the order in which they were written."""
        return _read(self.probes_path)

    def append(self, report: ProbeReport, tables: Tables, controls: Tables | None = None) -> None:
        """Writes a probe: its losses first, so that a report never stands without them.

        Args:
            report: The probe.
            tables: Its losses by set and condition.
            controls: Losses of its controls, where they were asked.
        """
        self._write_arrays(report.step, tables, controls)
        _write(self.probes_path, [*self.history(), report])

    def put(self, report: ProbeReport, tables: Tables, controls: Tables | None = None) -> None:
        """Writes a probe in the place of one of the same step, which moves out of the history; others stay, in the order of their steps.

        Args:
            report: The probe.
            tables: Its losses by set and condition.
            controls: Losses of its controls, where they were asked.
        """
        self._supersede([each for each in self.history() if each.step == report.step])
        self._write_arrays(report.step, tables, controls)
        _write(self.probes_path, sorted([*self.history(), report], key=lambda each: each.step))

    def write_panels(self, png: bytes) -> None:
        """Writes the pictures so far."""
        self.dirpath.mkdir(parents=True, exist_ok=True)
        with _whole(self.dirpath / "panels.png") as stream:
            stream.write(png)

    def losses(self, step: int) -> dict[str, dict[Condition, LossTable]]:
        """The tables of one probe, by set and condition.

        Raises:
            FileNotFoundError: If there is no probe of that step.
            ValueError: If the file is damaged.
        """
        path = self.losses_path(step)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no losses of step {step}; this record has steps {[report.step for report in self.history()]}")
        return _read_losses(path)

    def control_losses(self, step: int) -> dict[str, dict[Condition, LossTable]]:
        """The tables of one probe's controls, by ``<set>+<control>`` and condition; none where they were not asked.

        Raises:
            ValueError: If the file is damaged.
        """
        path = self.controls_path(step)
        return _read_losses(path) if path.is_file() else {}

    def supersede_after(self, step: int) -> int:
        """Moves reports of later steps, and their losses, out of the history.

        Args:
            step: The step that the run goes on from.

        Returns:
            How many reports were moved.
        """
        gone = [report for report in self.history() if report.step > step]
        self._supersede(gone)
        return len(gone)

    def _supersede(self, gone: Sequence[ProbeReport]) -> None:
        if not gone:
            return
        steps = {report.step for report in gone}
        _write(self.superseded_path, [*_read(self.superseded_path), *gone])
        _write(self.probes_path, [report for report in self.history() if report.step not in steps])
        for step in steps:
            self._put_aside(self.losses_path(step))
            self._put_aside(self.controls_path(step))

    def _write_arrays(self, step: int, tables: Tables, controls: Tables | None) -> None:
        _write_losses(self.losses_path(step), tables)
        if controls:
            _write_losses(self.controls_path(step), controls)

    def _put_aside(self, path: Path) -> None:
        if not path.is_file():
            return
        folder = path.parent.with_name(f"{path.parent.name}.superseded")
        folder.mkdir(exist_ok=True)
        target, number = folder / path.name, 0
        while target.exists():
            number += 1
            target = folder / f"{path.stem}.{number}{path.suffix}"
        path.replace(target)


def find_record(path: Path) -> RunRecord:
    """The record at a path: its own folder, or that of the run which holds it.

    Args:
        path: For example ``runs/mine/version_0`` or ``runs/mine/version_0/s2sbench``.

    Raises:
        FileNotFoundError: If there is none, or more than one.
        ValueError: If it cannot be read, or holds no probes.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a folder; name a run, or the folder that holds its probes.jsonl")
    # The run's own before what was scored of it afterwards.
    record = next((each for each in (RunRecord(path), RunRecord(path / PREFIX)) if each.probes_path.is_file()), None)
    if record is None:
        below = sorted(file.parent for file in path.rglob(RunRecord(path).probes_path.name))
        if len(below) != 1:
            found = (
                f"several records ({', '.join(map(str, below[:5]))}): name one of them"
                if below
                else "no probes.jsonl, so no probe was recorded there"
            )
            raise FileNotFoundError(f"{path} holds {found}")
        record = RunRecord(below[0])
    if not record.history():
        raise ValueError(f"{record.probes_path} holds no probes")
    return record


def _write_losses(path: Path, tables: Tables) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    for name, by_condition in tables.items():
        for condition, table in by_condition.items():
            arrays[f"{name}/items"] = np.array(table.item_ids)
            arrays[f"{name}/groups"] = np.array(table.groups)
            arrays[f"{name}/answers"] = table.answers
            arrays[f"{name}/{condition}/nats"] = table.nats
            arrays[f"{name}/{condition}/tokens"] = table.tokens
    with _whole(path) as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]


def _read_losses(path: Path) -> dict[str, dict[Condition, LossTable]]:
    try:
        return _unpack_losses(path)
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged, or not written by a probe: {error}") from error


def _unpack_losses(path: Path) -> dict[str, dict[Condition, LossTable]]:
    tables: dict[str, dict[Condition, LossTable]] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for name in [key.removesuffix("/items") for key in arrays if key.endswith("/items")]:
            ids, groups = (tuple(arrays[f"{name}/{part}"].tolist()) for part in ("items", "groups"))
            tables[name] = {
                condition: LossTable(ids, groups, arrays[f"{name}/answers"], arrays[f"{name}/{condition}/nats"], arrays[f"{name}/{condition}/tokens"])
                for condition in CONDITIONS
                if f"{name}/{condition}/nats" in arrays
            }
    if not tables:
        raise ValueError("it holds no losses")
    return tables


def _read(path: Path) -> list[ProbeReport]:
    if not path.is_file() or not path.stat().st_size:
        return []
    try:
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text, so no record of probes: {error}") from error
    reports = []
    for number, line in enumerate(lines, start=1):
        try:
            reports.append(ProbeReport.from_json(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return reports


def _write(path: Path, reports: Iterable[ProbeReport]) -> None:
    with _whole(path) as stream:
        stream.writelines(f"{report.to_json()}\n".encode() for report in reports)


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its place only once all of it is on disk."""
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
