from __future__ import annotations

import csv
import random
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from conftest import TINY
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader
from transformers import Qwen2ForCausalLM

from s2sbench_callback import Benchmark, Item, S2SBenchCallback, StageUnfreeze, mini, two_stage
from s2sbench_callback.adapters import Row, SummedCodebooks
from s2sbench_callback.items import Context
from s2sbench_callback.mini_world.data import MiniData
from s2sbench_callback.mini_world.layouts import collate
from s2sbench_callback.mini_world.losses import next_token_losses
from s2sbench_callback.mini_world.pretraining import mini_adapter
from s2sbench_callback.mini_world.task import MiniTask
from s2sbench_callback.mini_world.text_tokenizer import AUDIO_END, AUDIO_START, build_text_tokenizer
from s2sbench_callback.record import RunRecord


class Noisy(MiniTask):
    """Draws from every generator while it trains, has dropout and a frozen part in evaluation mode."""

    def __init__(self) -> None:
        super().__init__(TINY)
        self.dropout = nn.Dropout(0.1)
        self.frozen = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2)).eval()
        self.draws: list[float] = []

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        assert not self.frozen.training
        assert not any(module.training for module in self.frozen.modules())
        self.draws += [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return super().training_step(batch, batch_idx) + self.dropout(torch.ones(8)).mean() * self.model.lm_head.weight.square().mean()

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        self.log("val/loss", sum(next_token_losses(self.model, batch["streams"], batch["weights"])))


class Data(MiniData):
    """With four samples to validate on."""

    def val_dataloader(self) -> DataLoader[Any]:
        assert self._samples is not None
        return DataLoader([self._samples[index] for index in range(4)], 2, collate_fn=collate)


def fit(folder: Path, *callbacks: pl.Callback, task: MiniTask | None = None, ckpt_path: Path | None = None, **arguments: Any) -> pl.Trainer:
    pl.seed_everything(1)
    defaults = {"logger": False, "enable_progress_bar": False, "max_steps": 4, "limit_val_batches": 0, "accelerator": "cpu"}
    trainer = pl.Trainer(
        default_root_dir=folder, enable_model_summary=False, callbacks=list(callbacks), log_every_n_steps=1, **{**defaults, **arguments}
    )
    pl.seed_everything(2)
    task = task or MiniTask(TINY)
    trainer.fit(task, Data(batch_size=2, pretraining=TINY), ckpt_path=ckpt_path)
    return trainer


def steps(callback: S2SBenchCallback) -> list[int]:
    assert callback.record is not None
    return [report.step for report in callback.record.history()]


def every(number: int, benchmark: Benchmark, **arguments: Any) -> S2SBenchCallback:
    return S2SBenchCallback([benchmark], every_n_train_steps=number, **arguments)


# Invisible


class Checkpointed(Noisy):
    def on_train_start(self) -> None:
        self.model.gradient_checkpointing_enable()


class Compiled(Noisy):
    """Counts how often its body is compiled."""

    def configure_model(self) -> None:
        self.compilations: list[int] = []
        self.model.model.compile(backend=self._count, dynamic=True)

    def _count(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        self.compilations.append(1)
        return graph.forward


class Normed(Noisy):
    """With running statistics that a forward in training mode would move."""

    def on_fit_start(self) -> None:
        self.model.model.norm = nn.Sequential(Transposed(self.model.config.hidden_size), nn.Dropout(0.1))


class Transposed(nn.BatchNorm1d):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return super().forward(states.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize(
    ("task_class", "arguments"),
    [
        (Noisy, {}),
        (Noisy, {"accumulate_grad_batches": 2}),
        (Noisy, {"precision": "bf16-mixed"}),
        (Noisy, {"limit_val_batches": 2, "val_check_interval": 2}),
        (Checkpointed, {}),
        (Compiled, {}),
        (Normed, {}),
    ],
)
def test_training_is_bit_identical_with_and_without(tmp_path: Path, mini_set: Benchmark, task_class: type[Noisy], arguments: dict[str, Any]) -> None:
    def run(name: str, *callbacks: pl.Callback) -> tuple[Noisy, dict[str, Any], list[dict[str, str]]]:
        torch.compiler.reset()
        task = task_class()
        logger = CSVLogger(tmp_path / name)
        stages = [] if task_class is Normed else [StageUnfreeze(two_stage(2))]
        trainer = fit(tmp_path / name, *callbacks, *stages, task=task, logger=logger, enable_checkpointing=False, **arguments)
        with (Path(logger.log_dir) / "metrics.csv").open() as stream:
            rows = [{key: value for key, value in row.items() if value and "s2sbench" not in key} for row in csv.DictReader(stream)]
        generators = {"python": random.getstate(), "numpy": np.random.get_state()[1].tolist(), "torch": torch.get_rng_state().tolist()}
        return task, {**generators, "optimizer": trainer.optimizers[0].state_dict()}, [row for row in rows if len(row) > 2]

    plain, plain_state, plain_rows = run("plain")
    probed, probed_state, probed_rows = run("probed", every(1, mini_set))
    assert plain.draws == probed.draws
    for (name, expected), (_, found) in zip(plain.state_dict().items(), probed.state_dict().items(), strict=True):
        assert torch.equal(expected, found), name
    for name in ("python", "numpy", "torch"):
        assert plain_state[name] == probed_state[name], name
    for expected, found in zip(plain_state["optimizer"]["state"].values(), probed_state["optimizer"]["state"].values(), strict=True):
        for name in expected:
            assert torch.equal(torch.as_tensor(expected[name]), torch.as_tensor(found[name])), name
    assert plain_rows
    assert plain_rows == probed_rows
    if isinstance(plain, Compiled) and isinstance(probed, Compiled):
        assert plain.compilations
        assert len(plain.compilations) == len(probed.compilations)


class Explosive(SummedCodebooks):
    """Fails at the probes it is told to."""

    def __init__(self, fails_at: set[int]) -> None:
        super().__init__(build_text_tokenizer(), AUDIO_START, AUDIO_END)
        self.fails_at = fails_at
        self.probes = 0

    def audio_fingerprint(self, model: nn.Module) -> str:
        self.probes += 1
        return super().audio_fingerprint(model)

    def logits(self, model: nn.Module, row: Row) -> torch.Tensor:
        if self.probes - 1 in self.fails_at:
            raise ArithmeticError("the adapter gave up")
        return super().logits(model, row)


def test_a_later_probe_that_fails_is_skipped_and_training_goes_on_unchanged(tmp_path: Path, mini_set: Benchmark) -> None:
    plain, skipping = Noisy(), Noisy()
    fit(tmp_path / "plain", task=plain, enable_checkpointing=False)
    callback = every(1, mini_set, adapter=Explosive({2}))
    logger = CSVLogger(tmp_path / "skipping")
    with pytest.warns(UserWarning, match="The S2SBench probe at step 2 was skipped: ArithmeticError: the adapter gave up"):
        fit(tmp_path / "skipping", callback, task=skipping, enable_checkpointing=False, logger=logger)
    assert steps(callback) == [0, 1, 3, 4]
    for (name, expected), (_, found) in zip(plain.state_dict().items(), skipping.state_dict().items(), strict=True):
        assert torch.equal(expected, found), name
    assert callback.record is not None
    assert [report.metrics["s2sbench/skipped"] for report in callback.record.history()] == [0, 0, 1, 1]
    rows = list(csv.DictReader((Path(logger.log_dir) / "metrics.csv").open()))
    assert [row["s2sbench/skipped"] for row in rows if row["step"] == "2" and row["s2sbench/skipped"]] == ["1.0"]


@pytest.mark.parametrize(("on_error", "fails_at"), [(None, 0), ("raise", 2)])
def test_a_probe_that_fails_raises_and_leaves_the_modes(tmp_path: Path, mini_set: Benchmark, on_error: Any, fails_at: int) -> None:
    task = Noisy()
    with pytest.raises(ArithmeticError, match="the adapter gave up"):
        fit(tmp_path, every(1, mini_set, adapter=Explosive({fails_at}), on_error=on_error), task=task, enable_checkpointing=False)
    assert task.training
    assert task.model.training
    assert not task.frozen.training


def test_on_error_skip_covers_the_first_probe_too(tmp_path: Path, mini_set: Benchmark) -> None:
    callback = every(2, mini_set, adapter=Explosive({0}), on_error="skip")
    with pytest.warns(UserWarning, match="probe at step 0 was skipped"):
        fit(tmp_path, callback, enable_checkpointing=False)
    assert steps(callback) == [2, 4]


# When


def test_steps_start_and_end(tmp_path: Path, mini_set: Benchmark) -> None:
    callback = every(2, mini_set)
    fit(tmp_path, callback, max_steps=5, enable_checkpointing=False)
    assert steps(callback) == [0, 2, 4, 5]
    bare = every(2, mini_set, at_start=False, at_end=False)
    fit(tmp_path, bare, max_steps=5, enable_checkpointing=False)
    assert steps(bare) == [2, 4]
    accumulating = every(2, mini_set)
    fit(tmp_path, accumulating, max_steps=3, accumulate_grad_batches=3, enable_checkpointing=False)
    assert steps(accumulating) == [0, 2, 3]


class SavedSteps(ModelCheckpoint):
    """Notes the last probe at each save."""

    def __init__(self, probe: S2SBenchCallback, **arguments: Any) -> None:
        super().__init__(monitor="s2sbench/mean/s2t/accuracy", mode="max", save_top_k=-1, auto_insert_metric_name=False, **arguments)
        self.probe = probe
        self.saved: list[tuple[int, int]] = []

    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        self.saved.append((trainer.global_step, steps(self.probe)[-1]))
        super()._save_checkpoint(trainer, filepath)


@pytest.mark.parametrize(
    ("when", "arguments", "expected"),
    [
        ({"every_n_train_steps": 2}, {}, [2, 4]),
        ({"every_n_epochs": 1, "save_on_train_epoch_end": True}, {"limit_train_batches": 2, "max_epochs": 2, "max_steps": -1}, [2, 4]),
        ({"every_n_epochs": 1}, {"limit_train_batches": 2, "max_epochs": 2, "max_steps": -1, "limit_val_batches": 1}, [2, 4]),
        ({}, {"limit_val_batches": 1, "val_check_interval": 2, "max_steps": 4}, [2, 4]),
    ],
)
def test_each_checkpoint_is_saved_after_its_probe(
    tmp_path: Path, mini_set: Benchmark, when: dict[str, Any], arguments: dict[str, Any], expected: list[int]
) -> None:
    probe = S2SBenchCallback([mini_set], at_end=False)
    checkpoint = SavedSteps(probe, **when)
    fit(tmp_path, checkpoint, probe, task=Noisy(), **arguments)
    assert checkpoint.saved == [(step, step) for step in expected]
    assert probe.record is not None
    best = max(report.metrics["s2sbench/mean/s2t/accuracy"] for report in probe.record.history()[1:])
    assert checkpoint.best_model_score is not None
    assert float(checkpoint.best_model_score) == pytest.approx(best)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"enable_checkpointing": False}, r"there is no ModelCheckpoint to follow.*every_n_train_steps=1000"),
        ({"callbacks": [ModelCheckpoint(train_time_interval=timedelta(minutes=1))]}, r"saves by the clock"),
    ],
)
def test_nothing_to_follow_is_an_error_before_training(tmp_path: Path, mini_set: Benchmark, arguments: dict[str, Any], message: str) -> None:
    callbacks = arguments.pop("callbacks", [])
    with pytest.raises(MisconfigurationException, match=message):
        fit(tmp_path, S2SBenchCallback([mini_set]), *callbacks, **arguments)


