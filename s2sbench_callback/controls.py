"""Sets changed so that their answers cannot be found any more, or cannot be missed: what a set and a model are to be checked by."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from s2sbench_callback.items import Audio, Benchmark, Context, Item, Language, recording_digest
from s2sbench_callback.metrics import condition_figures
from s2sbench_callback.prompts import Condition
from s2sbench_callback.scoring import LossTable
from s2sbench_callback.significance import Estimate

Control = Literal["no_context", "other_context", "off_topic"]
CONTROLS: tuple[Control, ...] = get_args(Control)

# Adapters read some text before a candidate; a full stop alone says nothing.
_NOTHING: dict[Language, str] = {"en": ".", "zh": "。"}
_SILENCE = Path(__file__).with_name("silence.flac")
_SEED = 0


def controlled(benchmark: Benchmark, control: Control) -> Benchmark:
    """A set changed so that its answers are to be found no more, or without effort.

    ``no_context``: a full stop, or a second of silence, stands for each context. ``other_context``: each question has that of another, the same in
    all conditions. ``off_topic``: the wrong candidates are other questions' answers. Which others is fixed by a seed.

    Args:
        benchmark: The set.
        control: How it is changed.

    Returns:
        A set of the same questions, named ``<set>+<control>``.

    Raises:
        ValueError: If the control is unknown, or needs more questions that differ than the set has.
    """
    if control not in CONTROLS:
        raise ValueError(f"controls must be some of {list(CONTROLS)}, got {control!r}")
    shuffled = random.Random(_SEED).sample(benchmark.items, len(benchmark.items))
    place = {item.id: number for number, item in enumerate(shuffled)}

    def change(item: Item) -> Item:
        start = place[item.id] + 1
        others = (other for other in shuffled[start:] + shuffled[:start] if other.group != item.group)
        spoken_less = replace(item, candidate_audios=(), story_audios=())
        if control == "no_context":
            return replace(spoken_less, contexts=tuple(_silenced(context, benchmark.language) for context in item.contexts))
        return _with_other_context(spoken_less, others) if control == "other_context" else _off_topic(spoken_less, others)

    try:
        items = [change(item) for item in benchmark.items]
    except StopIteration as error:
        raise ValueError(f"{benchmark.name}: the control {control!r} needs more questions that differ than the set has") from error
    return replace(benchmark, name=_name(benchmark.name, control), items=tuple(items))


def control_metrics(benchmark: Benchmark, tables: Mapping[str, Mapping[Condition, LossTable]]) -> dict[str, Estimate]:
    """Accuracies of a set's controls, keyed ``<condition>/<control>_accuracy``.

    Args:
        benchmark: The set as it is.
        tables: Losses of control sets, of any set, by name and condition.
    """
    return {
        f"{condition}/{control}_accuracy": condition_figures(table, benchmark.tie_rule).accuracy
        for control in CONTROLS
        for condition, table in tables.get(_name(benchmark.name, control), {}).items()
    }


def _name(name: str, control: Control) -> str:
    return f"{name}+{control}"


def _silenced(context: Context, language: Language) -> Context:
    return Context(_NOTHING[language], _silence() if context.audio else None)


@cache
def _silence() -> Audio:
    return Audio(_SILENCE, recording_digest(_SILENCE.read_bytes()), 1.0)


def _with_other_context(item: Item, others: Iterator[Item]) -> Item:
    texts = {context.text for context in item.contexts}
    other = next(each for each in others if texts.isdisjoint(context.text for context in each.contexts))
    # Of sets with a recording for each candidate, the answer's: the same for all, so that it favours none.
    return replace(item, contexts=(other.contexts[other.answer],) * len(item.candidates))


def _off_topic(item: Item, others: Iterator[Item]) -> Item:
    taken = [item.candidates[item.answer]]
    for _ in range(len(item.candidates) - 1):
        taken.append(next(each.candidates[each.answer] for each in others if each.candidates[each.answer] not in taken))
    wrong = iter(taken[1:])
    candidates = tuple(taken[0] if index == item.answer else next(wrong) for index in range(len(item.candidates)))
    return replace(item, candidates=candidates)
