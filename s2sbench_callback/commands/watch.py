"""``s2sbench watch``: scores the checkpoints of a running job as they appear."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

from s2sbench_callback.checkpoints import BrokenCheckpoint
from s2sbench_callback.commands.saved import Saved, add_arguments, chosen_probe, say, with_training
from s2sbench_callback.dashboards import Dashboards
from s2sbench_callback.outcome import outcome
from s2sbench_callback.ranks import ProbeError
from s2sbench_callback.report import ProbeReport, Tables
from s2sbench_callback.watching import Ending, Watch

_DESCRIPTION = """\
Waits for checkpoints of a job that is running elsewhere, scores each, and shows the figures in the job's own TensorBoard folder and in W&B. Started
again, it goes on where it was. It ends when the config's max_steps (or --until) are scored, when a file named stop lies in the record's folder,
or after --idle_minutes without a new checkpoint.

examples:
  s2sbench watch runs/mine/version_0 --idle_minutes 120
  s2sbench watch /checkpoints/mine --config runs/mine/config.yaml --wandb_project speech-lm --wandb_run 3k2j9d8x

exit status:
  0  ended as said above
  1  likewise, but a checkpoint was broken
  2  could not be begun
"""


def run(arguments: list[str]) -> int:
    """Watches until there is nothing more to come.

    Args:
        arguments: The folder, and options.

    Returns:
        1 where a checkpoint was broken, else 0.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If the arguments do not suffice.
    """
    parser = ArgumentParser(prog="s2sbench watch", description=_DESCRIPTION)
    parser.add_argument("folder", type=str, help="where the job writes its checkpoints, at any depth")
    parser.add_argument("--config", action="config", help="a YAML file with these arguments, or a run's config.yaml")
    add_arguments(parser)
    parser.add_argument("--every_seconds", type=float, default=60.0, help="time between two looks")
    parser.add_argument("--until", type=int | None, default=None, help="step of the last checkpoint; by default the config's max_steps")
    parser.add_argument("--idle_minutes", type=float | None, default=None, help="end after so long without a new checkpoint")
    parser.add_argument("--tensorboard", type=str | None, default=None, help="folder to log to; by default the one below FOLDER that has event files")
    parser.add_argument("--wandb_project", type=str | None, default=None, help="W&B project to log to")
    parser.add_argument("--wandb_run", type=str | None, default=None, help="id of the job's W&B run, which is written to beside the job")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    chosen = parser.instantiate(parser.parse_args(with_training(arguments)))
    folder = Path(chosen.folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; name where the job writes its checkpoints")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("watch runs in one process; score takes several, under torchrun")
    saved = chosen_probe(chosen, folder)
    ending = Ending(chosen.until or saved.max_steps, saved.probe.record.dirpath / "stop", 60 * chosen.idle_minutes if chosen.idle_minutes else None)
    dashboards, loggers = Dashboards(saved.probe.probe.benchmarks), _loggers(chosen, folder)
    dashboards.go_on(saved.probe.record)
    watch = Watch(folder, chosen.every_seconds, saved.trust)
    broken = _watch(watch, ending, saved, lambda report, tables: dashboards.show(loggers, report, tables, saved.probe.record), chosen.every_seconds)
    for logger in loggers:
        logger.finalize("success")
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()
    record = saved.probe.record
    if chosen.json:
        print(json.dumps({"record": str(record.dirpath), "steps": [report.step for report in record.history()], "broken": broken}, indent=2))
    elif record.history():
        print(outcome(record))
    return int(bool(broken))


def _watch(watch: Watch, ending: Ending, saved: Saved, show: Callable[[ProbeReport, Tables], object], every_seconds: float) -> dict[str, str]:
    """Scores what comes, until there is a reason to stop; what is broken, and why."""
    broken: dict[str, str] = {}
    last_step = max((report.step for report in saved.probe.record.history()), default=None)
    with _until_told_to_stop() as told:
        while True:
            for step, checkpoint in watch.ready():
                if told.is_set():
                    break
                last_step = max(step, last_step or 0)
                if saved.probe.is_done(step, checkpoint):
                    continue
                try:
                    report, tables = saved.probe.ask(saved.loader(checkpoint), step, checkpoint)
                except (BrokenCheckpoint, FloatingPointError, ProbeError) as error:
                    # Whoever keeps the best few may have taken it away meanwhile.
                    if checkpoint.path.exists():
                        broken[str(checkpoint.path)] = str(error)
                        watch.refuse(checkpoint)
                    say(f"s2sbench watch: {error}")
                    continue
                broken.pop(str(checkpoint.path), None)
                show(report, tables)
                ending.news()
            reason = "a signal says so" if told.is_set() else ending.reason(last_step)
            if reason:
                say(f"s2sbench watch ends: {reason}")
                return broken
            told.wait(every_seconds)


@contextmanager
def _until_told_to_stop() -> Iterator[threading.Event]:
    """Lets a probe that has begun finish when SIGTERM or SIGINT arrives."""
    told = threading.Event()
    # Only the main thread may handle signals.
    kinds = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    before = {kind: signal.signal(kind, lambda *_: told.set()) for kind in kinds}
    try:
        yield told
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _loggers(chosen: Namespace, folder: Path) -> list[Any]:
    """The job's own places."""
    events = Path(chosen.tensorboard) if chosen.tensorboard else next((path.parent for path in sorted(folder.rglob("events.out.tfevents.*"))), None)
    loggers: list[Any] = [TensorBoardLogger(str(events), name="", version="")] if events else []
    if chosen.wandb_project:
        loggers.append(_wandb(chosen.wandb_project, chosen.wandb_run, folder))
    if not loggers:
        say("s2sbench watch: there is no TensorBoard folder and no --wandb_project, so the figures go into the record alone")
    return loggers


def _wandb(project: str, run: str | None, folder: Path) -> WandbLogger:
    import wandb

    offline = os.environ.get("WANDB_MODE", "online") != "online"
    if run and not offline:
        # Two processes write to one run: the job's own keeps its system metrics and its end.
        settings = wandb.Settings(mode="shared", x_primary=False, x_label="s2sbench watch", x_update_finish_state=False)
        return WandbLogger(project=project, id=run, save_dir=str(folder), settings=settings)
    own: dict[str, Any] = {"id": f"{run}-s2sbench", "resume": "allow"} if run else {}
    return WandbLogger(project=project, name="s2sbench watch", group=run, save_dir=str(folder), offline=offline, **own)