def test_validating_alone_and_sanity_checking_probe_nothing(tmp_path: Path, mini_set: Benchmark) -> None:
    probe = every(100, mini_set, at_start=False, at_end=False)
    trainer = fit(tmp_path, probe, task=Noisy(), limit_val_batches=1, num_sanity_val_steps=2, enable_checkpointing=False)
    assert steps(probe) == []
    trainer.validate(trainer.lightning_module, datamodule=trainer.datamodule, verbose=False)  # type: ignore[attr-defined]
    assert steps(probe) == []


def test_fast_dev_run_probes_and_writes_nothing(tmp_path: Path, mini_set: Benchmark) -> None:
    probe = S2SBenchCallback([mini_set])
    trainer = fit(tmp_path, probe, fast_dev_run=True)
    assert 0 <= float(trainer.callback_metrics["s2sbench/mini/s2t/accuracy"]) <= 1
    assert probe.record is None
    assert not list(tmp_path.iterdir())


# What


def without_clock(metrics: Any) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if not key.endswith(("/seconds", "/questions_per_second", "/share_of_training"))}


def test_the_same_run_twice_gives_the_same_figures(tmp_path: Path, mini_set: Benchmark) -> None:
    histories = []
    for name in ("one", "two"):
        probe = every(2, mini_set)
        fit(tmp_path / name, probe, StageUnfreeze(two_stage(2)), enable_checkpointing=False)
        assert probe.record is not None
        histories.append(probe.record.history())
    for first, second in zip(*histories, strict=True):
        assert without_clock(first.metrics) == without_clock(second.metrics)
        assert first.signature == second.signature
    assert [report.stage for report in histories[0]] == [1, 1, 2]


