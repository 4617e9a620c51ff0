"""Which parts of a speech LM are trained when: the two-stage strategy and its switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import lightning.pytorch as pl
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import nn

from s2sbench_callback.adapters import Adapter, Role, find_adapter, find_language_model
from s2sbench_callback.adapters.find import Locator


@dataclass(frozen=True)
class Stage:
    """A stretch of training in which some roles of the model learn and all others are frozen.

    Attributes:
        name: For prints and reports.
        train: Roles that learn.
        steps: Optimizer steps that the stage lasts; ``None`` for the last stage.
    """

    name: str
    train: tuple[Role, ...]
    steps: int | None = None

    def __post_init__(self) -> None:
        unknown = [role for role in self.train if role not in get_args(Role)]
        if unknown:
            raise ValueError(f"stage {self.name!r}: unknown role(s) {unknown}; the roles are {', '.join(get_args(Role))}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"stage {self.name!r}: steps must be at least 1, got {self.steps}")


def two_stage(first_steps: int) -> list[Stage]:
    """The paper's two stages: audio embedding and head alone, then all but the LM's text embedding and head.

    Args:
        first_steps: Optimizer steps of the first stage.
    """
    return [
        Stage("audio parts", ("audio_embedding", "audio_head"), first_steps),
        Stage("language model too", ("audio_embedding", "audio_head", "lm_body")),
    ]


def single_stage() -> list[Stage]:
    """The paper's other strategy: everything but the speech tokenizer from the start."""
    return [Stage("everything", ("audio_embedding", "audio_head", "lm_embedding", "lm_head", "lm_body"))]


class StageUnfreeze(pl.Callback):
    """Freezes and unfreezes the model's roles at fixed optimizer steps, on a single device.

    Example::

        Trainer(callbacks=[S2SBenchCallback(), StageUnfreeze(two_stage(first_steps=2000))])

    All parameters belong in the optimizer from the start: those without a gradient are left alone by it, weight decay included. The stage
    depends on the number of optimizer steps alone, so a resumed run goes on in the right one. A probe at the step of a switch still
    belongs to the stage that ends there.

    Args:
        stages: In order; all but the last say how long they last.
        adapter: Names the roles; found from the model's class by default.
        locator: Where the language model is in the LightningModule.

    Metrics logged: ``s2sbench/stage``, by the probe.

    State saved: none.

    Hooks used: ``setup``, ``on_train_start``, ``on_train_batch_start``.

    Cost: none but the walk over the parameters at each switch.

    Raises:
        ValueError: If a stage that is not the last has no length.
    """

    def __init__(self, stages: list[Stage], adapter: Adapter | None = None, locator: Locator | None = None) -> None:
        super().__init__()
        if not stages:
            raise ValueError("StageUnfreeze needs at least one stage, for example two_stage(first_steps=2000)")
        for stage in stages[:-1]:
            if stage.steps is None:
                raise ValueError(f"stage {stage.name!r} is not the last, so it needs a length in steps")
        self.stages = list(stages)
        self.adapter = adapter
        self.locator = locator
        self._applied: int | None = None

    @property
    def stage_number(self) -> int:
        """The stage that is being trained, from 1."""
        return (self._applied or 0) + 1

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Freezes for the first stage, before the strategy wraps the model."""
        if stage != "fit":
            return
        if trainer.world_size > 1:
            raise MisconfigurationException(
                f"StageUnfreeze switches stages on a single device so far, and this trainer has {trainer.world_size}: parameters frozen when "
                "the model is wrapped are not synchronised once they learn, and the ranks' weights drift apart"
            )
        self._applied = None
        self._apply(pl_module, 0)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Checks that the optimizer knows all that will learn, and goes to the stage of the step that a resumed run starts from."""
        model = find_language_model(pl_module, self.locator)
        adapter = self.adapter or find_adapter(pl_module, model)
        known = {id(parameter) for optimizer in trainer.optimizers for group in optimizer.param_groups for parameter in group["params"]}
        for stage in self.stages:
            missing = [name for name, parameter in learning_parameters(model, adapter, stage.train).items() if id(parameter) not in known]
            if missing:
                raise MisconfigurationException(
                    f"stage {stage.name!r} trains {missing[0]} and {len(missing) - 1} more parameter(s) that no optimizer has; give the optimizer "
                    "all parameters from the start, not only those with requires_grad: what has no gradient is left alone"
                )
        self._apply(pl_module, self._stage_at(trainer.global_step))

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        """Switches when the step has come; ``global_step`` only moves between accumulated batches."""
        self._apply(pl_module, self._stage_at(trainer.global_step))

    def _stage_at(self, step: int) -> int:
        for index, stage in enumerate(self.stages):
            if stage.steps is None or step < stage.steps:
                return index
            step -= stage.steps
        return len(self.stages) - 1

    def _apply(self, pl_module: pl.LightningModule, index: int) -> None:
        if index == self._applied:
            return
        stage = self.stages[index]
        model = find_language_model(pl_module, self.locator)
        adapter = self.adapter or find_adapter(pl_module, model)
        counts = set_trainable(model, adapter, stage.train)
        self._applied = index
        rank_zero_info(f"Stage {index + 1} of {len(self.stages)}, {stage.name}: {counts[0]:,} of {counts[1]:,} parameters learn.")


def set_trainable(model: nn.Module, adapter: Adapter, train: Sequence[Role]) -> tuple[int, int]:
    """Lets the named roles learn and freezes everything else in the model.

    Args:
        model: The language model.
        adapter: Names its roles.
        train: Roles that learn.

    Returns:
        Number of parameters that learn, and of all.

    Raises:
        ValueError: If a role has no parameters in this model, or shares one with a role that does not learn.
    """
    learning = {id(parameter) for parameter in learning_parameters(model, adapter, train).values()}
    count = total = 0
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in learning)
        total += parameter.numel()
        count += parameter.numel() * parameter.requires_grad
    return count, total


def learning_parameters(model: nn.Module, adapter: Adapter, train: Sequence[Role]) -> dict[str, nn.Parameter]:
    """The parameters of the named roles, by name.

    Args:
        model: The language model.
        adapter: Names its roles.
        train: Roles that learn.

    Raises:
        ValueError: If a role has no parameters in this model, or shares one with a role that does not learn.
    """
    roles = adapter.roles(model)
    # A tied head stands here under both its names.
    named = dict(model.named_parameters(remove_duplicate=False))
    for role in train:
        if not any(name.startswith(roles.get(role, ())) for name in named):
            raise ValueError(f"the role {role!r} has no parameters in {type(model).__name__}")
    prefixes = tuple(prefix for role in train for prefix in roles[role])
    learning = {name: parameter for name, parameter in named.items() if name.startswith(prefixes)}
    ids = {id(parameter): name for name, parameter in learning.items()}
    for name, parameter in named.items():
        if id(parameter) in ids and name not in learning:
            raise ValueError(f"{name} and {ids[id(parameter)]} are one tied matrix; a stage must train both or neither")
    return learning
