"""The T→T losses that every probe is held against, by set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from s2sbench_callback.items import Benchmark
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import Tables
from s2sbench_callback.scoring import LossTable

_ARRAYS = ("answers", "nats", "tokens")


@dataclass(frozen=True)
class _Held:
    fingerprint: str
    table: LossTable


class Reference:
    """T→T of this run's first probe, or of another run's.

    Args:
        dirpath: Folder of another run's record, of which the first probe counts; ``None`` for this run's own.

    Raises:
        ValueError: If that record holds no probes.
    """

    def __init__(self, dirpath: Path | None) -> None:
        self.is_given = dirpath is not None
        self._held = _read(dirpath) if dirpath is not None else {}

    def tables(self) -> dict[str, LossTable]:
        """What is held, by set."""
        return {name: held.table for name, held in self._held.items()}

    def mismatches(self, benchmarks: Mapping[str, Benchmark]) -> list[str]:
        """Names of the sets whose questions are not those that the reference was asked."""
        return [name for name, held in self._held.items() if name in benchmarks and benchmarks[name].fingerprint != held.fingerprint]

    def drop(self, names: list[str]) -> None:
        """Forgets sets, so that the next probe takes their place."""
        for name in names:
            del self._held[name]

    def take(self, tables: Tables, benchmarks: Mapping[str, Benchmark]) -> None:
        """Holds the T→T losses of each set that has no reference yet, unless the reference is another run's."""
        for name, by_condition in tables.items():
            if not self.is_given and name not in self._held and "t2t" in by_condition:
                self._held[name] = _Held(benchmarks[name].fingerprint, by_condition["t2t"])

    def reset(self) -> None:
        """Forgets what this run has found."""
        if not self.is_given:
            self._held = {}

    def state(self) -> dict[str, Any]:
        """Plain data that ``torch.load(weights_only=True)`` accepts; nothing if the reference is another run's."""
        return {} if self.is_given else {name: {"fingerprint": held.fingerprint, **table_state(held.table)} for name, held in self._held.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on with what :meth:`state` gave."""
        if not self.is_given:
            self._held = {name: _Held(kept["fingerprint"], table_from_state(kept)) for name, kept in state.items()}


def _read(dirpath: Path) -> dict[str, _Held]:
    record = RunRecord(dirpath)
    history = record.history()
    if not history:
        raise ValueError(f"reference={str(dirpath)!r} holds no probes: there is no {record.probes_path}, or it is empty")
    sets = history[0].signature["sets"]
    tables = record.losses(history[0].step)
    return {name: _Held(sets[name]["fingerprint"], tables[name]["t2t"]) for name in tables if "t2t" in tables[name]}


def table_state(table: LossTable) -> dict[str, Any]:
    """Losses as plain data that ``torch.load(weights_only=True)`` accepts."""
    arrays = {name: torch.from_numpy(getattr(table, name).copy()) for name in _ARRAYS}
    return {"item_ids": list(table.item_ids), "groups": list(table.groups), **arrays}


def table_from_state(state: Mapping[str, Any]) -> LossTable:
    """Losses from what :func:`table_state` gave."""
    return LossTable(tuple(state["item_ids"]), tuple(state["groups"]), **{name: state[name].cpu().numpy() for name in _ARRAYS})