def test_the_signature_says_what_produced_the_figures(tmp_path: Path, mini_set: Benchmark) -> None:
    probe = every(4, mini_set, max_questions=5)
    fit(tmp_path, probe, enable_checkpointing=False)
    assert probe.record is not None
    signature = probe.record.history()[0].signature
    assert signature["sets"]["mini"]["questions"] == 5
    assert signature["sets"]["mini"]["fingerprint"] != mini_set.fingerprint
    assert (signature["scoring"], signature["normalisation"], signature["precision"]) == ("packed", "per_token", "32-true")
    assert signature["adapter"]["adapter"] == "summed_codebooks"
    assert {"prompt", "package", "max_questions"} <= set(signature)


def test_plain_scoring_on_request_gives_the_same_losses(tmp_path: Path, mini_set: Benchmark) -> None:
    packed, plain = every(4, mini_set), every(4, mini_set, packed=False)
    losses = []
    for name, probe in (("packed", packed), ("plain", plain)):
        fit(tmp_path / name, probe, enable_checkpointing=False)
        assert probe.record is not None
        assert probe.record.history()[0].signature["scoring"] == name
        losses.append(probe.record.losses(0)["mini"]["s2t"].losses)
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-5)


def test_a_subset_is_the_same_every_time(mini_set: Benchmark) -> None:
    def chosen(number: int) -> list[str]:
        return [item.id for item in S2SBenchCallback([mini_set], max_questions=number).probe.benchmarks["mini"].items]

    assert chosen(5) == chosen(5)
    assert len(set(chosen(5))) == 5
    assert chosen(1000) == [item.id for item in mini_set.items]


def test_after_the_first_probe_no_recording_is_opened(tmp_path: Path, mini_set: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (opened.append(path), read(path))[1])
    for run in ("first", "second"):
        probe = every(1, mini_set, cache_dir=tmp_path / "codes")
        fit(tmp_path / run, probe, enable_checkpointing=False)
        recordings = {path for path in opened if path.suffix == ".wav"}
        # The second run finds the codes of the first on disk.
        assert len(recordings) == probe.probe.front_end_forwards == (len(mini_set.items) if run == "first" else 0)
        opened.clear()


