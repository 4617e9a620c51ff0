"""A training from its LightningCLI config, set up as far as its first step."""

from __future__ import annotations

from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.cli import LightningCLI

from s2sbench_callback.callback import S2SBenchCallback
from s2sbench_callback.lightning_run import callbacks_of
from s2sbench_callback.stages import StageUnfreeze


def training(arguments: list[str]) -> LightningCLI:
    """The training of a config.

    Args:
        arguments: Those of the training command after ``fit``, for example ``--config configs/two_stage_mini.yaml``.
    """
    return LightningCLI(
        pl.LightningModule,
        pl.LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_callback=None,
        trainer_defaults={"enable_model_summary": False},
        args=arguments,
        run=False,
    )


def stop_before_the_first_step(cli: LightningCLI, callbacks: list[pl.Callback]) -> None:
    """Runs a training that callbacks stop once everything is set up, without loggers, checkpoints and records.

    Stages stay: they say whether the front-end is frozen, and only then its codes are worth keeping. So do the probes that they decide from.
    """
    trainer: Any = cli.trainer
    probes = callbacks_of(cli.trainer, S2SBenchCallback)
    for probe in probes:
        probe.at_start = probe.at_end = False
    trainer.callbacks = [*callbacks_of(cli.trainer, StageUnfreeze), *probes, *callbacks]
    # What keeps a probe from opening its record.
    trainer.fast_dev_run = True
    cli.trainer.fit_loop.min_epochs = cli.trainer.fit_loop.epoch_loop.min_steps = None
    cast(Any, cli.trainer).loggers = []
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
