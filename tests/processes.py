"""What the scripts that run in several processes share."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def shard(task: Any) -> None:
    """Shards a task's language model as users shard: each layer, then the model as a whole."""
    mesh = task.device_mesh["data_parallel"]
    for layer in task.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(task.model, mesh=mesh)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, of which this rank may hold a shard."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def end() -> NoReturn:
    """Ends in good order: threads of the process group sometimes abort an interpreter that does not hurry."""
    if dist.is_initialized():
        dist.barrier()
    os._exit(0)