def test_reference_is_the_first_probe_or_another_record(tmp_path: Path, mini_set: Benchmark) -> None:
    first = every(2, mini_set)
    fit(tmp_path / "first", first, enable_checkpointing=False)
    assert first.record is not None
    history = first.record.history()
    assert history[0].metrics["s2sbench/mini/t2t_change"] == 0
    t2t = [report.metrics["s2sbench/mini/t2t/accuracy"] for report in history]
    s2t = [report.metrics["s2sbench/mini/s2t/accuracy"] for report in history]
    assert [report.metrics["s2sbench/mini/intelligence_loss"] for report in history] == pytest.approx([t2t[0] - value for value in s2t])
    assert [report.metrics["s2sbench/mini/degradation"] for report in history] == pytest.approx(np.subtract(t2t, s2t))

    losses = first.record.losses(0)["mini"]["t2t"]
    losses.nats[:, 0], losses.nats[:, 1] = 1e-3, 1e3
    first.record.append(history[0], {"mini": {"t2t": losses}})
    held = every(2, mini_set, reference=first.record.dirpath)
    fit(tmp_path / "second", held, enable_checkpointing=False)
    assert held.record is not None
    assert held.record.history()[0].metrics["s2sbench/mini/intelligence_loss"] == pytest.approx(1.0 - s2t[0])
    with pytest.raises(ValueError, match="holds no probes"):
        every(2, mini_set, reference=tmp_path / "nowhere")
    with pytest.raises(MisconfigurationException, match="reference record holds other questions of mini"):
        fit(tmp_path / "third", every(2, mini_set, reference=first.record.dirpath, max_questions=3), enable_checkpointing=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"conditions": ["s2x"]}, r"conditions must be some of \['s2t', 't2t', 's2s', 't2s'\], each once, got \['s2x'\]"),
        ({"conditions": ["s2t", "s2t"]}, "each once"),
        ({"max_questions": 0}, "max_questions must be at least 1, got 0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"on_error": "ignore"}, "on_error must be 'raise', 'skip' or None, got 'ignore'"),
    ],
)
def test_bad_arguments(mini_set: Benchmark, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        S2SBenchCallback([mini_set], **arguments)


def test_sets_need_names_of_their_own(mini_set: Benchmark) -> None:
    with pytest.raises(ValueError, match=r"two benchmarks have the same name.*rename one with set_name="):
        S2SBenchCallback([mini_set, mini_set])
    with pytest.raises(ValueError, match="benchmarks is empty"):
        S2SBenchCallback([])


def test_a_model_that_breaks_is_an_error_not_a_figure(tmp_path: Path, mini_set: Benchmark) -> None:
    class Breaks(MiniTask):
        def on_train_start(self) -> None:
            with torch.no_grad():
                self.model.lm_head.weight.fill_(torch.nan)

    probe = every(1, mini_set, on_error="raise", at_start=False)
    with pytest.raises(FloatingPointError, match="mini/s2t: 12 of 12 questions have a NaN or infinite loss"):
        fit(tmp_path, probe, task=Breaks(TINY), enable_checkpointing=False)


# A user's own module


class TextModule(pl.LightningModule):
    """Anything with a causal LM and a tokenizer inside."""

    def __init__(self, llm: Qwen2ForCausalLM) -> None:
        super().__init__()
        self.llm = llm
        self.tokenizer = build_text_tokenizer()

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.llm(input_ids=batch, labels=batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(torch.arange(64).reshape(8, 8), batch_size=2)


def text_fit(folder: Path, llm: Qwen2ForCausalLM, probe: S2SBenchCallback) -> None:
    trainer = pl.Trainer(
        default_root_dir=folder, accelerator="cpu", max_steps=2, logger=False, enable_progress_bar=False, enable_checkpointing=False, callbacks=probe
    )
    trainer.fit(TextModule(llm))


def test_a_text_model_is_asked_in_writing_and_the_rest_is_named(tmp_path: Path, tiny_qwen2: Qwen2ForCausalLM, mini_set: Benchmark) -> None:
    probe = every(1, mini_set)
    with pytest.warns(UserWarning, match="the probe leaves out mini/s2t: a text-only model has no way to read speech"):
        text_fit(tmp_path, tiny_qwen2, probe)
    assert probe.record is not None
    report = probe.record.history()[-1]
    assert report.sets == {"mini": ("t2t",)}
    assert not any("/s2t/" in key or "degradation" in key for key in report.metrics)


def test_several_dataloaders_and_limits(tmp_path: Path, tiny_qwen2: Qwen2ForCausalLM, mini_set: Benchmark) -> None:
    class Several(TextModule):
        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            return sum(super(Several, self).training_step(each, batch_idx) for each in batch.values())

        def train_dataloader(self) -> dict[str, DataLoader[Any]]:
            return {"one": super().train_dataloader(), "other": super().train_dataloader()}

    probe = every(2, mini_set, conditions=["t2t"])
    trainer = pl.Trainer(
        default_root_dir=tmp_path, accelerator="cpu", max_epochs=2, limit_train_batches=3, logger=False, enable_progress_bar=False, callbacks=probe
    )
    trainer.fit(Several(tiny_qwen2))
    assert steps(probe) == [0, 2, 4, 6]


def test_nothing_that_can_be_asked_is_an_error(tmp_path: Path, tiny_qwen2: Qwen2ForCausalLM, mini_set: Benchmark) -> None:
    with pytest.raises(ValueError, match="nothing can be asked of this model: mini/s2t: a text-only model"):
        text_fit(tmp_path, tiny_qwen2, every(1, mini_set, conditions=["s2t"]))


def test_a_set_without_recordings_is_asked_in_writing(tmp_path: Path) -> None:
    written = Benchmark("written", "en", (Item("q", (Context("It rained."),) * 2, ("Wet.", "Dry."), 0),))
    probe = every(4, written)
    with pytest.warns(UserWarning, match="leaves out written/s2t: the set has no recordings"):
        fit(tmp_path, probe, enable_checkpointing=False)
    assert probe.record is not None
    assert probe.record.history()[0].sets == {"written": ("t2t",)}


# Where it goes


def test_loggers_get_every_figure_at_one_step(tmp_path: Path, mini_set: Benchmark) -> None:
    loggers = [TensorBoardLogger(tmp_path, name="tb"), CSVLogger(tmp_path, name="csv"), WandbLogger(save_dir=tmp_path, offline=True, project="p")]
    probe = every(2, mini_set)
    fit(tmp_path, probe, logger=loggers, enable_checkpointing=False)
    assert probe.record is not None
    assert probe.record.dirpath == Path(loggers[0].log_dir) / "s2sbench"
    history = probe.record.history()

    events = EventAccumulator(loggers[0].log_dir, size_guidance={"images": 0, "tensors": 0}).Reload()
    for key in history[0].metrics:
        assert [event.step for event in events.Scalars(key)] == [0, 2, 4]
        assert [event.value for event in events.Scalars(key)] == pytest.approx([report.metrics[key] for report in history], rel=1e-6, nan_ok=True), (
            key
        )
    assert [image.step for image in events.Images("s2sbench/panels")] == [0, 2, 4]
    assert "custom_scalars__config__" in events.Tags()["tensors"]
    layout = events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    assert b"^s2sbench/mini/s2t/accuracy$" in layout
    assert b"^s2sbench/mini/t2t/accuracy$" in layout

    rows = [row for row in csv.DictReader((Path(loggers[1].log_dir) / "metrics.csv").open()) if row["s2sbench/step"]]
    assert [int(row["step"]) for row in rows] == [0, 2, 4]
    for row, report in zip(rows, history, strict=True):
        assert {key: float(row[key]) for key in report.metrics} == pytest.approx(dict(report.metrics), nan_ok=True)

    summary = loggers[2].experiment.summary
    accuracy = [report.metrics["s2sbench/mini/s2t/accuracy"] for report in history]
    assert summary["s2sbench/mini/s2t/accuracy"]["last"] == accuracy[-1]
    assert summary["s2sbench/mini/s2t/accuracy"]["max"] == max(accuracy)
    assert summary["s2sbench/changed_sides"]["_type"] == "table-file"
    assert summary["s2sbench/panels"]["_type"] == "image-file"
    loggers[2].experiment.finish()
    assert (probe.record.dirpath / "panels.png").read_bytes()[:4] == b"\x89PNG"


def test_all_four_directions(tmp_path: Path, cache_dir: Path) -> None:
    spoken = mini(4, cache_dir, spoken_candidates=True)
    assert all(len(item.candidate_audios) == 2 for item in spoken.items)
    logger = TensorBoardLogger(tmp_path)
    probe = S2SBenchCallback([spoken], conditions=["t2s", "s2s", "t2t", "s2t"], every_n_train_steps=2)
    trainer = fit(tmp_path, probe, logger=logger, enable_checkpointing=False, max_steps=2)
    assert probe.record is not None
    report = probe.record.history()[-1]
    assert report.sets == {"mini": ("s2t", "t2t", "s2s", "t2s")}
    for condition in report.sets["mini"]:
        loss = float(trainer.callback_metrics[f"s2sbench/mini/{condition}/positive_loss"])
        assert np.isfinite(loss)
        assert report.metrics[f"s2sbench/mini/{condition}/positive_loss"] == pytest.approx(loss)
    # A spoken candidate has no characters.
    assert set(report.normalised["mini/s2s"]) == {"sum"}
    assert set(report.normalised["mini/s2t"]) == {"sum", "per_character", "per_byte"}
    tables = probe.record.losses(2)["mini"]
    # One frame is 80 ms, and the semantic codebook alone is scored.
    seconds = [[audio.seconds for audio in item.candidate_audios] for item in spoken.items]
    np.testing.assert_allclose(tables["s2s"].tokens, np.array(seconds) * 12.5, atol=1)
    np.testing.assert_array_equal(tables["s2s"].tokens, tables["t2s"].tokens)
    tags = EventAccumulator(logger.log_dir).Reload().Tags()["scalars"]
    assert "s2sbench/mini/t2s/accuracy" in tags


def test_figures_stay_where_checkpoints_and_early_stopping_look(tmp_path: Path, mini_set: Benchmark) -> None:
    probe = every(3, mini_set)
    trainer = fit(tmp_path, probe, task=Noisy(), limit_val_batches=1, val_check_interval=1, enable_checkpointing=False)
    assert probe.record is not None
    last = probe.record.history()[-1].metrics
    found = {key: float(value) for key, value in trainer.callback_metrics.items() if key.startswith("s2sbench/")}
    assert found == pytest.approx(dict(last), nan_ok=True)


def test_without_a_logger_each_run_has_a_folder_of_its_own(tmp_path: Path, mini_set: Benchmark) -> None:
    folders = []
    for _ in range(2):
        probe = every(4, mini_set)
        fit(tmp_path, probe, enable_checkpointing=False)
        assert probe.record is not None
        folders.append(probe.record.dirpath)
        assert steps(probe) == [0, 4]
    assert folders == [tmp_path / "s2sbench", tmp_path / "s2sbench_1"]


# Resuming


def test_a_resumed_run_goes_on_in_its_record(tmp_path: Path, mini_set: Benchmark) -> None:
    whole = every(1, mini_set)
    fit(tmp_path / "whole", whole, StageUnfreeze(two_stage(2)), max_steps=4, enable_checkpointing=False)

    first = every(1, mini_set)
    checkpoint = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    fit(tmp_path / "run", first, checkpoint, StageUnfreeze(two_stage(2)), max_steps=3)
    assert steps(first) == [0, 1, 2, 3]
    second = every(1, mini_set)
    fit(tmp_path / "run", second, StageUnfreeze(two_stage(2)), max_steps=4, ckpt_path=tmp_path / "step=2.ckpt", enable_checkpointing=False)
    assert first.record is not None
    assert second.record is not None
    assert second.record.dirpath == first.record.dirpath
    assert steps(second) == [0, 1, 2, 3, 4]
    moved = RunRecord(second.record.dirpath).superseded_path.read_text().splitlines()
    assert len(moved) == 1
    assert whole.record is not None
    reference = whole.record.history()[0].metrics["s2sbench/mini/t2t/accuracy"]
    for report in second.record.history():
        expected = reference - report.metrics["s2sbench/mini/s2t/accuracy"]
        assert report.metrics["s2sbench/mini/intelligence_loss"] == pytest.approx(expected)


def test_a_new_run_in_an_old_folder_starts_a_new_history(tmp_path: Path, mini_set: Benchmark) -> None:
    for _ in range(2):
        probe = every(4, mini_set, dirpath=tmp_path / "record")
        fit(tmp_path, probe, enable_checkpointing=False)
    assert steps(probe) == [0, 4]
    assert len(RunRecord(tmp_path / "record").superseded_path.read_text().splitlines()) == 2


def test_the_state_is_progress_alone_and_loads_safely(tmp_path: Path, mini_set: Benchmark) -> None:
    probe = every(2, mini_set)
    trainer = fit(tmp_path, probe, enable_checkpointing=False)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)["callbacks"]["S2SBenchCallback['mini']"]
    assert set(saved) == {"last_step", "skipped", "dirpath", "reference"}
    assert saved["last_step"] == 4


def test_adapters_can_be_given(tmp_path: Path, mini_set: Benchmark) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", module="lightning")
        probe = every(4, mini_set, adapter=mini_adapter(), locator="model", conditions=["s2t"])
        fit(tmp_path, probe, enable_checkpointing=False)
    assert probe.record is not None
    assert probe.record.history()[0].sets == {"mini": ("s2t",)}


def with_other_texts(benchmark: Benchmark) -> Benchmark:
    return replace(benchmark, items=tuple(replace(item, candidates=tuple(f"{text} Yes." for text in item.candidates)) for item in benchmark.items))


def test_a_resumed_run_may_ask_other_sets_and_other_questions(tmp_path: Path, mini_set: Benchmark) -> None:
    checkpoint = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2)
    fit(tmp_path / "run", every(2, mini_set), checkpoint, max_steps=2)
    added = replace(mini_set, name="other")
    for benchmarks, warning in (([mini_set, added], None), ([with_other_texts(mini_set)], "questions of mini have changed since the checkpoint")):
        resumed = S2SBenchCallback(benchmarks, every_n_train_steps=1)
        arguments: dict[str, Any] = {"max_steps": 4, "ckpt_path": tmp_path / "step=2.ckpt", "enable_checkpointing": False}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(tmp_path / "run", resumed, **arguments)
        said = [str(each.message) for each in caught if "have changed since" in str(each.message)]
        # Lightning keys states by the names of the sets: an added set starts without one.
        assert bool(said) is bool(warning)
        assert resumed.record is not None
        last = resumed.record.history()[-1].metrics
        assert all(f"s2sbench/{benchmark.name}/intelligence_loss" in last for benchmark in benchmarks)


