"""A comparison as a table, for a terminal or for Markdown."""

from __future__ import annotations

import math
import textwrap

from s2sbench_callback.comparison import MCNEMAR, SIGN_FLIPS, STUDENT, Comparison, Row
from s2sbench_callback.paired_tests import FLIPS
from s2sbench_callback.prompts import CONDITION_NAMES

_NAMES = {str(condition): name for condition, name in CONDITION_NAMES.items()}


def text(comparison: Comparison) -> str:
    """Aligned columns, what was compared above and how below."""
    headings, cells = _table(comparison)
    rows = [headings, *cells]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
    # Words to the left, numbers to the right.
    lines = [
        "  ".join(cell.ljust(w) if column in (0, 6) else cell.rjust(w) for column, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    notes = (textwrap.fill(note, 120, subsequent_indent=" " * 12, break_long_words=False, break_on_hyphens=False) for note in _notes(comparison))
    return "\n".join([*_sides(comparison), "", *(line.rstrip() for line in lines), "", *notes])


def markdown(comparison: Comparison) -> str:
    """The same as a Markdown table."""
    headings, cells = _table(comparison)
    table = [f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *cells)]
    return "\n\n".join(["  \n".join(_sides(comparison)), "\n".join(table), *_notes(comparison)])


def _sides(comparison: Comparison) -> list[str]:
    if comparison.is_within:
        return [f"T→T against the other conditions of {', '.join(comparison.first)}"]
    return [f"A  {', '.join(comparison.first)}", f"B  {', '.join(comparison.second)}"]


def _table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    sides = ["T→T", "other", "other - T→T"] if comparison.is_within else ["A", "B", "B - A"]
    headings = ["figure", *sides, "p", "Holm", "B is" if not comparison.is_within else "it is", "detectable"]
    headings += ["needed"] if comparison.sought is not None else []
    headings += ["variance: questions/seeds/rest"] if comparison.has_seeds else []
    several = len({row.set for row in comparison.rows}) > 1
    return headings, [_cells(row, comparison, several) for row in comparison.rows]


def _cells(row: Row, comparison: Comparison, several: bool) -> list[str]:
    name = " ".join(part for part in (row.set if several else "", _NAMES.get(row.condition or ""), row.figure.replace("_", " ")) if part)
    cells = [
        name,
        f"{row.first:.3f}",
        f"{row.second:.3f}",
        f"{row.difference:+.3f} [{row.low:+.3f}, {row.high:+.3f}]",
        _p(row.p),
        _p(row.corrected),
        row.verdict,
        f"{row.detectable:.3f}",
    ]
    if comparison.sought is not None:
        cells.append(f"{row.needed:,.0f}" if row.needed is not None and math.isfinite(row.needed) else "no number")
    if comparison.has_seeds:
        parts = (row.questions_variance, row.seeds_variance, row.rest_variance)
        cells.append("/".join("–" if math.isnan(part) else f"{100 * part:.0f} %" for part in parts))
    return cells


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _notes(comparison: Comparison) -> list[str]:
    asked: dict[str, int] = {}
    for row in comparison.rows:
        asked[row.set] = max(asked.get(row.set, 0), row.questions)
    questions = ", ".join(f"{count:,} of {name}" for name, count in asked.items())
    tests = {row.test for row in comparison.rows}
    named = {
        MCNEMAR: "McNemar's exact test where a question is right or wrong",
        SIGN_FLIPS: f"{FLIPS:,} random sign flips of the questions' differences, or all where they are few",
        STUDENT: "Student's t by the variance over questions and seeds",
    }
    how = "; ".join(words for test, words in named.items() if test in tests)
    interval = (
        "Student's t by the variance over questions and seeds (two-way random effects, Satterthwaite)"
        if comparison.has_seeds
        else f"percentiles of a cluster bootstrap over questions, {comparison.draws:,} draws, seed {comparison.seed}"
    )
    lines = [
        f"questions   {questions}",
        f"interval    95 %: {interval}",
        f"p           {how}; then corrected for all {len(comparison.rows)} tests of this table ({comparison.correction}), by which the verdict goes",
        "detectable  the smallest true difference that so many questions would show with 80 % power, at 5 % two-sided, uncorrected",
    ]
    if comparison.sought is not None:
        never = "; 'no number' where the seeds alone vary too much for it" if any(row.needed == math.inf for row in comparison.rows) else ""
        lines.append(f"needed      questions to show a true difference of {comparison.sought:g} likewise{never}")
    if comparison.has_seeds:
        lines.append("seeds       figures are averaged over the trainings of a side; both sides' seeds are taken to vary alike")
    else:
        lines.append("seeds       one training a side: how much another seed would change is unknown, and in no interval or test here")
    return [*lines, *(f"warning     {warning}" for warning in comparison.warnings)]
