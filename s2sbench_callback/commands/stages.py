"""``s2sbench stages``: prints what the stages of a training config would train."""

from __future__ import annotations

import json

import lightning.pytorch as pl

from s2sbench_callback.commands.training import stop_before_the_first_step, training
from s2sbench_callback.lightning_run import callbacks_of
from s2sbench_callback.stages import StageUnfreeze


def run(arguments: list[str]) -> None:
    """Sets a training up as far as its first step, prints the plan of its stages and stops.

    Args:
        arguments: Those of the training command after ``fit``, for example ``--config configs/two_stage_mini.yaml``; and ``--json``.

    Raises:
        ValueError: If the config has no stages.
    """
    cli = training([word for word in arguments if word != "--json"])
    unfreezers = callbacks_of(cli.trainer, StageUnfreeze)
    if not unfreezers:
        raise ValueError("the config has no StageUnfreeze, so there are no stages to print")
    stop_before_the_first_step(cli, [_Stop()])
    tables = [unfreezer.table for unfreezer in unfreezers]
    if cli.trainer.is_global_zero:
        print(json.dumps({"tables": [table.splitlines() for table in tables]}, ensure_ascii=False) if "--json" in arguments else "\n\n".join(tables))


class _Stop(pl.Callback):
    """Ends the run before its first step."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Once everything is set up."""
        trainer.should_stop = True
