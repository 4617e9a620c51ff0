"""Whether the two recordings of a question's context are one, two readings of the same words, or of other words."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from s2sbench_callback.audit.likeness import distance
from s2sbench_callback.audit.measures import Measures
from s2sbench_callback.audit.workers import in_processes
from s2sbench_callback.items import Benchmark

_STRANGERS = 60
# Of a small distance between strangers; readings of the same words were seen at half of it.
_SAME_WORDS = 0.9

Sameness = Literal["one file", "one recording", "two readings", "other words"]


@dataclass(frozen=True)
class ContextPair:
    """The recordings of two candidates' contexts of one question.

    Attributes:
        item: Its id.
        paths: The two files.
        sameness: ``one file`` by their bytes, ``one recording`` by their samples, else by ear.
        seconds: Length of the second minus the first.
        distance: Of their spectra; 0 for one recording.
        usual_distance: What 95 % of recordings of different questions are apart at least.
    """

    item: str
    paths: tuple[Path, Path]
    sameness: Sameness
    seconds: float
    distance: float
    usual_distance: float


def context_pairs(
    benchmark: Benchmark,
    measures: Mapping[Path, Measures],
    workers: int,
    progress: Callable[[Iterator[float], int], Iterator[float]],
) -> list[ContextPair]:
    """Every question whose first two candidates have a recording of the context each.

    Args:
        benchmark: The questions.
        measures: Figures of the recordings, by path.
        workers: Processes to compare in.
        progress: Wraps the comparisons, of which it is told the number.
    """
    asked: list[tuple[str, tuple[Path, Path], bool]] = []
    for item in benchmark.items:
        one, other = (context.audio for context in item.contexts[:2])
        if one and other and one.path in measures and other.path in measures:
            asked.append((item.id, (one.path, other.path), one is other))
    compared = [paths for _, paths, is_one in asked if not is_one and _digest(measures, paths[0]) != _digest(measures, paths[1])]
    strangers = _strangers([paths[0] for _, paths, _ in asked]) if compared else []
    results = list(progress(in_processes(_distance, [*compared, *strangers], workers), len(compared) + len(strangers)))
    distances = dict(zip(compared, results, strict=False))
    # Two questions with one recording are no strangers.
    apart = [value for value in results[len(compared) :] if value > 0]
    usual = float(np.percentile(apart, 5)) if apart else math.nan
    pairs = []
    for name, paths, is_one in asked:
        far = distances.get(paths, 0.0)
        sameness: Sameness = "one file" if is_one else "one recording" if paths not in distances else "two readings"
        if sameness == "two readings" and far > _SAME_WORDS * usual:
            sameness = "other words"
        pairs.append(ContextPair(name, paths, sameness, measures[paths[1]].seconds - measures[paths[0]].seconds, far, usual))
    return pairs


def _digest(measures: Mapping[Path, Measures], path: Path) -> str:
    return measures[path].samples_digest


def _strangers(paths: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Recordings of different questions, drawn with a fixed seed."""
    if len(paths) < 2:
        return []
    everyone = list(itertools.islice(itertools.combinations(paths, 2), 2_000_000)) if len(paths) <= 100 else []
    chance = random.Random(0)
    if everyone:
        return chance.sample(everyone, min(_STRANGERS, len(everyone)))
    return [(first, second) for first, second in (chance.sample(list(paths), 2) for _ in range(_STRANGERS))]


def _distance(paths: tuple[Path, Path]) -> float:
    return distance(*paths)
