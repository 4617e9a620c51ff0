from __future__ import annotations

import itertools
from collections import Counter

import pytest

from s2sbench_callback.mini_world.stories import held_out_stories, is_held_out, training_stories


def test_held_out_stories_never_occur_in_training() -> None:
    held_out = {story.context for story in held_out_stories(240)}
    assert len(held_out) == 240
    told = {story.context for seed in range(3) for story in itertools.islice(training_stories(seed), 20_000)}
    assert not told & held_out
    assert not any(is_held_out(context) for context in told)


def test_no_rule_on_the_candidates_alone_beats_chance() -> None:
    """Every pair of endings stands as often with the one right as with the other."""
    balance: Counter[tuple[str, str]] = Counter()
    for story in held_out_stories(240):
        balance[tuple(sorted((story.right, story.wrong)))] += 1 if story.right < story.wrong else -1
    assert not any(balance.values())


def test_streams_are_repeatable_and_differ_by_seed() -> None:
    def first(seed: int) -> list[str]:
        return [story.context for story in itertools.islice(training_stories(seed), 50)]

    assert first(1) == first(1) != first(2)
    assert held_out_stories(20) == held_out_stories(20)
    assert held_out_stories(20) != held_out_stories(20, seed=1)


def test_stories_are_well_formed() -> None:
    for story in itertools.islice(training_stories(0), 2_000):
        assert len(set(story.sentences)) == 4
        for sentence in (*story.sentences, story.right, story.wrong):
            assert sentence[0].isupper()
            assert sentence.endswith(".")
            assert "{" not in sentence
            assert "  " not in sentence
        assert story.right != story.wrong


def test_a_context_decides_its_ending() -> None:
    endings: dict[str, set[str]] = {}
    for story in itertools.islice(training_stories(0), 20_000):
        endings.setdefault(f"{story.context} {story.scene}", set()).add(story.right)
    assert all(len(rights) == 1 for rights in endings.values())


@pytest.mark.parametrize("count", [0, 7, -2])
def test_counts_are_even(count: int) -> None:
    with pytest.raises(ValueError, match=f"must be even and positive, got {count}"):
        held_out_stories(count)