def test_a_given_reference_is_the_same_questions_not_the_same_numbers(tmp_path: Path, mini_set: Benchmark) -> None:
    first = every(4, mini_set)
    fit(tmp_path / "first", first, enable_checkpointing=False)
    assert first.record is not None
    with pytest.raises(MisconfigurationException, match="holds other questions of mini"):
        fit(tmp_path / "second", every(4, with_other_texts(mini_set), reference=first.record.dirpath), enable_checkpointing=False)
    renamed = every(4, replace(mini_set, name="renamed"), reference=first.record.dirpath)
    with pytest.warns(UserWarning, match="the reference record has no T→T of renamed"):
        fit(tmp_path / "third", renamed, enable_checkpointing=False)


def test_the_same_callback_starts_anew_in_another_trainer(tmp_path: Path, mini_set: Benchmark) -> None:
    class Other(MiniTask):
        def on_fit_start(self) -> None:
            with torch.no_grad():
                self.model.lm_head.weight.mul_(3)

    probe, logger = every(4, mini_set), TensorBoardLogger(tmp_path, name="second")
    fit(tmp_path / "first", probe, enable_checkpointing=False)
    fit(tmp_path / "second", probe, task=Other(TINY), logger=logger, enable_checkpointing=False)
    assert probe.record is not None
    history = probe.record.history()
    assert [report.step for report in history] == [0, 4]
    assert history[0].metrics["s2sbench/mini/t2t_change"] == 0
    assert "custom_scalars__config__" in EventAccumulator(logger.log_dir).Reload().Tags()["tensors"]


