"""Reads written sets as they are commonly kept: Story Cloze, COPA and multiple choice.

They have no recordings, so T→T alone can be asked of them.
"""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from s2sbench_callback.benchmarks.statements import statement
from s2sbench_callback.items import Benchmark, Context, Item, Language

_STORY = [*(f"InputSentence{number}" for number in range(1, 5)), "RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2", "AnswerRightEnding"]
_COPA = ["premise", "choice1", "choice2", "question", "label"]
_BETWEEN_SENTENCES: dict[Language, str] = {"en": " ", "zh": ""}
_CONNECTIVES: dict[Language, dict[str, str]] = {"en": {"cause": " because", "effect": ", so"}, "zh": {"cause": "，因为", "effect": "，所以"}}


def story_cloze(path: str | Path, language: Language = "en", set_name: str = "storycloze") -> Benchmark:
    """Reads Story Cloze: the CSV of 2016, or XStoryCloze's TSV, which has no quoting.

    Args:
        path: A file with the columns ``InputStoryid``, ``InputSentence1`` to ``4``, ``RandomFifthSentenceQuiz1``, ``…2``, ``AnswerRightEnding``.
        language: Of the stories; decides what stands between their sentences.
        set_name: ``<set>`` in the metric keys.

    Returns:
        The benchmark; a tie loses.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If anything in it is wrong; the message names file, row and reason.
    """
    items: list[Item] = []
    for place, row in _table(Path(path), _STORY):
        right = _text(place, row, "AnswerRightEnding").strip()
        if right not in ("1", "2"):
            raise ValueError(f"{place}: AnswerRightEnding must be 1 or 2, got {right!r}")
        *sentences, first, second = (_text(place, row, name).strip() for name in _STORY[:-1])
        context = Context(_BETWEEN_SENTENCES[language].join(sentences))
        items.append(_item(place, row.get("InputStoryid") or str(len(items)), context, (first, second), int(right) - 1))
    return Benchmark(set_name, language, tuple(items))


def copa(path: str | Path, language: Language = "en", set_name: str = "copa") -> Benchmark:
    """Reads COPA or XCOPA: a premise, and two causes or effects of it.

    The premise loses its full stop and is followed by ``because`` or ``so`` (``因为``, ``所以``); choices begin with a small letter then.

    Args:
        path: JSON lines with ``premise``, ``choice1``, ``choice2``, ``question`` (``cause`` or ``effect``) and ``label`` (0 or 1).
        language: Of the texts.
        set_name: ``<set>`` in the metric keys.

    Returns:
        The benchmark; a tie loses.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If anything in it is wrong; the message names file, row and reason.
    """
    items: list[Item] = []
    for place, row in _json_lines(Path(path), _COPA):
        kind, label = row["question"], row["label"]
        if kind not in ("cause", "effect"):
            raise ValueError(f"{place}: question must be 'cause' or 'effect', got {kind!r}")
        if label not in (0, 1) or isinstance(label, bool):
            raise ValueError(f"{place}: label must be 0 or 1, got {label!r}")
        premise = _text(place, row, "premise").strip().rstrip(".。")
        context = Context(premise + _CONNECTIVES[language][kind])
        choices = tuple(_small(_text(place, row, name).strip(), language) for name in ("choice1", "choice2"))
        items.append(_item(place, str(row.get("idx", len(items))), context, choices, label))
    return Benchmark(set_name, language, tuple(items))


def multiple_choice(path: str | Path, language: Language = "zh", set_name: str = "choice") -> Benchmark:
    """Reads multiple choice as CMMLU keeps it, and turns each question into statements where its stem allows.

    A stem allows it where it has one blank, or ends like a sentence that goes on; the options follow it then. Stems that ask for one of the options,
    and options that speak of other options, cannot be said in one sentence: such questions are left out, and a warning counts them.

    Args:
        path: A CSV with the columns ``Question``, ``A``, ``B``, …, ``Answer``.
        language: Of the texts.
        set_name: ``<set>`` in the metric keys.

    Returns:
        The benchmark; a tie wins, as in sCMMLU.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If anything in it is wrong, or no question can be turned; the message names file, row and reason.
    """
    items: list[Item] = []
    rows = 0
    for place, row in _table(Path(path), ["Question", "A", "B", "Answer"]):
        rows += 1
        letters = [letter for letter in "ABCDEFGHIJ" if (row.get(letter) or "").strip()]
        answer = _text(place, row, "Answer").strip()
        if answer not in letters:
            raise ValueError(f"{place}: Answer {answer!r} is no letter of the row; it has {', '.join(letters)}")
        turned = statement(_text(place, row, "Question"), [_text(place, row, letter) for letter in letters], language)
        if turned:
            context, candidates = turned
            items.append(_item(place, str(rows - 1), Context(context), candidates, letters.index(answer)))
    if not items:
        raise ValueError(f"{path}: none of its {rows} questions can be said as a statement; write them as such, in the release's layout")
    if len(items) < rows:
        warnings.warn(f"{path}: {rows - len(items)} of {rows} questions cannot be said as a statement and are left out", stacklevel=2)
    return Benchmark(set_name, language, tuple(items), "win")


def _table(path: Path, needed: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Rows of a CSV, or of a TSV without quoting, each with its place; a faulty header or an empty table is an error."""
    content = _read(path)
    if not content.strip():
        raise ValueError(f"{path} is empty: it has no rows")
    lines = io.StringIO(content, newline="")
    is_tsv = "\t" in content.split("\n", 1)[0]
    reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if is_tsv else csv.DictReader(lines, strict=True)
    missing = [name for name in needed if name not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{path}: the columns {', '.join(missing)} are missing; the first line names {', '.join(reader.fieldnames or ())}")
    rows = 0
    try:
        for row in reader:
            place = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise ValueError(f"{place}: the row has {'more' if None in row else 'fewer'} cells than the first line names columns")
            rows += 1
            yield place, row
    except csv.Error as error:
        raise ValueError(f"{path}, after line {reader.line_num}: {error}") from error
    if not rows:
        raise ValueError(f"{path} has a header and no rows")


def _json_lines(path: Path, needed: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    rows = 0
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{place}: broken JSON: {error}") from error
        missing = [name for name in needed if name not in row] if isinstance(row, dict) else list(needed)
        if missing:
            raise ValueError(f"{place}: each row must be a JSON object with {', '.join(needed)}; it lacks {', '.join(missing)}")
        rows += 1
        yield place, row
    if not rows:
        raise ValueError(f"{path} is empty: it has no rows")


def _read(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error}); convert the file, for example with: iconv -f GB18030 -t UTF-8") from error


def _text(place: str, row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{place}: {name} must be a text that is not empty, got {value!r}")
    return value


def _item(place: str, name: str, context: Context, candidates: tuple[str, ...], answer: int) -> Item:
    try:
        return Item(name, (context,) * len(candidates), candidates, answer)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _small(text: str, language: Language) -> str:
    """As the middle of a sentence: with a small first letter, but for ``I``."""
    return text if language == "zh" or text.split(maxsplit=1)[0].split("'")[0] == "I" else text[0].lower() + text[1:]
