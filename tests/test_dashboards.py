"""What arrives in real loggers, read back from their files."""

from __future__ import annotations

import csv
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import wandb_offline
from conftest import TINY
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from test_record import probe

from s2sbench_callback import Benchmark, Plateau, S2SBenchCallback, StageUnfreeze, two_stage
from s2sbench_callback.dashboards import Dashboards
from s2sbench_callback.flips import Changed, Flip
from s2sbench_callback.items import Audio
from s2sbench_callback.loggers import send
from s2sbench_callback.mini_world.data import MiniData
from s2sbench_callback.mini_world.task import MiniTask
from s2sbench_callback.report import ProbeReport
from s2sbench_callback.showing import Showing
from s2sbench_callback.wandb_dashboard import _charts
from s2sbench_callback.wandb_workspace import wandb_workspace

DECIDED = ("gain", "gain_low", "gain_high", "min_gain")


class Erratic(MiniTask):
    """Leaves the text model in ruins, so that T→T falls and questions change sides."""

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        return super().training_step(batch, batch_idx)


def fit(folder: Path, benchmark: Benchmark, loggers: Any, *others: pl.Callback) -> S2SBenchCallback:
    pl.seed_everything(4)
    asked = S2SBenchCallback([benchmark], every_n_train_steps=1)
    settings: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(accelerator="cpu", max_steps=3, default_root_dir=folder, logger=loggers, callbacks=[asked, *others], **settings)
    trainer.fit(Erratic(TINY), datamodule=MiniData(batch_size=2, pretraining=TINY))
    return asked


def reports(asked: S2SBenchCallback) -> list[ProbeReport]:
    assert asked.record is not None
    return asked.record.history()


def test_an_offline_run_of_wandb_holds_every_figure_on_one_axis_and_the_tables(tmp_path: Path, mini_set: Benchmark) -> None:
    logger = WandbLogger(save_dir=tmp_path, offline=True, project="p")
    history = reports(fit(tmp_path, mini_set, logger))
    logger.experiment.finish()
    logged = [row for row in wandb_offline.history(tmp_path) if "s2sbench/step" in row]
    assert [row["s2sbench/step"] for row in logged] == [0, 1, 2, 3]
    assert [row["trainer/global_step"] for row in logged] == [0, 1, 2, 3]
    for row, report in zip(logged, history, strict=True):
        assert {key: row[key] for key in report.metrics} == pytest.approx(dict(report.metrics), nan_ok=True)
    metrics = [record.metric for record in wandb_offline.records(tmp_path) if record.WhichOneof("record_type") == "metric"]
    axes = {metric.name or metric.glob_name: metric.step_metric for metric in metrics if (metric.name or metric.glob_name).startswith("s2sbench/")}
    assert axes.pop("s2sbench/step") == ""
    assert set(axes.values()) == {"s2sbench/step"}
    assert {"s2sbench/*", "s2sbench/mini/s2t/accuracy", "s2sbench/mini/degradation"} <= set(axes)

    config = {
        item.key: item.value_json
        for record in wandb_offline.records(tmp_path)
        if record.WhichOneof("record_type") == "config"
        for item in record.config.update
    }
    assert history[0].signature["sets"]["mini"]["fingerprint"] in config["s2sbench"]

    # A table a probe of what changed sides, with the recording that the model heard.
    changed = wandb_offline.whole_tables(tmp_path, "s2sbench/changed_sides")
    assert [len(table["data"]) for table, _ in changed] == [row["s2sbench/changed_sides"]["nrows"] for row in logged]
    assert not changed[0][0]["data"]
    items = {item.id: item for item in mini_set.items}
    for table, files in changed[1:]:
        rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        heard, read = ([row for row in rows if row["condition"] == condition] for condition in ("S→T", "T→T"))
        assert len(heard) + len(read) == len(rows) > 0
        assert not any(row["audio"] for row in read)
        assert [bool(row["audio"]) for row in heard] == [number < 4 for number in range(len(heard))]
        for row in heard[:4]:
            item = items[row["item"]]
            context = item.contexts[item.answer]
            assert context.audio is not None
            assert files[row["audio"]["path"]].read_bytes() == context.audio.path.read_bytes()
            assert (row["context"], row["answer"]) == (context.text, item.candidates[item.answer])

    # One table that grows: each probe logs the rows it has added.
    summary = [wandb_offline.table(tmp_path, row["s2sbench/summary"]) for row in logged]
    added = [dict(zip(table["columns"], row, strict=True)) for table in summary for row in table["data"]]
    accuracy = [row for row in added if (row["condition"], row["figure"]) == ("S→T", "accuracy")]
    assert [row["step"] for row in accuracy] == [0, 1, 2, 3]
    for row, report in zip(accuracy, history, strict=True):
        assert (row["value"], row["low"], row["high"]) == pytest.approx(astuple(report.figure("mini", "s2t", "accuracy")))
    # Overlaid: the last chart has both conditions at every step.
    chart = wandb_offline.table(tmp_path, logged[-1]["Custom Chart Tables/s2sbench/charts/mini/accuracy_table"])
    points = {(row["lineKey"], row["step"]): row["lineVal"] for row in (dict(zip(chart["columns"], each, strict=True)) for each in chart["data"])}
    expected = {
        (line, report.step): report.metrics[f"s2sbench/mini/{condition}/accuracy"]
        for report in history
        for line, condition in (("S→T", "s2t"), ("T→T", "t2t"))
    }
    assert points == pytest.approx(expected)