def test_two_probes_of_one_trainer_keep_apart(tmp_path: Path, mini_set: Benchmark) -> None:
    often, seldom = every(1, mini_set), every(4, replace(mini_set, name="other"), at_start=False)
    fit(tmp_path, often, seldom, enable_checkpointing=False)
    assert (steps(often), steps(seldom)) == ([0, 1, 2, 3, 4], [4])


def test_a_module_that_rewrites_its_weights_in_train_and_eval_is_left_alone(tmp_path: Path, mini_set: Benchmark) -> None:
    class Merging(nn.Linear):
        """As LoRA layers do that merge for inference."""

        calls = 0

        def train(self, mode: bool = True) -> nn.Module:
            Merging.calls += 1
            return super().train(mode)

    class WithMerging(MiniTask):
        def __init__(self) -> None:
            super().__init__(TINY)
            self.merging = Merging(2, 2)

    fit(tmp_path / "plain", task=WithMerging(), enable_checkpointing=False)
    plain, Merging.calls = Merging.calls, 0
    fit(tmp_path / "probed", every(1, mini_set), task=WithMerging(), enable_checkpointing=False)
    assert Merging.calls == plain


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_half_precision_weights(tmp_path: Path, mini_set: Benchmark, precision: Any) -> None:
    probe = every(4, mini_set)
    fit(tmp_path, probe, precision=precision, enable_checkpointing=False)
    assert probe.record is not None
    report = probe.record.history()[-1]
    assert report.metrics["s2sbench/mini/s2t/invalid"] == 0
    assert report.signature["precision"] == precision


