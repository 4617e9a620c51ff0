"""A probe in TensorBoard: overlaid charts, pictures, words, audio, and the end of the run among the hyperparameters."""

from __future__ import annotations

import math
import re
from typing import Any
from weakref import WeakKeyDictionary

import soundfile
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from s2sbench_callback.items import Audio
from s2sbench_callback.prompts import CONDITION_NAMES
from s2sbench_callback.report import PREFIX, ProbeReport, flat
from s2sbench_callback.showing import Showing

_CLIPS = 2
# A logger keeps one layout, which all probes of a trainer share.
_LAID_OUT: WeakKeyDictionary[Any, dict[str, list[Any]]] = WeakKeyDictionary()


def show_in_tensorboard(logger: Any, showing: Showing) -> None:
    """Sends what is no scalar.

    Args:
        logger: A ``TensorBoardLogger`` of either namespace of Lightning.
        showing: What to send.
    """
    writer, report = logger.experiment, showing.report
    if showing.first:
        charts = _LAID_OUT.setdefault(logger, {})
        charts.update(tensorboard_layout(report))
        writer.add_custom_scalars({"S2SBench": charts})
    writer.add_image(showing.key("panels"), showing.picture, report.step, dataformats="HWC")
    verdict = report.verdict
    if verdict and verdict.decision:
        writer.add_text(f"{PREFIX}/decision", verdict.decision.reason, report.step)
    for flips in showing.flips:
        for number, flip in enumerate([flip for flip in flips if flip.audio][:_CLIPS], start=1):
            assert flip.audio is not None
            tag = f"{PREFIX}/changed_sides/{flip.set}/{flip.condition}/{number}"
            _add_recording(writer, tag, flip.audio, report.step)
            now, others = "right" if flip.changed.is_right else "wrong", " | ".join(flip.others)
            words = f"**{flip.item} is {now} now** ({flip.changed.margin_change:+.3f} nats per token): {flip.context} → {flip.answer} ({others})"
            writer.add_text(tag, words, report.step)
    # Lightning's save() writes no events.
    writer.flush()


def tensorboard_layout(report: ProbeReport) -> dict[str, list[Any]]:
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
    return charts


def _add_recording(writer: Any, tag: str, audio: Audio, step: int) -> None:
    try:
        samples, rate = soundfile.read(audio.path, dtype="float32", always_2d=True)
    except soundfile.SoundFileError as error:
        # Its tokens may come from the cache long after it is gone.
        rank_zero_warn(f"S2SBench shows a question that changed sides without its recording: {error}")
        return
    writer.add_audio(tag, samples.mean(axis=1)[None], step, rate)


def end_in_tensorboard(logger: Any, report: ProbeReport) -> None:
    """Puts the last probe among the hyperparameters, in a run of its own below the training's: what its module saves of its own stays as it is.

    Args:
        logger: A ``TensorBoardLogger`` of either namespace of Lightning.
        report: The last probe.
    """
    figures = {
        f"final/{key.removeprefix(f'{PREFIX}/')}": value
        for key, value in report.metrics.items()
        if math.isfinite(value) and not key.endswith(("_low", "_high"))
    }
    settings = {name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in flat(report.signature).items()}
    logger.experiment.add_hparams(settings, figures, run_name=f"{PREFIX}_final", global_step=report.step)
