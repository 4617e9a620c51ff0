"""Sends a report to each kind of logger, in the way that kind shows it best."""

from __future__ import annotations

import re
import textwrap
from typing import Any, Literal

from s2sbench_callback.lightning_run import kinds_of
from s2sbench_callback.report import PREFIX, ProbeReport
from s2sbench_callback.showing import Showing
from s2sbench_callback.tensorboard_dashboard import end_in_tensorboard, show_in_tensorboard
from s2sbench_callback.wandb_dashboard import STEP, send_to_wandb

# What MLflow refuses in the name of a metric.
_NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]")
# What W&B takes as the title of an alert.
_LONGEST_TITLE = 63

Level = Literal["INFO", "WARN"]


def send(logger: Any, showing: Showing, kept: dict[str, Any]) -> None:
    """Sends a probe to one logger and has it written to disk.

    Args:
        logger: A Lightning logger of either namespace.
        showing: What to send.
        kept: The logger's own, between the probes of one run.
    """
    kinds = kinds_of(logger)
    if "WandbLogger" in kinds:
        send_to_wandb(logger, showing, kept)
    else:
        metrics = dict(showing.report.metrics)
        if "MLFlowLogger" in kinds:
            metrics = {_NOT_IN_MLFLOW.sub("_", key): value for key, value in metrics.items()}
        logger.log_metrics(metrics, step=showing.report.step)
        if "TensorBoardLogger" in kinds:
            show_in_tensorboard(logger, showing)
        elif hasattr(logger, "log_image"):
            logger.log_image(key=showing.key("panels"), images=[showing.picture], step=showing.report.step)
        logger.save()
    if showing.alarms:
        # One alert, named by its sets: W&B drops another of the same title for a minute.
        send_words(logger, f"T→T has fallen: {', '.join(showing.alarms)}", "\n".join(showing.alarms.values()), showing.report.step, "WARN")


def send_end(logger: Any, report: ProbeReport) -> None:
    """Tells a logger where the run has ended.

    Args:
        logger: A Lightning logger of either namespace.
        report: The last probe.
    """
    if "TensorBoardLogger" in kinds_of(logger):
        end_in_tensorboard(logger, report)
        logger.save()


def send_skipped(logger: Any, skipped: int, step: int) -> None:
    """Tells a logger that a probe failed and was skipped.

    Args:
        logger: A Lightning logger of either namespace.
        skipped: How many so far.
        step: This probe's step.
    """
    # W&B draws nothing without the step metric; elsewhere that one says which probe the other figures are of.
    axis = {STEP: float(step)} if "WandbLogger" in kinds_of(logger) else {}
    logger.log_metrics({f"{PREFIX}/skipped": float(skipped), **axis}, step=step)
    logger.save()


def send_words(logger: Any, title: str, words: str, step: int, level: Level = "INFO") -> None:
    """Tells a logger something that calls for a person: an alert in W&B, a text in TensorBoard, nothing where neither is known.

    Args:
        logger: A Lightning logger of either namespace.
        title: A few words.
        words: What there is to say.
        step: Optimizer steps done.
        level: Of the alert.
    """
    kinds = kinds_of(logger)
    if "WandbLogger" in kinds:
        logger.experiment.alert(title=textwrap.shorten(f"S2SBench: {title}", _LONGEST_TITLE, placeholder="…"), text=words, level=level)
    elif "TensorBoardLogger" in kinds:
        logger.experiment.add_text(f"{PREFIX}/stages", f"**{title}**: {words}", step)
