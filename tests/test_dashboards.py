"""What arrives in real loggers, read back from their files."""

from __future__ import annotations

import csv
from dataclasses import astuple
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import wandb_offline
from conftest import TINY
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from s2sbench_callback import Benchmark, S2SBenchCallback
from s2sbench_callback.mini_world.data import MiniData
from s2sbench_callback.mini_world.task import MiniTask
from s2sbench_callback.report import ProbeReport
from s2sbench_callback.wandb_workspace import wandb_workspace

DECIDED = ("gain", "gain_low", "gain_high", "min_gain")


class Erratic(MiniTask):
    """Leaves the text model in ruins, so that T→T falls and questions change sides."""

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        return super().training_step(batch, batch_idx)


def fit(folder: Path, benchmark: Benchmark, loggers: Any) -> S2SBenchCallback:
    pl.seed_everything(4)
    probe = S2SBenchCallback([benchmark], every_n_train_steps=1)
    settings: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(accelerator="cpu", max_steps=3, default_root_dir=folder, logger=loggers, callbacks=[probe], **settings)
    trainer.fit(Erratic(TINY), datamodule=MiniData(batch_size=2, pretraining=TINY))
    return probe


def reports(probe: S2SBenchCallback) -> list[ProbeReport]:
    assert probe.record is not None
    return probe.record.history()


def test_an_offline_run_of_wandb_holds_every_figure_on_one_axis_and_the_tables(tmp_path: Path, mini_set: Benchmark) -> None:
    logger = WandbLogger(save_dir=tmp_path, offline=True, project="p")
    probe = fit(tmp_path, mini_set, logger)
    logger.experiment.finish()
    history = reports(probe)
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
    alerts = [record.alert for record in wandb_offline.records(tmp_path) if record.WhichOneof("record_type") == "alert"]
    assert [alert.title for alert in alerts] == (["S2SBench: T→T has fallen"] if any(_is_damaged(report) for report in history) else [])


def _is_damaged(report: ProbeReport) -> bool:
    return report.metrics["s2sbench/mini/t2t_change_high"] < 0


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


def test_a_ready_dashboard_names_figures_that_a_report_has(tmp_path: Path, mini_set: Benchmark) -> None:
    from wandb_workspaces.reports.v2 import LinePlot

    last = reports(fit(tmp_path, mini_set, False))[-1]
    view = wandb_workspace("team", "speech", last.sets)
    assert [section.name for section in view.sections] == ["mini", "Run"]
    content = view._to_model().model_dump_json(by_alias=True)
    plots = [panel for section in view.sections for panel in section.panels if isinstance(panel, LinePlot)]
    assert {str(plot.x) for plot in plots} == {"s2sbench/step"}
    named = {str(key) for plot in plots for key in plot.y}
    # Of stages and their rules there is nothing in a run without stages.
    assert named - set(last.metrics) == {f"s2sbench/{key}" for key in ("stage", *(f"decision/{name}" for name in DECIDED))}
    assert all(key in content for key in named)
    (accuracy,) = [plot for plot in plots if plot.title == "mini: accuracy"]
    assert [str(key) for key in accuracy.y] == ["s2sbench/mini/s2t/accuracy", "s2sbench/mini/t2t/accuracy"]
