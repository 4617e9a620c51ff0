"""One or several recorded runs, as they are put side by side."""

from __future__ import annotations

import glob
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from s2sbench_callback.controls import CONTROLS
from s2sbench_callback.findings import control_findings, damage_findings
from s2sbench_callback.flips import Changed, changed_questions
from s2sbench_callback.prompts import CONDITION_NAMES, Condition
from s2sbench_callback.record import RunRecord, find_record
from s2sbench_callback.report import PREFIX, ProbeReport
from s2sbench_callback.significance import Estimate

# A tie is so rare in a model that works that more than this share of comparisons means it does not.
_MANY_TIES = 0.01


@dataclass(frozen=True)
class Run:
    """A recorded run.

    Attributes:
        label: How it is called.
        record: Its files.
        history: Its reports, in order; at least one.
    """

    label: str
    record: RunRecord
    history: Sequence[ProbeReport]

    @property
    def last(self) -> ProbeReport:
        """Where it ended, or is now."""
        return self.history[-1]

    def shown(self) -> list[ProbeReport]:
        """The first probe, the last of each stage, and the last."""
        ends = [before for before, after in itertools.pairwise(self.history) if before.stage != after.stage]
        return list({report.step: report for report in (self.history[0], *ends, self.last)}.values())

    def stages(self) -> list[tuple[int, int, str]]:
        """Number, first step and reason of each stage that was begun after another."""
        begun = {report.verdict.stage: report.verdict for report in self.history if report.verdict and report.verdict.entered}
        return [(stage, verdict.stage_since, str(verdict.entered)) for stage, verdict in sorted(begun.items())]


@dataclass(frozen=True)
class ChangedQuestion:
    """A question that changed sides between the first probe and the last."""

    set: str
    condition: Condition
    item: str
    changed: Changed


def open_runs(words: Sequence[str]) -> list[Run]:
    """Runs by path, glob or ``NAME=PATH``.

    Args:
        words: Each a folder of a run or a record, or a quoted glob; several of one name are seeds of one strategy.

    Raises:
        FileNotFoundError: If one holds no record.
        ValueError: If one cannot be read.
    """
    runs = []
    for word in words:
        name, given, path = word.rpartition("=")
        # A path may hold an equals sign of its own.
        if given and Path(word).exists():
            name, path = "", word
        folders = sorted(glob.glob(path)) if glob.has_magic(path) else [path]
        if not folders:
            raise FileNotFoundError(f"{path} matches nothing")
        for folder in folders:
            record = find_record(Path(folder))
            runs.append(Run(name or _name(Path(folder)), record, record.history()))
    return runs


def _name(folder: Path) -> str:
    parts = [part for part in folder.resolve().parts if part != "s2sbench"]
    return "/".join(parts[-2:]) if parts[-1].startswith("version_") else parts[-1]


def headlines(run: Run) -> list[str]:
    """The outcome of a run in plain sentences, a few for each set."""
    found = [sentence for name, conditions in run.last.sets.items() for sentence in _headlines(run, name, conditions)]
    return found + [_of_voices(run.last, key.split("/")[1]) for key in run.last.metrics if key.endswith("/voice_range")]


def _of_voices(report: ProbeReport, name: str) -> str:
    """Whether what a set loses could be its voices' doing."""
    voices, reach, deviation = (report.metrics[f"{PREFIX}/{name}/{key}"] for key in ("voices", "voice_range", "voice_deviation"))
    said = f"{name}: {voices:.0f} voices differ in S→T accuracy by up to {reach:.3f}, beyond chance with a standard deviation of {deviation:.3f}"
    exceeds = report.metrics.get(f"{PREFIX}/{name}/degradation_exceeds_voices")
    if exceeds is None:
        return f"{said}."
    lost = in_words(report.figure(name, None, "degradation"))
    return f"{said}; the degradation, {lost}, {'exceeds' if exceeds else 'does not surely exceed'} that."


