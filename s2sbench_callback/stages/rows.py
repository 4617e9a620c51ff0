"""Rows of a shared matrix that stay as they are, to the bit, while the others learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim import Optimizer

from s2sbench_callback.stages.selection import Learner


class FrozenRows:
    """Keeps rows from learning: their gradient is zeroed before it is clipped, and what weight decay or momentum still do to them is undone.

    Args:
        learners: Parameters of the stage by name; those that learn in all their rows do not matter here.
    """

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        self._frozen: dict[nn.Parameter, Tensor] = {}
        for learner in learners.values():
            if learner.rows is not None:
                frozen = torch.from_numpy(~learner.rows)
                self._frozen[learner.parameter] = _own_rows(frozen, learner.parameter).to(_local(learner.parameter).device)
        self._kept: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def mask_gradients(self) -> None:
        """Zeroes the gradient of frozen rows."""
        for parameter, rows in self._frozen.items():
            if parameter.grad is not None:
                _local(parameter.grad)[rows] = 0

    @torch.no_grad()
    def before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Keeps the frozen rows of what an optimizer is about to change."""
        if not self._frozen:
            return
        owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._kept = {parameter: _local(parameter)[rows] for parameter, rows in self._frozen.items() if id(parameter) in owned}

    @torch.no_grad()
    def after_step(self, *_: Any) -> None:
        """Puts them back."""
        for parameter, values in self._kept.items():
            _local(parameter)[self._frozen[parameter]] = values
        self._kept = {}


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.data


def _own_rows(rows: Tensor, parameter: Tensor) -> Tensor:
    """Which of this rank's rows are meant, of a matrix that is sharded along its rows."""
    if not isinstance(parameter, DTensor):
        return rows
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return rows[offset[0] : offset[0] + shape[0]]