class Broken(CSVLogger):
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if any("s2sbench" in key for key in metrics):
            raise ConnectionError("the server is gone")


def test_a_logger_that_raises_costs_nothing_but_itself(tmp_path: Path, mini_set: Benchmark) -> None:
    probe, working = every(2, mini_set), CSVLogger(tmp_path, name="working")
    with pytest.warns(UserWarning, match="could not send the figures to Broken: ConnectionError: the server is gone. Training goes on."):
        trainer = fit(tmp_path, probe, logger=[Broken(tmp_path, name="broken"), working], enable_checkpointing=False)
    assert trainer.global_step == 4
    assert steps(probe) == [0, 2, 4]
    assert "s2sbench/mini/s2t/accuracy" in (Path(working.log_dir) / "metrics.csv").read_text()


def test_a_record_that_cannot_be_written_costs_neither_training_nor_logs(
    tmp_path: Path, mini_set: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("s2sbench_callback.record.np.savez_compressed", full)
    probe, logger = every(2, mini_set), CSVLogger(tmp_path, name="csv")
    with pytest.warns(UserWarning, match=r"could not write the record: OSError: \[Errno 28\] No space left on device. Training goes on."):
        trainer = fit(tmp_path, probe, logger=logger, enable_checkpointing=False)
    assert trainer.global_step == 4
    rows = [row for row in csv.DictReader((Path(logger.log_dir) / "metrics.csv").open()) if row["s2sbench/step"]]
    assert [int(row["step"]) for row in rows] == [0, 2, 4]


def test_a_skipped_probe_is_counted_where_checkpoints_look(tmp_path: Path, mini_set: Benchmark) -> None:
    with pytest.warns(UserWarning, match="probe at step 4 was skipped"):
        trainer = fit(tmp_path, every(4, mini_set, adapter=Explosive({1})), enable_checkpointing=False)
    assert float(trainer.callback_metrics["s2sbench/skipped"]) == 1
    assert float(trainer.callback_metrics["s2sbench/step"]) == 0


def test_a_recording_that_is_gone_after_setup_skips_by_name(tmp_path: Path, mini_set: Benchmark) -> None:
    items = []
    for item in mini_set.items:
        audio = item.contexts[0].audio
        assert audio is not None
        moved = replace(audio, path=tmp_path / audio.path.name)
        moved.path.write_bytes(audio.path.read_bytes())
        items.append(replace(item, contexts=tuple(replace(context, audio=moved) for context in item.contexts)))
    victim = items[3].contexts[0].audio
    assert victim is not None
    victim.path.unlink()
    with pytest.raises(ValueError, match=f"{victim.path.name}: this recording was readable at setup and cannot be read now"):
        fit(tmp_path, every(2, replace(mini_set, items=tuple(items)), cache_dir=tmp_path / "codes"), enable_checkpointing=False)


def test_the_other_namespace_of_lightning(tmp_path: Path, mini_set: Benchmark, tiny_qwen2: Qwen2ForCausalLM) -> None:
    other = pytest.importorskip("pytorch_lightning")

    class Module(other.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.llm, self.tokenizer = tiny_qwen2, build_text_tokenizer()

        training_step, configure_optimizers, train_dataloader = TextModule.training_step, TextModule.configure_optimizers, TextModule.train_dataloader

    probe = S2SBenchCallback([mini_set])
    checkpoint = other.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=1, monitor="s2sbench/mini/t2t/positive_loss")
    trainer = other.Trainer(
        default_root_dir=tmp_path, accelerator="cpu", max_steps=2, logger=False, enable_progress_bar=False, callbacks=[probe, checkpoint]
    )
    trainer.fit(Module())
    assert steps(probe) == [0, 1, 2]
    assert checkpoint.best_model_score is not None


@pytest.mark.parametrize("weights", ["current", "average"])
def test_averaged_weights_are_probed_on_request_and_disturb_nothing(tmp_path: Path, mini_set: Benchmark, weights: Any) -> None:
    def run(name: str, *callbacks: pl.Callback) -> Noisy:
        task, average = Noisy(), EMAWeightAveraging(decay=0.5)
        fit(tmp_path / name, average, *callbacks, task=task, enable_checkpointing=False)
        return task

    plain = run("plain")
    probe = every(1, mini_set, weights=weights, at_end=False)
    probed = run("probed", probe)
    for (name, expected), (_, found) in zip(plain.state_dict().items(), probed.state_dict().items(), strict=True):
        assert torch.equal(expected, found), name
    assert probe.record is not None
    figures = [report.metrics["s2sbench/mini/t2t/positive_loss"] for report in probe.record.history()]
    other = every(1, mini_set, weights="average" if weights == "current" else "current", at_end=False)
    run("other", other)
    assert other.record is not None
    others = [report.metrics["s2sbench/mini/t2t/positive_loss"] for report in other.record.history()]
    assert figures[0] == others[0]
    assert figures[2] != others[2]
    assert probe.record.history()[0].signature["weights"] == weights


def test_averaged_weights_need_a_callback_that_keeps_them(tmp_path: Path, mini_set: Benchmark) -> None:
    with pytest.raises(MisconfigurationException, match="weights='average' needs Lightning's WeightAveraging"):
        fit(tmp_path, every(1, mini_set, weights="average"), enable_checkpointing=False)
    with pytest.raises(ValueError, match="weights must be 'current' or 'average', got 'ema'"):
        every(1, mini_set, weights="ema")


def test_losses_that_are_not_finite_are_named(tmp_path: Path, mini_set: Benchmark) -> None:
    victim = mini_set.items[2]
    spoiled = replace(victim, candidates=("<|pad|>", *victim.candidates[1:]))
    benchmark = replace(mini_set, items=(*mini_set.items[:2], spoiled, *mini_set.items[3:]))

    class NoPad(MiniTask):
        def on_train_start(self) -> None:
            # A token of probability zero.
            self.model.lm_head.register_forward_hook(lambda module, inputs, logits: logits.index_fill(-1, torch.tensor([0]), -torch.inf))

    probe = every(4, benchmark, at_start=False)
    with pytest.warns(UserWarning, match=f"mini/t2t: a NaN or infinite loss in {victim.id}; comparisons with it count as lost"):
        fit(tmp_path, probe, task=NoPad(TINY), enable_checkpointing=False)
    assert probe.record is not None
    report = probe.record.history()[-1]
    assert report.metrics["s2sbench/mini/t2t/invalid"] == 1
    assert set(report.normalised) == {"mini/s2t", "mini/t2t"}
    assert set(report.normalised["mini/s2t"]) == {"sum", "per_character", "per_byte"}


def test_a_front_end_written_to_behind_torchs_back_is_noticed(tmp_path: Path, mini_set: Benchmark) -> None:
    class MovingCodebook(MiniTask):
        def on_train_batch_end(self, *_: Any) -> None:
            self.model.audio_tokenizer.codebook_0.data.mul_(1.5)

    still, moving = (every(4, mini_set, cache_dir=tmp_path / name) for name in ("still", "moving"))
    fit(tmp_path / "a", still, enable_checkpointing=False)
    fit(tmp_path / "b", moving, task=MovingCodebook(TINY), enable_checkpointing=False)
    assert still.probe.front_end_forwards == len(mini_set.items)
    assert moving.probe.front_end_forwards == 2 * len(mini_set.items)


def test_weights_of_several_kinds_under_autocast(tmp_path: Path, mini_set: Benchmark) -> None:
    class Mixed(MiniTask):
        """The language model was loaded in bfloat16, the audio parts are new."""

        def setup(self, stage: str) -> None:
            super().setup(stage)
            for part in (self.model.model.layers, self.model.lm_head):
                part.to(torch.bfloat16)

    probe = every(4, mini_set)
    fit(tmp_path, probe, task=Mixed(TINY), precision="bf16-mixed", enable_checkpointing=False)
    assert steps(probe) == [0, 4]


def test_a_record_that_cannot_be_read_on_resuming_costs_a_warning(tmp_path: Path, mini_set: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(tmp_path / "run", every(2, mini_set), ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2), max_steps=2)

    def refused(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(RunRecord, "supersede_after", refused)
    with pytest.warns(UserWarning, match="cannot be gone on with: .*Permission denied. Training goes on"):
        trainer = fit(tmp_path / "run", every(2, mini_set), ckpt_path=tmp_path / "step=2.ckpt", enable_checkpointing=False)
    assert trainer.global_step == 4


def test_the_last_probe_says_so_when_the_average_was_copied_in_before_it(tmp_path: Path, mini_set: Benchmark) -> None:
    probe = every(3, mini_set)
    fit(tmp_path, EMAWeightAveraging(decay=0.5), probe, enable_checkpointing=False)
    assert probe.record is not None
    assert [report.signature["weights"] for report in probe.record.history()] == ["current", "current", "average"]
