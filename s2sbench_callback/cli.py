"""The command ``s2sbench``: what can be done outside training."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
from jsonargparse import ArgumentParser
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from s2sbench_callback.callback import S2SBenchCallback
from s2sbench_callback.lightning_run import callbacks_of
from s2sbench_callback.outcome import outcome
from s2sbench_callback.plateau import Plateau
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import PREFIX
from s2sbench_callback.score import score
from s2sbench_callback.stages import StageUnfreeze
from s2sbench_callback.stages.replay import replay, replay_table
from s2sbench_callback.systems import System


def main(arguments: list[str] | None = None) -> None:
    """Runs one subcommand.

    Args:
        arguments: Words after ``s2sbench``; by default those of the command line.
    """
    parser = argparse.ArgumentParser(prog="s2sbench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    helps = {
        "score": "ask benchmarks of a model outside training, for example --config configs/table1/qwen2_5.yaml",
        "encode": "fill the audio-token cache of a training config beforehand, resumably, on its devices",
        "stages": "print what the stages of a training config would train, and at which rates",
        "decide": "replay the decision on a stage over a recorded run, with other settings",
    }
    for name, text in helps.items():
        commands.add_parser(name, add_help=False, help=text)
    chosen, rest = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    {"score": score_model, "encode": encode, "stages": stages, "decide": decide}[chosen.command](rest)


def score_parser() -> ArgumentParser:
    """The arguments of ``s2sbench score``, which ``configs/table1`` are written in."""
    parser = ArgumentParser(prog="s2sbench score", description="Asks benchmarks of a model outside training.")
    parser.add_argument("--config", action="config", help="a YAML file with these arguments")
    # Made in this order, so that a fault in a set shows before gigabytes of weights are read.
    parser.add_function_arguments(score, skip={"system"})
    parser.add_argument("--system", type=System, required=True, help="a loader of s2sbench_callback.systems and its arguments")
    parser.add_argument(
        "--published",
        type=dict[str, float] | None,
        default=None,
        help="published accuracies in percent by <set>/<condition>, to print beside what was found",
    )
    return parser


def score_model(arguments: list[str]) -> None:
    """Asks benchmarks of one model and prints what came out.

    Args:
        arguments: The arguments of :func:`s2sbench_callback.score.score`, for example ``--config configs/table1/qwen2_5.yaml``.
    """
    parser = score_parser()
    parsed = parser.parse_args(arguments)
    try:
        chosen = parser.instantiate(parsed)
        record = score(**{key: value for key, value in vars(chosen).items() if key not in ("config", "published")})
    except (ValueError, FileNotFoundError) as error:
        raise SystemExit(f"s2sbench score: {error}") from error
    print(outcome(record))
    report = record.history()[-1]
    for key, percent in (chosen.published or {}).items():
        found = report.metrics.get(f"{PREFIX}/{key}/accuracy")
        print(f"{key:<28}published {percent:.1f} %, found " + (f"{100 * found:.1f} %" if found is not None else "nothing: not asked"))


def stages(arguments: list[str]) -> None:
    """Sets a training up as far as its first step, prints the plan of its stages and stops.

    Args:
        arguments: Those of the training command after ``fit``, for example ``--config configs/two_stage_mini.yaml``.
    """
    try:
        cli = _training(arguments)
        unfreezers = callbacks_of(cli.trainer, StageUnfreeze)
        if not unfreezers:
            raise SystemExit("the config has no StageUnfreeze, so there are no stages to print")
        _stop_before_the_first_step(cli, [_Stop()])
    except (ValueError, FileNotFoundError, MisconfigurationException) as error:
        raise SystemExit(f"s2sbench stages: {error}") from error
    if cli.trainer.is_global_zero:
        print("\n\n".join(unfreezer.table for unfreezer in unfreezers))


def decide(arguments: list[str]) -> None:
    """Says when a stage would have ended under other settings of its rule.

    Args:
        arguments: The record's folder, the stage's number, and the settings of :class:`Plateau`.
    """
    parser = ArgumentParser(prog="s2sbench decide", description="Replays the decision on a stage over a recorded run, with other settings.")
    parser.add_argument("record", type=Path, help="folder that holds probes.jsonl and losses/")
    parser.add_argument("--stage", type=int, default=1, help="number of the stage, from 1")
    parser.add_class_arguments(Plateau)
    chosen = parser.parse_args(arguments)
    settings = {field.name: chosen[field.name] for field in fields(Plateau)}
    record = RunRecord(chosen.record)
    try:
        rule = Plateau(**settings)
        decisions = replay(record, rule, chosen.stage)
    except (ValueError, FileNotFoundError) as error:
        raise SystemExit(f"s2sbench decide: {error}") from error
    print(replay_table(record, decisions, chosen.stage, rule))


def encode(arguments: list[str]) -> None:
    """Tokenises every recording that the config's probes will ask for, and stops before the first step.

    Args:
        arguments: Those of the training command after ``fit``, for example ``--config configs/two_stage_mini.yaml``.
    """
    cli = _training(arguments)
    probes = callbacks_of(cli.trainer, S2SBenchCallback)
    if not probes:
        raise SystemExit("the config has no S2SBenchCallback, so there is nothing to encode")
    bar = cli.trainer.progress_bar_callback
    encoders: list[pl.Callback] = [_EncodeOnly(probe) for probe in probes]
    _stop_before_the_first_step(cli, [*encoders, *([bar] if bar else [])])
    for probe in probes if cli.trainer.is_global_zero else []:
        shared = f" on each of {cli.trainer.world_size} ranks" if cli.trainer.world_size > 1 else ""
        print(f"{probe.probe.front_end_forwards} recordings tokenised{shared} for {', '.join(probe.probe.benchmarks)}; the rest was in the cache")


def _training(arguments: list[str]) -> LightningCLI:
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


def _stop_before_the_first_step(cli: LightningCLI, callbacks: list[pl.Callback]) -> None:
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


class _Stop(pl.Callback):
    """Ends the run before its first step."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Once everything is set up."""
        trainer.should_stop = True


class _EncodeOnly(pl.Callback):
    """Takes the place of a probe, fills its cache and ends the run."""

    def __init__(self, probe: S2SBenchCallback) -> None:
        self.probe = probe

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Before the first step, when model and weights are in place."""
        self.probe.encode(trainer, pl_module)
        trainer.should_stop = True
