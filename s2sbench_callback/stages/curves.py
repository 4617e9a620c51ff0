"""Schedulers that know one curve, followed by groups at rates of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch.optim.lr_scheduler import LRScheduler


def refuse_unknown_schedulers(schedulers: Sequence[Any]) -> None:
    """Stages that set rates must know what a scheduler keeps for each group.

    Raises:
        ValueError: If one is not torch's, nor derived from torch's.
    """
    for scheduler in schedulers:
        if not isinstance(scheduler, LRScheduler):
            raise ValueError(
                f"a stage sets a learning rate or warms up, and the scheduler {type(scheduler).__name__} is not a "
                "torch.optim.lr_scheduler.LRScheduler, so it is not known which rates it holds; write the same curve as a LambdaLR, or leave "
                "lr and warm_up_steps out of the stages and a guard that lowers rates out of StageUnfreeze"
            )


def step_within(scheduler: Any, at_own_rates: Callable[[], AbstractContextManager[None]]) -> None:
    """Makes a scheduler take its steps within a context.

    Some schedulers hold a rate that is one number for all groups, for example ``eta_min``, and others go on from the rate that a group has. Both are
    right only at the rates that the optimizer was configured with.

    Args:
        scheduler: Its class is replaced by one derived from it, since an attribute of its own would be saved with its state.
        at_own_rates: Brings the groups to those rates, and at its end back to the stage's.
    """
    kind = type(scheduler)

    def step(self: Any, *arguments: Any, **options: Any) -> None:
        with at_own_rates():
            kind.step(self, *arguments, **options)

    scheduler.__class__ = type(kind.__name__, (kind,), {"__slots__": (), "__module__": kind.__module__, "__doc__": kind.__doc__, "step": step})
