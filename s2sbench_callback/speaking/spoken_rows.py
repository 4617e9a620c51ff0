"""A set as rows of the release's layout, and what has to be spoken for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from s2sbench_callback.items import Benchmark, Item

Per = Literal["pair", "row"]
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Utterance:
    """One text to be spoken.

    Attributes:
        text: What to say.
        names: Files that hold it, without their ending: both rows of a pair where they share it.
        key: What its seed is drawn from besides the run's own.
        part: ``context`` or ``candidate``.
    """

    text: str
    names: tuple[str, ...]
    key: str
    part: Literal["context", "candidate"]


def rows(benchmark: Benchmark) -> list[dict[str, Any]]:
    """Rows of the jsonl: two a question, the right one first, where a tie loses and every question has two candidates; else one with letters.

    Args:
        benchmark: The set; its ids stand behind the number in each ``uttid``.
    """
    return [row for number, item in enumerate(benchmark.items) for row in _rows(benchmark, number, item)]


def utterances(benchmark: Benchmark, per: Per, candidates: bool) -> list[Utterance]:
    """What to speak, each recording once.

    Args:
        benchmark: The set.
        per: Whether the two rows of a pair share one recording of their context, or each has its own reading.
        candidates: Whether candidates are spoken too, each alone.
    """
    return [each for number, item in enumerate(benchmark.items) for each in _utterances(benchmark, number, item, per, candidates)]


def is_story_set(benchmark: Benchmark) -> bool:
    """Whether its rows come in pairs."""
    return benchmark.tie_rule == "lose" and all(len(item.candidates) == 2 for item in benchmark.items)


def _uttids(benchmark: Benchmark, number: int, item: Item) -> list[str]:
    # As a name of a file everywhere.
    name = re.sub(r"[^\w.+-]", "-", item.id)
    if is_story_set(benchmark):
        return [f"{2 * number + place}_{name}" for place in range(2)]
    return [f"{number}_{name}"]


def _rows(benchmark: Benchmark, number: int, item: Item) -> Iterator[dict[str, Any]]:
    uttids = _uttids(benchmark, number, item)
    group = {"group": item.group} if item.group != item.id else {}
    if is_story_set(benchmark):
        for uttid, place in zip(uttids, (item.answer, 1 - item.answer), strict=True):
            yield {"uttid": uttid, "first": item.contexts[place].text, "last": item.candidates[place], **group}
        return
    letters = dict(zip(_LETTERS, item.candidates, strict=False))
    yield {"uttid": uttids[0], "first": item.contexts[0].text, **letters, "answer": _LETTERS[item.answer], **group}


def _utterances(benchmark: Benchmark, number: int, item: Item, per: Per, candidates: bool) -> Iterator[Utterance]:
    uttids = _uttids(benchmark, number, item)
    is_story = is_story_set(benchmark)
    order: Sequence[int] = (item.answer, 1 - item.answer) if is_story else range(len(item.candidates))
    if is_story and (per == "row" or item.contexts[0].text != item.contexts[1].text):
        for uttid, place in zip(uttids, order, strict=True):
            yield Utterance(item.contexts[place].text, (uttid,), uttid, "context")
    else:
        yield Utterance(item.contexts[0].text, tuple(uttids), uttids[0], "context")
    if candidates:
        names = uttids if is_story else [f"{uttids[0]}_{letter}" for letter, _ in zip(_LETTERS, item.candidates, strict=False)]
        for name, place in zip(names, order, strict=True):
            yield Utterance(item.candidates[place], (name,), f"{name} candidate", "candidate")
