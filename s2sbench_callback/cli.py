"""The command ``s2sbench``: what can be done outside training."""

from __future__ import annotations

import argparse
import sys
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.cli import LightningCLI

from s2sbench_callback.callback import S2SBenchCallback
from s2sbench_callback.stages import StageUnfreeze


def main(arguments: list[str] | None = None) -> None:
    """Runs one subcommand.

    Args:
        arguments: Words after ``s2sbench``; by default those of the command line.
    """
    parser = argparse.ArgumentParser(prog="s2sbench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("encode", add_help=False, help="fill the audio-token cache of a training config beforehand, resumably, on its devices")
    chosen, rest = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    assert chosen.command == "encode"
    encode(rest)


def encode(arguments: list[str]) -> None:
    """Tokenises every recording that the config's probes will ask for, and stops before the first step.

    Args:
        arguments: Those of the training command after ``fit``, for example ``--config configs/two_stage_mini.yaml``.
    """
    cli = LightningCLI(
        pl.LightningModule,
        pl.LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_callback=None,
        trainer_defaults={"enable_model_summary": False},
        args=arguments,
        run=False,
    )
    callbacks = cast(Any, cli.trainer).callbacks
    probes = [callback for callback in callbacks if isinstance(callback, S2SBenchCallback)]
    if not probes:
        raise SystemExit("the config has no S2SBenchCallback, so there is nothing to encode")
    bar = cli.trainer.progress_bar_callback
    encoders: list[pl.Callback] = [_EncodeOnly(probe) for probe in probes]
    # Stages stay: they say whether the front-end is frozen, and only then its codes are worth keeping.
    stages = [callback for callback in callbacks if isinstance(callback, StageUnfreeze)]
    cast(Any, cli.trainer).callbacks = [*stages, *encoders, *([bar] if bar else [])]
    cli.trainer.fit_loop.min_epochs = cli.trainer.fit_loop.epoch_loop.min_steps = None
    cast(Any, cli.trainer).loggers = []
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    for probe in probes if cli.trainer.is_global_zero else []:
        shared = f" on each of {cli.trainer.world_size} ranks" if cli.trainer.world_size > 1 else ""
        print(f"{probe.probe.front_end_forwards} recordings tokenised{shared} for {', '.join(probe.probe.benchmarks)}; the rest was in the cache")


class _EncodeOnly(pl.Callback):
    """Takes the place of a probe, fills its cache and ends the run."""

    def __init__(self, probe: S2SBenchCallback) -> None:
        self.probe = probe

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Before the first step, when model and weights are in place."""
        self.probe.encode(trainer, pl_module)
        trainer.should_stop = True
