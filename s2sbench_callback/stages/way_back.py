"""From a checkpoint whose stages were applied back to a run that only takes advice on them."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl

from s2sbench_callback.parameter_names import named_parameters
from s2sbench_callback.stages.carrying import Names, carry_by_name, carry_schedulers
from s2sbench_callback.stages.optimizers import StageOptimizers


class WayBack:
    """Brings states into the groups that the user configured, at the user's own rates."""

    def __init__(self) -> None:
        self._loading: tuple[dict[str, Any], Names] | None = None
        self._optimizers: StageOptimizers | None = None

    def load(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any], saved: Names | None) -> None:
        """Takes note of a checkpoint that is being loaded, and does nothing about one that no stages were applied in.

        Args:
            trainer: Its strategy has set optimizers up already if it shards, and has brought their states to their parameters then.
            pl_module: The LightningModule.
            checkpoint: Lightning's.
            saved: Names by optimizer and group, as it holds them.
        """
        if saved is None:
            return
        if trainer.strategy.restore_checkpoint_after_setup:
            optimizers = self._find(trainer, pl_module)
            carry_schedulers(checkpoint, saved, optimizers.names(), optimizers.owners())
        else:
            self._loading = checkpoint, saved

    def arrange(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Rearranges the checkpoint, once the strategy has set everything up and before the optimizer's state comes in."""
        if self._loading is not None:
            checkpoint, saved = self._loading
            optimizers = self._find(trainer, pl_module)
            carry_by_name(checkpoint, saved, optimizers.names(), optimizers.owners())
            self._loading = None

    def take_back_rates(self) -> None:
        """Once the optimizer's state has come in."""
        if self._optimizers is not None:
            self._optimizers.take_back_rates()

    def _find(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> StageOptimizers:
        names = {id(parameter): name for name, parameter in reversed(named_parameters(pl_module).items())}
        self._optimizers = StageOptimizers(trainer.optimizers, [config.scheduler for config in trainer.lr_scheduler_configs], names, [])
        return self._optimizers
