"""What the probe needs to know of a Lightning trainer, of either namespace."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import lightning.pytorch as pl
import torch
from torch import Tensor

from s2sbench_callback.decisions import Judge
from s2sbench_callback.live_model import Redirection
from s2sbench_callback.report import PREFIX
from s2sbench_callback.schedule import CheckpointTrigger

T = TypeVar("T")

_WHOLE = ("SingleDeviceStrategy", "DDPStrategy")
_SHARDED_IN_PLACE = "ModelParallelStrategy"
_SHARDED_BY_WRAPPER = ("FSDPStrategy", "DeepSpeedStrategy")


def kinds_of(thing: object) -> set[str]:
    """Names of an object's class and all it inherits from, the same in either namespace of Lightning."""
    return {kind.__name__ for kind in type(thing).__mro__}


def callbacks_of(trainer: pl.Trainer, kind: type[T]) -> list[T]:
    """The trainer's callbacks of one kind, in their order."""
    return [callback for callback in cast(Any, trainer).callbacks if isinstance(callback, kind)]


def is_fast_dev_run(trainer: pl.Trainer) -> bool:
    """Whether the trainer only tries its code paths."""
    return bool(getattr(trainer, "fast_dev_run", False))


def checkpoint_triggers(trainer: pl.Trainer) -> list[CheckpointTrigger]:
    """When each ``ModelCheckpoint`` saves; it keeps its triggers in private attributes."""
    triggers = []
    for callback in trainer.checkpoint_callbacks:
        kept: Any = callback
        if all(hasattr(kept, name) for name in ("_every_n_train_steps", "_every_n_epochs", "_train_time_interval")):
            triggers.append(
                CheckpointTrigger(
                    kept._every_n_train_steps,
                    kept._every_n_epochs,
                    kept._train_time_interval is not None,
                    kept._should_save_on_train_epoch_end(trainer),
                )
            )
    return triggers


def refusal(trainer: pl.Trainer) -> str | None:
    """Why a model under this trainer's strategy cannot be probed, or ``None`` if it can."""
    kinds = kinds_of(trainer.strategy)
    if kinds.isdisjoint((*_WHOLE, _SHARDED_IN_PLACE, *_SHARDED_BY_WRAPPER)):
        return f"the strategy {type(trainer.strategy).__name__} is unknown to the probe; it knows DDP, ModelParallelStrategy, FSDP and DeepSpeed"
    tensor_parallel = getattr(trainer.strategy, "_tensor_parallel_size", 1)
    if _SHARDED_IN_PLACE in kinds and tensor_parallel not in (1, "auto"):
        return f"tensor_parallel_size={tensor_parallel} splits the logits over ranks, which the probe cannot read; use tensor_parallel_size=1"
    return None


def redirection(trainer: pl.Trainer, pl_module: pl.LightningModule) -> Redirection | None:
    """For strategies that shard through a wrapper: runs a function inside the wrapper's forward, as Lightning runs ``validation_step``."""
    kinds = kinds_of(trainer.strategy)
    if kinds.isdisjoint(_SHARDED_BY_WRAPPER):
        return None

    def run(function: Callable[[], Tensor]) -> Tensor:
        strategy = cast(Any, trainer.strategy)
        object.__setattr__(pl_module, "_s2sbench_enter", lambda: function())
        try:
            result: Tensor = strategy._forward_redirection(strategy.model, pl_module, "_s2sbench_enter")
            return result
        finally:
            object.__delattr__(pl_module, "_s2sbench_enter")

    return run


def end_launched(trainer: pl.Trainer) -> None:
    """Ends the processes that this one's launcher has started; other launchers watch over theirs."""
    kill = getattr(cast(Any, trainer.strategy).launcher, "kill", None)
    if kill is not None:
        kill(signal.SIGTERM)


def place_of(trainer: pl.Trainer, callback: pl.Callback) -> int:
    """Number from 0 of a callback among those of its class."""
    return [each for each in cast(Any, trainer).callbacks if type(each) is type(callback)].index(callback)


def default_dirpath(trainer: pl.Trainer, callback: pl.Callback) -> Path:
    """Below the first logger's folder of this run, else a numbered folder below the trainer's root.

    A second callback of the same class takes a folder of its own beside the first one's.
    """
    place = place_of(trainer, callback)
    name = f"{PREFIX}_probe{place + 1}" if place else PREFIX
    for logger in trainer.loggers:
        if logger.save_dir is not None:
            number = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
            return Path(logger.save_dir) / str(logger.name) / number / name
    root = Path(trainer.default_root_dir)
    taken = 0
    while (folder := root / f"{name}{f'_{taken}' if taken else ''}").exists():
        taken += 1
    return folder


def before_sharded_load(trainer: pl.Trainer, state_key: str, action: Callable[[dict[str, Any]], object]) -> Callable[[], object]:
    """Runs an action with a callback's saved state right before Lightning loads a checkpoint through a strategy that shards.

    These strategies load the optimizer's state along with the weights, before any callback is told of the checkpoint, and torch gives a state
    back only to what requires gradients then. No hook comes between, so the strategy's method is replaced for the one call.

    Args:
        trainer: Its strategy has set everything up.
        state_key: The callback's.
        action: Called only if the checkpoint holds a state of that callback.

    Returns:
        Puts the strategy's own method back, for a run that loads nothing.
    """
    strategy = trainer.strategy
    if not strategy.restore_checkpoint_after_setup:
        return lambda: None
    load = strategy.load_checkpoint

    def peek_and_load(checkpoint_path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        put_back()
        path = Path(checkpoint_path)
        # A folder is a sharded checkpoint, beside whose shards Lightning keeps everything else.
        file = path / "meta.pt" if path.is_dir() else path
        saved = torch.load(file, map_location="cpu", mmap=True, weights_only=False).get("callbacks", {}).get(state_key)
        if saved:
            action(saved)
        return load(checkpoint_path, *arguments, **options)

    def put_back() -> None:
        strategy.__dict__.pop("load_checkpoint", None)

    strategy.__dict__["load_checkpoint"] = peek_and_load
    return put_back


def judge_of(trainer: pl.Trainer) -> Judge | None:
    """The first callback that judges probes, where there is one."""
    return next(iter(callbacks_of(trainer, Judge)), None)  # type: ignore[type-abstract]


def shows_progress(trainer: pl.Trainer) -> bool:
    """Whether this process draws bars."""
    return trainer.is_global_zero and trainer.progress_bar_callback is not None
