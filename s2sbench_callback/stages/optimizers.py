"""Optimizer groups that fit the stages: split once by name, before the first step, so that none is ever added to a training under way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from s2sbench_callback.lightning_run import kinds_of
from s2sbench_callback.stages.carrying import PER_GROUP, Names
from s2sbench_callback.stages.curves import refuse_unknown_schedulers, step_within
from s2sbench_callback.stages.selection import Learner, Selection

# What a scheduler writes into a group, and what of its own is a rate.
_RATES_OF_GROUP = ("lr", "initial_lr", "max_lr", "min_lr")
_RATES_OF_SCHEDULER = ("base_lrs", "_last_lr", "max_lrs", "min_lrs")
_BASE = "stage_lr"
_WRITTEN = (*_RATES_OF_GROUP, "momentum", "betas", _BASE)
_INDIVISIBLE = {
    "ZeroRedundancyOptimizer": "shares out its parameters over the ranks when it is made",
    "LBFGS": "knows only one group",
}


class StageOptimizers:
    """The optimizers of a run, arranged so that every group learns as a whole in each stage, at one rate.

    Only the split needs care, and it depends on the configuration alone, so a resumed run finds the groups that were saved. Where no stage names a
    rate or a warm-up, nothing is split.

    Args:
        optimizers: As configured, before any step and before a checkpoint's state comes in.
        schedulers: Their learning rate schedulers.
        names: Of all parameters of the LightningModule, by identity.
        selections: What learns in each stage.
        rates_change: Whether rates may change for another reason than a stage's own, so that the base rates must be kept in the groups.

    Raises:
        ValueError: If a stage trains parameters that no optimizer has, and it is not clear how they should be trained, or if groups must be split
            of an optimizer or scheduler that cannot have it.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[Any],
        names: Mapping[int, str],
        selections: Sequence[Selection],
        rates_change: bool = False,
    ) -> None:
        self.optimizers = list(optimizers)
        self._schedulers = list(schedulers)
        self._names = names
        self._selections = selections
        self._sets_rates = rates_change or any(selection.stage.lr is not None for selection in selections)
        self.names_as_configured = self.names()
        self.added = self._add_missing()
        if self._sets_rates or any(selection.stage.warm_up_steps for selection in selections):
            refuse_unknown_schedulers(self._schedulers)
            self._split()
        # By place: loading a state makes new dicts of the groups.
        self._own = [[self._own_rate(optimizer, place) for place in range(len(optimizer.param_groups))] for optimizer in self.optimizers]
        if self._sets_rates:
            for optimizer, own in zip(self.optimizers, self._own, strict=True):
                for group, rate in zip(optimizer.param_groups, own, strict=True):
                    group[_BASE] = rate
            for scheduler, owner in zip(self._schedulers, self.owners(), strict=True):
                step_within(scheduler, partial(self._at_own_rates, owner))
        self._pristine = [
            (
                deepcopy(scheduler.state_dict()),
                [{key: deepcopy(group[key]) for key in _WRITTEN if key in group} for group in scheduler.optimizer.param_groups],
            )
            for scheduler in self._schedulers
        ]

    def names(self) -> Names:
        """Names of the parameters, by optimizer and group."""
        return [
            [[self._names.get(id(parameter), "") for parameter in group["params"]] for group in optimizer.param_groups]
            for optimizer in self.optimizers
        ]

    def names_with_state(self) -> list[str]:
        """Names of the parameters that an optimizer keeps a state of."""
        kept = (parameter for optimizer in self.optimizers for parameter, state in optimizer.state.items() if state)
        return [self._names[id(parameter)] for parameter in kept if id(parameter) in self._names]

    def owners(self) -> list[int]:
        """Number of the optimizer that each scheduler belongs to."""
        return [self.optimizers.index(scheduler.optimizer) for scheduler in self._schedulers]

    def rate_of(self, parameter: nn.Parameter) -> float | None:
        """The optimizer's own learning rate of a parameter: the highest of a cyclic schedule, else the one that a schedule starts from."""
        for optimizer, own in zip(self.optimizers, self._own, strict=True):
            for group, rate in zip(optimizer.param_groups, own, strict=True):
                if any(each is parameter for each in group["params"]):
                    return rate
        return None

    def enter(self, index: int, restart: bool, lowered: float = 1.0) -> None:
        """Brings rates and schedulers to a stage; does nothing where they are there already.

        Args:
            index: Of the stage.
            restart: Whether schedulers begin anew.
            lowered: Factor on every rate of the stage.
        """
        if restart:
            self._restart()
        if not self._sets_rates:
            self.take_back_rates()
            return
        self._unshare()
        rates = {id(learner.parameter): learner.lr for learner in self._selections[index].learners.values()}
        for number, optimizer in enumerate(self.optimizers):
            for place, group in enumerate(optimizer.param_groups):
                learning = [parameter for parameter in group["params"] if id(parameter) in rates]
                if learning:
                    rate = rates[id(learning[0])]
                    self._scale(number, place, (self._own[number][place] if rate is None else rate) * lowered)

    def forget(self, parameter: nn.Parameter) -> None:
        """Drops the optimizer's state of a parameter, momentum above all."""
        for optimizer in self.optimizers:
            optimizer.state.pop(parameter, None)

    # Arranging

    def _groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self.optimizers:
            yield from optimizer.param_groups

    def _add_missing(self) -> list[str]:
        """Gives the optimizer what later stages train and it does not have, as a user's filter on ``requires_grad`` leaves it."""
        known = {id(parameter) for group in self._groups() for parameter in group["params"]}
        missing = {
            name: learner for selection in self._selections for name, learner in selection.learners.items() if id(learner.parameter) not in known
        }
        if not missing:
            return []
        name = next(iter(missing))
        stage = next(selection.stage.name for selection in self._selections if name in selection.learners)
        what = f"stage {stage!r} trains {name} and {len(missing) - 1} more parameter(s) that no optimizer has"
        if any(learner.lr is None for selection in self._selections for key, learner in selection.learners.items() if key in missing):
            raise ValueError(
                f"{what}, and names no learning rate for them; write Stage(..., lr=...), or give the optimizer all parameters from the start, not "
                "only those with requires_grad: what has no gradient is left alone"
            )
        if len(self.optimizers) != 1:
            raise ValueError(f"{what}, and there are {len(self.optimizers)} optimizers; give one of them these parameters from the start")
        optimizer = self.optimizers[0]
        self._clone_group(optimizer, 0, [learner.parameter for learner in missing.values()])
        return list(missing)

    def _split(self) -> None:
        """Makes groups of those that share their fate in all stages."""
        fates = [{id(learner.parameter): _fate(learner) for learner in selection.learners.values()} for selection in self._selections]
        for optimizer in self.optimizers:
            for place in reversed(range(len(optimizer.param_groups))):
                group = optimizer.param_groups[place]
                together: dict[tuple[Any, ...], list[nn.Parameter]] = {}
                for parameter in group["params"]:
                    fate = tuple(stage.get(id(parameter)) for stage in fates)
                    together.setdefault(fate, []).append(parameter)
                _, *others = together.values()
                for parameters in others:
                    self._clone_group(optimizer, place, parameters)
                gone = {id(parameter) for parameters in others for parameter in parameters}
                _keep(group, [id(parameter) not in gone for parameter in group["params"]])

    def _clone_group(self, optimizer: Optimizer, place: int, parameters: list[nn.Parameter]) -> None:
        """A group at the end with the options of another, known to the schedulers."""
        for kind in kinds_of(optimizer) & _INDIVISIBLE.keys():
            raise ValueError(
                f"the stages need parameter groups of their own, for a learning rate, a warm-up or parameters that no optimizer has, and {kind} "
                f"{_INDIVISIBLE[kind]}, so that none can be added; use another optimizer, or leave lr and warm_up_steps out of the stages"
            )
        source = optimizer.param_groups[place]
        clone = {key: deepcopy(value) for key, value in source.items() if key not in ("params", "param_names")}
        clone["params"] = parameters
        if "param_names" in source:
            clone["param_names"] = [self._names.get(id(parameter), "") for parameter in parameters]
        optimizer.param_groups.append(clone)
        for scheduler in self._all_schedulers(optimizer):
            for key in PER_GROUP:
                kept = getattr(scheduler, key, None)
                if isinstance(kept, list):
                    kept.append(deepcopy(kept[place]) if key != "lr_lambdas" else kept[place])

    # Rates

    def _own_rate(self, optimizer: Optimizer, place: int) -> float:
        """The rate that a user would name: the highest of a cyclic schedule, else the one that a schedule starts from."""
        group = optimizer.param_groups[place]
        highest = [scheduler.max_lrs[place] for scheduler in self._all_schedulers(optimizer) if hasattr(scheduler, "max_lrs")]
        return float(group["max_lr"] if "max_lr" in group else highest[0] if highest else group.get("initial_lr", group["lr"]))

    def _scale(self, number: int, place: int, rate: float) -> None:
        """Makes ``rate`` the rate from which a group's schedule starts, wherever on it the group is now."""
        optimizer = self.optimizers[number]
        group = optimizer.param_groups[place]
        # Groups that a checkpoint of a run without stages brought back hold their own rate.
        base = float(group.get(_BASE, self._own[number][place]))
        group[_BASE] = rate
        if rate == base:
            return

        def scaled(value: Any) -> Any:
            # In this order a rate that equals the base becomes the new one exactly.
            return value / base * rate if base else rate

        for key in _RATES_OF_GROUP:
            if isinstance(group.get(key), Tensor):
                group[key].copy_(scaled(group[key]))
            elif key in group:
                group[key] = scaled(group[key])
        for scheduler in self._all_schedulers(optimizer):
            for key in _RATES_OF_SCHEDULER:
                kept = getattr(scheduler, key, None)
                if isinstance(kept, list):
                    kept[place] = scaled(kept[place])

    @contextmanager
    def _at_own_rates(self, number: int) -> Iterator[None]:
        """Brings an optimizer's groups to the rates that it was configured with, and then back to the stage's."""
        groups = self.optimizers[number].param_groups
        places = [place for place, group in enumerate(groups) if _BASE in group]
        rates = [groups[place][_BASE] for place in places]
        for place in places:
            self._scale(number, place, self._own[number][place])
        try:
            yield
        finally:
            for place, rate in zip(places, rates, strict=True):
                self._scale(number, place, rate)

    def take_back_rates(self) -> None:
        """Takes back the rates that a checkpoint's stages or guard had set and that none sets now."""
        self._unshare()
        for number, optimizer in enumerate(self.optimizers):
            for place, group in enumerate(optimizer.param_groups):
                if _BASE in group:
                    self._scale(number, place, self._own[number][place])
                    del group[_BASE]

    def _unshare(self) -> None:
        """Gives each group its own tensor: torch puts the one that it was called with into all of them, and each would scale it for the others."""
        for group in self._groups():
            for key in _RATES_OF_GROUP:
                if isinstance(group.get(key), Tensor):
                    group[key] = group[key].clone()

    def _restart(self) -> None:
        for scheduler, (state, options) in zip(self._schedulers, self._pristine, strict=True):
            scheduler.load_state_dict(deepcopy(state))
            for group, written in zip(scheduler.optimizer.param_groups, options, strict=True):
                group.update(deepcopy(written))

    def _all_schedulers(self, optimizer: Optimizer) -> Iterator[Any]:
        """The optimizer's schedulers and those inside them."""
        waiting = [scheduler for scheduler in self._schedulers if scheduler.optimizer is optimizer]
        while waiting:
            scheduler = waiting.pop()
            yield scheduler
            waiting.extend(getattr(scheduler, "_schedulers", ()))


def _fate(learner: Learner) -> tuple[Any, ...]:
    """What must be the same, stage by stage, in one group; rows because they may warm up alone."""
    return learner.lr, None if learner.rows is None else learner.rows.tobytes()


def _keep(group: dict[str, Any], kept: Sequence[bool]) -> None:
    for key in ("params", "param_names"):
        if key in group:
            group[key] = [value for value, keep in zip(group[key], kept, strict=True) if keep]
