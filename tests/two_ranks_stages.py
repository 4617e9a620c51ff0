"""Run by test_two_ranks_stages.py in one or two real processes: trains through a change of stage and writes down what each rank has."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from conftest import TINY
from lightning.pytorch.callbacks import BaseFinetuning, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy, Strategy
from processes import end, shard, whole
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from s2sbench_callback import Plateau, S2SBenchCallback, Stage, StageUnfreeze, mini
from s2sbench_callback.adapters import Rows
from s2sbench_callback.mini_world.pretraining import build_model, load_pretrained, pretrained_weights
from s2sbench_callback.mini_world.task import MiniTask

GLOBAL_BATCH, BATCHES_AN_EPOCH, SWITCH, STEPS = 4, 8, 3, 10
TRAINED_ROWS = Rows("model.embed_tokens.weight", 3, 40)
AUDIO = ["audio_embedding", "audio_head"]


class Task(MiniTask):
    """Takes its batches from the step's number, so that one process and two see the same ones, also after a resume."""

    def __init__(self, sharded: bool, filtered: bool = False) -> None:
        super().__init__(TINY)
        self.sharded = sharded
        self.filtered = filtered

    def configure_model(self) -> None:
        if self.sharded:
            shard(self)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        step = self.trainer.current_epoch * BATCHES_AN_EPOCH + batch_idx if self.trainer.accumulate_grad_batches > 1 else self.global_step
        share = GLOBAL_BATCH // self.trainer.world_size
        first = step * GLOBAL_BATCH + self.global_rank * share
        streams = torch.stack([sequence(number, self.model) for number in range(first, first + share)])
        output = self.model(streams)
        text = F.cross_entropy(output.text_logits[:, 7:-1].flatten(0, 1), streams[:, 8:, 0].flatten())
        audio = [F.cross_entropy(logits[:, 0:6].flatten(0, 1), streams[:, 1:7, 1 + k].flatten()) for k, logits in enumerate(output.audio_logits)]
        return text + 0.15 * torch.stack(audio).sum()

    def configure_optimizers(self) -> Any:
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad or not self.filtered]
        # A large eps keeps rounding from growing where gradients are near 0.
        optimizer = torch.optim.AdamW(parameters, lr=5e-3, eps=1e-3, weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(range(BATCHES_AN_EPOCH), batch_size=None)  # type: ignore[arg-type]


def sequence(number: int, model: Any) -> Tensor:
    """Eight frames of speech, then eight tokens of text."""
    draw = torch.Generator().manual_seed(number)
    streams = torch.full((16, 1 + len(model.audio_head)), -1)
    streams[8:, 0] = torch.randint(0, model.lm_head.weight.shape[0], (8,), generator=draw)
    for k, head in enumerate(model.audio_head):
        streams[:8, 1 + k] = torch.randint(0, head.weight.shape[0], (8,), generator=draw)
    return streams


class Lazy(Task):
    """Builds its model only when the strategy says so, after callbacks were set up."""

    def __init__(self) -> None:
        super().__init__(sharded=False)
        del self.model

    def setup(self, stage: str) -> None:
        pass

    def configure_model(self) -> None:
        self.model = build_model(self.pretraining)
        load_pretrained(self.model, pretrained_weights(self.pretraining, self.cache_folder))


class UnfreezeAtEpoch(BaseFinetuning):
    """Lightning's own way: body frozen at first, unfrozen and given to the optimizer at the second epoch."""

    def freeze_before_training(self, pl_module: pl.LightningModule) -> None:
        self.freeze([pl_module.model.model, pl_module.model.lm_head])
        self.make_trainable(pl_module.model.model.audio_embed_layers)

    def finetune_function(self, pl_module: pl.LightningModule, epoch: int, optimizer: torch.optim.Optimizer) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group([pl_module.model.model.layers, pl_module.model.model.norm], optimizer, lr=5e-3)


def stages(kind: str) -> list[Stage]:
    rows = [TRAINED_ROWS] if kind == "rows" else []
    # Decided at the probe of step 3, so the change comes in the same hook as that probe.
    until = Plateau(max_steps=SWITCH)
    return [
        Stage("audio", [*AUDIO, *rows], lr=4e-3, until=until),
        Stage("all", [*AUDIO, "lm_body"], lr={"lm_body": 2e-3}, warm_up_steps=2, frozen_in_eval=True),  # audio goes back to the optimizer's own rate
    ]


def strategy_of(name: str) -> tuple[Strategy, int]:
    if name == "one":
        return SingleDeviceStrategy("cpu"), 1
    if name.startswith("fsdp2"):
        size = 1 if name == "fsdp2_one" else 2
        return ModelParallelStrategy(data_parallel_size=size, tensor_parallel_size=1), size
    return DDPStrategy(process_group_backend="gloo", gradient_as_bucket_view=True, bucket_cap_mb=7), 2


class Watch(pl.Callback):
    """What the wrapper was built with and how far the ranks' weights ever were apart."""

    def __init__(self) -> None:
        self.wrappers: list[Any] = []
        self.apart: list[float] = []
        self.stages: list[int] = []
        self.modes: list[bool] = []

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        # Here, since they are put back when the run ends.
        self.modes = sorted({module.training for module in pl_module.model.model.embed_tokens.modules()})
        wrapper = trainer.strategy.model
        described = [type(wrapper).__name__, getattr(wrapper, "gradient_as_bucket_view", None), getattr(wrapper, "bucket_bytes_cap", None)]
        if not self.wrappers or self.wrappers[-1][:-1] != described or self.wrappers[-1][-1] != id(wrapper):
            self.wrappers.append([*described, id(wrapper)])
        self.apart.append(difference_between_ranks(pl_module))
        numbers = [each.stage_number for each in trainer.callbacks if isinstance(each, StageUnfreeze)]
        self.stages.extend(numbers)


def difference_between_ranks(module: nn.Module) -> float:
    if not dist.is_initialized() or dist.get_world_size() == 1 or any(isinstance(p, DTensor) for p in module.parameters()):
        return 0.0
    flat = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    others = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(others, flat)
    return max(float((other - flat).abs().max()) for other in others)


def fit(strategy: str, kind: str, folder: Path, resume: str | None = None) -> dict[str, Any]:
    pl.seed_everything(1)
    chosen, devices = strategy_of(strategy)
    task = Lazy() if kind == "lazy" else Task(strategy.startswith("fsdp2"), filtered=kind in ("base_finetuning", "filtered"))
    watch = Watch()
    if kind == "base_finetuning":
        callbacks: list[pl.Callback] = [UnfreezeAtEpoch(), watch]
    else:
        probe = S2SBenchCallback([mini(questions=12)], every_n_train_steps=SWITCH, cache_dir=folder / "codes", dirpath=folder / "record")
        callbacks = [probe, StageUnfreeze(stages(kind), check_every_n_steps=1), watch]
        if kind == "checkpoints" and resume is None:
            name = {"filename": "{step}", "save_top_k": -1, "every_n_train_steps": 1}
            callbacks.append(ModelCheckpoint(folder / "checkpoints", **name))
    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=devices,
        strategy=chosen,
        max_steps=2 * BATCHES_AN_EPOCH if kind == "base_finetuning" else STEPS,
        accumulate_grad_batches=2 if kind == "accumulate" else 1,
        # DDP lays its buckets out anew after the first step, and the norm of views into them rounds by their place.
        gradient_clip_val=None if kind == "checkpoints" else 1.0,
        logger=False,
        enable_checkpointing=kind == "checkpoints" and resume is None,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=callbacks,
    )
    assert trainer.world_size == devices
    trainer.fit(task, ckpt_path=resume)
    weights = {name: whole(parameter.detach()).clone() for name, parameter in task.model.named_parameters()}
    rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
    moments = {
        name: whole(trainer.optimizers[0].state[parameter]["exp_avg"]).clone()
        for name, parameter in task.model.named_parameters()
        if "exp_avg" in trainer.optimizers[0].state.get(parameter, {})
    }
    return {
        "weights": weights,
        "moments": moments,
        "rates": rates,
        "wrappers": [each[:-1] for each in watch.wrappers],
        "apart": watch.apart,
        "stages": watch.stages,
        "modes": watch.modes,
    }


def main() -> None:
    """``strategy folder job...``: a job is a kind, or ``name=checkpoint`` to go on from one."""
    torch.set_num_threads(1)
    strategy, folder = sys.argv[1], Path(sys.argv[2])
    result: dict[str, Any] = {}
    for job in sys.argv[3:]:
        name, _, resume = job.partition("=")
        result[name] = fit(strategy, "checkpoints" if resume else name, folder / strategy / name, resume or None)
        if name == "checkpoints":
            # Before the change, at it with the decision made, and after it.
            for step in (2, 3, 5):
                path = folder / strategy / name / "checkpoints" / f"step={step}.ckpt"
                result[f"from_{step}"] = fit(strategy, name, folder / strategy / f"from_{step}", str(path))
    torch.save(result, folder / f"{strategy}.rank{os.environ.get('RANK', '0')}.pt")
    end()


if __name__ == "__main__":
    main()
