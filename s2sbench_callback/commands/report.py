"""``s2sbench report``: a page about one or several runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from s2sbench_callback.plots import panels_of_runs, png, svg
from s2sbench_callback.report_page import as_html, as_json, as_markdown
from s2sbench_callback.runs import Run, open_runs

_EPILOG = """\
A run is its folder or that of its record; several are put side by side, and those of one NAME, seeds of a strategy for example, in one colour.
A page or picture is written beside the first record, as report.html, .png or .svg, unless --output says where; - is stdout. Markdown and JSON
go to stdout.

examples:
  s2sbench report runs/mine/version_0
  s2sbench report one='runs/single_*' two='runs/two_*' --output study.html
  s2sbench report runs/mine --format md | less
  s2sbench report runs/mine --json | jq '.runs[0].headlines'

exit status:
  0  reported; the last line says where, if not on stdout
  2  could not be reported
"""


def run(arguments: list[str]) -> None:
    """Writes or prints the report.

    Args:
        arguments: Runs and options.
    """
    parser = argparse.ArgumentParser(
        prog="s2sbench report",
        description="One self-contained page about one or several recorded runs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder, NAME=FOLDER, or a quoted glob")
    parser.add_argument("--format", choices=("html", "png", "svg", "md", "json"), default="html", help="what to make")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("--output", help="where to write; - is stdout")
    chosen = parser.parse_args(arguments)
    runs = open_runs(chosen.runs)
    style = "json" if chosen.json else chosen.format
    content = _content(style, runs)
    to_stdout = chosen.output == "-" or (chosen.output is None and style in ("md", "json"))
    if to_stdout:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    path = Path(chosen.output) if chosen.output else runs[0].record.dirpath / f"report.{style}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    print(path)


def _content(style: str, runs: Sequence[Run]) -> bytes:
    if style in ("png", "svg"):
        figure = panels_of_runs([(run.label, run.history) for run in runs])
        return png(figure) if style == "png" else svg(figure).encode()
    text = {"html": as_html, "md": as_markdown, "json": as_json}[style](runs)
    return f"{text}\n".encode()
