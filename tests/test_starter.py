"""The starter sets cannot be answered from their candidates alone, and repeat nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from difflib import SequenceMatcher
from typing import Literal

import numpy as np
import pytest

from s2sbench_callback.benchmarks.starter import STARTER_SETS, StarterSet, starter
from s2sbench_callback.items import Benchmark, Item


def bigrams(text: str) -> set[str]:
    return {text[start : start + 2] for start in range(len(text) - 1)}


def words(text: str) -> set[str]:
    return set(text.lower().strip(".").split())


def guessed(benchmark: Benchmark, features: Callable[[str], set[str]], folds: int = 10) -> float:
    """Share of (answer, other) comparisons that naive Bayes over the candidates alone wins, on questions that it was not fitted to."""
    groups = list(dict.fromkeys(item.group for item in benchmark.items))
    order = np.random.default_rng(0).permutation(len(groups))
    won = compared = 0.0
    for fold in range(folds):
        away = {groups[index] for index in order[fold::folds]}
        held_out = {index for index, item in enumerate(benchmark.items) if item.group in away}
        counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        sizes = {True: 0, False: 0}
        for index, item in enumerate(benchmark.items):
            if index not in held_out:
                for place, candidate in enumerate(item.candidates):
                    counts[place == item.answer].update(features(candidate))
                    sizes[place == item.answer] += 1

        def score(text: str, counts: dict[bool, Counter[str]] = counts, sizes: dict[bool, int] = sizes) -> float:
            return sum(
                np.log((counts[True][each] + 1) / (sizes[True] + 2)) - np.log((counts[False][each] + 1) / (sizes[False] + 2))
                for each in features(text)
            )

        for index in held_out:
            item = benchmark.items[index]
            scores = [score(candidate) for candidate in item.candidates]
            for place, other in enumerate(scores):
                if place != item.answer:
                    won += (scores[item.answer] > other) + 0.5 * (scores[item.answer] == other)
                    compared += 1
    return won / compared


@pytest.mark.parametrize(
    ("name", "negatives"), [*((name, "wrong") for name in STARTER_SETS), ("stories-en", "off_topic"), ("stories-zh", "off_topic")]
)
def test_candidates_alone_do_not_give_the_answer_away(name: StarterSet, negatives: Literal["wrong", "off_topic"]) -> None:
    benchmark = starter(name, negatives)
    questions = len(benchmark.items)
    assert questions >= (220 if name.startswith("stories") else 120)
    # Three standard errors of a guess, with the question as the unit.
    noise = 3 * 0.5 / np.sqrt(questions)
    features = words if benchmark.language == "en" else bigrams
    assert abs(guessed(benchmark, features) - 0.5) < noise
    shorter = [_shorter(item) for item in benchmark.items]
    assert abs(np.mean(shorter) - 0.5) < noise


def _shorter(item: Item) -> float:
    """Share of its comparisons that the answer would win by being the shorter one."""
    lengths = [len(candidate) for candidate in item.candidates]
    others = [length for place, length in enumerate(lengths) if place != item.answer]
    return float(np.mean([(lengths[item.answer] < other) + 0.5 * (lengths[item.answer] == other) for other in others]))


def test_a_give_away_would_be_found() -> None:
    """The same check on a set whose answers share a word."""
    items = tuple(Item(item.id, item.contexts, (f"果然{item.candidates[0]}", item.candidates[1]), 0) for item in starter("stories-zh").items)
    assert guessed(Benchmark("x", "zh", items), bigrams) > 0.9


@pytest.mark.parametrize("name", STARTER_SETS)
def test_no_two_questions_are_one(name: StarterSet) -> None:
    benchmark = starter(name)
    contexts = [item.contexts[0].text for item in benchmark.items]
    candidates = [candidate for item in benchmark.items for candidate in item.candidates]
    assert len(set(contexts)) == len(contexts)
    assert len(set(candidates)) == len(candidates)
    grams = [{text[start : start + 6] for start in range(len(text) - 5)} for text in contexts]
    nearest = max(len(one & other) / len(one | other) for place, one in enumerate(grams) for other in grams[:place])
    assert nearest < 0.35
    # No skeleton: what is left of a story without its names and nouns begins like no other's.
    openings = Counter(text[:12] for text in contexts)
    assert max(openings.values()) <= 3
    answers = Counter(item.answer for item in benchmark.items)
    assert max(answers.values()) - min(answers.values()) <= 2


@pytest.mark.parametrize(("name", "stops"), [("stories-en", ".!?"), ("stories-zh", "。！？")])
def test_stories_have_four_sentences_and_two_kinds_of_wrong_ending(name: StarterSet, stops: str) -> None:
    on_topic, off_topic = starter(name), starter(name, negatives="off_topic", set_name="far")
    assert (on_topic.name, off_topic.name, on_topic.tie_rule, starter("statements-en").tie_rule) == (f"starter-{name}", "far", "lose", "win")
    for one, other in zip(on_topic.items, off_topic.items, strict=True):
        assert sum(one.contexts[0].text.count(stop) for stop in stops) == 4
        assert one.candidates[0] == other.candidates[0]
        assert one.candidates[1] != other.candidates[1]


@pytest.mark.parametrize("name", ["stories-en", "stories-zh"])
def test_off_topic_endings_are_right_ones_of_other_stories_exchanged_in_twos(name: StarterSet) -> None:
    """So that an ending is right in one story of an exchange and wrong in the other; people alone were changed."""
    items = starter(name, negatives="off_topic").items
    exchanges: dict[str, list[Item]] = {}
    for item in items:
        exchanges.setdefault(item.group, []).append(item)
    assert {len(stories) for stories in exchanges.values()} == {2}
    for one, other in exchanges.values():
        for mine, theirs in ((one, other), (other, one)):
            assert SequenceMatcher(None, mine.candidates[1], theirs.candidates[0]).ratio() > 0.6


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no starter set 'stories-fr'; there are stories-en, stories-zh, statements-en, statements-zh"):
        starter("stories-fr")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negatives must be 'wrong', or 'off_topic' for stories, got 'off_topic' for statements-en"):
        starter("statements-en", negatives="off_topic")
