"""Reads the file that an offline run of Weights & Biases leaves: a log in LevelDB's format, of protobuf records."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

_BLOCK, _HEAD, _FILE_HEAD = 32768, 7, 7
_WHOLE, _FIRST, _LAST = 1, 2, 4


def records(folder: Path) -> list[Any]:
    """Everything that the one finished run below a folder was told, in order.

    W&B's own process may still be writing when ``finish()`` has returned: waits for the record of the exit.
    """
    (path,) = folder.rglob("*.wandb")
    until = time.monotonic() + 60
    while True:
        found = list(_records(path.read_bytes()))
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        assert time.monotonic() < until, f"{path} holds no record of the exit: was the run finished?"
        time.sleep(0.1)


def _records(content: bytes) -> Iterator[Any]:
    """The whole records of what a file holds so far."""
    assert content[:4] == b":W&B"
    place, payload = _FILE_HEAD, b""
    while place + _HEAD <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _HEAD:
            place += left
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        if place + _HEAD + size > len(content):
            return
        payload = (b"" if kind in (_WHOLE, _FIRST) else payload) + content[place + _HEAD : place + _HEAD + size]
        place += _HEAD + size
        if kind in (_WHOLE, _LAST):
            record = Record()
            record.ParseFromString(payload)
            yield record


def history(folder: Path) -> list[dict[str, Any]]:
    """One mapping a call of ``log``, with what was logged as one object put together again."""
    rows = []
    for record in records(folder):
        if record.WhichOneof("record_type") == "history":
            rows.append(row := {})
            for item in record.history.item:
                *places, name = item.nested_key or [item.key]
                inner = row
                for place in places:
                    inner = inner.setdefault(place, {})
                inner[name] = json.loads(item.value_json)
    return rows


def table(folder: Path, logged: dict[str, Any]) -> dict[str, Any]:
    """Columns and rows of a table that was logged."""
    (path,) = folder.rglob(f"files/{logged['path']}")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def whole_tables(folder: Path, key: str) -> list[tuple[dict[str, Any], dict[str, Path]]]:
    """Each version of a table that holds more than text, as W&B shows it, and the files of its media by the names that its cells give."""
    versions = []
    for record in records(folder):
        if record.WhichOneof("record_type") == "artifact" and record.artifact.type == "run_table":
            files = {entry.path: Path(entry.local_path) for entry in record.artifact.manifest.contents}
            if f"{key}.table.json" in files:
                versions.append((json.loads(files[f"{key}.table.json"].read_text()), files))
    return versions
