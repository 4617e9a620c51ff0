from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from s2sbench_callback import Benchmark, Item
from s2sbench_callback.items import Audio, Context

GOOD = Item("q1", (Context("It rained."),) * 2, ("Wet.", "Dry."), 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": ("Wet.",), "contexts": (Context("It rained."),)}, "has 1 candidate"),
        ({"contexts": (Context("It rained."),)}, "has 1 contexts for 2 candidates"),
        ({"answer": 2}, "answer 2 is no index"),
        ({"answer": -1}, "answer -1 is no index"),
        ({"candidates": ("Wet.", " ")}, "candidate 1 is empty"),
        ({"candidates": ("Wet.", " Wet. ")}, "identical candidates"),
        ({"contexts": (Context("It rained."), Context("\n"))}, "empty context"),
    ],
)
def test_faulty_items(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"item 'q1'.*{message}"):
        replace(GOOD, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"items": ()}, "has no items"),
        ({"items": (GOOD, GOOD)}, "two items with the id 'q1'"),
        ({"name": "a/b"}, "part of its metric keys.*got 'a/b'"),
        ({"name": "mean"}, "not 'mean', which stands for the average"),
        ({"name": "cost $a"}, "part of its metric keys"),
        ({"language": "fr"}, "language must be 'en' or 'zh'"),
        ({"tie_rule": "draw"}, "tie_rule must be 'lose' or 'win'"),
    ],
)
def test_faulty_benchmarks(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Benchmark("mine", "en", (GOOD,)), **change)


def test_every_part_changes_the_fingerprint() -> None:
    base = Benchmark("mine", "en", (GOOD,))
    spoken = Context("It rained.", Audio(Path("a.wav"), "abc", 1.0))
    variants = [
        replace(base, language="zh"),
        replace(base, tie_rule="win"),
        replace(base, items=(replace(GOOD, answer=1),)),
        replace(base, items=(replace(GOOD, id="q2", group="q1"),)),
        replace(base, items=(replace(GOOD, group="other"),)),
        replace(base, items=(replace(GOOD, candidates=("Wet", ".Dry.")),)),
        replace(base, items=(replace(GOOD, contexts=(spoken, spoken)),)),
        replace(base, items=(GOOD, replace(GOOD, id="q2"))),
    ]
    assert len({benchmark.fingerprint for benchmark in [base, *variants]}) == len(variants) + 1
    moved = replace(spoken, audio=Audio(Path("elsewhere/a.wav"), "abc", 1.0))
    assert replace(base, items=(replace(GOOD, contexts=(moved, moved)),)).fingerprint == variants[-2].fingerprint
    assert replace(base, name="other").fingerprint == base.fingerprint
