"""Whether training damages what the language model knows in text, against where it began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from s2sbench_callback.items import TieRule
from s2sbench_callback.metrics import accuracy_difference
from s2sbench_callback.scoring import LossTable
from s2sbench_callback.significance import Estimate, average

GuardAction = Literal["warn", "hold", "lower_lr", "stop"]


@dataclass(frozen=True)
class Guard:
    """Watches T→T accuracy against its reference, step 0 by default.

    T→T counts as damaged when the 95 % interval of its change, paired by question and averaged over sets, lies below ``-tolerance`` at ``patience``
    probes in a row.

    Attributes:
        action: ``warn``; ``hold`` the stage back from advancing by rule, steps or tokens; ``lower_lr``, which multiplies the learning rates of this
            stage by ``factor``, and again only if T→T falls significantly below where it was at the last lowering; or ``stop`` the training. All
            of them warn.
        tolerance: Accuracy, 0..1, that may be lost.
        patience: Probes in a row.
        factor: What rates are multiplied by.

    Raises:
        ValueError: If a setting is out of range.
    """

    action: GuardAction = "hold"
    tolerance: float = 0.0
    patience: int = 2
    factor: float = 0.5

    def __post_init__(self) -> None:
        if self.action not in ("warn", "hold", "lower_lr", "stop"):
            raise ValueError(f"guard: action must be 'warn', 'hold', 'lower_lr' or 'stop', got {self.action!r}")
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"guard: tolerance is a share of accuracy from 0 to below 1, got {self.tolerance}")
        if self.patience < 1:
            raise ValueError(f"guard: patience must be at least 1 probe, got {self.patience}")
        if not 0 < self.factor < 1:
            raise ValueError(f"guard: factor must lie between 0 and 1, got {self.factor}")

    def change(self, reference: Mapping[str, LossTable], now: Mapping[str, LossTable], tie_rules: Mapping[str, TieRule]) -> Estimate | None:
        """Accuracy now minus accuracy of the reference, with its 95 % interval.

        Args:
            reference: T→T losses that are held against, by set.
            now: T→T losses of this probe, by set.
            tie_rules: By set.

        Returns:
            ``None`` where no set is in both.
        """
        changes = [accuracy_difference(now[name], reference[name], tie_rules[name]) for name in now if name in reference]
        return average(changes) if changes else None

    def is_damage(self, change: Estimate | None) -> bool:
        """Whether a change is a significant fall by more than what may be lost."""
        return change is not None and change.high < -self.tolerance