def alerts(folder: Path) -> list[tuple[str, str]]:
    found = [record.alert for record in wandb_offline.records(folder) if record.WhichOneof("record_type") == "alert"]
    return [(alert.title, alert.level) for alert in found]


def fallen(step: int, damaged: str) -> ProbeReport:
    """A probe of the sets ``a`` and ``b``, of which some have lost T→T for sure."""
    report = probe(step)[0]
    metrics = {key: value for key, value in report.metrics.items() if "/mine/" not in key}
    for name in "ab":
        metrics |= {key.replace("/mine/", f"/{name}/"): value for key, value in report.metrics.items() if "/mine/" in key}
        change = -0.2 if name in damaged else 0.0
        metrics |= {f"s2sbench/{name}/t2t_change{end}": change + width for end, width in (("", 0.0), ("_low", -0.1), ("_high", 0.1))}
    return replace(report, sets=dict.fromkeys("ab", report.sets["mine"]), metrics=metrics)


def test_a_fall_of_t2t_is_one_alert_an_episode_and_set(tmp_path: Path) -> None:
    logger = WandbLogger(save_dir=tmp_path, offline=True, project="p")
    dashboards = Dashboards({})
    for step, damaged in enumerate(["", "a", "a", "ab", "", "ab"]):
        dashboards.show([logger], fallen(step, damaged), {}, None)
    logger.experiment.finish()
    # W&B drops an alert whose title it has had within a minute, so sets that fall after each other are named.
    expected = ["S2SBench: T→T has fallen: a", "S2SBench: T→T has fallen: b", "S2SBench: T→T has fallen: a, b"]
    assert alerts(tmp_path) == [(title, "WARN") for title in expected]


def test_stages_are_told_to_wandb_and_the_ready_dashboard_names_what_they_log(tmp_path: Path, mini_set: Benchmark) -> None:
    logger = WandbLogger(save_dir=tmp_path, offline=True, project="p")
    stages = two_stage(until=Plateau(min_gain=1e-9, max_steps=2))
    history = reports(fit(tmp_path, mini_set, logger, StageUnfreeze(stages)))
    logger.experiment.finish()
    assert [title for title, level in alerts(tmp_path) if level == "INFO"] == [f"S2SBench: Stage 2, {stages[1].name}, begins"]
    logged = [row for row in wandb_offline.history(tmp_path) if "s2sbench/step" in row]
    assert [row["s2sbench/stage"] for row in logged] == [1, 1, 1, 2]
    named = named_in(wandb_workspace("team", "speech", history[-1].sets))
    assert {f"s2sbench/decision/{name}" for name in DECIDED} <= named <= {key for report in history for key in report.metrics}


