"""Reads a set that several voices speak in turn."""

from __future__ import annotations

from pathlib import Path

from s2sbench_callback.benchmarks.faults import Faults
from s2sbench_callback.benchmarks.official import official
from s2sbench_callback.benchmarks.release_layout import set_names
from s2sbench_callback.items import Benchmark
from s2sbench_callback.voices import rotating


def in_turns(yaml: str | Path, name: str, root: str | Path | None = None, set_name: str | None = None) -> Benchmark:
    """One set whose questions are spoken by all of its voices in turn: as dear as one voice, and no result of one voice alone.

    Args:
        yaml: The file that names the sets, such as ``s2sbench speak`` writes.
        name: What stands before the ``@`` of its sets ``<name>@<voice>``.
        root: Folder that the paths in the YAML start from; by default the YAML's own.
        set_name: ``<set>`` in the metric keys; by default ``name``.

    Returns:
        The first question in the first voice by name, the second in the second, and so on.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If there are not two such sets, or they do not ask the same questions.
    """
    names = sorted(each for each in set_names(Path(yaml), Faults(at_once=True)) if each.rpartition("@")[0] == name)
    if len(names) < 2:
        raise ValueError(f"{yaml}: voices take turns from two on, and {name!r} has {len(names)}: {', '.join(names) or f'no set {name}@<voice>'}")
    return rotating([official(yaml, each, root) for each in names], set_name or name)