def _headlines(run: Run, name: str, conditions: Sequence[Condition]) -> Iterator[str]:
    report = run.last
    found = [f"{CONDITION_NAMES[condition]} {in_words(report.figure(name, condition, 'accuracy'))}" for condition in conditions]
    yield f"{name}: at step {report.step:,} the model answers {' and '.join(found)} of the comparisons right."
    if _has(report, name, "degradation"):
        lost = report.figure(name, None, "degradation")
        share = report.figure(name, None, "ability_lost") if _has(report, name, "ability_lost") else None
        of_ability = f", {in_words(share, percent=True)} of the ability above chance" if share and share.value == share.value else ""
        if lost.low > 0:
            yield f"Hearing instead of reading costs {in_words(lost)} of accuracy{of_ability}."
        elif lost.high < 0:
            yield f"It answers better when it hears than when it reads, by {in_words(Estimate(-lost.value, -lost.high, -lost.low))}."
        else:
            yield f"No loss by hearing can be told: {in_words(lost)} of accuracy."
    if _has(report, name, "t2t_change") and len(run.history) > 1:
        change = report.figure(name, None, "t2t_change")
        fallen = Estimate(-change.value, -change.high, -change.low)
        words = "has fallen by " if change.high < 0 else "has risen by " if change.low > 0 else "has not changed so that it could be told: "
        yield f"T→T {words}{in_words(fallen if change.high < 0 else change)} since its reference."


def in_words(estimate: Estimate, percent: bool = False) -> str:
    """A figure with its interval, to be read."""
    if percent:
        return f"{100 * estimate.value:.0f} % [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def warnings_of(run: Run) -> list[str]:
    """What to know before the figures of a run are believed."""
    return [*damage_findings(run.last).values(), *_controls(run), *_broken(run.last), *_signature_changes(run)]


def disagreements(runs: Sequence[Run]) -> list[str]:
    """What makes several runs hard to compare."""
    found = []
    for name in dict.fromkeys(name for run in runs for name in run.last.sets):
        fingerprints = {str(run.last.signature.get("sets", {}).get(name, {}).get("fingerprint")) for run in runs if name in run.last.sets}
        if len(fingerprints) > 1:
            found.append(f"{name}: the runs were not asked the same questions, so their figures cannot be compared")
    for key in ("prompt", "normalisation", "adapter", "precision", "weights"):
        values = {str(run.last.signature.get(key)) for run in runs}
        if len(values) > 1:
            found.append(f"the runs differ in more than their weights: {key} is {' and '.join(sorted(values))}")
    return found


def changed_since_the_start(run: Run) -> list[ChangedQuestion]:
    """Questions that changed sides between the first probe and the last.

    Raises:
        FileNotFoundError: If the losses of one of the two are gone.
        ValueError: If they are damaged.
    """
    first, last = (run.record.losses(report.step) for report in (run.history[0], run.last))
    changed = []
    for name, by_condition in last.items():
        for condition, now in by_condition.items():
            before = first.get(name, {}).get(condition)
            if before is not None and before.item_ids == now.item_ids and before is not now:
                rule = run.last.signature.get("sets", {}).get(name, {}).get("tie_rule", "lose")
                changed += [ChangedQuestion(name, condition, now.item_ids[each.index], each) for each in changed_questions(before, now, rule)]
    return changed


def _has(report: ProbeReport, name: str, figure: str) -> bool:
    return f"{PREFIX}/{name}/{figure}" in report.metrics


def _controls(run: Run) -> list[str]:
    names = tuple(f"/{control}_accuracy" for control in CONTROLS)
    asked = [report for report in run.history if any(key.endswith(names) for key in report.metrics)]
    return control_findings(asked[-1]) if asked else []


def _broken(report: ProbeReport) -> Iterator[str]:
    for name, conditions in report.sets.items():
        questions = report.signature.get("sets", {}).get(name, {}).get("questions")
        for condition in conditions:
            place, label = f"{PREFIX}/{name}/{condition}", f"{name}, {CONDITION_NAMES[condition]}"
            invalid, ties = report.metrics.get(f"{place}/invalid", 0), report.metrics.get(f"{place}/ties", 0)
            if invalid:
                yield f"{label}: {invalid:.0f} question(s) have a NaN or infinite loss and count as lost"
            if questions and ties > _MANY_TIES * questions:
                yield f"{label}: {ties:.0f} comparisons are ties; so many mean a broken model"
    skipped = report.metrics.get(f"{PREFIX}/skipped", 0)
    if skipped:
        yield f"{skipped:.0f} probe(s) failed and were skipped"


def _signature_changes(run: Run) -> Iterator[str]:
    for before, after in itertools.pairwise(run.history):
        for key in sorted({*before.signature, *after.signature} - {"checkpoint"}):
            if before.signature.get(key) != after.signature.get(key):
                yield f"from step {after.step} on, the probe's {key} is another than before, so the curve has a seam there"
