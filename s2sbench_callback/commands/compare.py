"""``s2sbench compare``: is the difference real?"""

from __future__ import annotations

import argparse
import glob
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from s2sbench_callback.bootstrap import DRAWS, SEED
from s2sbench_callback.comparison import DIRECTIONS, Comparison, Probed, Row, compare_conditions, compare_sides
from s2sbench_callback.prompts import CONDITION_NAMES
from s2sbench_callback.record import find_record

_EPILOG = """\
A side is a run's folder or that of its record, at its last probe or at FOLDER@STEP; several seeds of one strategy are a list
A,B,C or a quoted glob. With one side, S→T is held against T→T.

examples:
  s2sbench compare runs/mine@10000 runs/mine@20000
  s2sbench compare 'runs/single_*' 'runs/two_*' --difference 0.01
  s2sbench compare runs/baseline runs/mine --fail-if-worse accuracy positive_minus_negative

exit status:
  0  compared
  1  compared, and with --fail-if-worse: the second side is worse
  2  could not be compared
"""
_COLUMNS = ("set", "condition", "figure", "first", "second", "difference", "p", "corrected", "verdict", "detectable", "questions", "needed")


def run(arguments: list[str]) -> int:
    """Compares two sides, or S→T with T→T of one.

    Args:
        arguments: Two sides, or one, and options.

    Returns:
        1 where ``--fail-if-worse`` finds the second side worse, else 0.
    """
    parser = argparse.ArgumentParser(
        prog="s2sbench compare",
        description="Compares two checkpoints, runs or sets of seeds on the same questions.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("first", help="a side, see below")
    parser.add_argument("second", nargs="?", help="what is held against it; without it, S→T is held against T→T of the first")
    parser.add_argument("--format", choices=("text", "md", "json"), default="text", help="how to print it")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument(
        "--fail-if-worse",
        nargs="*",
        choices=sorted(name for name, direction in DIRECTIONS.items() if direction),
        metavar="FIGURE",
        help="end with 1 where the second side is significantly worse in one of these figures; accuracy and positive_minus_negative by default",
    )
    parser.add_argument("--difference", type=float, help="say how many questions would show a difference of so much (0.01 is a point of accuracy)")
    parser.add_argument("--draws", type=int, default=DRAWS, help="draws of the bootstrap")
    parser.add_argument("--seed", type=int, default=SEED, help="of bootstrap and permutation")
    chosen = parser.parse_args(arguments)
    if chosen.draws < 100:
        raise ValueError(f"--draws must be at least 100, got {chosen.draws}")
    if chosen.difference is not None and not chosen.difference > 0:
        raise ValueError(f"--difference must be above 0, got {chosen.difference}")
    first = list(_side(chosen.first))
    if chosen.second is None:
        if len(first) > 1:
            raise ValueError("S→T is held against T→T in one checkpoint at a time; name one, or two sides")
        comparison = compare_conditions(first[0], chosen.difference, chosen.draws, chosen.seed)
    else:
        comparison = compare_sides(first, list(_side(chosen.second)), chosen.difference, chosen.draws, chosen.seed)
    style = "json" if chosen.json else chosen.format
    print(as_json(comparison) if style == "json" else as_table(comparison, markdown=style == "md"))
    if chosen.fail_if_worse is None:
        return 0
    watched = chosen.fail_if_worse or ["accuracy", "positive_minus_negative"]
    return int(any(row.verdict == "worse" and row.figure in watched for row in comparison.rows))


def as_json(comparison: Comparison) -> str:
    """A comparison as one JSON object; NaN becomes null."""
    content = asdict(comparison) | {"correction": "Holm", "rows": [_plain(asdict(row)) for row in comparison.rows]}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2)


def as_table(comparison: Comparison, markdown: bool = False) -> str:
    """A comparison as a table to be read.

    Args:
        comparison: The comparison.
        markdown: Whether to draw it as a Markdown table.
    """
    cells = [_COLUMNS, *(_cells(row) for row in comparison.rows)]
    if all(math.isnan(row.questions_needed) for row in comparison.rows):
        cells = [row[:-1] for row in cells]
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in cells]
        table = [lines[0], "|---" * len(cells[0]) + "|", *lines[1:]]
    else:
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([f"first   {', '.join(comparison.first)}", f"second  {', '.join(comparison.second)}", "", *table, "", *_notes(comparison)])


def _notes(comparison: Comparison) -> Iterator[str]:
    tests = list(dict.fromkeys(row.test for row in comparison.rows))
    yield "Difference: second minus first, with its 95 % interval."
    yield f"p: {'; '.join(tests)}. Corrected over {len(comparison.rows)} tests by Holm's method."
    yield "Detectable: the true difference that so many questions show four times out of five."
    if any(not math.isnan(row.by_seeds) for row in comparison.rows):
        yield "Standard error by questions and by seeds: " + "; ".join(
            f"{_name(row)} {_number(row.by_questions)} and {_number(row.by_seeds)}" for row in comparison.rows if not math.isnan(row.by_seeds)
        )
    if any(not math.isnan(row.questions_needed) for row in comparison.rows):
        yield "Needed: questions that would show the asked difference as often."
    yield from (f"Warning: {warning}" for warning in comparison.warnings)


def _cells(row: Row) -> tuple[str, ...]:
    difference = f"{row.difference.value:+.4f} [{row.difference.low:+.4f}, {row.difference.high:+.4f}]"
    condition = CONDITION_NAMES[row.condition] if row.condition else ""
    tested = (f"{row.first:.4f}", f"{row.second:.4f}", difference, _p(row.p), _p(row.corrected_p), row.verdict)
    power = (_number(row.smallest_detectable), f"{row.questions:,}", f"{row.questions_needed:,.0f}")
    return (row.set, condition, row.figure.replace("_", " "), *tested, *power)


def _name(row: Row) -> str:
    return " ".join(part for part in (row.set, CONDITION_NAMES[row.condition] if row.condition else "", row.figure.replace("_", " ")) if part)


def _p(p: float) -> str:
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def _number(number: float) -> str:
    return f"{number:.4f}"


def _side(words: str) -> Iterator[Probed]:
    for word in words.split(","):
        path, at, step = word.rpartition("@")
        if not at or not step.isdecimal():
            path, step = word, ""
        folders = sorted(glob.glob(path)) if glob.has_magic(path) else [path]
        if not folders:
            raise FileNotFoundError(f"{path} matches nothing")
        for folder in folders:
            yield _probed(Path(folder), int(step) if step else None)


def _probed(folder: Path, step: int | None) -> Probed:
    record = find_record(folder)
    history = record.history()
    report = next((each for each in history if each.step == step), None) if step is not None else history[-1]
    if report is None:
        raise ValueError(f"{folder} has no probe at step {step}; it has {', '.join(str(each.step) for each in history)}")
    return Probed(f"{folder}@{report.step}", report, record.losses(report.step))


def _plain(content: dict[str, object]) -> dict[str, object]:
    """With null for what JSON has no number for."""

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return _plain(value)
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {key: plain(value) for key, value in content.items()}
