from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from conftest import TINY
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from s2sbench_callback import Benchmark, Guard, Plateau, S2SBenchCallback, Stage, StageUnfreeze, two_stage
from s2sbench_callback.adapters import Rows
from s2sbench_callback.decisions import Decision, Probed, StageHistory
from s2sbench_callback.mini_world.data import MiniData
from s2sbench_callback.mini_world.task import MiniTask
from s2sbench_callback.stages import unfreeze
from s2sbench_callback.stages.history import RuleHistory
from s2sbench_callback.stages.selection import Learner
from s2sbench_callback.stages.strategies import rebuild_wrapper, refuse_rows, refuse_unsynchronised, stage_refusal

AUDIO = ("model.audio_embed_layers.", "audio_head.")
BODY = ("model.layers.", "model.norm.")


class Watch(pl.Callback):
    """Which parts moved in which batch."""

    def __init__(self) -> None:
        self.moved: list[set[str]] = []

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int) -> None:
        self.before = {name: p.detach().clone() for name, p in pl_module.named_parameters()}

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: object, batch: object, batch_idx: int) -> None:
        moved = {name.removeprefix("model.") for name, p in pl_module.named_parameters() if not torch.equal(p, self.before[name])}
        self.moved.append(moved)

    @property
    def body(self) -> list[bool]:
        """Whether the language model's body moved, batch by batch."""
        return [any(name.startswith(BODY) for name in moved) for moved in self.moved]


def fit(
    tmp_path: Path, *callbacks: pl.Callback, task: pl.LightningModule | None = None, ckpt_path: str | None = None, **arguments: Any
) -> pl.Trainer:
    pl.seed_everything(1)
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
    trainer.fit(task or MiniTask(TINY), MiniData(batch_size=2, pretraining=TINY), ckpt_path=ckpt_path)
    return trainer


def probe(mini_set: Benchmark, tmp_path: Path, **arguments: Any) -> S2SBenchCallback:
    return S2SBenchCallback([mini_set], **{"every_n_train_steps": 1, "cache_dir": tmp_path / "codes", "dirpath": tmp_path / "record", **arguments})


class Always(Plateau):
    """Ends its stage at a step of its own, whatever the figures say."""

    def decide(self, history: StageHistory) -> Decision:
        step = history.steps[-1]
        return Decision(step >= 2, f"the rule was asked at {step}, with {len(history.steps)} probes since {history.start}", 0.5, 0.25, 0.75, 0.9, 1.0)


def by_rule(**arguments: Any) -> list[Stage]:
    return two_stage(until=Always(**arguments))


# When the stage changes


def test_only_the_stages_roles_move_and_the_switch_is_on_time(tmp_path: Path, cache_dir: Path) -> None:
    watch = Watch()
    fit(tmp_path, watch, StageUnfreeze(two_stage(first_steps=2)), max_steps=4)
    for moved in watch.moved[:2]:
        assert moved
        assert all(name.startswith(AUDIO) for name in moved)
    assert watch.body == [False, False, True, True]
    assert all(name.startswith(AUDIO + BODY) for moved in watch.moved for name in moved)


def test_under_accumulation_the_switch_waits_for_the_step(tmp_path: Path, cache_dir: Path) -> None:
    watch = Watch()
    fit(tmp_path, watch, StageUnfreeze(two_stage(first_steps=1)), max_steps=2, accumulate_grad_batches=2)
    assert watch.body == [False, False, False, True]


@pytest.mark.parametrize("order", [1, -1])
def test_a_decision_is_carried_out_right_after_its_probe_in_either_order_of_callbacks(
    order: int, tmp_path: Path, mini_set: Benchmark, capsys: pytest.CaptureFixture[str]
) -> None:
    watch, stages, asks = Watch(), StageUnfreeze(by_rule()), probe(mini_set, tmp_path)
    fit(tmp_path, watch, *[asks, stages][::order], max_steps=4, logger=[TensorBoardLogger(tmp_path), CSVLogger(tmp_path)])
    assert watch.body == [False, False, True, True]
    assert asks.record is not None
    history = asks.record.history()
    assert [report.stage for report in history] == [1, 1, 1, 2, 2]
    verdicts = [report.verdict for report in history if report.verdict]
    assert [verdict.stage_since for verdict in verdicts] == [0, 0, 0, 2, 2]
    assert [verdict.decision.advance for verdict in verdicts if verdict.decision] == [False, False, True]
    reason = "the rule was asked at 2, with 3 probes since 0"
    assert verdicts[3].entered == reason
    metrics = history[2].metrics
    assert [metrics[f"s2sbench/{key}"] for key in ("stage", "decision/gain", "decision/gain_low", "decision/gain_high", "decision/advance")] == [
        1.0,
        0.5,
        0.25,
        0.75,
        1.0,
    ]
    (csv,) = tmp_path.rglob("metrics.csv")
    assert "s2sbench/decision/gain_high" in csv.read_text().splitlines()[0]
    (events,) = [path for path in tmp_path.rglob("events.out.tfevents*") if path.parent.name != "s2sbench_final"]
    assert reason.encode() in events.read_bytes()