@pytest.mark.parametrize("kind", [WandbLogger, TensorBoardLogger])
def test_a_recording_that_is_gone_costs_its_clip_alone(tmp_path: Path, kind: type[Any]) -> None:
    logger = kind(save_dir=tmp_path, offline=True, project="p") if kind is WandbLogger else kind(tmp_path, name="tb")
    report = probe(7)[0]
    changed = Changed(0, False, 2.0, 1.0, 1.0, 1.5)
    gone = Flip("mine", "s2t", "q0", changed, "a context", "yes", ("no",), Audio(tmp_path / "gone.wav", "0", 1.0))
    with pytest.warns(UserWarning, match=r"changed sides without its recording: .*gone\.wav"):
        send(logger, Showing([report], np.zeros((2, 2, 3), np.uint8), [[gone]], {}, first=True), {})
    if kind is TensorBoardLogger:
        events = EventAccumulator(logger.log_dir, size_guidance={"tensors": 0}).Reload()
        (words,) = events.Tensors("s2sbench/changed_sides/mine/s2t/1/text_summary")
        assert "q0 is wrong now** (-1.500 nats per token): a context → yes (no)" in words.tensor_proto.string_val[0].decode()
        assert not events.Tags()["audio"]
        return
    logger.experiment.finish()
    (row,) = [row for row in wandb_offline.history(tmp_path) if "s2sbench/step" in row]
    assert {key: row[key] for key in report.metrics} == pytest.approx(dict(report.metrics), nan_ok=True)
    shown = wandb_offline.table(tmp_path, row["s2sbench/changed_sides"])
    (flip,) = [dict(zip(shown["columns"], each, strict=True)) for each in shown["data"]]
    assert (flip["item"], flip["now"], flip["audio"]) == ("q0", "wrong", None)
    assert (flip["answer_loss_before"], flip["best_other_loss_before"]) == (1.0, 1.5)
    assert (flip["answer_loss"], flip["best_other_loss"], flip["margin_change"]) == (2.0, 1.0, -1.5)


def test_two_probes_of_one_trainer_do_not_write_over_each_other(tmp_path: Path, mini_set: Benchmark) -> None:
    tensorboard, wandb_logger = TensorBoardLogger(tmp_path, name="tb"), WandbLogger(save_dir=tmp_path, offline=True, project="p")
    fit(tmp_path, mini_set, [tensorboard, wandb_logger], S2SBenchCallback([replace(mini_set, name="other")], every_n_train_steps=3))
    wandb_logger.experiment.finish()
    rows = [row for row in wandb_offline.history(tmp_path) if "s2sbench/step" in row]
    for end, steps, name in (("", [0, 1, 2, 3], "mini"), ("_probe2", [0, 3], "other")):
        own = [row for row in rows if f"s2sbench/summary{end}" in row]
        assert [row["s2sbench/step"] for row in own] == steps
        assert all(f"s2sbench/{key}{end}" in row for row in own for key in ("panels", "changed_sides"))
        added = [row for logged in own for row in wandb_offline.table(tmp_path, logged[f"s2sbench/summary{end}"])["data"]]
        assert {row[2] for row in added} == {name}
        # The last increment knows all those before it.
        assert len(own[-1][f"s2sbench/summary{end}"]["previous_increments_paths"]) == len(steps) - 1
    events = EventAccumulator(tensorboard.log_dir, size_guidance={"tensors": 0, "images": 0}).Reload()
    layout = layout_pb2.Layout()
    layout.ParseFromString(events.Tensors("custom_scalars__config__")[-1].tensor_proto.string_val[0])
    (category,) = layout.category
    assert {chart.title.partition(":")[0] for chart in category.chart} == {"mini", "other"}
    for end, steps in (("", [0, 1, 2, 3]), ("_probe2", [0, 3])):
        assert [image.step for image in events.Images(f"s2sbench/panels{end}")] == steps


