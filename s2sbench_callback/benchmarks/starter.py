"""The starter sets: questions that come with the package, written for it (CC0).

They are texts, so that T→T alone is asked of them; ``s2sbench speak starter:stories-en --voice …`` makes their recordings.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Literal, get_args

from s2sbench_callback.items import Benchmark, Context, Item, Language

StarterSet = Literal["stories-en", "stories-zh", "statements-en", "statements-zh"]
STARTER_SETS: tuple[StarterSet, ...] = get_args(StarterSet)
_LETTERS = "ABCD"


def starter(name: StarterSet, negatives: Literal["wrong", "off_topic"] = "wrong", set_name: str | None = None) -> Benchmark:
    """One of the starter sets.

    Args:
        name: ``stories-en`` and ``stories-zh``, stories of five sentences with a right and a wrong ending; ``statements-en`` and
            ``statements-zh``, first halves of common knowledge with one true and three false second halves.
        negatives: Of stories: an ending of the same people and topic that does not follow, or one of another matter altogether. The latter are the
            right endings of other stories, told of these people and exchanged in twos, so that nothing about them gives them away; the two stories
            of an exchange are one group.
        set_name: ``<set>`` in the metric keys; by default ``starter-<name>``.

    Returns:
        The benchmark; a tie loses in stories and wins in statements, as in the release's sets.

    Raises:
        ValueError: If there is no such set, or ``negatives`` is asked of statements.
    """
    if name not in STARTER_SETS:
        raise ValueError(f"there is no starter set {name!r}; there are {', '.join(STARTER_SETS)}")
    kind, language = name.split("-")
    if negatives not in ("wrong", "off_topic") or (negatives == "off_topic" and kind != "stories"):
        raise ValueError(f"negatives must be 'wrong', or 'off_topic' for stories, got {negatives!r} for {name}")
    content = files("s2sbench_callback").joinpath("starter", f"{kind}_{language}.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in content.splitlines()]
    items = tuple(_story(row, negatives) if kind == "stories" else _statement(row) for row in rows)
    spoken: Language = "en" if language == "en" else "zh"
    return Benchmark(set_name or f"starter-{name}", spoken, items, "lose" if kind == "stories" else "win")


def _story(row: dict[str, Any], negatives: str) -> Item:
    context = Context(row["first"])
    group = f"exchange {row['pair']}" if negatives == "off_topic" else ""
    return Item(str(row["id"]), (context,) * 2, (row["right"], row[negatives]), 0, group)


def _statement(row: dict[str, Any]) -> Item:
    context = Context(row["first"])
    return Item(str(row["id"]), (context,) * len(_LETTERS), tuple(row[letter] for letter in _LETTERS), _LETTERS.index(row["answer"]))
