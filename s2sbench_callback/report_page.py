"""A report on runs: one page for people, and the same as Markdown and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from s2sbench_callback.comparison import compare
from s2sbench_callback.comparison_text import text
from s2sbench_callback.plots import lost_panels, panels_of_runs, svg
from s2sbench_callback.prompts import CONDITION_NAMES
from s2sbench_callback.report import PREFIX, ProbeReport, flat
from s2sbench_callback.runs import Run, changed_since_the_start, disagreements, headlines, in_words, warnings_of
from s2sbench_callback.sides import read_probe

_FIGURES = ("accuracy", "question_accuracy", "positive_loss", "negative_loss", "positive_minus_negative")
_ACROSS = ("degradation", "ability_lost", "intelligence_loss", "t2t_change")
_MOST_CHANGED = 200


def as_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything that the report says, as plain data.

    Args:
        runs: At least one.
    """
    return {"warnings": disagreements(runs), "comparison": _comparison(runs), "runs": [_run(run) for run in runs]}


def as_json(runs: Sequence[Run]) -> str:
    """The report as one JSON object; NaN becomes null."""
    return json.dumps(_plain(as_data(runs)), ensure_ascii=False, allow_nan=False, indent=2)


def as_html(runs: Sequence[Run]) -> str:
    """The report as one page that needs nothing else."""
    pairs = [(run.label, run.history) for run in runs]
    lost = lost_panels(pairs)
    # Jinja2 escapes whatever is not marked as safe, and nothing but the drawings is.
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        files("s2sbench_callback").joinpath("report.html.j2").read_text(encoding="utf-8")
    )
    panels = Markup(svg(panels_of_runs(pairs)))  # drawn here
    return template.render(data=as_data(runs), panels=panels, lost=Markup(svg(lost)) if lost else None)


def as_markdown(runs: Sequence[Run]) -> str:
    """The report as Markdown, without pictures."""
    data = as_data(runs)
    lines = [f"> **Warning:** {warning}" for warning in data["warnings"]]
    if data["comparison"]:
        lines += ["", "## Is the difference real?", "", "```", data["comparison"], "```"]
    for run in data["runs"]:
        lines += ["", f"## {run['label']}", "", *run["headlines"], ""]
        lines += [f"> **Warning:** {warning}" for warning in run["warnings"]]
        for table in run["tables"]:
            lines += ["", f"| {table['set']} | {' | '.join(run['columns'])} |", "|---" * (len(run["columns"]) + 1) + "|"]
            lines += [f"| {row['label']} | {' | '.join(row['cells'])} |" for row in table["rows"]]
        lines += ["", *(f"- {decision}" for decision in run["decisions"])] if run["decisions"] else []
        lines += ["", f"{len(run['changed'])} questions changed sides between the first probe and the last. Record: {run['record']}"]
    return "\n".join(lines).strip()


def _comparison(runs: Sequence[Run]) -> str | None:
    """The last probes of two names held against each other, or why that cannot be done; ``None`` where there are not two names."""
    labels = list(dict.fromkeys(run.label for run in runs))
    if len(labels) != 2:
        return None
    try:
        first, second = ([read_probe(run.record) for run in runs if run.label == label] for label in labels)
        return text(compare(first, second))
    except (FileNotFoundError, ValueError) as error:
        return f"{labels[0]} and {labels[1]} cannot be compared: {error}"


def _run(run: Run) -> dict[str, Any]:
    shown = run.shown()
    warnings = warnings_of(run)
    try:
        changed = changed_since_the_start(run)
    except (FileNotFoundError, ValueError) as error:
        # The page is worth having without them.
        changed = []
        warnings.append(f"questions that changed sides cannot be shown: {error}")
    return {
        "label": run.label,
        "record": str(run.record.dirpath),
        "steps": [report.step for report in run.history],
        "headlines": headlines(run),
        "warnings": warnings,
        "columns": [_column(report) for report in shown],
        "tables": [{"set": name, "rows": _rows(name, shown)} for name in run.last.sets],
        "decisions": [f"Stage {stage} began after step {step:,}: {reason}." for stage, step, reason in run.stages()] + _last_decision(run.last),
        "changed": [
            {
                "set": each.set,
                "condition": CONDITION_NAMES[each.condition],
                "item": each.item,
                "now": "right" if each.changed.is_right else "wrong",
                "answer_loss": each.changed.answer_loss,
                "best_other_loss": each.changed.best_other_loss,
                "margin_change": each.changed.margin_change,
            }
            for each in changed[:_MOST_CHANGED]
        ],
        "changed_in_all": len(changed),
        "signature": flat(run.last.signature),
        "metrics": [{"step": report.step, "stage": report.stage, **report.metrics} for report in run.history],
    }


def _column(report: ProbeReport) -> str:
    return f"step {report.step:,}" + (f", stage {report.stage}" if report.stage is not None else "")


def _rows(name: str, shown: Sequence[ProbeReport]) -> list[dict[str, Any]]:
    places = [(condition, figure) for condition in shown[-1].sets[name] for figure in _FIGURES]
    rows = []
    for condition, figure in [*places, *((None, figure) for figure in _ACROSS)]:
        key = "/".join(part for part in (PREFIX, name, condition, figure) if part)
        # One comparison a question: the two accuracies are one.
        twin = figure == "question_accuracy" and shown[-1].metrics.get(key) == shown[-1].metrics.get(key.replace("question_accuracy", "accuracy"))
        if key in shown[-1].metrics and not twin:
            cells = [
                in_words(report.figure(name, condition, figure)) if math.isfinite(report.metrics.get(key, math.nan)) else "–" for report in shown
            ]
            label = " ".join(part for part in (CONDITION_NAMES[condition] if condition else "", figure.replace("_", " ")) if part)
            rows.append({"label": label, "cells": cells, "is_main": figure in ("accuracy", "degradation", "intelligence_loss")})
    return rows


def _last_decision(report: ProbeReport) -> list[str]:
    decision = report.verdict.decision if report.verdict else None
    return [f"At step {report.step:,} the stage {'has done its work' if decision.advance else 'goes on'}: {decision.reason}."] if decision else []


def _plain(value: Any) -> Any:
    """With null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
