"""When to probe: pure functions of steps and epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CheckpointTrigger:
    """When one checkpoint callback saves.

    Attributes:
        every_n_train_steps: Optimizer steps between saves, 0 for never.
        every_n_epochs: Epochs between saves, 0 for never.
        timed: Whether it also saves by the clock.
        at_train_epoch_end: Whether an epoch's save comes at the end of training in that epoch, or else after validation.
    """

    every_n_train_steps: int
    every_n_epochs: int
    timed: bool
    at_train_epoch_end: bool


@dataclass(frozen=True)
class ProbePlan:
    """The moments at which to probe.

    Attributes:
        steps: Numbers of optimizer steps; a probe is due at multiples of any of them.
        train_epochs: Numbers of epochs, at the end of their training.
        validation_epochs: Numbers of epochs, after their validation.
    """

    steps: tuple[int, ...] = ()
    train_epochs: tuple[int, ...] = ()
    validation_epochs: tuple[int, ...] = ()

    def due_at_step(self, step: int, last_probed: int | None) -> bool:
        """Whether a probe is due now that ``step`` optimizer steps are done.

        Under gradient accumulation several batches end at the same step; only the first of them probes.
        """
        return step > 0 and step != last_probed and any(step % n == 0 for n in self.steps)

    def due_at_train_epoch_end(self, epoch: int, step: int, last_probed: int | None) -> bool:
        """Whether a probe is due at the end of training in ``epoch``, counted from 0."""
        return step != last_probed and any((epoch + 1) % n == 0 for n in self.train_epochs)

    def due_at_validation_end(self, epoch: int, step: int, last_probed: int | None) -> bool:
        """Whether a probe is due after a validation in ``epoch``, counted from 0."""
        return step != last_probed and any((epoch + 1) % n == 0 for n in self.validation_epochs)

    def __str__(self) -> str:
        moments = [f"every {n} optimizer steps" for n in self.steps]
        moments += [f"every {n} epoch(s), when its training ends" for n in self.train_epochs]
        moments += [f"every {n} epoch(s), after validation" for n in self.validation_epochs]
        return " and ".join(moments)


def plan_probes(every_n_train_steps: int | None, checkpoints: Sequence[CheckpointTrigger]) -> ProbePlan:
    """Decides when to probe.

    Args:
        every_n_train_steps: Optimizer steps between probes, or ``None`` to follow the checkpoints.
        checkpoints: When the run's checkpoint callbacks save.

    Raises:
        ValueError: If there is nothing that can be followed.
    """
    if every_n_train_steps is not None:
        if every_n_train_steps < 1:
            raise ValueError(f"every_n_train_steps must be at least 1, got {every_n_train_steps}")
        return ProbePlan(steps=(every_n_train_steps,))
    if not checkpoints:
        raise ValueError("there is no ModelCheckpoint to follow; say how often to probe: S2SBenchCallback(every_n_train_steps=1000)")
    if any(trigger.timed for trigger in checkpoints):
        raise ValueError(
            "a ModelCheckpoint saves by the clock (train_time_interval), which cannot be followed in equal steps on all ranks; say how "
            "often to probe: S2SBenchCallback(every_n_train_steps=1000)"
        )

    def distinct(numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted({number for number in numbers if number > 0}))

    plan = ProbePlan(
        steps=distinct([trigger.every_n_train_steps for trigger in checkpoints]),
        train_epochs=distinct([trigger.every_n_epochs for trigger in checkpoints if trigger.at_train_epoch_end]),
        validation_epochs=distinct([trigger.every_n_epochs for trigger in checkpoints if not trigger.at_train_epoch_end]),
    )
    if plan == ProbePlan():
        raise ValueError("no ModelCheckpoint saves at regular steps or epochs; say how often to probe: S2SBenchCallback(every_n_train_steps=1000)")
    return plan
