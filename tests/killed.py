"""Run by test_killed.py: a run that is ended by a signal in the middle of its fourth probe or after it, and the same run resumed."""

from __future__ import annotations

import os
import signal
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import lightning.pytorch as pl
import torch
import wandb
from conftest import TINY
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

from s2sbench_callback import S2SBenchCallback, mini
from s2sbench_callback.mini_world.data import MiniData
from s2sbench_callback.mini_world.task import MiniTask
from s2sbench_callback.publishing import Publisher
from s2sbench_callback.record import RunRecord

GONE = "s2sbench/mini/s2t/accuracy"


def kill_while_writing(number: int, where: str) -> None:
    """Sends the signal in the middle of the fourth probe: while it scores, or between its two files; or once it has been shown everywhere."""
    if where == "between":
        show = Publisher.show

        def shown(self: Publisher, trainer: pl.Trainer, report: Any, *probe: Any) -> None:
            # Weights that the resumed run will not have.
            show(self, trainer, replace(report, metrics={**report.metrics, GONE: -1.0}) if report.step == 3 else report, *probe)
            if report.step == 3:
                os.kill(os.getpid(), number)

        Publisher.show = shown  # type: ignore[method-assign]
    elif where == "scoring":
        run, probes = S2SBenchCallback._score, [0]

        def score(self: S2SBenchCallback, *arguments: Any) -> Any:
            probes[0] += 1
            result = run(self, *arguments)
            if probes[0] == 4:
                os.kill(os.getpid(), number)
            return result

        S2SBenchCallback._score = score  # type: ignore[method-assign]
    else:
        append, written = RunRecord.append, [0]

        def interrupted(self: RunRecord, *probe: Any) -> None:
            written[0] += 1
            if written[0] == 4:
                path = self.losses_path(probe[0].step)
                path.with_name(f".{path.name}.partial").write_bytes(b"half of it")
                os.kill(os.getpid(), number)
            append(self, *probe)

        RunRecord.append = interrupted  # type: ignore[method-assign]


def write_down_what_wandb_is_told(file: Path) -> None:
    log = wandb.Run.log

    def logged(self: wandb.Run, data: dict[str, Any], step: int | None = None, **arguments: Any) -> None:
        if "s2sbench/step" in data:
            with file.open("a") as stream:
                stream.write(f"{data['trainer/global_step']} {step}\n")
        log(self, data, step=step, **arguments)

    wandb.Run.log = logged  # type: ignore[method-assign]


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    write_down_what_wandb_is_told(folder / f"wandb_{mode}.txt")
    if mode != "resume":
        kill_while_writing(getattr(signal, mode), sys.argv[3])
    name = f"run{zlib.crc32(str(folder).encode())}"
    pl.seed_everything(1)
    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_steps=6,
        logger=[
            WandbLogger(save_dir=folder / mode, offline=True, project="p", version=name),
            TensorBoardLogger(folder, name="tb", version="one"),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        callbacks=[
            S2SBenchCallback([mini(questions=12)], every_n_train_steps=1, dirpath=folder / "record"),
            ModelCheckpoint(folder / "checkpoints", filename="{step}", every_n_train_steps=2, save_top_k=-1),
        ],
    )
    trainer.fit(
        MiniTask(TINY), MiniData(batch_size=2, pretraining=TINY), ckpt_path=folder / "checkpoints" / "step=2.ckpt" if mode == "resume" else None
    )


if __name__ == "__main__":
    main()
