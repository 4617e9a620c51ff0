"""A probe in Weights & Biases: figures on their own step, overlaid charts, tables, audio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from s2sbench_callback.flips import Flip
from s2sbench_callback.items import Audio
from s2sbench_callback.prompts import CONDITION_NAMES
from s2sbench_callback.report import COUNTS, ESTIMATES, PREFIX, ProbeReport
from s2sbench_callback.showing import Showing

STEP = f"{PREFIX}/step"
# Recordings are uploaded again at each probe.
_CLIPS = 4
# Each probe sends the whole history of a chart again.
_POINTS = 200
_LOSSES = ("answer_loss_before", "best_other_loss_before", "answer_loss", "best_other_loss", "margin_change")
_FLIPPED = ("step", "set", "condition", "item", "now", *_LOSSES, "context", "answer", "others", "audio")
_SUMMARY = ("step", "stage", "set", "condition", "figure", "value", "low", "high", "resumed_at")
_ACROSS = ("degradation", "ability_lost", "intelligence_loss", "t2t_change")


def send_to_wandb(logger: Any, showing: Showing, tables: dict[str, Any]) -> None:
    """Sends a probe in one call.

    Args:
        logger: A ``WandbLogger`` of either namespace of Lightning.
        showing: What to send.
        tables: Kept between the probes of one logger: the table that grows.
    """
    import wandb

    run, report = logger.experiment, showing.report
    if showing.first:
        _define(run, report)
    # Again at each probe: a resumed run may have other settings.
    run.config.update({PREFIX: dict(report.signature)}, allow_val_change=True)
    if "summary" not in tables:
        tables["summary"] = wandb.Table(columns=list(_SUMMARY), log_mode="INCREMENTAL")
    for row in summary_rows(report):
        # A table that only grows keeps the rows of weights that are gone; the last column tells them apart.
        tables["summary"].add_data(*row, showing.resumed_at)
    # One call with Lightning's step beside ours and no step of W&B's: W&B drops what comes with a step it has passed.
    run.log(
        {
            **report.metrics,
            **dict(_charts(showing.history)),
            showing.key("panels"): wandb.Image(showing.picture),
            showing.key("changed_sides"): wandb.Table(columns=list(_FLIPPED), data=list(_flipped_rows(showing))),
            showing.key("summary"): tables["summary"],
            "trainer/global_step": report.step,
        }
    )
    if report.verdict and report.verdict.decision:
        run.summary[f"{PREFIX}/decision/reason"] = report.verdict.decision.reason
    logger.save()


def summary_rows(report: ProbeReport) -> Iterator[tuple[Any, ...]]:
    """A row for each figure of a probe, to be read as a table."""
    stage = report.stage
    for name, conditions in report.sets.items():
        places = [(condition, figure) for condition in conditions for figure in ESTIMATES]
        for condition, figure in [*places, *((None, figure) for figure in _ACROSS)]:
            key = "/".join(part for part in (PREFIX, name, condition, figure) if part)
            if key in report.metrics:
                estimate = report.figure(name, condition, figure)
                label = CONDITION_NAMES[condition] if condition else ""
                yield (report.step, stage, name, label, figure, estimate.value, estimate.low, estimate.high)


def _define(run: Any, report: ProbeReport) -> None:
    run.define_metric(STEP)
    run.define_metric(f"{PREFIX}/*", step_metric=STEP, step_sync=False)
    for key in report.metrics:
        if key == STEP or key.rpartition("/")[2] in COUNTS:
            continue
        best = "max" if key.endswith("accuracy") else "min" if key.endswith(("positive_loss", "positive_minus_negative")) else None
        run.define_metric(key, step_metric=STEP, step_sync=False, summary=f"last,{best}" if best else "last")


def _charts(history: Sequence[ProbeReport]) -> Iterator[tuple[str, Any]]:
    """S→T over T→T, and in each condition the loss of the answers over that of the others."""
    import wandb

    def chart(name: str, title: str, lines: dict[str, str]) -> Any:
        shown = _thinned([report for report in history if name in report.sets])
        steps = [report.step for report in shown]
        values = [[report.metrics.get(f"{PREFIX}/{name}/{key}") for report in shown] for key in lines.values()]
        return wandb.plot.line_series(steps, values, list(lines), title, "optimizer step", split_table=True)

    for name, conditions in history[-1].sets.items():
        accuracies = {CONDITION_NAMES[condition]: f"{condition}/accuracy" for condition in conditions}
        yield f"{PREFIX}/charts/{name}/accuracy", chart(name, f"{name}: accuracy", accuracies)
        for condition in conditions:
            losses = {side: f"{condition}/{side}_loss" for side in ("positive", "negative")}
            yield f"{PREFIX}/charts/{name}/{condition}_loss", chart(name, f"{name}: loss, {CONDITION_NAMES[condition]}", losses)


def _thinned(history: Sequence[ProbeReport]) -> list[ProbeReport]:
    """Evenly spaced probes of a long history, the first and the last among them."""
    chosen = np.unique(np.linspace(0, len(history) - 1, min(len(history), _POINTS)).round().astype(int))
    return [history[index] for index in chosen]


def _flipped_rows(showing: Showing) -> Iterator[list[Any]]:
    for flips in showing.flips:
        for number, flip in enumerate(flips):
            clip = _recording(flip.audio, flip.item) if flip.audio and number < _CLIPS else None
            yield [showing.report.step, *_words(flip), clip]


def _recording(audio: Audio, item: str) -> Any:
    import wandb

    try:
        return wandb.Audio(str(audio.path), caption=item)
    except OSError as error:
        # Its tokens may come from the cache long after it is gone.
        rank_zero_warn(f"S2SBench shows a question that changed sides without its recording: {error}")
        return None


def _words(flip: Flip) -> tuple[Any, ...]:
    now = "right" if flip.changed.is_right else "wrong"
    losses = [getattr(flip.changed, name) for name in _LOSSES]
    return (flip.set, CONDITION_NAMES[flip.condition], flip.item, now, *losses, flip.context, flip.answer, " | ".join(flip.others))