def test_the_charts_of_a_long_run_stay_small() -> None:
    first = probe(0)[0]
    charts = dict(_charts([replace(first, step=10 * number) for number in range(1001)]))
    assert set(charts) == {f"s2sbench/charts/mine/{name}" for name in ("accuracy", "s2t_loss", "t2t_loss")}
    steps = sorted({row[0] for row in charts["s2sbench/charts/mine/accuracy"].table.data})
    assert len(steps) == 200
    assert (steps[0], steps[-1]) == (0, 10_000)
    assert max(np.diff(steps)) <= 60


def test_tensorboard_holds_overlay_words_audio_and_the_end(tmp_path: Path, mini_set: Benchmark) -> None:
    logger = TensorBoardLogger(tmp_path, name="tb")
    history = reports(fit(tmp_path, mini_set, logger))
    events = EventAccumulator(logger.log_dir, size_guidance={"audio": 0, "tensors": 0, "images": 0}).Reload()
    tags = events.Tags()
    assert "custom_scalars__config__" in tags["tensors"]
    assert [image.step for image in events.Images("s2sbench/panels")] == [0, 1, 2, 3]
    clips = [tag for tag in tags["audio"] if tag.startswith("s2sbench/changed_sides/mini/s2t/")]
    assert clips
    clip = events.Audio(clips[0])[0]
    assert clip.encoded_audio_string.startswith(b"RIFF")
    seconds = {item.contexts[0].audio.seconds for item in mini_set.items if item.contexts[0].audio}
    assert any(clip.length_frames == pytest.approx(clip.sample_rate * each, abs=1) for each in seconds)
    final = EventAccumulator(str(Path(logger.log_dir) / "s2sbench_final")).Reload()
    last = final.Scalars("final/mini/s2t/accuracy")
    assert [(event.step, event.value) for event in last] == [(3, pytest.approx(history[-1].metrics["s2sbench/mini/s2t/accuracy"]))]
    assert "_hparams_/session_start_info" in final.summary_metadata


def test_csv_gets_the_figures_and_no_logger_leaves_the_record_whole(tmp_path: Path, mini_set: Benchmark) -> None:
    logger = CSVLogger(tmp_path, name="csv")
    history = reports(fit(tmp_path, mini_set, logger))
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["s2sbench/step"]]
    assert [int(row["step"]) for row in rows] == [0, 1, 2, 3]
    for row, report in zip(rows, history, strict=True):
        assert {key: float(row[key]) for key in report.metrics} == pytest.approx(dict(report.metrics), nan_ok=True)
    alone = fit(tmp_path / "alone", mini_set, False)
    assert [report.step for report in reports(alone)] == [0, 1, 2, 3]
    assert alone.record is not None
    assert (alone.record.dirpath / "panels.png").is_file()
    assert all(alone.record.losses(step)["mini"]["s2t"].nats.shape == (12, 2) for step in range(4))


def plots_of(view: Any) -> list[Any]:
    from wandb_workspaces.reports.v2 import LinePlot

    return [panel for section in view.sections for panel in section.panels if isinstance(panel, LinePlot)]


def named_in(view: Any) -> set[str]:
    return {str(key) for plot in plots_of(view) for key in plot.y}


def test_a_ready_dashboard_names_figures_that_a_report_has(tmp_path: Path, mini_set: Benchmark) -> None:
    last = reports(fit(tmp_path, mini_set, False))[-1]
    view = wandb_workspace("team", "speech", last.sets)
    assert [section.name for section in view.sections] == ["mini", "Run"]
    content = view._to_model().model_dump_json(by_alias=True)
    assert {str(plot.x) for plot in plots_of(view)} == {"s2sbench/step"}
    named = named_in(view)
    # Of stages and their rules there is nothing in a run without stages.
    assert named - set(last.metrics) == {f"s2sbench/{key}" for key in ("stage", *(f"decision/{name}" for name in DECIDED))}
    assert all(key in content for key in named)
    (accuracy,) = [plot for plot in plots_of(view) if plot.title == "mini: accuracy"]
    assert [str(key) for key in accuracy.y] == ["s2sbench/mini/s2t/accuracy", "s2sbench/mini/t2t/accuracy"]
