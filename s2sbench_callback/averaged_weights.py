"""Probing the averaged weights that an EMA or weight-averaging callback keeps, in place of those that are trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal, cast

import lightning.pytorch as pl
import torch
from torch import nn

from s2sbench_callback.lightning_run import kinds_of

Weights = Literal["current", "average"]


def averaging_callback(trainer: pl.Trainer) -> Any | None:
    """Lightning's ``WeightAveraging`` or ``EMAWeightAveraging`` among the trainer's callbacks, where there is one."""
    return next((callback for callback in cast(Any, trainer).callbacks if "WeightAveraging" in kinds_of(callback)), None)


def ends_on_average(trainer: pl.Trainer, callback: pl.Callback) -> bool:
    """Whether the model holds the averaged weights when ``on_train_end`` reaches a callback: Lightning's averaging copies them in then."""
    averaging = averaging_callback(trainer)
    callbacks = cast(Any, trainer).callbacks
    return averaging is not None and callbacks.index(averaging) < callbacks.index(callback)


@contextmanager
def probed_weights(trainer: pl.Trainer, pl_module: nn.Module, weights: Weights) -> Iterator[None]:
    """Puts the averaged weights into the model, and the trained ones back, to the bit, also when something raises.

    Before the first average is taken, the trained weights are what it will start from, so they stay.

    Args:
        trainer: Its averaging callback is asked.
        pl_module: The model that is trained.
        weights: ``current`` leaves everything as it is.
    """
    callback = averaging_callback(trainer) if weights == "average" else None
    average = getattr(callback, "_average_model", None)
    if average is None or int(average.n_averaged) == 0:
        yield
        return
    trained = list(chain(pl_module.parameters(), pl_module.buffers()))
    averaged = list(chain(average.module.parameters(), average.module.buffers()))
    kept = [tensor.detach().clone() for tensor in trained]
    try:
        _copy(averaged, trained)
        yield
    finally:
        _copy(kept, trained)


@torch.no_grad()
def _copy(sources: list[torch.Tensor], targets: list[torch.Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