def test_the_next_stages_rule_sees_the_probe_at_its_own_start(tmp_path: Path, mini_set: Benchmark) -> None:
    class Second(Plateau):
        def decide(self, history: StageHistory) -> Decision:
            seen.append((history.start, history.steps))
            return Decision(False, "no")

    seen: list[tuple[int, tuple[int, ...]]] = []
    stages = [*by_rule()[:1], Stage("middle", ["lm_body"], until=Second()), Stage("last", ["lm_head"])]
    fit(tmp_path, probe(mini_set, tmp_path), StageUnfreeze(stages), max_steps=4)
    assert seen == [(2, (2, 3)), (2, (2, 3, 4))]


def test_max_steps_of_a_rule_end_the_stage_between_probes(tmp_path: Path, mini_set: Benchmark) -> None:
    watch = Watch()
    fit(tmp_path, watch, probe(mini_set, tmp_path, every_n_train_steps=100), StageUnfreeze(two_stage(until=Plateau(max_steps=2))), max_steps=3)
    assert watch.body == [False, False, True]


def test_by_tokens(tmp_path: Path, cache_dir: Path) -> None:
    watch = Watch()
    stages = [Stage("a", ["audio_head"], tokens=25), Stage("b", ["audio_head", "lm_body"])]
    fit(tmp_path, watch, StageUnfreeze(stages, count_tokens=lambda batch: 10, check_every_n_steps=1), max_steps=4)
    assert watch.body == [False, False, False, True]
    with pytest.raises(TypeError, match="a batch with keys streams, weights does not say how many it holds; hand StageUnfreeze a function"):
        fit(tmp_path, StageUnfreeze(stages), max_steps=1)


