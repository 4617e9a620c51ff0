"""Trains a speech LM in the stages of its config, watched by the probe.

Features:
    - any LightningModule and LightningDataModule, named in the config
    - stages by ``StageUnfreeze``, probes by ``S2SBenchCallback``
    - a table of the first and last probe at the end, and where to look

Run it::

    python recipes/two_stage.py fit --config configs/two_stage_mini.yaml
"""

from __future__ import annotations

import os

# Read before torch starts its threads and before tokenizers are loaded.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import lightning.pytorch as pl
from lightning.pytorch.cli import LightningCLI

from s2sbench_callback import S2SBenchCallback
from s2sbench_callback.outcome import outcome


def main() -> None:
    """Runs LightningCLI and says what came out."""
    cli = LightningCLI(
        pl.LightningModule, pl.LightningDataModule, subclass_mode_model=True, subclass_mode_data=True, save_config_kwargs={"overwrite": True}
    )
    for callback in cli.trainer.callbacks:
        if isinstance(callback, S2SBenchCallback) and callback.record is not None:
            print(outcome(callback.record, [str(logger.log_dir) for logger in cli.trainer.loggers if getattr(logger, "log_dir", None)]))


if __name__ == "__main__":
    main()
