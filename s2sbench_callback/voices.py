"""One set in several voices: whether a result depends on who speaks.

It is either asked in each of them, as sets ``<set>@<voice>`` of the same questions, or once, its questions spoken by the voices in turn
(:func:`rotating`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from s2sbench_callback.items import Benchmark


def rotating(benchmarks: Sequence[Benchmark], set_name: str) -> Benchmark:
    """One set whose questions are spoken by several voices in turn: as dear as one voice, and no result of one voice alone.

    Args:
        benchmarks: The set in each voice, called ``<set>@<voice>``.
        set_name: ``<set>`` in the metric keys.

    Returns:
        The first question in the first voice, the second in the second, and so on.

    Raises:
        ValueError: If there are not two, or they do not ask the same questions.
    """
    if len(benchmarks) < 2:
        raise ValueError(f"{set_name}: voices take turns from two on, got {len(benchmarks)}")
    first = benchmarks[0]
    for other in benchmarks[1:]:
        if written(other) != written(first):
            raise ValueError(f"{other.name} and {first.name} do not ask the same questions, so their voices cannot take turns")
    items = [
        replace(benchmarks[number % len(benchmarks)].items[number], voice=voice_of(benchmarks[number % len(benchmarks)].name))
        for number in range(len(first.items))
    ]
    return replace(first, name=set_name, items=tuple(items))


def written(benchmark: Benchmark) -> tuple[object, ...]:
    """Everything of a set but its recordings; equal for one set in several voices."""
    questions = ((item.id, item.group, item.answer, item.candidates, tuple(context.text for context in item.contexts)) for item in benchmark.items)
    return benchmark.language, benchmark.tie_rule, tuple(questions)


def voice_of(name: str) -> str:
    """Of a set called ``<set>@<voice>``, the voice; empty for other names."""
    return name.rpartition("@")[2] if "@" in name else ""


def sets_in_voices(benchmarks: Mapping[str, Benchmark]) -> dict[str, list[str]]:
    """Names of the sets that differ in their voice alone, by what stands before the ``@``; those of one voice are left out."""
    found: dict[str, list[str]] = {}
    for name, benchmark in benchmarks.items():
        base = name.rpartition("@")[0]
        if base and (base not in found or written(benchmarks[found[base][0]]) == written(benchmark)):
            found.setdefault(base, []).append(name)
    return {base: names for base, names in found.items() if len(names) > 1 and base not in benchmarks}
