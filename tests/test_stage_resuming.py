"""Stages through interrupted, resumed and repeated runs of a model of two layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from s2sbench_callback import Guard, Plateau, Stage, StageUnfreeze
from s2sbench_callback.adapters import Adapter, Rows
from s2sbench_callback.decisions import Decision, Probed
from s2sbench_callback.stages import unfreeze
from s2sbench_callback.stages.carrying import Names
from s2sbench_callback.stages.history import RuleHistory
from s2sbench_callback.stages.progress import Progress
from s2sbench_callback.stages.strategies import check_before_sharded_load, refuse_sparse_rows
from s2sbench_callback.stages.switch import Switch

RATE = 1e-2


class Roles:
    """As much of an adapter as stages look at."""

    def roles(self, model: nn.Module) -> dict[str, tuple[str, ...]]:
        return {"lm_head": ("head.",), "lm_body": ("body.",)}


class Task(pl.LightningModule):
    def __init__(self, optimizers: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
        self.optimizers_of = optimizers

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return cast(Tensor, self.net["head"](self.net["body"](batch)).square().mean())

    def configure_optimizers(self) -> Any:
        return self.optimizers_of(self) if self.optimizers_of else AdamW(self.parameters(), lr=RATE)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(torch.ones(64, 4), batch_size=1)  # type: ignore[arg-type]


class Moved(pl.Callback):
    """How far the body moved in each batch, and in which mode it was."""

    def __init__(self) -> None:
        self.by: list[float] = []
        self.trains: list[bool] = []

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: object, batch_idx: int) -> None:
        self.before = pl_module.net["body"].weight.detach().clone()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: object, batch: object, batch_idx: int) -> None:
        body = pl_module.net["body"]
        self.by.append(float((body.weight - self.before).abs().max()))
        self.trains.append(body.training)


def stages_of(stages: list[Stage], **arguments: Any) -> StageUnfreeze:
    return StageUnfreeze(stages, adapter=cast(Adapter, Roles()), locator="net", **arguments)


def fit(tmp_path: Path, *callbacks: pl.Callback, task: pl.LightningModule | None = None, ckpt: Path | None = None, **arguments: Any) -> pl.Trainer:
    trainer = pl.Trainer(
        **{
            "default_root_dir": tmp_path,
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "callbacks": list(callbacks),
            **arguments,
        }
    )
    trainer.fit(task or Task(), ckpt_path=ckpt)
    return trainer


def two(steps: int = 2, **second: Any) -> list[Stage]:
    return [Stage("head", ["lm_head"], lr=RATE, steps=steps), Stage("all", ["lm_head", "lm_body"], lr=RATE, **second)]


def rates(trainer: pl.Trainer) -> list[float]:
    """Of body and head."""
    net: Any = trainer.lightning_module
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    parts = (net.net["body"].weight, net.net["head"].weight)
    return [next(float(group["lr"]) for group in groups if any(each is part for each in group["params"])) for part in parts]


# Warm-ups


def test_a_checkpoint_saved_within_a_step_of_a_warm_up_holds_the_full_rates(tmp_path: Path) -> None:
    class Fails(Task):
        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            if batch_idx == 3:
                self.trainer.save_checkpoint(tmp_path / "within.ckpt")
                assert rates(self.trainer) == pytest.approx([0.2 * RATE, RATE])
            if batch_idx == 4:
                raise RuntimeError("out of memory")
            return super().training_step(batch, batch_idx)

    saves = ModelCheckpoint(tmp_path / "kept", save_on_exception=True, every_n_train_steps=100)
    with pytest.raises(RuntimeError, match="out of memory"):
        fit(tmp_path, stages_of(two(warm_up_steps=10)), saves, task=Fails(), max_steps=9, enable_checkpointing=True)
    (after,) = (tmp_path / "kept").iterdir()
    for file in (tmp_path / "within.ckpt", after):
        (state,) = torch.load(file, weights_only=False)["optimizer_states"]
        assert [group["lr"] for group in state["param_groups"]] == [RATE, RATE]


def test_after_an_exception_rates_and_modes_are_those_of_no_stage(tmp_path: Path) -> None:
    class Fails(Task):
        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            if batch_idx == 3:
                raise RuntimeError("out of memory")
            return super().training_step(batch, batch_idx)

    task, stages = Fails(), two(warm_up_steps=10)
    stages = [stages[0], Stage("all", ["lm_body"], lr=RATE, warm_up_steps=10, frozen_in_eval=True)]
    found: list[Optimizer] = []

    class Keep(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            found.extend(trainer.optimizers)

    with pytest.raises(RuntimeError, match="out of memory"):
        fit(tmp_path, stages_of(stages), Keep(), task=task, max_steps=9)
    assert [group["lr"] for group in found[0].param_groups] == [RATE, RATE]
    assert task.net["head"].training


def test_rows_that_newly_learn_warm_up(tmp_path: Path) -> None:
    moved = Moved()
    rows = [Rows("body.weight", 0, 2), "body.bias"]
    plan = [Stage("rows", rows, lr=RATE, steps=2), Stage("all", ["lm_body"], lr=RATE, warm_up_steps=1000)]
    trainer = fit(tmp_path, moved, stages_of(plan), max_steps=3)
    assert moved.by[1] > RATE / 2
    assert 0 < moved.by[2] < RATE / 500
    # The bias learnt before and is warm, so it has a group of its own.
    assert [len(group["params"]) for group in trainer.optimizers[0].param_groups] == [1, 1, 2]


# Other settings at a resume


def test_a_stage_that_is_shortened_at_a_resume_ends_when_it_ends(tmp_path: Path) -> None:
    fit(tmp_path, stages_of(two(100)), max_steps=4).save_checkpoint(tmp_path / "four.ckpt")
    moved = Moved()
    fit(tmp_path, moved, stages_of(two(2, warm_up_steps=100)), ckpt=tmp_path / "four.ckpt", max_steps=5)
    assert 0 < moved.by[0] < RATE / 50
    between = [two(2)[0], Stage("between", ["lm_head"], steps=2), two()[1]]
    moved, unfreezer = Moved(), stages_of(between)
    fit(tmp_path, moved, unfreezer, ckpt=tmp_path / "four.ckpt", max_steps=7)
    assert [by > 0 for by in moved.by] == [False, False, True]


def test_a_stage_that_was_held_back_is_not_dated_back() -> None:
    progress = Progress([Stage("a", ["lm_head"], steps=5), Stage("b", ["lm_body"])], None, applies=True)
    assert progress.end(9, None) == ("5 steps are done", 9)
    assert progress.end(9, None, catches_up=True) == ("5 steps are done", 5)


def curves(task: Task) -> Any:
    optimizer = AdamW(task.parameters(), lr=RATE)
    return [optimizer], [{"scheduler": LambdaLR(optimizer, lambda step: 0.5**step), "interval": "step"}]


def test_from_applied_stages_to_advice(tmp_path: Path) -> None:
    plan = [Stage("head", ["lm_head"], steps=2), Stage("all", ["lm_head", "lm_body"], lr={"lm_body": 1e-5})]
    first = fit(tmp_path, stages_of(plan), task=Task(curves), max_steps=3)
    assert rates(first) == pytest.approx([1e-5 / 8, RATE / 8])
    first.save_checkpoint(tmp_path / "three.ckpt")
    task = Task(curves)
    trainer = fit(tmp_path, stages_of(plan, mode="advise"), task=task, ckpt=tmp_path / "three.ckpt", max_steps=4)
    assert len(trainer.optimizers[0].param_groups) == 1
    assert rates(trainer) == pytest.approx([RATE / 16, RATE / 16])
    assert float(trainer.optimizers[0].state[task.net["body"].weight]["step"]) == 2


def test_two_optimizers_with_schedulers_find_their_groups(tmp_path: Path) -> None:
    class Two(Task):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def configure_optimizers(self) -> Any:
            made = [AdamW(self.net[part].parameters(), lr=RATE) for part in ("head", "body")]
            return made, [LambdaLR(each, lambda step: 0.5**step) for each in made]

        def training_step(self, batch: Tensor, batch_idx: int) -> Any:
            self.manual_backward(super().training_step(batch, batch_idx))
            for each in (*cast(Any, self.optimizers()), *cast(Any, self.lr_schedulers())):
                each.step()

    def plan(rates: dict[str, float] | None = None) -> list[Stage]:
        return [Stage("head", ["lm_head"], steps=2), Stage("all", ["lm_head", "lm_body"], lr=rates)]

    fit(tmp_path, task=Two(), max_steps=4).save_checkpoint(tmp_path / "plain.ckpt")
    fit(tmp_path, stages_of(plan()), task=Two(), max_steps=4).save_checkpoint(tmp_path / "staged.ckpt")
    for name in ("plain", "staged"):
        trainer = fit(tmp_path, stages_of(plan({"body.bias": 1e-3})), task=Two(), ckpt=tmp_path / f"{name}.ckpt", max_steps=8)
        assert [len(optimizer.param_groups) for optimizer in trainer.optimizers] == [1, 2]
        assert rates(trainer) == pytest.approx([RATE / 16, RATE / 16])


# Repeated runs


def test_a_second_run_of_the_same_module_trains_in_train_mode(tmp_path: Path) -> None:
    def plan() -> StageUnfreeze:
        return stages_of([Stage("head", ["lm_head"], steps=3, frozen_in_eval=True), two()[1]])

    task = Task()
    trainer = fit(tmp_path, plan(), task=task, max_steps=2)
    assert task.net["body"].training
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    moved = Moved()
    fit(tmp_path, plan(), moved, task=task, ckpt=tmp_path / "two.ckpt", max_steps=5)
    assert moved.trains == [False, True, True]


# What is made late


def test_a_model_that_is_made_after_setup_is_frozen_all_the_same(tmp_path: Path) -> None:
    class Late(Task):
        def __init__(self) -> None:
            super().__init__()
            del self.net

        def setup(self, stage: str) -> None:
            self.net = Task().net

    moved = Moved()
    unfreezer = StageUnfreeze(two(), adapter=cast(Adapter, Roles()), locator=lambda module: cast(Any, module).net)
    fit(tmp_path, moved, unfreezer, task=Late(), max_steps=3)
    assert [by > 0 for by in moved.by] == [False, False, True]


# Advice


def test_advice_is_sent_for_each_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(unfreeze, "tell_loggers", lambda trainer, title, text: told.append(title))
    plan = [Stage("a", ["lm_head"], until="hand"), Stage("b", ["lm_head"], until="hand"), two()[1]]
    unfreezer = stages_of(plan, mode="advise", check_every_n_steps=1, advance_file=tmp_path / "next")

    class Judge(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
            unfreezer.judge(Probed(trainer.global_step, {}, {}, {}), source=unfreezer._probe)
            if trainer.global_step == 2:
                (tmp_path / "next").touch()

    monkeypatch.setattr(Progress, "_decision", lambda *arguments: Decision(True, "flat"))
    fit(tmp_path, Judge(), unfreezer, max_steps=4)
    assert told == ["Stage 1, a, has done its work", "Stage 2, b, begins", "Stage 2, b, has done its work"]


def test_under_a_guard_that_holds_the_advice_says_that_it_would() -> None:
    progress = Progress([Stage("a", ["lm_head"], until=Plateau()), Stage("b", ["lm_body"])], Guard("hold"), applies=False)
    cast(Any, progress)._decision = lambda *arguments: Decision(True, "flat")
    cast(Any, progress)._watch = SimpleNamespace(holds=True, look=lambda *arguments: (None, False))
    verdict, _ = progress.judge(Probed(1, {}, {}, {}), lambda words: words)
    assert verdict.decision is not None
    assert verdict.decision.reason == "flat; it would be held back because T→T is damaged"


# Histories


def test_a_history_that_was_begun_anew_can_be_saved() -> None:
    history = RuleHistory(Plateau())
    filled: Any = history
    filled._steps, filled._fixed = [1], {"set": None}
    history.restart()
    assert history.state()["sets"] == {}
    assert history.since(0).steps == ()


# Strategies that shard


def sharded_trainer(checkpoint: Path) -> tuple[Any, list[object]]:
    strategy = ModelParallelStrategy()
    loaded: list[object] = []
    cast(Any, strategy).__class__ = type("Stand", (ModelParallelStrategy,), {"load_checkpoint": lambda self, path: loaded.append(path)})
    return SimpleNamespace(strategy=strategy), loaded


def test_a_checkpoint_in_shards_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    folder, file = tmp_path / "shards", tmp_path / "full.ckpt"
    folder.mkdir()
    for path in (folder / "meta.pt", file):
        torch.save({"callbacks": {}}, path)
    trainer, loaded = sharded_trainer(folder)
    seen: list[bool] = []

    def check(checkpoint: dict[str, Any], in_shards: bool) -> str | None:
        seen.append(in_shards)
        return "it has other groups" if in_shards else None

    check_before_sharded_load(trainer, check)
    with pytest.raises(MisconfigurationException, match=r"StageUnfreeze cannot go on from the checkpoint .*shards: it has other groups"):
        trainer.strategy.load_checkpoint(folder)
    check_before_sharded_load(trainer, check)
    trainer.strategy.load_checkpoint(file)
    assert loaded == [file]
    assert seen == [True, False]


@pytest.mark.parametrize("saved_with_stages", [True, False])
def test_groups_of_a_full_checkpoint_are_carried_after_the_strategy_has_loaded_it(saved_with_stages: bool, tmp_path: Path) -> None:
    """As under FSDP2, which gives each parameter its state and leaves the options of groups that were split to chance."""
    task = Task(curves)
    trainer = fit(tmp_path, task=task, max_steps=3)
    saved: Names | None = [[[name for name, _ in task.named_parameters()]]] if saved_with_stages else None
    checkpoint = {
        "optimizer_states": [trainer.optimizers[0].state_dict()],
        "lr_schedulers": [trainer.lr_scheduler_configs[0].scheduler.state_dict()],
    }
    other = Task(curves)
    plan = [Stage("head", ["lm_head"], steps=2), Stage("all", ["lm_head", "lm_body"], lr={"lm_body": 1e-5})]
    fresh = fit(tmp_path, task=other, max_steps=0)
    (optimizer,), (config,) = curves(other)
    fresh.strategy.optimizers, fresh.strategy.lr_scheduler_configs = [optimizer], [SimpleNamespace(scheduler=config["scheduler"])]  # type: ignore[list-item]
    switch = Switch(plan, cast(Adapter, Roles()), "net")
    switch.arrange(fresh, other, 0, lowers=False)
    reason = switch.before_sharded_load(checkpoint, saved, in_shards=True)
    assert reason is not None
    assert reason.startswith(f"it was saved {'with other stages' if saved_with_stages else 'without stages'}, whose optimizer groups are others")
    assert switch.before_sharded_load(checkpoint, saved, in_shards=False) is None
    # Torch gives a state back only to what requires gradients.
    assert saved_with_stages or other.net["body"].weight.requires_grad
    switch.saved_names = saved
    switch.load(checkpoint)
    config["scheduler"].load_state_dict(checkpoint["lr_schedulers"][0])
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([RATE / 8, RATE / 8])
    assert len(config["scheduler"].base_lrs) == 2
    switch.go_on(fresh, other, 1, 2, 1.0)
    assert sorted(group["lr"] for group in optimizer.param_groups) == pytest.approx([1e-5 / 8, RATE / 8])


def test_rows_of_a_matrix_with_sparse_gradients_are_refused() -> None:
    root = nn.ModuleDict({"embed": nn.Embedding(4, 2, sparse=True)})
    learner: Any = SimpleNamespace(name="embed.weight", parameter=cast(Any, root["embed"]).weight, rows=object())
    with pytest.raises(
        MisconfigurationException, match=r"some rows of embed.weight, whose gradients are sparse; make its Embedding with sparse=False"
    ):
        refuse_sparse_rows(root, [learner])
