"""Carries a stage out: what learns, at which rate, with which wrapper and in which mode."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import lightning.pytorch as pl
import numpy as np
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from s2sbench_callback.adapters import Adapter, find_adapter, find_language_model
from s2sbench_callback.adapters.find import Locator
from s2sbench_callback.stages.carrying import Names, carry_by_name, carry_schedulers, sources
from s2sbench_callback.stages.modes import FrozenModes
from s2sbench_callback.stages.optimizers import StageOptimizers
from s2sbench_callback.stages.rows import FrozenRows
from s2sbench_callback.stages.selection import Learner, Parts, Selection, warn_of_base_layers
from s2sbench_callback.stages.stage import Stage
from s2sbench_callback.stages.strategies import rebuild_wrapper, refuse_rows, refuse_sparse_rows, refuse_unsynchronised, reshard
from s2sbench_callback.stages.table import stage_table
from s2sbench_callback.stages.warm_up import WarmUp


class Switch:
    """The model and its optimizers, brought from stage to stage.

    Args:
        stages: The stages.
        adapter: Names the roles; found from the model's class by default.
        locator: Where the language model is in the LightningModule.

    Attributes:
        modes_are_due: Whether the modules' modes have to be looked after before the next batch.
        loading: A checkpoint that is being loaded, until its optimizer states have found their groups.
        saved_names: Names by optimizer and group, as that checkpoint holds them; ``None`` if it was saved without stages.
    """

    def __init__(self, stages: Sequence[Stage], adapter: Adapter | None, locator: Locator | None) -> None:
        self.modes_are_due = True
        self.loading: dict[str, Any] | None = None
        self.saved_names: Names | None = None
        self._stages = stages
        self._adapter = adapter
        self._locator = locator
        self._parts: Parts | None = None
        self._governed: dict[str, nn.Parameter] = {}
        self._selections: list[Selection] = []
        self._optimizers: StageOptimizers | None = None
        self._rows = FrozenRows({})
        self._modes = FrozenModes()
        self._handles: list[RemovableHandle] = []
        self._warm_up = WarmUp()
        self._saved_options: list[list[dict[str, Any]]] = []

    def freeze_early(self, pl_module: pl.LightningModule, index: int) -> None:
        """Freezes before the strategy wraps the model, where the model is there already; else :meth:`arrange` does it."""
        try:
            self._find(pl_module)
        except Exception:
            # The model, or what its adapter or locator asks the module for, is made later, in setup or configure_model; what is truly wrong is wrong
            # then too.
            return
        self._set_flags(index)

    def freeze_again(self, index: int) -> None:
        """Freezes for the stage of a checkpoint."""
        if self._parts is not None:
            self._set_flags(index)

    def arrange(self, trainer: pl.Trainer, pl_module: pl.LightningModule, index: int, lowers: bool) -> None:
        """Makes optimizer groups fit the stages, once the strategy has set everything up and before a checkpoint's optimizer state comes in.

        Args:
            trainer: Holds optimizers and schedulers.
            pl_module: The LightningModule.
            index: Of the stage that begins or goes on.
            lowers: Whether rates may be lowered within a stage.

        Raises:
            ValueError: If a part matches nothing, or no optimizer has what a stage trains.
            MisconfigurationException: If the strategy would not synchronise what a stage trains.
        """
        reshard(pl_module)
        parts = self._find(pl_module)
        learners = [learner for selection in self._selections for learner in selection.learners.values()]
        refuse_unsynchronised(trainer, learners)
        refuse_rows(trainer, learners)
        refuse_sparse_rows(pl_module, learners)
        warn_of_base_layers(parts, self._selections)
        if self._set_flags(index):
            rebuild_wrapper(trainer, pl_module)
        names = {id(parameter): name for name, parameter in reversed(parts.named.items())}
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._optimizers = StageOptimizers(trainer.optimizers, schedulers, names, self._selections, lowers)
        if self.loading is not None:
            self._carry(self.loading)
        self._unhook()
        for optimizer in self._optimizers.optimizers:
            self._handles += [optimizer.register_step_pre_hook(self._before_step), optimizer.register_step_post_hook(self._after_step)]

    def go_on(self, trainer: pl.Trainer, pl_module: pl.LightningModule, index: int, since: int, lowered: float) -> None:
        """Takes a stage up where it is, after a checkpoint's state has come in.

        Args:
            trainer: Counts the steps.
            pl_module: The LightningModule.
            index: Of the stage.
            since: Step at which it began.
            lowered: Factor on its rates.
        """
        self._enter(trainer, pl_module, index, since, restart=False, lowered=lowered)

    def change(self, trainer: pl.Trainer, pl_module: pl.LightningModule, index: int, since: int) -> None:
        """Changes to a stage, between two optimizer steps.

        Args:
            trainer: Counts the steps.
            pl_module: The LightningModule.
            index: Of the stage that begins.
            since: Step at which it begins.
        """
        assert self._optimizers is not None
        for name, learner in self._selections[index].learners.items():
            earlier = next((past.learners[name] for past in reversed(self._selections[:index]) if name in past.learners), None)
            if earlier is not None and not _same_rows(earlier, learner):
                # Rows that begin to learn would otherwise meet a step count that is not theirs, and jump.
                self._optimizers.forget(learner.parameter)
        self._enter(trainer, pl_module, index, since, restart=self._stages[index].schedulers == "restart", lowered=1.0)

    def set_rates(self, index: int, lowered: float) -> None:
        """Sets the rates of the stage that is being trained, times a factor."""
        if self._optimizers is not None:
            self._optimizers.enter(index, restart=False, lowered=lowered)

    def apply_modes(self, pl_module: pl.LightningModule, index: int) -> None:
        """Puts frozen modules into eval mode, where the stage asks for it."""
        if self.modes_are_due:
            self.modes_are_due = False
            learning = {id(learner.parameter) for learner in self._selections[index].learners.values()}
            frozen = {id(parameter) for parameter in self._governed.values()} - learning if self._stages[index].frozen_in_eval else set()
            self._modes.apply(pl_module, frozen)

    def mask_gradients(self) -> None:
        """Takes the gradient from frozen rows."""
        self._rows.mask_gradients()

    def optimizer_names(self) -> Names | None:
        """Names of the parameters by optimizer and group, for a checkpoint."""
        return self._optimizers.names() if self._optimizers else None

    def names_with_state(self) -> list[str]:
        """Names of the parameters that the optimizers keep a state of, for a checkpoint."""
        return self._optimizers.names_with_state() if self._optimizers else []

    def expect_state_of(self, names: Sequence[str]) -> None:
        """Makes exactly those parameters require gradients of which a sharded checkpoint holds a state, until it is loaded."""
        assert self._parts is not None
        stateful = set(names)
        for name, parameter in self._governed.items():
            parameter.requires_grad_(name in stateful)

    def table(self) -> str:
        """The plan of the stages, with learning rates once the optimizers are known."""
        if self._parts is None:
            return ""

        def rate_of(learner: Learner) -> float | None:
            return learner.lr if learner.lr is not None or self._optimizers is None else self._optimizers.rate_of(learner.parameter)

        return stage_table(self._parts, self._stages, rate_of)

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Lets a checkpoint's states find their groups: once these are arranged, or at once if they are already.

        Strategies that shard restore a checkpoint only then, and have brought the optimizer's states to their parameters themselves, but of groups
        that were split or joined since they leave some at the options of others.
        """
        if self._optimizers is None:
            self.loading = checkpoint
            return
        saved, now = self.saved_names or self._optimizers.names_as_configured, self._optimizers.names()
        carry_schedulers(checkpoint, saved, now, self._optimizers.owners())
        for optimizer, options, old, new in zip(self._optimizers.optimizers, self._saved_options, saved, now, strict=False):
            for group, source in zip(optimizer.param_groups, sources(old, new), strict=True) if old != new else ():
                group.update(deepcopy(options[source]))
        self._saved_options = []

    def before_sharded_load(self, checkpoint: dict[str, Any], saved: Names | None, in_shards: bool) -> str | None:
        """Makes ready for a checkpoint that a strategy that shards is about to load.

        Args:
            checkpoint: The checkpoint, or what stands beside its shards.
            saved: Names by optimizer and group, as it holds them; ``None`` if it was saved without stages.
            in_shards: Whether its optimizer states are in shards, among which torch finds them by group.

        Returns:
            Why it cannot be loaded, or ``None``.
        """
        assert self._optimizers is not None
        assert self._parts is not None
        differs = (saved or self._optimizers.names_as_configured) != self._optimizers.names()
        if in_shards and differs:
            return (
                f"it was saved {'with other stages' if saved else 'without stages'}, whose optimizer groups are others, and states in shards cannot "
                "be brought into these; resume as it was saved and save again with ModelParallelStrategy(save_distributed_checkpoint=False)"
            )
        states = checkpoint.get("optimizer_states", [])
        self._saved_options = [
            [{key: value for key, value in group.items() if key not in ("params", "param_names")} for group in state["param_groups"]]
            for state in states
        ]
        if saved is None and states:
            # A full checkpoint numbers all parameters in the module's order.
            first: dict[int, str] = {}
            for name, parameter in self._parts.named.items():
                first.setdefault(id(parameter), name)
            order = list(first.values())
            self.expect_state_of([order[number] for state in states for number in state["state"] if isinstance(number, int)])
        return None

    def write_full_rates(self, checkpoint: dict[str, Any]) -> None:
        """Keeps a warm-up's rates of the moment out of a checkpoint."""
        if self._optimizers is not None:
            self._warm_up.write_full_rates(checkpoint, self._optimizers.optimizers)

    def let_go(self) -> None:
        """Leaves the optimizers and the modules' modes as they would be without stages."""
        self._unhook()
        self._warm_up.put_back()
        self._modes.put_back()

    def _unhook(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _find(self, pl_module: pl.LightningModule) -> Parts:
        model = find_language_model(pl_module, self._locator)
        parts = Parts(pl_module, model, self._adapter or find_adapter(pl_module, model))
        self._selections = parts.select(self._stages)
        self._governed = parts.governed(self._stages)
        self._parts = parts
        return parts

    def _enter(self, trainer: pl.Trainer, pl_module: pl.LightningModule, index: int, since: int, restart: bool, lowered: float) -> None:
        assert self._optimizers is not None
        reshard(pl_module)
        if self._set_flags(index):
            rebuild_wrapper(trainer, pl_module)
        self._optimizers.enter(index, restart, lowered)
        self._rows = FrozenRows(self._selections[index].learners)
        self.modes_are_due = True
        steps = self._stages[index].warm_up_steps
        newly = _newly_learning(self._selections, index) if steps else set()
        self._warm_up = WarmUp(newly, lambda: min(1.0, (trainer.global_step - since + 1) / steps))

    def _set_flags(self, index: int) -> bool:
        """Lets the stage's parameters learn and freezes the others; says whether anything changed."""
        learning = {id(learner.parameter) for learner in self._selections[index].learners.values()}
        changed = False
        for parameter in self._governed.values():
            learns = id(parameter) in learning
            changed |= parameter.requires_grad != learns
            parameter.requires_grad_(learns)
            if not learns:
                parameter.grad = None
        return changed

    def _carry(self, checkpoint: dict[str, Any]) -> None:
        assert self._optimizers is not None
        saved = self.saved_names or self._optimizers.names_as_configured
        states = checkpoint.get("optimizer_states", [])
        if [[len(group["params"]) for group in state["param_groups"]] for state in states] == [[len(group) for group in groups] for groups in saved]:
            carry_by_name(checkpoint, saved, self._optimizers.names(), self._optimizers.owners())

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._warm_up.lower(optimizer)
        self._rows.before_step(optimizer)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._rows.after_step()
        self._warm_up.put_back()


def _newly_learning(selections: Sequence[Selection], index: int) -> set[int]:
    """What did not learn in the stage before, or not in the same rows: its optimizer's state begins anew, so its first steps would be large."""
    before = selections[index - 1].learners if index else {}
    return {
        id(learner.parameter) for name, learner in selections[index].learners.items() if name not in before or not _same_rows(before[name], learner)
    }


def _same_rows(one: Learner, other: Learner) -> bool:
    if one.rows is None or other.rows is None:
        return one.rows is other.rows
    return bool(np.array_equal(one.rows, other.rows))