class Touch(pl.Callback):
    """An operator who acts during the second batch."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int) -> None:
        if batch_idx == 1:
            self.act()


def test_by_hand_through_a_file_or_a_signal(tmp_path: Path, mini_set: Benchmark) -> None:
    stages = [Stage("a", ["audio_head"], until="hand"), Stage("b", ["audio_head", "lm_body"])]
    for number, (act, arguments) in enumerate(
        [
            ((tmp_path / "here").touch, {"advance_file": tmp_path / "here"}),
            ((tmp_path / "advance_stage").touch, {}),
            (lambda: os.kill(os.getpid(), signal.SIGUSR2), {"advance_signal": "SIGUSR2"}),
        ]
    ):
        watch = Watch()
        before = signal.getsignal(signal.SIGUSR2)
        unfreezer = StageUnfreeze(stages, check_every_n_steps=1, **arguments)  # type: ignore[arg-type]
        fit(tmp_path, watch, Touch(act), unfreezer, max_steps=4)
        assert watch.body == [False, False, True, True], number
        assert signal.getsignal(signal.SIGUSR2) is before
    assert not (tmp_path / "here").exists()
    assert not (tmp_path / "advance_stage").exists()
    # With a probe the file belongs in its record.
    watch = Watch()
    unfreezer = StageUnfreeze(stages, check_every_n_steps=1)
    fit(tmp_path, watch, Touch((tmp_path / "record" / "advance").touch), probe(mini_set, tmp_path), unfreezer, max_steps=3)
    assert watch.body == [False, False, True]


def test_it_looks_only_every_so_many_steps(tmp_path: Path, cache_dir: Path) -> None:
    watch = Watch()
    stages = [Stage("a", ["audio_head"], until="hand"), Stage("b", ["audio_head", "lm_body"])]
    fit(tmp_path, watch, Touch((tmp_path / "advance_stage").touch), StageUnfreeze(stages, check_every_n_steps=3), max_steps=5)
    assert watch.body == [False, False, False, True, True]


def test_advice_freezes_and_changes_nothing(tmp_path: Path, mini_set: Benchmark) -> None:
    watch, asks = Watch(), probe(mini_set, tmp_path)
    fit(tmp_path, watch, asks, StageUnfreeze(by_rule(), mode="advise"), max_steps=4, logger=TensorBoardLogger(tmp_path))
    assert watch.body == [True] * 4
    assert asks.record is not None
    history = asks.record.history()
    assert [report.verdict.decision.advance for report in history if report.verdict and report.verdict.decision] == [False, False, True, True, True]
    assert [report.stage for report in history] == [1] * 5
    (events,) = [path for path in tmp_path.rglob("events.out.tfevents*") if path.parent.name != "s2sbench_final"]
    assert events.read_bytes().count(b"has done its work") == 1


# The guard


class Damaging(Guard):
    """Finds damage from step 1 on."""

    def is_damage(self, change: object) -> bool:
        return True


def test_a_guard_holds_back_warns_and_lets_an_operator_through(tmp_path: Path, mini_set: Benchmark) -> None:
    watch, asks = Watch(), probe(mini_set, tmp_path)
    unfreezer = StageUnfreeze(by_rule(), guard=Damaging("hold", patience=1), check_every_n_steps=1)
    with pytest.warns(UserWarning, match="T→T accuracy is .* below its reference.*; the stage is held back"):
        fit(tmp_path, watch, asks, unfreezer, max_steps=4)
    assert watch.body == [False] * 4
    assert asks.record is not None
    verdict = asks.record.history()[-1].verdict
    assert verdict is not None
    assert verdict.decision is not None
    assert not verdict.decision.advance
    assert verdict.decision.reason.endswith("held back because T→T is damaged")
    assert "the stage is held back" in verdict.notes[0]
    watch = Watch()
    unfreezer = StageUnfreeze(by_rule(), guard=Damaging("hold", patience=1), check_every_n_steps=1)
    fit(tmp_path, watch, Touch((tmp_path / "record" / "advance").touch), probe(mini_set, tmp_path), unfreezer, max_steps=4)
    assert watch.body == [False, False, True, True]


def test_a_guard_can_stop_the_training_or_lower_its_rates(tmp_path: Path, mini_set: Benchmark) -> None:
    asks = probe(mini_set, tmp_path, at_start=False)
    trainer = fit(tmp_path, asks, StageUnfreeze(two_stage(10), guard=Damaging("stop", patience=2)), max_steps=5)
    assert trainer.global_step == 2
    plain = fit(tmp_path, StageUnfreeze(two_stage(10)), max_steps=3)
    guard = Damaging("lower_lr", patience=2, factor=0.5)
    lowered = fit(tmp_path, probe(mini_set, tmp_path, at_start=False), StageUnfreeze(two_stage(10), guard=guard), max_steps=3)
    rates = [[group["lr"] for group in trainer.optimizers[0].param_groups] for trainer in (plain, lowered)]
    # Found damaged at step 2 and again at step 3; the groups that learn nothing keep their rate.
    assert rates[1][0] == pytest.approx(rates[0][0] / 4)
    assert rates[1][1] == rates[0][1]


def test_loggers_are_told_of_a_fall_once_and_not_at_every_probe(tmp_path: Path, mini_set: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(unfreeze, "tell_loggers", lambda trainer, title, text, level="INFO": told.append((title, level)))
    asks = probe(mini_set, tmp_path, at_start=False)
    fit(tmp_path, asks, StageUnfreeze(two_stage(10), guard=Damaging("warn", patience=2)), max_steps=5)
    assert asks.record is not None
    assert [bool(report.verdict and report.verdict.notes) for report in asks.record.history()] == [False, True, True, True, True]
    assert told == [("T→T is damaged", "WARN")]


# Resuming


def test_a_checkpoint_without_stages_goes_on_in_the_stage_of_its_step(tmp_path: Path, cache_dir: Path) -> None:
    fit(tmp_path, max_steps=3).save_checkpoint(tmp_path / "three.ckpt")
    watch, unfreezer = Watch(), StageUnfreeze(two_stage(first_steps=2, lm_lr=1e-3))
    fit(tmp_path, watch, unfreezer, max_steps=4, ckpt_path=str(tmp_path / "three.ckpt"))
    assert unfreezer.stage_number == 2
    assert watch.body == [True]


def test_rates_and_stages_come_from_the_code_and_progress_from_the_checkpoint(tmp_path: Path, mini_set: Benchmark) -> None:
    stages = two_stage(until=Always(), lr=1e-2, lm_lr=1e-3)
    fit(tmp_path, probe(mini_set, tmp_path), StageUnfreeze(stages), max_steps=3).save_checkpoint(tmp_path / "three.ckpt")
    asks, unfreezer = probe(mini_set, tmp_path), StageUnfreeze(two_stage(until=Always(), lr=1e-2, lm_lr=5e-4))
    trainer = fit(tmp_path, asks, unfreezer, max_steps=4, ckpt_path=str(tmp_path / "three.ckpt"))
    assert unfreezer.stage_number == 2
    assert [group["stage_lr"] for group in trainer.optimizers[0].param_groups] == [1e-2, 1e-3, 5e-4]
    assert asks.record is not None
    verdict = asks.record.history()[-1].verdict
    assert verdict is not None
    assert (verdict.stage, verdict.stage_since) == (2, 2)
    message = "the checkpoint was saved in stage 2, and there are 1 now; keep those already done"
    with pytest.raises(MisconfigurationException, match=message):
        fit(tmp_path, StageUnfreeze(stages[1:]), max_steps=4, ckpt_path=str(tmp_path / "three.ckpt"))


def test_the_history_of_a_rule_goes_on_after_a_resume(tmp_path: Path, mini_set: Benchmark) -> None:
    class Seen(Plateau):
        def decide(self, history: StageHistory) -> Decision:
            values.append(history.sets["mini"].values)
            return Decision(False, "no")

    values: list[Any] = []
    fit(tmp_path, probe(mini_set, tmp_path), StageUnfreeze(two_stage(until=Seen())), max_steps=2).save_checkpoint(tmp_path / "two.ckpt")
    fit(tmp_path, probe(mini_set, tmp_path), StageUnfreeze(two_stage(until=Seen())), max_steps=3, ckpt_path=str(tmp_path / "two.ckpt"))
    assert [len(each) for each in values] == [1, 2, 3, 4]
    assert (values[-1][:3] == values[2]).all()


def test_other_questions_begin_a_new_history(mini_set: Benchmark, tmp_path: Path) -> None:
    asks = probe(mini_set, tmp_path)
    trainer = fit(tmp_path, asks, max_steps=1)
    assert trainer.global_step == 1
    assert asks.record is not None
    tables = asks.record.losses(1)
    history = RuleHistory(Plateau())
    assert history.add(Probed(1, tables, {}, {"mini": "lose"}))
    table = tables["mini"]["s2t"]
    with pytest.raises(ValueError, match="looks at s2t, which the probe could not ask of any set"):
        history.add(Probed(2, {"mini": {"t2t": tables["mini"]["t2t"]}}, {}, {"mini": "lose"}))
    changed = RuleHistory(Plateau(figure="accuracy"))
    changed.load(history.state())
    assert changed.last_step is None
    other = {"mini": {"s2t": replace(table, item_ids=tuple(f"{name}'" for name in table.item_ids))}}
    assert not history.add(Probed(2, other, {}, {"mini": "lose"}))
    assert history.since(0).steps == (2,)


# Modes


class Validated(MiniTask):
    """Validates after each step, and puts everything back to training in its own way, as many do."""

    def __init__(self) -> None:
        super().__init__(TINY)
        self.model.model.norm.add_module("drop", nn.Dropout(0.5))
        self.seen: list[dict[str, bool]] = []

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        self.seen.append({name: self.get_submodule(f"model.{name}").training for name in ("model.norm.drop", "lm_head", "audio_head", "model")})
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: object, batch_idx: int) -> None:
        assert not self.model.audio_head.training

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(range(1))  # type: ignore[arg-type]

    def on_validation_model_train(self) -> None:
        self.train()


def test_frozen_modules_are_in_eval_mode_also_after_validation_and_probes_and_learn_in_train_mode(tmp_path: Path, mini_set: Benchmark) -> None:
    stages = [
        Stage("a", ["audio_head", "audio_embedding"], steps=2, frozen_in_eval=True),
        Stage("b", ["audio_head", "lm_body"], frozen_in_eval=True),
    ]
    task = Validated()
    fit(tmp_path, probe(mini_set, tmp_path), StageUnfreeze(stages), task=task, max_steps=4, val_check_interval=1, num_sanity_val_steps=1)
    frozen = {"model.norm.drop": False, "lm_head": False, "audio_head": True, "model": True}
    assert task.seen == [frozen] * 2 + [{**frozen, "model.norm.drop": True}] * 2
    task = Validated()
    fit(tmp_path, StageUnfreeze(two_stage(2)), task=task, max_steps=3, val_check_interval=1, num_sanity_val_steps=1)
    assert all(all(modes.values()) for modes in task.seen)


# Rows


def test_frozen_rows_stay_to_the_bit_and_do_not_count_in_the_gradient_norm(tmp_path: Path, cache_dir: Path) -> None:
    class Norms(pl.Callback):
        def on_before_zero_grad(self, trainer: pl.Trainer, pl_module: Any, optimizer: object) -> None:
            grad = pl_module.model.lm_head.weight.grad
            if grad is not None:
                self.rows = grad.abs().sum(1).nonzero().flatten().tolist()
            self.state = trainer.optimizers[0].state.get(pl_module.model.lm_head.weight)

    rows = Rows("lm_head.weight", 10, 30)
    between = Stage("without it", ["audio_head"], steps=1)
    stages = [Stage("a", ["lm_head"], steps=1), between, Stage("b", [rows], steps=2), Stage("c", ["audio_head", "lm_head"])]
    task = MiniTask(TINY)
    start, norms = {}, Norms()

    class Keep(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: object, batch_idx: int) -> None:
            start[trainer.global_step] = pl_module.model.lm_head.weight.detach().clone()

    fit(tmp_path, StageUnfreeze(stages), Keep(), norms, task=task, max_steps=4)
    moved = (start[2] != task.model.lm_head.weight).any(1).nonzero().flatten().tolist()
    assert moved == list(range(10, 30))
    assert (start[0] != start[2]).any(1).all()
    assert set(norms.rows) <= set(range(10, 30))
    # Momentum of the stage before is gone, that of frozen rows is none.
    assert norms.state is not None
    assert norms.state["exp_avg"][:10].abs().max() == 0


# Refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StageUnfreeze([]), "needs at least one stage"),
        (
            lambda: StageUnfreeze([Stage("a", ["lm_body"]), Stage("b", ["lm_head"])]),
            "stage 'a' is not the last, so something must end it: steps, tokens",
        ),
        (lambda: StageUnfreeze([Stage("a", ["lm_body"], steps=5)]), "stage 'a' is the last, so nothing comes after its 5 steps"),
        (lambda: StageUnfreeze(two_stage(1), mode="maybe"), "mode must be 'apply' or 'advise', got 'maybe'"),  # type: ignore[arg-type]
        (lambda: StageUnfreeze(two_stage(1), check_every_n_steps=0), "check_every_n_steps must be at least 1, got 0"),
        (
            lambda: StageUnfreeze(two_stage(1), advance_signal="SIGTERM"),
            "must be a signal that means nothing else, for example 'SIGUSR2', got 'SIGTERM'",
        ),
        (lambda: StageUnfreeze(two_stage(1), advance_signal="SIGNOT"), "got 'SIGNOT'"),
    ],
)
def test_bad_settings(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make()


def test_what_is_decided_from_must_be_probed(tmp_path: Path, mini_set: Benchmark) -> None:
    def refused(message: str, *callbacks: pl.Callback) -> None:
        with pytest.raises(MisconfigurationException, match=message):
            fit(tmp_path, *callbacks, max_steps=1)

    refused("stage 'audio parts' ends by a Plateau, so the trainer needs an S2SBenchCallback", StageUnfreeze(two_stage()))
    refused("a guard watches T→T, so the trainer needs an S2SBenchCallback", StageUnfreeze(two_stage(1), guard=Guard()))
    written = probe(mini_set, tmp_path, conditions=["t2t"])
    refused("stage 'audio parts' decides from s2t, which the probe does not ask; add it to its conditions", written, StageUnfreeze(two_stage()))
    spoken = probe(mini_set, tmp_path, conditions=["s2t"])
    refused("the guard watches T→T, which the probe does not ask", spoken, StageUnfreeze(two_stage(1), guard=Guard()))
    elsewhere = StageUnfreeze(two_stage(until=Plateau(sets=["scmmlu"])))
    refused("decides from the set 'scmmlu', and the probe asks mini", probe(mini_set, tmp_path), elsewhere)


def test_parameters_that_no_optimizer_has_are_an_error_not_silence(tmp_path: Path, cache_dir: Path) -> None:
    class Filtered(MiniTask):
        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW([parameter for parameter in self.parameters() if parameter.requires_grad])

    with pytest.raises(ValueError, match=r"stage .language model too. trains .* more parameter.* that no optimizer has, and names no learning rate"):
        fit(tmp_path, StageUnfreeze(two_stage(1)), task=Filtered(TINY), max_steps=1)


def test_a_pattern_that_matches_nothing_is_an_error_before_training(tmp_path: Path, cache_dir: Path) -> None:
    with pytest.raises(ValueError, match=r"stage 'a': no parameter matches 'model.layer.\*'; near names are"):
        fit(tmp_path, StageUnfreeze([Stage("a", ["model.layer.*"])]), max_steps=1)


class _Trainer:
    """As much of a trainer as a refusal looks at."""

    def __init__(self, strategy: object, world_size: int = 2) -> None:
        self.strategy = strategy
        self.world_size = world_size


def test_strategies_that_cannot_change_stages_are_refused_with_the_reason(tmp_path: Path) -> None:
    class Odd:
        pass

    deepspeed = DeepSpeedStrategy.__new__(DeepSpeedStrategy)
    for strategy, message in [
        (deepspeed, "DeepSpeed lays out its flat buffers .* mode='advise' works here"),
        (FSDPStrategy(use_orig_params=False), "needs all parameters of a flat buffer frozen or none"),
        (Odd(), "the strategy Odd is unknown to the stages"),
    ]:
        assert re.search(message, stage_refusal(_Trainer(strategy)) or "")  # type: ignore[arg-type]
    for strategy in (DDPStrategy(), ModelParallelStrategy(), FSDPStrategy()):
        assert stage_refusal(_Trainer(strategy)) is None  # type: ignore[arg-type]


def test_what_fsdp2_does_not_shard_is_refused(cache_dir: Path) -> None:
    learner = Learner("projector.weight", nn.Parameter(torch.zeros(2)), None, None)
    with pytest.raises(MisconfigurationException, match=r"projector.weight and 0 more parameter\(s\) learn in a stage and are not sharded"):
        refuse_unsynchronised(_Trainer(ModelParallelStrategy()), [learner])  # type: ignore[arg-type]
    refuse_unsynchronised(_Trainer(ModelParallelStrategy(), world_size=1), [learner])  # type: ignore[arg-type]


def test_rows_that_cannot_be_told_apart_are_refused() -> None:
    learner = Learner("lm_head.weight", nn.Parameter(torch.zeros(4, 2)), np.array([True, False, False, True]), None)
    with pytest.raises(MisconfigurationException, match=r"some rows of lm_head.weight, and FSDP flattens the matrix .* use ModelParallelStrategy"):
        refuse_rows(_Trainer(FSDPStrategy()), [learner])  # type: ignore[arg-type]

    class Columns(DTensor):
        pass

    parameter = torch.zeros(4, 2).as_subclass(torch.Tensor)
    across = SimpleNamespace(is_shard=lambda dim: dim == 1, is_replicate=lambda: False)
    sharded = Tensor._make_subclass(Columns, parameter)
    sharded._spec = SimpleNamespace(placements=(across,))  # type: ignore[attr-defined]
    with pytest.raises(MisconfigurationException, match="is sharded along another dimension than its rows"):
        refuse_rows(_Trainer(ModelParallelStrategy()), [Learner("lm_head.weight", sharded, learner.rows, None)])  # type: ignore[arg-type]


def test_the_callback_refuses_at_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_dir: Path) -> None:
    monkeypatch.setattr(unfreeze, "stage_refusal", lambda trainer: "the weather is bad")
    with pytest.raises(MisconfigurationException, match="StageUnfreeze cannot change stages here: the weather is bad"):
        fit(tmp_path, StageUnfreeze(two_stage(1)), max_steps=1)
    fit(tmp_path, StageUnfreeze(two_stage(1), mode="advise"), max_steps=1)


def test_a_wrapper_that_something_holds_is_not_rebuilt_silently(tmp_path: Path) -> None:
    class Wrapped(torch.nn.parallel.DistributedDataParallel):
        def __init__(self) -> None:
            nn.Module.__init__(self)

    strategy = SimpleNamespace(model=Wrapped())
    held = strategy.model
    with pytest.raises(RuntimeError, match="cannot rebuild the DDP wrapper: something else still holds the old one"):
        rebuild_wrapper(_Trainer(strategy), nn.Module())  # type: ignore[arg-type]
    assert held is not None
