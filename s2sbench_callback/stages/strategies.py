"""What a change of stage takes under each strategy, or why it cannot be done there."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from s2sbench_callback.lightning_run import kinds_of
from s2sbench_callback.stages.selection import Learner


def stage_refusal(trainer: pl.Trainer) -> str | None:
    """Why stages cannot change under a trainer's strategy, or ``None`` if they can."""
    strategy: Any = trainer.strategy
    kinds = kinds_of(strategy)
    if "DeepSpeedStrategy" in kinds:
        return (
            "DeepSpeed lays out its flat buffers from the parameters that learn when it is initialised: what is frozen then never learns, and what "
            "is frozen later is still moved by weight decay. Use ModelParallelStrategy (FSDP2) or FSDP, or train each stage as a run of its own; "
            "mode='advise' works here"
        )
    if "FSDPStrategy" in kinds and not strategy.kwargs.get("use_orig_params", False):
        return "FSDP with use_orig_params=False needs all parameters of a flat buffer frozen or none; use FSDPStrategy(use_orig_params=True)"
    if kinds.isdisjoint(("SingleDeviceStrategy", "DDPStrategy", "ModelParallelStrategy", "FSDPStrategy")):
        return f"the strategy {type(strategy).__name__} is unknown to the stages; they know single devices, DDP, ModelParallelStrategy and FSDP"
    return None


def refuse_unsynchronised(trainer: pl.Trainer, learners: Iterable[Learner]) -> None:
    """Under FSDP2, makes sure that what learns is sharded, since nothing is known of how other gradients come together.

    Raises:
        MisconfigurationException: If a parameter that learns in any stage is not.
    """
    kinds = kinds_of(trainer.strategy)
    if "ModelParallelStrategy" not in kinds or trainer.world_size == 1:
        return
    whole = [learner.name for learner in learners if not isinstance(learner.parameter, DTensor)]
    if whole:
        raise MisconfigurationException(
            f"{whole[0]} and {len(whole) - 1} more parameter(s) learn in a stage and are not sharded, so their gradients would differ between ranks; "
            "call fully_shard on the module that holds them in configure_model"
        )


def refuse_rows(trainer: pl.Trainer, learners: Iterable[Learner]) -> None:
    """Rows cannot be told apart in FSDP1's flat buffers.

    Raises:
        MisconfigurationException: If a stage trains rows under FSDP1, or under FSDP2 with a matrix that is not sharded along its rows.
    """
    partly = [learner for learner in learners if learner.rows is not None]
    kinds = kinds_of(trainer.strategy)
    if partly and "FSDPStrategy" in kinds:
        raise MisconfigurationException(
            f"a stage trains some rows of {partly[0].name}, and FSDP flattens the matrix so that rows cannot be told apart; use "
            "ModelParallelStrategy (FSDP2)"
        )
    for learner in partly:
        parameter: Any = learner.parameter
        if isinstance(parameter, DTensor) and not all(placement.is_shard(0) or placement.is_replicate() for placement in parameter.placements):
            raise MisconfigurationException(f"a stage trains some rows of {learner.name}, which is sharded along another dimension than its rows")


def refuse_sparse_rows(root: nn.Module, learners: Iterable[Learner]) -> None:
    """A sparse gradient has no rows to set to zero.

    Raises:
        MisconfigurationException: If a stage trains some rows of a matrix whose gradients are sparse.
    """
    partly = {id(learner.parameter): learner.name for learner in learners if learner.rows is not None}
    for module in root.modules():
        weight = getattr(module, "weight", None)
        if getattr(module, "sparse", False) is True and id(weight) in partly:
            raise MisconfigurationException(
                f"a stage trains some rows of {partly[id(weight)]}, whose gradients are sparse; make its {type(module).__name__} with sparse=False, "
                "or train the whole matrix"
            )


def check_before_sharded_load(trainer: pl.Trainer, check: Callable[[dict[str, Any], bool], str | None]) -> None:
    """Looks into a checkpoint before a strategy that shards loads it, and refuses it if it cannot be gone on from.

    Args:
        trainer: Its strategy has set everything up.
        check: Is given the checkpoint, or what stands beside its shards, and whether there are shards; says why it cannot be loaded, or ``None``.

    Raises:
        MisconfigurationException: When the checkpoint comes to be loaded and cannot be.
    """
    strategy = trainer.strategy
    if not strategy.restore_checkpoint_after_setup:
        return
    load = strategy.load_checkpoint

    def check_and_load(checkpoint_path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        strategy.__dict__.pop("load_checkpoint", None)
        path = Path(checkpoint_path)
        in_shards = path.is_dir()
        file = path / "meta.pt" if in_shards else path
        reason = check(torch.load(file, map_location="cpu", mmap=True, weights_only=False), in_shards) if file.is_file() else None
        if reason:
            raise MisconfigurationException(f"StageUnfreeze cannot go on from the checkpoint {checkpoint_path}: {reason}")
        return load(checkpoint_path, *arguments, **options)

    strategy.__dict__["load_checkpoint"] = check_and_load


def reshard(root: nn.Module) -> None:
    """Makes the parameters of FSDP2 modules shards again, the only ones that an optimizer and ``requires_grad_`` may touch."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def rebuild_wrapper(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    """Wraps the model anew under DDP, which synchronises only what learnt when it was wrapped; nothing to do elsewhere.

    The wrapper is built by the strategy, with the user's own arguments and communication hook. Parameters and buffers are not broadcast: they
    are equal already, or differ because the user wants it so.

    Raises:
        RuntimeError: If something still holds the old wrapper, whose hooks would synchronise every gradient a second time.
    """
    strategy: Any = trainer.strategy
    if not isinstance(strategy.model, DistributedDataParallel):
        return
    old = weakref.ref(strategy.model)
    strategy.model = pl_module
    gc.collect()
    if old() is not None:
        raise RuntimeError(
            "StageUnfreeze cannot rebuild the DDP wrapper: something else still holds the old one, and its hooks would synchronise gradients twice; "
            "do not keep trainer.model or trainer.strategy.model in a callback or module"
        )
    # PowerSGD keeps memories by bucket, and the buckets are new.
    for memory in ("error_dict", "p_memory_dict", "q_memory_dict"):
        kept = getattr(strategy._ddp_comm_state, memory, None)
        if kept is not None:
            kept.clear()
    arguments = strategy._ddp_kwargs
    strategy._ddp_kwargs = {**arguments, "init_sync": False}
    try:
        strategy.configure_ddp()
    finally:
        strategy._ddp_kwargs = arguments
