"""Written sets for the command line: a starter set, or a file whose layout tells what it is."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from s2sbench_callback.benchmarks.faults import Faults
from s2sbench_callback.benchmarks.release_layout import read_set, set_files, set_names
from s2sbench_callback.benchmarks.starter import STARTER_SETS, starter
from s2sbench_callback.benchmarks.text_sets import copa, multiple_choice, story_cloze
from s2sbench_callback.items import Benchmark, Language


def written_set(source: str, language: Language | None, name: str | None, negatives: str = "wrong") -> Benchmark:
    """Opens a written set.

    Args:
        source: ``starter:stories-en`` or another starter set; or a file: Story Cloze's CSV or XStoryCloze's TSV, COPA's JSON lines, multiple
            choice as CSV, or a YAML in the release's layout.
        language: Of the set; by default ``en``, ``zh`` for multiple choice. Starter sets and YAMLs know theirs.
        name: Of the set, in a YAML that names several; else what it is called in files and metric keys.
        negatives: Of starter stories: ``wrong`` or ``off_topic``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If there is no such starter set, the layout is unknown, or anything in it is wrong.
    """
    if source.startswith("starter:"):
        chosen = source.removeprefix("starter:")
        known = next((each for each in STARTER_SETS if each == chosen), None)
        if known is None:
            raise ValueError(f"there is no starter set {chosen!r}; there are {', '.join(STARTER_SETS)}")
        if language and language != known.rpartition("-")[2]:
            raise ValueError(f"the starter set {known} is not {language!r}; leave the language out")
        return starter(known, "off_topic" if negatives == "off_topic" else "wrong", set_name=name)
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; a written set is a file, or starter:NAME with NAME one of {', '.join(STARTER_SETS)}")
    if path.suffix in (".yaml", ".yml"):
        return _release_set(path, name)
    called = name or path.stem.partition(".")[0]
    with path.open(encoding="utf-8-sig") as stream:
        first = stream.readline()
    if first.lstrip().startswith("{"):
        if not {"premise", "choice1"} <= set(_fields(path, first)):
            raise ValueError(f"{path}: rows without 'premise' and 'choice1' are not COPA's; name the release's layout by its YAML")
        return copa(path, language or "en", called)
    columns = next(csv.reader(io.StringIO(first), delimiter="\t" if "\t" in first else ","), [])
    if "InputSentence1" in columns:
        return story_cloze(path, language or "en", called)
    if {"Question", "Answer"} <= set(columns):
        return multiple_choice(path, language or "zh", called)
    raise ValueError(
        f"{path}: its first line is that of no known layout: it names {', '.join(columns)[:200] or 'nothing'}; known are Story Cloze "
        "(InputSentence1, …), COPA (JSON lines with premise, choice1, …), multiple choice (Question, A, B, …, Answer), and a YAML in the release's "
        "layout"
    )


def _fields(path: Path, line: str) -> list[str]:
    try:
        return list(json.loads(line))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line 1: broken JSON: {error}") from error


def _release_set(path: Path, name: str | None) -> Benchmark:
    faults = Faults(at_once=True)
    names = set_names(path, faults)
    if name is None and len(names) > 1:
        raise ValueError(f"{path} names several sets; choose one of {', '.join(names)} with --set")
    chosen = name or names[0]
    files = set_files(path, chosen, None, faults)
    assert files is not None  # a fault would have been raised
    content = read_set(files.without_recordings(), "identical", faults)
    return Benchmark(chosen, files.language, content.items, "win" if content.is_lettered else "lose")
