"""Checkpoints that appear one after the other, as from a job that is running."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import wandb_offline
from conftest import refused
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_saved_checkpoints import run  # noqa: F401  # a fixture
from torch.utils.tensorboard import SummaryWriter

from s2sbench_callback.cli import main
from s2sbench_callback.record import RunRecord
from s2sbench_callback.watching import Ending, Watch


@pytest.fixture
def job(run: Path, tmp_path: Path) -> Path:  # noqa: F811
    """A job that has not saved anything yet, with a TensorBoard folder."""
    shutil.copy(run / "config.yaml", tmp_path / "config.yaml")
    with SummaryWriter(str(tmp_path / "tb")) as writer:
        writer.add_scalar("train/loss", 1.0, 0)
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


def save(run: Path, job: Path, step: int, delay: float = 0.0) -> None:  # noqa: F811
    """In two halves, as a slow disk would."""
    content = (run / "checkpoints" / f"step={step}.ckpt").read_bytes()
    target = job / "checkpoints" / f"step={step}.ckpt"
    with target.open("wb") as file:
        file.write(content[: len(content) // 2])
        file.flush()
        time.sleep(delay)
        file.write(content[len(content) // 2 :])


def test_checkpoints_are_scored_as_they_appear_until_the_training_has_ended(run: Path, job: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    def train() -> None:
        for step in (2, 4, 6):
            save(run, job, step, delay=1.5)

    training = threading.Thread(target=train)
    training.start()
    main(["watch", str(job), "--device", "cpu", "--every_seconds", "0.3", "--wandb_project", "p", "--wandb_run", "theirs", "--json"])
    training.join()
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"record": str(job / "s2sbench_scored"), "steps": [2, 4, 6], "broken": {}}
    assert "s2sbench watch ends: step 6 is scored, and the training ends at 6" in printed.err
    trained, scored = RunRecord(run / "s2sbench"), RunRecord(job / "s2sbench_scored")
    for step in (2, 4, 6):
        assert scored.losses(step)["mini"]["s2t"].nats == pytest.approx(trained.losses(step)["mini"]["s2t"].nats, abs=1e-6)
    # Into the job's own folder, beside what it logs.
    events = EventAccumulator(str(job / "tb")).Reload()
    assert [event.step for event in events.Scalars("s2sbench/mini/s2t/accuracy")] == [2, 4, 6]
    assert [event.value for event in events.Scalars("train/loss")] == [1.0]
    logged = [row["s2sbench/step"] for row in wandb_offline.history(job) if "s2sbench/step" in row]
    assert logged == [2, 4, 6]
    (begun,) = [record.run for record in wandb_offline.records(job) if record.WhichOneof("record_type") == "run"]
    assert (begun.run_id, begun.run_group, begun.project) == ("theirs-s2sbench", "theirs", "p")


def test_a_watch_that_is_started_again_goes_on_and_a_broken_checkpoint_costs_itself_alone(
    run: Path,  # noqa: F811
    job: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(run, job, 2)
    options = ["--device", "cpu", "--every_seconds", "0.2", "--idle_minutes", "0.02", "--json"]
    main(["watch", str(job), *options])
    assert json.loads(capsys.readouterr().out)["steps"] == [2]
    written = (job / "s2sbench_scored" / "losses" / "step=00000002.npz").stat().st_mtime_ns
    save(run, job, 6)
    lacking = (run / "checkpoints" / "step=4.ckpt").read_bytes()
    (job / "checkpoints" / "step=4.ckpt").write_bytes(lacking[: len(lacking) // 2])
    main(["watch", str(job), *options, "--until", "100"])
    printed = capsys.readouterr()
    # Half a file may be a file that is being written: nothing to report.
    assert json.loads(printed.out) == {"record": str(job / "s2sbench_scored"), "steps": [2, 6], "broken": {}}
    assert "no new checkpoint for" in printed.err
    assert (job / "s2sbench_scored" / "losses" / "step=00000002.npz").stat().st_mtime_ns == written


def test_it_stops_by_file_and_by_signal(run: Path, job: Path) -> None:  # noqa: F811
    save(run, job, 2)
    command = [sys.executable, "-m", "s2sbench_callback", "watch", str(job), "--device", "cpu", "--every_seconds", "0.2"]
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    for how in ("signal", "file"):
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(600):
            if (job / "s2sbench_scored" / "panels.png").is_file():
                break
            time.sleep(0.1)
        time.sleep(1 if how == "file" else 8 * (how == "signal") * 0.2)
        if how == "signal":
            watching.send_signal(signal.SIGTERM)
        else:
            (job / "s2sbench_scored" / "stop").touch()
        out, err = watching.communicate(timeout=60)
        assert watching.returncode == 0, err
        assert ("a signal says so" if how == "signal" else "stop is there") in err
        assert "step 2" in out


def test_what_cannot_be_watched_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    refused(["watch", str(tmp_path / "none")], "none is not a folder; name where the job writes", capsys)
    refused(["watch", str(tmp_path)], "no benchmarks: name them with --benchmarks", capsys)
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(["watch", str(tmp_path)], "watch runs in one process", capsys)


def test_a_checkpoint_is_ready_when_it_has_stopped_changing(run: Path, tmp_path: Path) -> None:  # noqa: F811
    target = tmp_path / "step=2.ckpt"
    shutil.copyfile(run / "checkpoints" / "step=2.ckpt", target)
    watch = Watch(tmp_path, settled_after=3600)
    assert watch.ready() == []
    assert [step for step, _ in watch.ready()] == [2]
    os.utime(target)
    assert watch.ready() == []
    ((_, checkpoint),) = watch.ready()
    watch.refuse(checkpoint)
    assert watch.ready() == []
    os.utime(target, (1, 1))
    # Nobody has touched it since long ago.
    assert [step for step, _ in watch.ready()] == [2]
    target.unlink()
    assert watch.ready() == []


def test_reasons_to_stop(tmp_path: Path) -> None:
    ending = Ending(10, tmp_path / "stop", None)
    assert ending.reason(None) is None
    assert ending.reason(9) is None
    assert "training ends at 10" in (ending.reason(10) or "")
    assert Ending(None, tmp_path / "stop", 1e9).reason(10) is None
    assert "no new checkpoint" in (Ending(None, tmp_path / "stop", 0.0).reason(None) or "")
    (tmp_path / "stop").touch()
    assert "stop is there" in (ending.reason(None) or "")
