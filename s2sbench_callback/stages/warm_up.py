"""The rate of what newly learns, raised from near 0: only while the optimizer steps, so that schedulers and checkpoints see the full rate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch.optim import Optimizer


class WarmUp:
    """Lowers the rates of some groups before an optimizer's step and puts them back after it.

    Args:
        parameters: Identities of those that warm up, each in a group with none but others that do.
        factor: On their rate now; 1 once they are warm.
    """

    def __init__(self, parameters: Collection[int] = (), factor: Callable[[], float] = lambda: 1.0) -> None:
        self._parameters = set(parameters)
        self._factor = factor
        self._full_rates: list[tuple[dict[str, Any], Any]] = []

    def lower(self, optimizer: Optimizer) -> None:
        """Before the step."""
        self.put_back()
        factor = self._factor() if self._parameters else 1.0
        if factor < 1.0:
            groups = [group for group in optimizer.param_groups if any(id(parameter) in self._parameters for parameter in group["params"])]
            self._full_rates = [(group, group["lr"]) for group in groups]
            for group, rate in self._full_rates:
                group["lr"] = rate * factor

    def put_back(self) -> None:
        """After the step, or after what has ended it."""
        for group, rate in self._full_rates:
            group["lr"] = rate
        self._full_rates = []

    def write_full_rates(self, checkpoint: dict[str, Any], optimizers: Sequence[Optimizer]) -> None:
        """Writes the full rates into a checkpoint that is saved while a step is under way, as after an exception or a signal of SLURM.

        Args:
            checkpoint: Lightning's, changed in place. Its groups are in the optimizers' order under every strategy, and ranks that save nothing may
                have none.
            optimizers: In the checkpoint's order.
        """
        full = {id(group): rate for group, rate in self._full_rates}
        for optimizer, state in zip(optimizers, checkpoint.get("optimizer_states", []), strict=False):
            for group, saved in zip(optimizer.param_groups, state.get("param_groups", []), strict=False):
                if id(group) in full:
                    saved["lr"] = full[id(group)]
