"""What is compared, read from disk: one probe of one run, or of several that differ by their seed."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s2sbench_callback.items import TieRule
from s2sbench_callback.prompts import Condition
from s2sbench_callback.record import RunRecord, find_record
from s2sbench_callback.scoring import LossTable


@dataclass(frozen=True)
class RecordedProbe:
    """One probe of one run.

    Attributes:
        name: Folder of the record.
        step: Optimizer steps done.
        signature: What produced the figures, its ``sets`` aside.
        fingerprints: Hash of the questions, by set.
        tie_rules: By set.
        tables: Losses by set and condition.
    """

    name: str
    step: int
    signature: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    tie_rules: Mapping[str, TieRule]
    tables: Mapping[str, Mapping[Condition, LossTable]]

    @property
    def title(self) -> str:
        """Folder and step."""
        return f"{self.name}@{self.step}"


def read_side(words: str) -> tuple[RecordedProbe, ...]:
    """The probes that a side names.

    Args:
        words: Folders of runs or records, or patterns of them, with commas between; each with ``@STEP`` for a probe that is not the last.

    Raises:
        FileNotFoundError: If a folder, a record or a step is not there.
        ValueError: If a record is damaged or foreign, or named twice.
    """
    probes = [read_probe(record, step) for word in words.split(",") if word for record, step in _records(word)]
    if not probes:
        raise ValueError(f"{words!r} names no run")
    titles = [probe.title for probe in probes]
    twice = sorted({title for title in titles if titles.count(title) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} is named twice on one side; each training counts once")
    return tuple(probes)


def read_probe(record: RunRecord, step: int | None = None) -> RecordedProbe:
    """One probe of a record.

    Args:
        record: The record.
        step: Which; the last by default.

    Raises:
        FileNotFoundError: If there is no such probe.
        ValueError: If the record is damaged or foreign.
    """
    history = record.history()
    by_step = {report.step: report for report in history}
    report = history[-1] if step is None else by_step.get(step)
    if report is None:
        raise FileNotFoundError(f"{record.probes_path} has no probe of step {step}; it has those of {', '.join(map(str, by_step))}")
    tables = record.losses(report.step)
    sets = report.signature.get("sets", {})
    try:
        fingerprints = {name: str(sets[name]["fingerprint"]) for name in tables}
        tie_rules: dict[str, TieRule] = {name: sets[name]["tie_rule"] for name in tables}
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{record.probes_path}: the signature of step {report.step} does not say which questions {', '.join(tables)} asked, and by which tie "
            f"rule ({error!r}), so it cannot be compared"
        ) from error
    signature = {key: value for key, value in report.signature.items() if key != "sets"}
    return RecordedProbe(str(record.dirpath), report.step, signature, fingerprints, tie_rules, tables)


def _records(word: str) -> Sequence[tuple[RunRecord, int | None]]:
    """A folder or a pattern, with or without ``@STEP``."""
    # A folder may have such a name itself.
    marked = None if Path(word).exists() else re.fullmatch(r"(.+)@(\d+)", word)
    place, step = (marked[1], int(marked[2])) if marked else (word, None)
    if not glob.has_magic(place) or Path(place).exists():
        return [(find_record(Path(place)), step)]
    folders = [path for path in sorted(glob.glob(place)) if Path(path).is_dir()]
    if not folders:
        raise FileNotFoundError(f"{place}: no folder matches")
    return [(find_record(Path(folder)), step) for folder in folders]
