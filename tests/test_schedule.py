from __future__ import annotations

import pytest

from s2sbench_callback.schedule import CheckpointTrigger, ProbePlan, plan_probes

STEPS = CheckpointTrigger(every_n_train_steps=50, every_n_epochs=0, timed=False, at_train_epoch_end=False)
EPOCHS = CheckpointTrigger(every_n_train_steps=0, every_n_epochs=2, timed=False, at_train_epoch_end=True)
VALIDATION = CheckpointTrigger(every_n_train_steps=0, every_n_epochs=1, timed=False, at_train_epoch_end=False)
TIMED = CheckpointTrigger(every_n_train_steps=0, every_n_epochs=0, timed=True, at_train_epoch_end=False)


def test_a_number_wins_over_the_checkpoints() -> None:
    assert plan_probes(7, [STEPS, TIMED]) == ProbePlan(steps=(7,))


def test_checkpoints_are_followed_each_in_its_own_hook() -> None:
    plan = plan_probes(None, [STEPS, EPOCHS, VALIDATION, STEPS])
    assert plan == ProbePlan(steps=(50,), train_epochs=(2,), validation_epochs=(1,))
    assert str(plan) == "every 50 optimizer steps and every 2 epoch(s), when its training ends and every 1 epoch(s), after validation"


@pytest.mark.parametrize(
    ("number", "checkpoints", "message"),
    [
        (None, [], r"there is no ModelCheckpoint to follow.*every_n_train_steps=1000"),
        (None, [STEPS, TIMED], r"saves by the clock.*every_n_train_steps=1000"),
        (None, [CheckpointTrigger(0, 0, False, False)], r"no ModelCheckpoint saves at regular steps or epochs"),
        (0, [STEPS], r"every_n_train_steps must be at least 1, got 0"),
    ],
)
def test_nothing_to_follow(number: int | None, checkpoints: list[CheckpointTrigger], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_probes(number, checkpoints)


def test_due_at_step() -> None:
    plan = ProbePlan(steps=(3, 4))
    probed: list[int] = []
    last = 0
    # Two batches a step, as under accumulation.
    for step in [0, 0, *(step for number in range(1, 13) for step in (number, number))]:
        if plan.due_at_step(step, last):
            probed.append(step)
            last = step
    assert probed == [3, 4, 6, 8, 9, 12]


def test_due_at_epochs() -> None:
    plan = ProbePlan(train_epochs=(2,), validation_epochs=(3,))
    assert [epoch for epoch in range(6) if plan.due_at_train_epoch_end(epoch, step=epoch + 10, last_probed=None)] == [1, 3, 5]
    assert [epoch for epoch in range(6) if plan.due_at_validation_end(epoch, step=epoch + 10, last_probed=None)] == [2, 5]
    assert not plan.due_at_train_epoch_end(1, step=10, last_probed=10)
    assert not plan.due_at_validation_end(2, step=10, last_probed=10)
