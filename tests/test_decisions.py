from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from s2sbench_callback.decisions import question_values, stage_history
from s2sbench_callback.scoring import LossTable

# Two candidates, then three; losses per token 1, 2 | 3, 2 | 1, 1, 4 and a NaN.
NATS = np.array([[2.0, 4.0, 0.0], [3.0, 4.0, 0.0], [1.0, 1.0, 4.0], [np.nan, 1.0, 0.0]])
TOKENS = np.array([[2, 2, 0], [1, 2, 0], [1, 1, 1], [1, 1, 0]])
TABLE = LossTable(("a", "b", "c", "d"), ("g", "g", "c", "d"), np.array([0, 0, 1, 0]), NATS, TOKENS)


def test_figures_of_each_question_by_hand() -> None:
    nan = np.nan
    np.testing.assert_allclose(question_values(TABLE, "lose", "positive_minus_negative"), [1 - 2, 3 - 2, 1 - (1 + 4) / 2, nan])
    np.testing.assert_allclose(question_values(TABLE, "lose", "positive_loss"), [1, 3, 1, nan])
    np.testing.assert_allclose(question_values(TABLE, "lose", "accuracy"), [1, 0, 0.5, nan])
    np.testing.assert_allclose(question_values(TABLE, "win", "accuracy"), [1, 0, 1, nan])


def test_a_history_keeps_weights_and_clusters_and_can_be_cut() -> None:
    history = stage_history(7, [(7, {"set": {"s2t": TABLE}}), (9, {"set": {"s2t": TABLE}})], {"set": "lose"}, "s2t", "positive_loss")
    series = history.sets["set"]
    assert (history.start, history.steps, series.values.shape) == (7, (7, 9), (2, 4))
    np.testing.assert_array_equal(series.weights, [1, 1, 2, 1])
    assert series.groups == ("g", "g", "c", "d")
    assert history.first(1).steps == (7,)
    assert history.first(1).sets["set"].values.shape == (1, 4)


def test_what_cannot_be_one_history_is_refused() -> None:
    probes = [(0, {"set": {"s2t": TABLE}}), (5, {"set": {"s2t": replace(TABLE, item_ids=("a", "b", "c", "e"))}})]
    with pytest.raises(ValueError, match="set: the probes from step 0 to 5 were not all asked the same questions"):
        stage_history(0, probes, {"set": "lose"}, "s2t", "accuracy")
    with pytest.raises(ValueError, match="the probes have no t2t losses of 'set'; they have none of any set"):
        stage_history(0, probes[:1], {"set": "lose"}, "t2t", "accuracy", ["set"])
