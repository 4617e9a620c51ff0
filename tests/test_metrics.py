from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from s2sbench_callback import Benchmark, Item
from s2sbench_callback.items import Context, TieRule
from s2sbench_callback.metrics import (
    ability_lost,
    accuracy_difference,
    condition_figures,
    invalid_items,
    normalised_accuracies,
    refuse_if_mostly_invalid,
)
from s2sbench_callback.scoring import LossTable


def table(losses: list[list[float]], answers: list[int], tokens: int = 2) -> LossTable:
    """Losses in nats per token, shorter rows for fewer candidates."""
    width = max(map(len, losses))
    nats = np.full((len(losses), width), np.nan)
    counts = np.zeros((len(losses), width), dtype=np.int64)
    for question, row in enumerate(losses):
        nats[question, : len(row)] = np.array(row) * tokens
        counts[question, : len(row)] = tokens
    names = tuple(f"q{index}" for index in range(len(losses)))
    return LossTable(names, names, np.array(answers), nats, counts)


def slow(losses: list[list[float]], answers: list[int], tie_rule: TieRule) -> dict[str, float]:
    """The release's loops, written out."""
    wins = comparisons = ties = invalid = whole = 0
    positives, negatives = [], []
    for row, answer in zip(losses, answers, strict=True):
        broken = any(math.isnan(loss) or math.isinf(loss) for loss in row)
        invalid += broken
        won_all = True
        for other, loss in enumerate(row):
            if other == answer:
                continue
            comparisons += 1
            finite = math.isfinite(row[answer]) and math.isfinite(loss)
            tie = finite and row[answer] == loss
            ties += tie
            won = finite and (row[answer] < loss or (tie and tie_rule == "win"))
            wins += won
            won_all = won_all and won
            if not broken:
                positives.append(row[answer])
                negatives.append(loss)
        whole += won_all
    return {
        "accuracy": wins / comparisons,
        "question_accuracy": whole / len(losses),
        "positive_loss": sum(positives) / len(positives),
        "negative_loss": sum(negatives) / len(negatives),
        "positive_minus_negative": sum(p - n for p, n in zip(positives, negatives, strict=True)) / len(positives),
        "ties": ties,
        "invalid": invalid,
    }


@pytest.mark.parametrize("tie_rule", ["lose", "win"])
@pytest.mark.parametrize("seed", range(20))
def test_figures_equal_a_slow_count_over_random_tables(seed: int, tie_rule: TieRule) -> None:
    draw = random.Random(seed)
    # Few values, so that ties are common; now and then a loss that is not finite.
    values = [0.5, 1.0, 1.5, 2.0, 2.5] * 4 + [math.nan, math.inf]
    losses = [[draw.choice(values) for _ in range(draw.randint(2, 5))] for _ in range(60)]
    answers = [draw.randrange(len(row)) for row in losses]
    figures = condition_figures(table(losses, answers), tie_rule)
    for name, expected in slow(losses, answers, tie_rule).items():
        found = getattr(figures, name)
        assert getattr(found, "value", found) == pytest.approx(expected, abs=1e-12), name
    for name in ("accuracy", "question_accuracy", "positive_loss", "negative_loss", "positive_minus_negative"):
        estimate = getattr(figures, name)
        assert estimate.low <= estimate.value <= estimate.high


def test_tie_rules_by_hand() -> None:
    tied = table([[1.0, 1.0], [1.0, 2.0]], [0, 0])
    assert condition_figures(tied, "lose").accuracy.value == 0.5
    assert condition_figures(tied, "win").accuracy.value == 1.0
    assert condition_figures(tied, "lose").ties == condition_figures(tied, "win").ties == 1


def test_pairwise_and_question_accuracy_are_different_things() -> None:
    figures = condition_figures(table([[1.0, 2.0, 3.0, 0.5]], [0]), "win")
    assert figures.accuracy.value == pytest.approx(2 / 3)
    assert figures.question_accuracy.value == 0.0


def test_losses_are_per_token() -> None:
    unequal = LossTable(("q",), ("q",), np.array([0]), np.array([[6.0, 5.0]]), np.array([[3, 2]]))
    figures = condition_figures(unequal, "lose")
    assert (figures.positive_loss.value, figures.negative_loss.value, figures.accuracy.value) == (2.0, 2.5, 1.0)


