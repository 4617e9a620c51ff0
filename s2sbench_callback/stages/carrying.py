"""States of optimizers and schedulers, brought from the groups of a checkpoint into others by the names of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, cast

# What a scheduler keeps for each group.
PER_GROUP = ("base_lrs", "_last_lr", "lr_lambdas", "min_lrs", "max_lrs", "base_momentums", "max_momentums")

Names = list[list[list[str]]]


def saved_names(checkpoint: dict[str, Any], state_key: str) -> Names | None:
    """Names by optimizer and group that a callback of this key left in a checkpoint; ``None`` where there was none, or it only gave advice."""
    names: Names | None = checkpoint.get("callbacks", {}).get(state_key, {}).get("optimizer_names")
    return names


def carry_by_name(checkpoint: dict[str, Any], saved: Names, now: Names, owners: Sequence[int] | None = None) -> None:
    """Rearranges the optimizer and scheduler states of a checkpoint into other groups, by the names of the parameters.

    Args:
        checkpoint: Lightning's, changed in place.
        saved: Names by optimizer and group, as the checkpoint holds them.
        now: Names by optimizer and group, as they are wanted. What the checkpoint does not know starts anew.
        owners: Number of the optimizer that each of the checkpoint's schedulers belongs to; by default all belong to the first.
    """
    for number, (state, old, new) in enumerate(zip(checkpoint["optimizer_states"], saved, now, strict=True)):
        if old != new:
            checkpoint["optimizer_states"][number] = _carried(state, old, new)
    carry_schedulers(checkpoint, saved, now, owners)


def carry_schedulers(checkpoint: dict[str, Any], saved: Names, now: Names, owners: Sequence[int] | None = None) -> None:
    """Rearranges the scheduler states alone, for strategies that have brought the optimizer's to their parameters themselves.

    Args:
        checkpoint: Lightning's, changed in place.
        saved: As for :func:`carry_by_name`.
        now: Likewise.
        owners: Likewise.
    """
    # Lightning keeps the schedulers of all optimizers in one list.
    states = checkpoint.get("lr_schedulers", [])
    for state, owner in zip(states, owners if owners is not None else [0] * len(states), strict=False):
        if saved[owner] != now[owner]:
            _rearrange(state, sources(saved[owner], now[owner]), len(saved[owner]))


def _carried(state: dict[str, Any], old: list[list[str]], new: list[list[str]]) -> dict[str, Any]:
    entries = {
        name: state["state"].get(index)
        for names, group in zip(old, state["param_groups"], strict=True)
        for name, index in zip(names, group["params"], strict=True)
    }
    groups: list[dict[str, Any]] = []
    kept: dict[int, Any] = {}
    start = 0
    for names, source in zip(new, sources(old, new), strict=True):
        groups.append({**deepcopy(state["param_groups"][source]), "params": list(range(start, start + len(names)))})
        if "param_names" in groups[-1]:
            groups[-1]["param_names"] = list(names)
        kept.update({start + place: entries[name] for place, name in enumerate(names) if entries.get(name) is not None})
        start += len(names)
    return {**state, "state": kept, "param_groups": groups}


def sources(old: list[list[str]], new: list[list[str]]) -> list[int]:
    """The old group that each new one takes its options from."""
    group_of = {name: place for place, names in enumerate(old) for name in names}
    return [next((group_of[name] for name in names if name in group_of), 0) for names in new]


def _rearrange(scheduler_state: dict[str, Any], places: Sequence[int], groups: int) -> None:
    for key in PER_GROUP:
        kept = scheduler_state.get(key)
        if isinstance(kept, list) and len(kept) == groups:
            scheduler_state[key] = [deepcopy(kept[source]) for source in places]
    for inner in scheduler_state.get("_schedulers", ()):
        _rearrange(cast(dict[str, Any], inner), places, groups)
