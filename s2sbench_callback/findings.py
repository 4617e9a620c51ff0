"""What a probe's figures call attention to, in sentences."""

from __future__ import annotations

from s2sbench_callback.controls import CONTROLS, Control
from s2sbench_callback.prompts import CONDITION_NAMES
from s2sbench_callback.report import PREFIX, ProbeReport
from s2sbench_callback.significance import Estimate

CHANCE = 0.5
# How far from chance a set may be answered without its contexts before that is worth a sentence.
_TOLERANCE = 0.05


def control_findings(report: ProbeReport) -> list[str]:
    """What the controls of a probe say, a sentence each where there is something to say.

    Args:
        report: A probe, whose metrics hold the controls that were asked.
    """
    return [
        f"{name}, {CONDITION_NAMES[condition]}: {finding}"
        for name, conditions in report.sets.items()
        for condition in conditions
        for control in CONTROLS
        if f"{PREFIX}/{name}/{condition}/{control}_accuracy" in report.metrics
        for finding in [_finding(control, report.figure(name, condition, f"{control}_accuracy"))]
        if finding
    ]


def _finding(control: Control, accuracy: Estimate) -> str | None:
    found = f"accuracy {accuracy.value:.3f} [{accuracy.low:.3f}, {accuracy.high:.3f}]"
    solvable = (accuracy.low > CHANCE or accuracy.high < CHANCE) and abs(accuracy.value - CHANCE) > _TOLERANCE
    if control == "no_context" and solvable:
        return (
            f"{found} without any context, where chance is {CHANCE}: the candidates alone give answers away, so the set can in part be solved unheard"
        )
    if control == "other_context" and solvable:
        return f"{found} with another question's context, where chance is {CHANCE}: the candidates alone give answers away"
    if control == "off_topic" and accuracy.low <= CHANCE:
        return f"{found} against candidates that are off topic, no better than chance: the model makes no use of the context"
    return None


def damage_findings(report: ProbeReport | None) -> dict[str, str]:
    """Sets whose T→T lies significantly below its reference, each with a sentence.

    Args:
        report: A probe, or ``None`` for the time before the first.
    """
    found = {}
    for name in report.sets if report else ():
        assert report is not None
        if f"{PREFIX}/{name}/t2t_change" in report.metrics:
            change = report.figure(name, None, "t2t_change")
            if change.high < 0:
                found[name] = (
                    f"{name}: at step {report.step} T→T accuracy is {-change.value:.3f} [{-change.high:.3f}, {-change.low:.3f}] below its reference: "
                    "the language model is being damaged, and degradation alone does not show it"
                )
    return found
