"""Run by test_two_ranks.py in two real processes: trains the embedded speech LM and writes down what each rank saw."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from conftest import TINY
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from processes import end, shard, whole
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from s2sbench_callback import Benchmark, S2SBenchCallback, mini
from s2sbench_callback.adapters import Row, SummedCodebooks
from s2sbench_callback.mini_world.data import MiniData
from s2sbench_callback.mini_world.task import MiniTask
from s2sbench_callback.mini_world.text_tokenizer import AUDIO_END, AUDIO_START, build_text_tokenizer


class Task(MiniTask):
    """Sharded as users shard: each layer, then the language model as a whole."""

    def __init__(self, sharded: bool, tied: bool) -> None:
        super().__init__(TINY)
        self.sharded = sharded
        self.tied = tied

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if self.tied:
            self.model.lm_head.weight = self.model.model.embed_tokens.weight

    def configure_model(self) -> None:
        if self.sharded:
            shard(self)


class Faulty(SummedCodebooks):
    """Does on rank 1 what it is told to: the second time it is asked, or from the start."""

    def __init__(self, fault: str) -> None:
        super().__init__(build_text_tokenizer(), AUDIO_START, AUDIO_END)
        self.fault = fault
        self.longest_row = 0

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        if self.fault == "encode" and os.environ["RANK"] == "1":
            raise ArithmeticError("the front-end gave up")
        return super().encode_audio(model, waveform)

    def logits(self, model: nn.Module, row: Row) -> Tensor:
        self.longest_row = max(self.longest_row, len(row.streams))
        if os.environ["RANK"] == "1":
            if self.fault == "forward":
                raise ArithmeticError("the adapter gave up")
            if self.fault == "memory" and len(row.streams) > 200:
                raise torch.OutOfMemoryError("no room for so many")
        return super().logits(model, row)


class StillSharded(pl.Callback):
    """Looks, right after the probe that comes before any training, whether every parameter is a shard again."""

    def __init__(self, sharded: bool) -> None:
        self.sharded = sharded

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert all(isinstance(parameter, DTensor) is self.sharded for parameter in pl_module.parameters())


def fit(strategy: str, folder: Path, callbacks: list[pl.Callback], steps: int = 2) -> Task:
    pl.seed_everything(1)
    sharded = strategy.startswith("fsdp2")
    task = Task(sharded, tied=strategy.endswith("tied"))
    chosen = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1) if sharded else DDPStrategy(process_group_backend="gloo")
    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=2,
        strategy=chosen,
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, StillSharded(sharded)],
        use_distributed_sampler=True,
    )
    assert trainer.world_size == 2
    pl.seed_everything(2)
    trainer.fit(task, MiniData(batch_size=2, pretraining=TINY))
    # Rank 0 may still be writing what the others read next.
    dist.barrier()
    return task


def weights(task: Task) -> dict[str, Tensor]:
    return {name: whole(parameter.detach()).clone() for name, parameter in task.model.named_parameters()}


def subset(benchmark: Benchmark, count: int) -> Benchmark:
    return replace(benchmark, items=benchmark.items[:count])


def agree(strategy: str, folder: Path) -> dict[str, Any]:
    """Figures for several numbers of questions, and training with and without the probe."""
    everything = mini(questions=12)
    plain = weights(fit(strategy, folder / "plain", []))
    result: dict[str, Any] = {"sets": {}}
    for count in (12, 11, 1):
        probe = S2SBenchCallback([subset(everything, count)], every_n_train_steps=1, cache_dir=folder / "codes", max_tokens=300)
        probed = weights(fit(strategy, folder / str(count), [probe]))
        assert probe.record is not None
        history = probe.record.history()
        scorer = probe.probe._scorer
        assert scorer is not None
        result["sets"][str(count)] = {
            "steps": [report.step for report in history],
            "published": probe._publisher._published,
            "forwards": scorer.forwards,
            "packed": scorer.packed,
            "front_end_forwards": probe.probe.front_end_forwards,
            "dirpath": str(probe.record.dirpath),
            "identical": all(torch.equal(plain[name], probed[name]) for name in plain),
        }
    return result


def fault(strategy: str, folder: Path, kind: str, on_error: str | None) -> dict[str, Any]:
    adapter = Faulty(kind)
    probe = S2SBenchCallback(
        [mini(questions=12)],
        adapter=adapter,
        every_n_train_steps=1,
        cache_dir=folder / "codes",
        on_error=on_error,
        max_tokens=600,  # type: ignore[arg-type]
    )
    try:
        fit(strategy, folder, [probe])
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"}
    assert probe.record is not None
    scorer = probe.probe._scorer
    return {
        "raised": None,
        "steps": [report.step for report in probe.record.history()],
        "skipped": probe._skipped,
        "max_tokens": scorer.max_tokens if scorer else None,
        "longest_row": adapter.longest_row,
    }


def main() -> None:
    torch.set_num_threads(1)
    strategy, folder, kind, on_error = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    result = agree(strategy, folder) if kind == "agree" else fault(strategy, folder, kind, None if on_error == "default" else on_error)
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(result))
    end()


if __name__ == "__main__":
    main()
