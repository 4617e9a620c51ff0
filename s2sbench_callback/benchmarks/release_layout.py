"""Reads the layout of the S2SBench release, and says what is wrong with it: see :mod:`s2sbench_callback.benchmarks.official`."""

from __future__ import annotations

import codecs
import json
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from s2sbench_callback.benchmarks.archives import unpacked
from s2sbench_callback.benchmarks.faults import Faults
from s2sbench_callback.benchmarks.recordings import open_recordings
from s2sbench_callback.items import Audio, Context, Item, Language

SharedAudio = Literal["identical", "always"]
_PATHS = ("path", "audio_path", "candidate_audio_path", "story_audio_path")


@dataclass(frozen=True)
class Row:
    """One line of the jsonl, with its place for error messages."""

    place: str
    uttid: str
    number: int
    fields: dict[str, Any]

    @property
    def is_lettered(self) -> bool:
        """Whether it is one question with lettered candidates, not half of a pair."""
        return "answer" in self.fields

    @property
    def letters(self) -> list[str]:
        """Of its candidates."""
        return [letter for letter in string.ascii_uppercase if letter in self.fields]

    def texts(self, keys: Sequence[str], faults: Faults) -> list[str] | None:
        """What stands under some keys; ``None`` where any of it is no text."""
        whole = True
        for key in keys:
            value = self.fields.get(key)
            if key not in self.fields:
                faults.add("no_field", self.place, f"the row of uttid {self.uttid!r} has no {key!r}")
            elif not isinstance(value, str) or not value.strip():
                faults.add("no_text", self.place, f"{key!r} of uttid {self.uttid!r} must be a text that is not empty, got {value!r}")
            else:
                continue
            whole = False
        return [self.fields[key] for key in keys] if whole else None


@dataclass(frozen=True)
class SetFiles:
    """Where one set of a YAML lies.

    Attributes:
        rows: The jsonl.
        language: Of the set.
        folders: Folder of recordings by its key in the YAML.
    """

    rows: Path
    language: Language
    folders: dict[str, Path]

    def without_recordings(self) -> SetFiles:
        """The same set, to be read as text."""
        return replace(self, folders={})


@dataclass(frozen=True)
class SetContent:
    """What was read of one set.

    Attributes:
        rows: Its rows, as far as they can be read.
        items: Its questions, as far as they are whole.
        is_lettered: Whether its rows are questions with lettered candidates.
        different_contexts: First rows of the pairs whose two contexts differ.
    """

    rows: tuple[Row, ...]
    items: tuple[Item, ...]
    is_lettered: bool
    different_contexts: tuple[Row, ...]


def set_names(path: Path, faults: Faults) -> list[str]:
    """The sets that a YAML names."""
    return list(_datasets(path, faults))


def set_files(path: Path, name: str, root: Path | None, faults: Faults, cache_dir: str | Path | None = None) -> SetFiles | None:
    """Where a set lies; ``None`` where its entry is faulty.

    Folders that are not there and stand beside it as an archive of the same name are unpacked into the cache.

    Args:
        path: The YAML.
        name: Of the set.
        root: Folder, or archive of it, that the paths in the YAML start from; by default the YAML's own.
        faults: Takes what is wrong.
        cache_dir: Where archives are unpacked; by default below the user's cache folder.
    """
    datasets = _datasets(path, faults)
    if name not in datasets:
        if datasets:
            faults.add("unknown_set", str(path), f"no set {name!r} under 'datasets'; it has {', '.join(sorted(datasets))}")
        return None
    entry = datasets[name]
    if not isinstance(entry, dict):
        faults.add("bad_entry", str(path), f"set {name!r} is no mapping; it needs path, audio_path and lang")
        return None
    whole = True
    needed = {"path", "lang", *(() if entry.keys() & {"story_audio_path", "candidate_audio_path"} else ("audio_path",))}
    for key in (*_PATHS, "lang"):
        if (key in needed or key in entry) and not isinstance(entry.get(key), str):
            faults.add("bad_entry", str(path), f"set {name!r} has no text under the key {key!r}; it needs path, audio_path and lang")
            whole = False
    language = entry.get("lang")
    if isinstance(language, str) and language not in ("en", "zh"):
        faults.add("bad_language", str(path), f"lang of set {name!r} must be 'en' or 'zh', got {language!r}")
        whole = False
    if not whole:
        return None
    base = unpacked(root, cache_dir) if root is not None else path.parent
    folders = {key: unpacked(base / entry[key], cache_dir) for key in _PATHS[1:] if key in entry}
    return SetFiles(unpacked(base / entry["path"], cache_dir), "en" if language == "en" else "zh", folders)


