"""What a rule would have decided over a recorded run."""

from __future__ import annotations

from s2sbench_callback.decisions import Decision, stage_history
from s2sbench_callback.plateau import Plateau
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import ProbeReport


def replay(record: RunRecord, rule: Plateau, stage: int = 1) -> list[tuple[int, Decision]]:
    """Lets a rule look at every probe of a recorded stage in turn, also after it would have ended the stage.

    Args:
        record: The run's record.
        rule: The rule, with any settings.
        stage: Number of the stage, from 1; a run without stages is one stage.

    Returns:
        Step and decision, probe by probe.

    Raises:
        ValueError: If the record holds no probes of that stage, or not what the rule looks at.
    """
    reports = record.history()
    of_stage = [report for report in reports if (report.stage or 1) == stage]
    if not of_stage:
        known = sorted({report.stage or 1 for report in reports})
        raise ValueError(f"{record.dirpath} holds no probes of stage {stage}; it has those of stage(s) {', '.join(map(str, known)) or 'none'}")
    start = _start(of_stage[0])
    # The probe at the step of a change belongs to the stage that ends there, and is the first that the next one's rule sees.
    if stage > 1:
        of_stage = [report for report in reports if report.step == start and report not in of_stage] + of_stage
    probes = [(report.step, record.losses(report.step)) for report in of_stage]
    tie_rules = {name: asked["tie_rule"] for name, asked in of_stage[0].signature["sets"].items()}
    history = stage_history(start, probes, tie_rules, rule.condition, rule.figure, rule.sets)
    if not history.sets:
        raise ValueError(f"{record.dirpath} holds no {rule.condition} losses, which the rule looks at")
    return [(step, rule.decide(history.first(count))) for count, step in enumerate(history.steps, start=1)]


def replay_table(record: RunRecord, decisions: list[tuple[int, Decision]], stage: int, rule: Plateau) -> str:
    """The decisions as a table, and when the stage would have ended against when it did.

    Args:
        record: The run's record.
        decisions: What :func:`replay` gave.
        stage: Number of the stage.
        rule: The rule that was asked; its ``max_steps`` also end a stage between two probes.
    """
    lines = [f"{'step':>9}  {'gain per 1,000 steps':>36}  decision"]
    for step, decision in decisions:
        gain = f"{decision.gain:+.4f} [{decision.low:+.4f}, {decision.high:+.4f}]"
        lines.append(f"{step:>9}  {gain:>36}  {'advance' if decision.advance else 'stay'}")
    first = next(((step, decision) for step, decision in decisions if decision.advance), None)
    began = next((report.verdict for report in record.history() if report.verdict and report.verdict.stage == stage + 1), None)
    recorded = f"In the recorded run it ended at step {began.stage_since}: {began.entered}." if began else "In the recorded run it did not end."
    # Of a stage that ended by something else, the steps up to that end are known too.
    reached = max(decisions[-1][0], began.stage_since if began else 0)
    limit = None if rule.max_steps is None else _start(next(each for each in record.history() if (each.stage or 1) == stage)) + rule.max_steps
    if limit is not None and limit <= reached and (first is None or limit < first[0]):
        lines.append(f"Stage {stage} would have ended at step {limit}: max_steps {rule.max_steps:,} of its rule are done.")
    elif first:
        lines.append(f"Stage {stage} would have ended at step {first[0]}: {first[1].reason}.")
    else:
        lines.append(f"Stage {stage} would not have ended within its {len(decisions)} recorded probes: {decisions[-1][1].reason}.")
    return "\n".join([*lines, recorded])


def _start(report: ProbeReport) -> int:
    """Step at which the stage of a report began."""
    return report.verdict.stage_since if report.verdict else report.step
