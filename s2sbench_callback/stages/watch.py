"""The guard's memory from probe to probe."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from s2sbench_callback.decisions import Probed
from s2sbench_callback.guard import Guard
from s2sbench_callback.reference import table_from_state, table_state
from s2sbench_callback.scoring import LossTable
from s2sbench_callback.significance import Estimate


class GuardWatch:
    """Lets a guard look at probe after probe.

    Args:
        guard: The rule.
        applies: Whether its action is carried out; otherwise it only says what it would be.

    Attributes:
        lowered: Product of all lowerings of this stage's learning rates.
    """

    def __init__(self, guard: Guard, applies: bool = True) -> None:
        self.guard = guard
        self._applies = applies
        self.lowered = 1.0
        self._streak = 0
        self._at_last_lowering: dict[str, LossTable] = {}

    @property
    def is_alarmed(self) -> bool:
        """Whether T→T counts as damaged now."""
        return self._streak >= self.guard.patience

    @property
    def holds(self) -> bool:
        """Whether the stage must not end by itself now."""
        return self.is_alarmed and self.guard.action == "hold"

    def begin_stage(self) -> None:
        """Forgets the lowerings of the stage before."""
        self.lowered, self._at_last_lowering = 1.0, {}

    def look(self, probed: Probed, agree: Callable[[str], str] = lambda words: words) -> tuple[str | None, bool]:
        """Looks at one probe.

        Args:
            probed: The probe.
            agree: Gives every rank the words of rank 0, so that all act alike.

        Returns:
            What to say, if T→T is damaged, and whether there is something to do about it that has not been done.
        """
        now = {name: by_condition["t2t"] for name, by_condition in probed.tables.items() if "t2t" in by_condition}
        change = self._change(probed.reference, now, probed, agree)
        was_alarmed = self.is_alarmed
        self._streak = self._streak + 1 if self.guard.is_damage(change) else 0
        if change is None or not self.is_alarmed:
            return None, False
        acts = not was_alarmed
        if self.guard.action == "lower_lr":
            since = self._change(self._at_last_lowering, now, probed, agree) if self._at_last_lowering else None
            acts = not self._at_last_lowering or self.guard.is_damage(since)
            if acts:
                self.lowered *= self.guard.factor
                self._at_last_lowering = now
        return self._words(change, acts, probed.step), acts

    def state(self) -> dict[str, Any]:
        """Plain data that ``torch.load(weights_only=True)`` accepts."""
        return {
            "streak": self._streak,
            "lowered": self.lowered,
            "at_last_lowering": {name: table_state(table) for name, table in self._at_last_lowering.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on with what :meth:`state` gave."""
        self._streak, self.lowered = state["streak"], state["lowered"]
        self._at_last_lowering = {name: table_from_state(kept) for name, kept in state["at_last_lowering"].items()}

    def _change(
        self, reference: Mapping[str, LossTable], now: Mapping[str, LossTable], probed: Probed, agree: Callable[[str], str]
    ) -> Estimate | None:
        change = self.guard.change(reference, now, probed.tie_rules)
        agreed = json.loads(agree(json.dumps(asdict(change) if change else None)))
        return Estimate(**agreed) if agreed else None

    def _words(self, change: Estimate, acts: bool, step: int) -> str:
        lowered, was = f"at {self.lowered:g} of the stage's", self._applies
        did = {
            "warn": "",
            "hold": "; the stage is held back" if was else "; the stage would be held back",
            "lower_lr": f"; learning rates {'are' if was else 'would be'} lowered to {self.lowered:g} of the stage's"
            if acts
            else f"; learning rates {'stay' if was else 'would stay'} {lowered}",
            "stop": "; training stops" if was else "; training would stop",
        }[self.guard.action]
        return (
            f"Step {step}: T→T accuracy is {-change.value:.3f} [{-change.high:.3f}, {-change.low:.3f}] below its reference, at {self._streak} "
            f"probe(s) in a row{did}."
        )