def read_set(files: SetFiles, shared_audio: SharedAudio, faults: Faults) -> SetContent:
    """Reads rows and recordings.

    Args:
        files: Where they lie.
        shared_audio: When the two recordings of a story count as one context; see :func:`~s2sbench_callback.benchmarks.official.official`.
        faults: Takes what is wrong.
    """
    rows = _rows(files.rows, faults)
    is_lettered = bool(rows) and rows[0].is_lettered
    alike = [row for row in rows if row.is_lettered == is_lettered]
    for row in rows:
        if row.is_lettered != is_lettered:
            faults.add("mixed_rows", row.place, f"story rows and lettered rows are mixed; uttid {row.uttid!r} differs in kind from the first row")
    questions = [(row,) for row in sorted(alike, key=lambda row: row.number)] if is_lettered else _pairs(alike, faults)
    folder = files.folders.get("audio_path")
    spoken = {
        kind: _by_name([(row, name) for question in questions for row, name in _candidate_names(question)], files.folders[key], faults)
        for kind, key in (("candidate_audios", "candidate_audio_path"), ("story_audios", "story_audio_path"))
        if key in files.folders
    }
    if is_lettered or shared_audio == "always":
        heard = [(question[0], question[0].uttid) for question in questions]
    else:
        heard = [(row, row.uttid) for question in questions for row in question]
    contexts = _by_name(heard, folder, faults) if folder else {}
    items: list[Item] = []
    different: list[Row] = []
    for question in questions:
        read = _lettered(question[0], faults) if is_lettered else _story(question, faults)
        if read is None:
            continue
        texts, candidates, answer = read
        if len(set(texts)) > 1:
            different.append(question[0])
        audios = [contexts.get(row.uttid) for row in question]
        if is_lettered or shared_audio == "always" or (audios[0] and audios[1] and audios[0].digest == audios[1].digest):
            audios = [audios[0]] * len(candidates)
        names = [name for _, name in _candidate_names(question)]
        extra = {kind: tuple(audio for name in names if (audio := found.get(name))) for kind, found in spoken.items()}
        try:
            items.append(
                Item(
                    question[0].uttid,
                    tuple(Context(text, audio) for text, audio in zip(texts, audios, strict=True)),
                    candidates,
                    answer,
                    group=str(question[0].fields.get("group", "")),
                    candidate_audios=_whole(extra.get("candidate_audios", ()), candidates),
                    story_audios=_whole(extra.get("story_audios", ()), candidates),
                )
            )
        except ValueError as error:
            faults.add("bad_question", question[0].place, str(error), error)
    return SetContent(tuple(rows), tuple(items), is_lettered, tuple(different))


def _whole(audios: tuple[Audio, ...], candidates: Sequence[str]) -> tuple[Audio, ...]:
    """Recordings of candidates where all are there; that one is missing has been reported."""
    return audios if len(audios) == len(candidates) else ()


def _datasets(path: Path, faults: Faults) -> dict[str, Any]:
    if not path.is_file():
        faults.add("missing_file", str(path), "no such file; it should name the sets under 'datasets:'")
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        faults.add("bad_yaml", str(path), f"is not valid YAML: {error}", error)
        return {}
    datasets = content.get("datasets") if isinstance(content, dict) else None
    if not isinstance(datasets, dict):
        faults.add("bad_yaml", str(path), "the key 'datasets' is missing or is no mapping of set names")
        return {}
    return {str(key): value for key, value in datasets.items()}


