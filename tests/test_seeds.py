from __future__ import annotations

import math

import numpy as np
import pytest

from s2sbench_callback.seeds import Spread, spread

QUESTIONS = ("a", "b", "c")
# Two trainings on three questions. Seeds' mean square 13.5 (1 degree of freedom), questions' 8 (2), rest's 2 (2).
BY_HAND = np.array([[1.0, 2.0, 3.0], [2.0, 5.0, 8.0]])


def test_variance_components_by_hand() -> None:
    found = spread([BY_HAND], np.ones(3), QUESTIONS)
    # Components (8 - 2) / 2 = 3 a question, (13.5 - 2) / 3 a seed and 2 of the rest, over 3 questions, 2 seeds and 6 answers.
    assert (found.questions, found.seeds, found.rest) == pytest.approx((3 / 3, 11.5 / 3 / 2, 2 / 6))
    assert found.error**2 == pytest.approx((13.5 + 8 - 2) / 6)
    assert found.freedom == pytest.approx(19.5**2 / (13.5**2 / 1 + 8**2 / 2 + 2**2 / 2))
    assert found.p_value(0.0) == pytest.approx(1.0)
    # Student's t with 1.758 degrees of freedom, from its closed forms for 1 and 2: 12.706 and 4.303.
    assert 4.303 < found.half_width() / found.error < 12.706


def test_a_difference_joins_both_sides() -> None:
    still = np.zeros((1, 3))
    alone, joined = spread([BY_HAND], np.ones(3), QUESTIONS), spread([still, BY_HAND], np.ones(3), QUESTIONS)
    # The one training of the other side is taken to vary with its seed as those of this side do.
    assert joined.trainings == 1
    assert joined.seeds == pytest.approx(3 * alone.seeds)
    assert joined.rest == pytest.approx(3 * alone.rest)


def test_one_training_a_side_says_nothing_of_seeds() -> None:
    found = spread([BY_HAND[:1], BY_HAND[1:]], np.ones(3), QUESTIONS)
    assert math.isnan(found.seeds)
    # Differences 1, 3, 5.
    assert found.error == pytest.approx(2 / math.sqrt(3))
    assert found.freedom == 2


def test_comparisons_of_one_group_are_one_unit() -> None:
    repeated = spread([np.repeat(BY_HAND, 3, axis=1)], np.ones(9), tuple(np.repeat(QUESTIONS, 3)))
    plain, weighted = spread([BY_HAND], np.ones(3), QUESTIONS), spread([BY_HAND], np.full(3, 3.0), QUESTIONS)
    for found in (repeated, weighted):
        assert (found.questions, found.seeds, found.rest, found.groups) == pytest.approx((plain.questions, plain.seeds, plain.rest, 3))


def test_what_would_come_out_negative_counts_as_nothing() -> None:
    found = spread([np.array([[1.0, 3.0, 2.0], [3.0, 1.0, 2.0]])], np.ones(3), QUESTIONS)
    assert (found.questions, found.seeds) == (0, 0)
    assert found.freedom == 2


def test_imagined_questions_leave_no_variance_at_nothing() -> None:
    same = np.ones((1, 3))
    assert spread([same, same], np.ones(3), QUESTIONS).error == 0
    assert spread([same, same], np.ones(3), QUESTIONS, np.array([1.0, -1.0, 0.0, 0.0])).error > 0


def test_more_questions_lower_all_but_the_seeds() -> None:
    found = Spread(0.04, 0.01, 0.02, 100, 4).with_groups(400)
    assert (found.questions, found.seeds, found.rest, found.groups) == (0.01, 0.01, 0.005, 400)


def test_the_pooled_interval_holds_the_truth_as_often_as_it_says() -> None:
    draw, held, by_questions_alone = np.random.default_rng(0), 0, 0
    for _ in range(400):
        level = draw.normal(0, 0.4, size=120)
        sides = [level + draw.normal(0, 0.2, 120) + draw.normal(0, 0.05, (3, 1)) + draw.normal(0, 0.3, (3, 120)) for _ in range(2)]
        found = spread(sides, np.ones(120), [str(number) for number in range(120)])
        value = abs(float(sides[1].mean() - sides[0].mean()))
        held += value <= found.half_width()
        by_questions_alone += value <= 1.98 * math.sqrt(found.questions + found.rest)
    assert held / 400 == pytest.approx(0.95, abs=0.025)
    assert by_questions_alone / 400 < 0.8
