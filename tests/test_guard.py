from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from s2sbench_callback import Guard, Stage
from s2sbench_callback.decisions import Probed
from s2sbench_callback.scoring import LossTable
from s2sbench_callback.stages.progress import Progress
from s2sbench_callback.stages.watch import GuardWatch

QUESTIONS = 400


def table(wrong: int) -> LossTable:
    """Questions of which the first so many are answered wrongly."""
    nats = np.tile([1.0, 2.0], (QUESTIONS, 1))
    nats[:wrong] = nats[:wrong, ::-1]
    ids = tuple(f"q{number}" for number in range(QUESTIONS))
    return LossTable(ids, ids, np.zeros(QUESTIONS, dtype=np.int64), nats, np.ones((QUESTIONS, 2), dtype=np.int64))


def probed(step: int, wrong: int, reference: int = 20) -> Probed:
    return Probed(step, {"set": {"t2t": table(wrong)}}, {"set": table(reference)}, {"set": "lose"})


def test_a_fall_counts_when_its_interval_lies_below_the_tolerance() -> None:
    # 10 questions lost of 400: -0.025 with a standard error of sqrt(0.025 (1 - 0.025) / 400) = 0.0078, so about [-0.043, -0.007].
    change = Guard().change({"set": table(20)}, {"set": table(30)}, {"set": "lose"})
    assert change is not None
    assert change.value == pytest.approx(-0.025)
    assert (change.low, change.high) == pytest.approx((-0.0429, -0.0074), abs=0.004)
    assert Guard().is_damage(change)
    assert not Guard(tolerance=0.02).is_damage(change)
    assert not Guard().is_damage(Guard().change({"set": table(20)}, {"set": table(22)}, {"set": "lose"}))
    assert Guard().change({}, {"set": table(20)}, {"set": "lose"}) is None


def test_it_waits_for_its_patience_and_lets_go_again() -> None:
    watch = GuardWatch(Guard("hold", patience=2))
    assert watch.look(probed(1, 60)) == (None, False)
    assert not watch.holds
    note, acts = watch.look(probed(2, 60))
    assert acts
    assert note is not None
    assert "Step 2: T→T accuracy is 0.100 [" in note
    assert "below its reference, at 2 probe(s) in a row; the stage is held back." in note
    assert watch.holds
    assert watch.look(probed(3, 60))[1] is False
    assert watch.look(probed(4, 20)) == (None, False)
    assert not watch.holds


def test_rates_are_lowered_again_only_by_a_further_fall() -> None:
    watch = GuardWatch(Guard("lower_lr", patience=1, factor=0.5))
    assert watch.look(probed(1, 60))[1]
    assert watch.lowered == 0.5
    resumed = GuardWatch(Guard("lower_lr", patience=1, factor=0.5))
    resumed.load(watch.state())
    note, acts = resumed.look(probed(2, 62))
    assert not acts
    assert note is not None
    assert "learning rates stay at 0.5" in note
    assert resumed.look(probed(3, 100))[1]
    assert resumed.lowered == 0.25
    assert not resumed.holds
    resumed.begin_stage()
    assert resumed.lowered == 1.0


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("hold", "the stage would be held back."),
        ("lower_lr", "learning rates would be lowered to 0.5 of the stage's."),
        ("stop", "training would stop."),
    ],
)
def test_advice_says_what_would_be_done(action: Literal["hold", "lower_lr", "stop"], words: str) -> None:
    note, _ = GuardWatch(Guard(action, patience=1), applies=False).look(probed(1, 60))
    assert note is not None
    assert note.endswith(words)


def test_what_was_only_advised_lowers_nothing_when_stages_are_applied_later() -> None:
    stages, guard = [Stage("a", ["lm_head"], steps=9), Stage("b", ["lm_body"])], Guard("lower_lr", patience=1)
    advised = Progress(stages, guard, applies=False)
    advised.judge(probed(1, 60), lambda words: words)
    assert advised.lowered == 0.5
    for applies, lowered in ((False, 0.5), (True, 1.0)):
        resumed = Progress(stages, guard, applies)
        resumed.load(advised.state())
        assert resumed.lowered == lowered


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Guard("shout"), "action must be 'warn', 'hold', 'lower_lr' or 'stop', got 'shout'"),  # type: ignore[arg-type]
        (lambda: Guard(tolerance=1.5), "tolerance is a share of accuracy from 0 to below 1, got 1.5"),
        (lambda: Guard(patience=0), "patience must be at least 1 probe, got 0"),
        (lambda: Guard(factor=1.0), "factor must lie between 0 and 1, got 1.0"),
    ],
)
def test_bad_settings(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make()