def test_an_answer_that_is_not_finite_loses_against_everything() -> None:
    figures = condition_figures(table([[math.nan, 1.0], [math.inf, math.inf], [1.0, math.inf]], [0, 0, 0]), "win")
    assert figures.accuracy.value == 0.0
    assert figures.invalid == 3
    assert math.isnan(figures.positive_loss.value)


def test_difference_is_paired_by_question() -> None:
    better, worse = table([[1, 2], [1, 2], [1, 2], [2, 1]], [0] * 4), table([[1, 2], [2, 1], [2, 1], [2, 1]], [0] * 4)
    assert accuracy_difference(better, worse, "lose").value == pytest.approx(0.5)
    assert accuracy_difference(worse, better, "lose").value == pytest.approx(-0.5)
    other = table([[1, 2]], [0])
    with pytest.raises(ValueError, match="can only be paired over the same questions"):
        accuracy_difference(better, other, "lose")


def rights(right: int, questions: int = 40) -> LossTable:
    return table([[1.0, 2.0] if number < right else [2.0, 1.0] for number in range(questions)], [0] * questions)


def test_ability_lost_by_hand() -> None:
    # 0.9 in text and 0.7 in speech: of 0.4 above chance, 0.2 are gone.
    found = ability_lost(rights(36), rights(28), "lose")
    assert found.value == pytest.approx(0.5)
    assert 0.1 < found.low < 0.5 < found.high < 1
    assert ability_lost(rights(36), rights(20), "lose").value == pytest.approx(1.0)
    same = ability_lost(rights(36), rights(36), "lose")
    assert same.low < same.value == 0 < same.high


def test_no_share_is_given_of_an_ability_that_is_not_there() -> None:
    """24 of 40 is 0.6, with an interval that holds chance; 28 of 40 is above it."""
    assert math.isnan(ability_lost(rights(24), rights(22), "lose").value)
    assert math.isnan(ability_lost(rights(10), rights(22), "lose").high)
    assert ability_lost(rights(28), rights(24), "lose").value == pytest.approx(0.5)


def test_three_comparisons_of_a_question_are_one_cluster_in_every_interval() -> None:
    """Questions with three other candidates of one loss: no surer than with one."""
    once, thrice = (table([[2.0, 1.0 + (number % 3)] + [1.0 + (number % 3)] * more for number in range(60)], [0] * 60) for more in (0, 2))
    for name in ("accuracy", "positive_minus_negative"):
        one, three = (getattr(condition_figures(each, "lose"), name) for each in (once, thrice))
        assert (three.value, three.low, three.high) == pytest.approx((one.value, one.low, one.high))
    ones, threes = (accuracy_difference(each, replace(each, nats=each.nats[::-1]), "lose") for each in (once, thrice))
    assert (threes.low, threes.high) == pytest.approx((ones.low, ones.high))
    assert ones.low < ones.high


def test_half_of_the_questions_without_a_finite_loss_is_too_many() -> None:
    refuse_if_mostly_invalid(table([[math.nan, 1.0], [1.0, 2.0], [1.0, 2.0]], [0, 0, 0]), "mine/s2t")
    with pytest.raises(FloatingPointError, match=r"mine/s2t: 1 of 2 questions have a NaN or infinite loss \(q0, \.\.\.\)"):
        refuse_if_mostly_invalid(table([[math.nan, 1.0], [1.0, 2.0]], [0, 0]), "mine/s2t")


def test_other_normalisations_by_hand() -> None:
    texts = ("aaaa", "b")
    items = (Item("q0", (Context("c"),) * 2, texts, 0), Item("q1", (Context("c"),) * 2, ("语言", "xxxxx"), 0))
    # Summed nats: 4 against 2, and 5 against 6.
    losses = LossTable(("q0", "q1"), ("q0", "q1"), np.array([0, 0]), np.array([[4.0, 2.0], [5.0, 6.0]]), np.array([[4, 1], [1, 2]]))
    # By character 1 against 2 and 2.5 against 1.2; by byte 1 against 2 and 5/6 against 6/5.
    expected = {"sum": 0.5, "per_character": 0.5, "per_byte": 1.0}
    assert normalised_accuracies(losses, Benchmark("mine", "en", items)) == expected


def test_invalid_items_are_named() -> None:
    assert invalid_items(table([[1.0, 2.0], [math.inf, 1.0], [1.0, math.nan, 2.0]], [0, 0, 0])) == ["q1", "q2"]