def _rows(path: Path, faults: Faults) -> list[Row]:
    if not path.is_file():
        faults.add("missing_file", str(path), "no such file, though the YAML names it; check root and path")
        return []
    rows: list[Row] = []
    places: dict[str, str] = {}
    lines = 0
    # Not splitlines(): it also splits at separators that JSON allows inside a text.
    for line_number, line in enumerate(path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if not line.strip():
            continue
        lines += 1
        row = _row(f"{path}, row {line_number}", line, faults)
        if row is None:
            continue
        if row.uttid in places:
            faults.add("duplicate_uttid", row.place, f"duplicate uttid {row.uttid!r}, first seen in {places[row.uttid]}")
            continue
        places[row.uttid] = row.place
        rows.append(row)
    if not lines:
        faults.add("empty_file", str(path), "is empty: it has no rows")
    return rows


def _row(place: str, line: bytes, faults: Faults) -> Row | None:
    try:
        fields = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        faults.add("not_utf8", place, f"not UTF-8 ({error}); convert the file, for example with: iconv -f GB18030 -t UTF-8", error)
        return None
    except json.JSONDecodeError as error:
        faults.add("broken_json", place, f"broken JSON: {error}", error)
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("uttid"), int | str) or isinstance(fields["uttid"], bool):
        faults.add("no_uttid", place, "each row must be a JSON object with an 'uttid' (a number or a text)")
        return None
    uttid = str(fields["uttid"])
    head = uttid.split("_", 1)[0]
    if not head.isdecimal():
        faults.add("bad_uttid", place, f"uttid {uttid!r} must be a number, or a text that starts with a number before the first '_'")
        return None
    if Path(uttid).name != uttid:
        faults.add("bad_uttid", place, f"uttid {uttid!r} must not contain path separators")
        return None
    return Row(place, uttid, int(head), fields)


def _pairs(rows: Sequence[Row], faults: Faults) -> list[tuple[Row, Row]]:
    """Neighbours by number: places 0 and 1 of the sorted rows, 2 and 3, and so on."""
    ordered: list[Row] = []
    for row in sorted(rows, key=lambda row: row.number):
        if ordered and ordered[-1].number == row.number:
            faults.add("same_number", row.place, f"uttid {row.uttid!r} has the same number {row.number} as {ordered[-1].uttid!r}")
        else:
            ordered.append(row)

    def follows(index: int) -> bool:
        return index + 1 < len(ordered) and ordered[index + 1].number == ordered[index].number + 1

    def says_the_same(index: int) -> bool:
        return ordered[index].fields.get("first") == ordered[index + 1].fields.get("first")

    pairs: list[tuple[Row, Row]] = []
    index, out_of_step = 0, False
    while index < len(ordered):
        # Where a row is missing the texts say where the pairs go on.
        doubtful = out_of_step or (ordered[index].number - ordered[0].number) % 2
        is_second_half = doubtful and follows(index) and not says_the_same(index) and follows(index + 1) and says_the_same(index + 1)
        if follows(index) and not is_second_half:
            pairs.append((ordered[index], ordered[index + 1]))
            index += 2
            continue
        row = ordered[index]
        reason = (
            f"uttid {row.uttid!r} is unpaired: the row before it is missing"
            if is_second_half
            else f"uttid {row.uttid!r} is unpaired: there is no row with the number {row.number + 1}"
        )
        faults.add("unpaired", row.place, reason)
        index, out_of_step = index + 1, True
    return pairs


def _story(pair: Sequence[Row], faults: Faults) -> tuple[tuple[str, ...], tuple[str, ...], int] | None:
    """Contexts, candidates and answer of two rows."""
    read = [row.texts(("first", "last"), faults) for row in pair]
    texts = [both for both in read if both]
    return (tuple(both[0] for both in texts), tuple(both[1] for both in texts), 0) if len(texts) == len(pair) else None


def _lettered(row: Row, faults: Faults) -> tuple[tuple[str, ...], tuple[str, ...], int] | None:
    """Contexts, candidates and answer of one row."""
    letters = row.letters
    whole = True
    if letters != list(string.ascii_uppercase[: len(letters)]) or len(letters) < 2:
        got = ", ".join(letters) or "none"
        faults.add("bad_letters", row.place, f"uttid {row.uttid!r} needs candidates under A, B, ... without a gap, got {got}")
        whole = False
    answer = row.fields["answer"]
    if answer not in letters:
        faults.add("bad_answer", row.place, f"answer {answer!r} of uttid {row.uttid!r} is no letter of the row; it has {', '.join(letters)}")
        whole = False
    texts = row.texts(("first", *letters), faults)
    if texts is None or not whole:
        return None
    return (texts[0],) * len(letters), tuple(texts[1:]), letters.index(answer)


def _candidate_names(question: Sequence[Row]) -> list[tuple[Row, str]]:
    """Row and file name, without its ending, of the recording of each candidate."""
    row = question[0]
    return [(row, f"{row.uttid}_{letter}") for letter in row.letters] if row.is_lettered else [(row, row.uttid) for row in question]


def _by_name(named: Sequence[tuple[Row, str]], folder: Path, faults: Faults) -> dict[str, Audio | None]:
    files = [(row.place, f"the recording of uttid {row.uttid!r}", folder / f"{name}.wav") for row, name in named]
    return {name: audio for (_, name), audio in zip(named, open_recordings(files, faults), strict=True)}
