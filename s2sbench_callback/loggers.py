"""Sends a report to each kind of logger, in the way that kind shows it best."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from s2sbench_callback.items import Benchmark
from s2sbench_callback.lightning_run import kinds_of
from s2sbench_callback.metrics import compare
from s2sbench_callback.prompts import CONDITION_NAMES, Condition
from s2sbench_callback.report import PREFIX, ProbeReport, Tables

_CHANGED_COLUMNS = ("step", "set", "condition", "item", "now", "answer_loss", "best_other_loss", "context", "answer", "others")


@dataclass(frozen=True)
class Showing:
    """What there is to show of a probe.

    Attributes:
        report: The figures.
        picture: The panels so far, ``[H, W, 3]``.
        changed: Rows of the questions that changed sides since the probe before.
        first: Whether this is the first probe sent by this process, when dashboards are laid out.
    """

    report: ProbeReport
    picture: npt.NDArray[np.uint8]
    changed: Sequence[tuple[Any, ...]]
    first: bool


def send(logger: Any, showing: Showing) -> None:
    """Sends a probe to one logger and has it written to disk.

    Args:
        logger: A Lightning logger of either namespace.
        showing: What to send.
    """
    kinds = kinds_of(logger)
    if "WandbLogger" in kinds:
        _send_wandb(logger, showing)
        return
    logger.log_metrics(dict(showing.report.metrics), step=showing.report.step)
    if "TensorBoardLogger" in kinds:
        _show_tensorboard(logger, showing)
    elif hasattr(logger, "log_image"):
        logger.log_image(key=f"{PREFIX}/panels", images=[showing.picture], step=showing.report.step)
    logger.save()


def send_skipped(logger: Any, skipped: int, step: int) -> None:
    """Tells a logger that a probe failed and was skipped.

    Args:
        logger: A Lightning logger of either namespace.
        skipped: How many so far.
        step: This probe's step.
    """
    logger.log_metrics({f"{PREFIX}/skipped": float(skipped)}, step=step)
    logger.save()


def send_words(logger: Any, title: str, words: str, step: int) -> None:
    """Tells a logger something that calls for a person: an alert in W&B, a text in TensorBoard, nothing where neither is known.

    Args:
        logger: A Lightning logger of either namespace.
        title: A few words.
        words: What there is to say.
        step: Optimizer steps done.
    """
    kinds = kinds_of(logger)
    if "WandbLogger" in kinds:
        logger.experiment.alert(title=f"S2SBench: {title}", text=words)
    elif "TensorBoardLogger" in kinds:
        logger.experiment.add_text(f"{PREFIX}/stages", f"**{title}**: {words}", step)


def changed_sides(benchmark: Benchmark, condition: Condition, before: Tables | None, now: Tables, step: int) -> list[tuple[str | int | float, ...]]:
    """Questions that were right at the probe before and are wrong now, or the other way round.

    Args:
        benchmark: The set.
        condition: The condition.
        before: Tables of the probe before, where there is one.
        now: Tables of this probe.
        step: This probe's step.

    Returns:
        A row a question: step, set, condition, item, what it is now, losses, context, answer, other candidates.
    """
    table = now[benchmark.name].get(condition)
    earlier = before.get(benchmark.name, {}).get(condition) if before else None
    if table is None or earlier is None or table.item_ids != earlier.item_ids:
        return []
    right, was_right = (found.wins == found.count for found in (compare(each, benchmark.tie_rule) for each in (table, earlier)))
    losses = table.losses
    rows: list[tuple[str | int | float, ...]] = []
    for question in np.flatnonzero(right != was_right):
        item = benchmark.items[question]
        others = [index for index in range(len(item.candidates)) if index != item.answer]
        rows.append(
            (
                step,
                benchmark.name,
                CONDITION_NAMES[condition],
                item.id,
                "right" if right[question] else "wrong",
                float(losses[question, item.answer]),
                float(np.min(losses[question, others])),
                item.contexts[item.answer].text,
                item.candidates[item.answer],
                " | ".join(item.candidates[index] for index in others),
            )
        )
    return rows


def tensorboard_layout(report: ProbeReport) -> dict[str, dict[str, list[Any]]]:
    """Custom scalars: S→T over T→T, positive over negative loss, and each accuracy with its interval."""
    charts: dict[str, list[Any]] = {}
    for name, conditions in report.sets.items():
        place = f"{PREFIX}/{re.escape(name)}"
        charts[f"{name}: accuracy, S→T and T→T"] = ["Multiline", [f"^{place}/{c}/accuracy$" for c in conditions]]
        for c in conditions:
            losses = [f"^{place}/{c}/{figure}$" for figure in ("positive_loss", "negative_loss")]
            charts[f"{name}: positive and negative loss, {CONDITION_NAMES[c]}"] = ["Multiline", losses]
        charts[f"{name}: positive minus negative"] = ["Multiline", [f"^{place}/{c}/positive_minus_negative$" for c in conditions]]
        for c in conditions:
            key = f"{PREFIX}/{name}/{c}/accuracy"
            charts[f"{name}: accuracy with interval, {CONDITION_NAMES[c]}"] = ["Margin", [key, f"{key}_low", f"{key}_high"]]
    if report.verdict and report.verdict.decision:
        key = f"{PREFIX}/decision/gain"
        charts["improvement per 1,000 steps, with the interval it is decided from"] = ["Margin", [key, f"{key}_low", f"{key}_high"]]
    return {"S2SBench": charts}


def _show_tensorboard(logger: Any, showing: Showing) -> None:
    writer = logger.experiment
    if showing.first:
        writer.add_custom_scalars(tensorboard_layout(showing.report))
    writer.add_image(f"{PREFIX}/panels", showing.picture, showing.report.step, dataformats="HWC")
    verdict = showing.report.verdict
    if verdict and verdict.decision:
        writer.add_text(f"{PREFIX}/decision", verdict.decision.reason, showing.report.step)


def _send_wandb(logger: Any, showing: Showing) -> None:
    import wandb

    run = logger.experiment
    if showing.first:
        for key in showing.report.metrics:
            best = "max" if key.endswith("accuracy") else "min" if key.endswith(("positive_loss", "positive_minus_negative")) else None
            run.define_metric(key, step_metric="trainer/global_step", summary=f"last,{best}" if best else "last")
    # One call with Lightning's own step metric and no step of W&B's: W&B drops what comes with a step it has passed.
    run.log(
        {
            **showing.report.metrics,
            f"{PREFIX}/panels": wandb.Image(showing.picture),
            f"{PREFIX}/changed_sides": wandb.Table(columns=list(_CHANGED_COLUMNS), data=[list(row) for row in showing.changed]),
            "trainer/global_step": showing.report.step,
        }
    )
    verdict = showing.report.verdict
    if verdict and verdict.decision:
        run.summary[f"{PREFIX}/decision/reason"] = verdict.decision.reason
    logger.save()
