"""``s2sbench encode``: fills the audio-token cache of a training beforehand."""

from __future__ import annotations

import json

import lightning.pytorch as pl

from s2sbench_callback.callback import S2SBenchCallback
from s2sbench_callback.commands.training import stop_before_the_first_step, training
from s2sbench_callback.lightning_run import callbacks_of


def run(arguments: list[str]) -> None:
    """Tokenises every recording that the config's probes will ask for, and stops before the first step.

    Args:
        arguments: Those of the training command after ``fit``, for example ``--config configs/two_stage_mini.yaml``; and ``--json``.

    Raises:
        ValueError: If the config has no probe.
    """
    cli = training([word for word in arguments if word != "--json"])
    probes = callbacks_of(cli.trainer, S2SBenchCallback)
    if not probes:
        raise ValueError("the config has no S2SBenchCallback, so there is nothing to encode")
    bar = cli.trainer.progress_bar_callback
    encoders: list[pl.Callback] = [_EncodeOnly(probe) for probe in probes]
    stop_before_the_first_step(cli, [*encoders, *([bar] if bar else [])])
    if "--json" in arguments and cli.trainer.is_global_zero:
        print(
            json.dumps([{"sets": list(probe.probe.benchmarks), "tokenised": probe.probe.front_end_forwards} for probe in probes], ensure_ascii=False)
        )
        return
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
