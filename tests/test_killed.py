"""Runs that end in the middle of a probe, and go on from their checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wandb_offline
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.context import RequestContext
from tensorboard.data.provider import RunTagFilter
from tensorboard.util import grpc_util

from s2sbench_callback import Benchmark
from s2sbench_callback.mini_world.model import MiniSpeechLM
from s2sbench_callback.plots import panels
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import ProbeReport

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "killed.py"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Not the W&B service of the tests that ran before in this process.
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"} | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), *arguments], capture_output=True, text=True, timeout=200, env=environment, check=False
    )


def test_points_of_weights_that_are_gone_are_nowhere_in_the_history(tmp_path: Path, mini_set: Benchmark, tiny_speech_lm: MiniSpeechLM) -> None:
    assert run(tmp_path, "SIGKILL", "between").returncode == -signal.SIGKILL
    record = RunRecord(tmp_path / "record")
    key = "s2sbench/mini/s2t/accuracy"
    # Shown before the kill, and not in the checkpoint of step 2.
    assert [report.metrics[key] for report in record.history()][3:] == [-1.0]

    resumed = run(tmp_path, "resume")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    history = record.history()
    assert [report.step for report in history] == [0, 1, 2, 3, 4, 5, 6]
    assert all(report.metrics[key] >= 0 for report in history)
    (moved,) = record.superseded_path.read_text().splitlines()
    assert ProbeReport.from_json(moved).metrics[key] == -1.0
    assert panels(history).axes[0].lines[0].get_ydata().tolist() == [report.metrics[key] for report in history]

    # W&B: charts over the whole history without them; in the table that only grows, rows that say which part of the run they are of.
    logged = [row for row in wandb_offline.history(tmp_path / "resume") if "s2sbench/step" in row]
    chart = wandb_offline.table(tmp_path / "resume", logged[-1]["Custom Chart Tables/s2sbench/charts/mini/accuracy_table"])
    assert {row[0] for row in chart["data"]} == set(range(7))
    assert len(chart["data"]) == 2 * 7
    assert min(row[chart["columns"].index("lineVal")] for row in chart["data"]) >= 0
    added = [row for logged_row in logged for row in _rows(wandb_offline.table(tmp_path / "resume", logged_row["s2sbench/summary"]))]
    assert {(row["step"], row["resumed_at"]) for row in added} == {(step, 2) for step in (3, 4, 5, 6)}

    # TensorBoard's own loader, the default one, drops what a later event of the same tag has overtaken.
    shown = _in_tensorboard(tmp_path / "tb", key, last_step=6)
    assert [step for step, _ in shown] == list(range(7))
    assert [value for _, value in shown] == pytest.approx([report.metrics[key] for report in history])


def _rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def _in_tensorboard(folder: Path, key: str, last_step: int) -> list[tuple[int, float]]:
    """What TensorBoard's default loader gives out once it has read everything."""
    server = pytest.importorskip("tensorboard.data.server_ingester")
    ingester = server.SubprocessServerDataIngester(
        server_binary=server.get_server_binary(), logdir=str(folder), reload_interval=1, channel_creds_type=grpc_util.ChannelCredsType.LOCAL
    )
    ingester.start()
    one, points = RunTagFilter(runs=["one"], tags=[key]), []
    until = time.monotonic() + 60
    while (not points or points[-1][0] != last_step) and time.monotonic() < until:
        time.sleep(0.2)
        found = ingester.data_provider.read_scalars(RequestContext(), experiment_id="", plugin_name="scalars", downsample=100, run_tag_filter=one)
        points = [(point.step, point.value) for point in found.get("one", {}).get(key, [])]
    return points


@pytest.mark.parametrize(("name", "where"), [("SIGKILL", "scoring"), ("SIGKILL", "writing"), ("SIGTERM", "scoring")])
def test_a_run_killed_in_a_probe_goes_on_without_torn_files_or_repeated_steps(
    name: str, where: str, tmp_path: Path, mini_set: Benchmark, tiny_speech_lm: MiniSpeechLM
) -> None:
    killed = run(tmp_path, name, where)
    # On SIGTERM Lightning ends the run in order, after the step it is in.
    assert killed.returncode == (-signal.SIGKILL if name == "SIGKILL" else 0)
    (probes,) = tmp_path.rglob("probes.jsonl")
    record = RunRecord(probes.parent)
    before = [report.step for report in record.history()]
    assert before[:3] == [0, 1, 2]
    for step in before:
        assert np.isfinite(record.losses(step)["mini"]["s2t"].losses).all()

    resumed = run(tmp_path, "resume")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    history = record.history()
    assert [report.step for report in history] == [0, 1, 2, 3, 4, 5, 6]
    for report in history:
        assert np.isfinite(record.losses(report.step)["mini"]["s2t"].losses).all()
    told = [line.split() for file in (f"wandb_{name}.txt", "wandb_resume.txt") for line in (tmp_path / file).read_text().splitlines()]
    # No step of W&B's own is named, so it can refuse none; Lightning's step goes on from the checkpoint's.
    assert {wandb_step for _, wandb_step in told} == {"None"}
    assert [int(step) for step, _ in told[-4:]] == [3, 4, 5, 6]

    # What the loggers were told after the resume: each step once, and charts over the whole history, without what was done twice.
    events = sorted((tmp_path / "tb" / "one").glob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime)
    after = EventAccumulator(str(events[-1])).Reload().Scalars("s2sbench/mini/s2t/accuracy")
    assert [event.step for event in after] == [3, 4, 5, 6]
    assert [event.value for event in after] == pytest.approx([report.metrics["s2sbench/mini/s2t/accuracy"] for report in history[3:]])
    logged = [row for row in wandb_offline.history(tmp_path / "resume") if "s2sbench/step" in row]
    assert [row["s2sbench/step"] for row in logged] == [3, 4, 5, 6]
    chart = wandb_offline.table(tmp_path / "resume", logged[-1]["Custom Chart Tables/s2sbench/charts/mini/accuracy_table"])
    assert [row[0] for row in chart["data"]] == [*range(7), *range(7)]
    assert panels(history).axes[0].lines[0].get_xdata().tolist() == list(range(7))
