"""Reads sets in the layout of the S2SBench release.

One YAML names the sets::

    datasets:
      sStory_s2t: {path: data/sStory.jsonl, audio_path: data/sStory_wavs, lang: en}

A story set has two rows a question (``uttid``, ``first``, ``last``), neighbours by number, the even place right and the odd
place wrong. A lettered set has one row a question (``uttid``, ``first``, ``A``, ``B``, ..., ``answer``). The recording
of a row is ``<audio_path>/<uttid>.wav``.

For spoken candidates, which the release does not have, an entry may name two more folders: ``candidate_audio_path`` with a recording of each
candidate alone, and ``story_audio_path`` with one of context and candidate together. In a story set the recording of a row's
candidate is ``<uttid>.wav``, in a lettered set ``<uttid>_<letter>.wav``. A set of whole stories alone may leave ``audio_path`` out.
"""

from __future__ import annotations

import codecs
import itertools
import json
import string
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import soundfile
import yaml

from s2sbench_callback.items import Audio, Benchmark, Context, Item, Language, recording_digest

_SET_NAMES = {"sStory_s2t": "sstorycloze", "zh_story": "zh-sstorycloze", "cmmlu_write_4": "scmmlu"}
_READERS = 8


@dataclass(frozen=True)
class _Row:
    """One line of the jsonl, with its place for error messages."""

    place: str
    uttid: str
    number: int
    fields: dict[str, Any]

    def text(self, key: str) -> str:
        if key not in self.fields:
            raise ValueError(f"{self.place}: the row of uttid {self.uttid!r} has no {key!r}")
        value = self.fields[key]
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{self.place}: {key!r} of uttid {self.uttid!r} must be a text that is not empty, got {value!r}")
        return value


def official(
    yaml: str | Path,
    name: str,
    root: str | Path | None = None,
    shared_audio: Literal["identical", "always"] = "identical",
    set_name: str | None = None,
) -> Benchmark:
    """Reads one set of the release, or a set of one's own in the same layout.

    Every row and every recording is checked here, so that a fault shows before training starts.

    Args:
        yaml: The file that names the sets.
        name: Which of them, for example ``sStory_s2t``.
        root: Folder that the paths in the YAML start from; by default the YAML's own.
        shared_audio: When the two recordings of a story count as one context: only when their bytes are ``identical``, or ``always``
            (the first is used for both candidates, the second is never opened).
        set_name: ``<set>`` in the metric keys; by default the paper's name for the release's sets, otherwise ``name``.

    Returns:
        The benchmark. Ties lose in a story set and win in a lettered one, as in the release.

    Raises:
        FileNotFoundError: If the YAML, the jsonl or a recording is missing.
        ValueError: If anything in them is wrong; the message names file, row and reason.
    """
    if shared_audio not in ("identical", "always"):
        raise ValueError(f"shared_audio must be 'identical' or 'always', got {shared_audio!r}")
    yaml_path = Path(yaml)
    entry = _entry(yaml_path, name)
    base = Path(root) if root is not None else yaml_path.parent
    rows = _rows(base / entry["path"])
    lettered = ["answer" in row.fields for row in rows]
    if any(lettered) and not all(lettered):
        row = rows[lettered.index(not lettered[0])]
        raise ValueError(f"{row.place}: story rows and lettered rows are mixed; uttid {row.uttid!r} differs in kind from the first row")
    folder = base / entry["audio_path"] if "audio_path" in entry else None
    items = _lettered_items(rows, folder) if lettered[0] else _story_items(_pairs(rows), folder, shared_audio)
    spoken: dict[str, dict[str, tuple[Audio, ...]]] = {
        field: _spoken_candidates(rows, base / entry[key])
        for field, key in (("candidate_audios", "candidate_audio_path"), ("story_audios", "story_audio_path"))
        if key in entry
    }
    none: dict[str, tuple[Audio, ...]] = {}
    items = [
        replace(
            item,
            candidate_audios=spoken.get("candidate_audios", none).get(item.id, ()),
            story_audios=spoken.get("story_audios", none).get(item.id, ()),
        )
        for item in items
    ]
    return Benchmark(
        name=set_name or _SET_NAMES.get(name, name),
        language=cast(Language, entry["lang"]),
        items=tuple(items),
        tie_rule="win" if lettered[0] else "lose",
    )


def _entry(path: Path, name: str) -> dict[str, str]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; it should name the sets under 'datasets:'")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    datasets = content.get("datasets") if isinstance(content, dict) else None
    if not isinstance(datasets, dict):
        raise ValueError(f"{path}: the key 'datasets' is missing or is no mapping of set names")
    datasets = {str(key): value for key, value in datasets.items()}
    if name not in datasets:
        raise ValueError(f"{path}: no set {name!r} under 'datasets'; it has {', '.join(sorted(datasets))}")
    entry = datasets[name]
    if not isinstance(entry, dict):
        raise ValueError(f"{path}: set {name!r} is no mapping; it needs path, audio_path and lang")
    needed = {"path", "lang", *(() if entry.keys() & {"story_audio_path", "candidate_audio_path"} else ("audio_path",))}
    for key in ("path", "audio_path", "lang", "candidate_audio_path", "story_audio_path"):
        if (key in needed or key in entry) and not isinstance(entry.get(key), str):
            raise ValueError(f"{path}: set {name!r} has no text under the key {key!r}; it needs path, audio_path and lang")
    if entry["lang"] not in ("en", "zh"):
        raise ValueError(f"{path}: lang of set {name!r} must be 'en' or 'zh', got {entry['lang']!r}")
    return cast(dict[str, str], entry)


def _rows(path: Path) -> list[_Row]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file, though the YAML names it; check root and path")
    rows: list[_Row] = []
    places: dict[str, str] = {}
    # Not splitlines(): it also splits at separators that JSON allows inside a text.
    for line_number, line in enumerate(path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if not line.strip():
            continue
        row = _row(f"{path}, row {line_number}", line)
        if row.uttid in places:
            raise ValueError(f"{row.place}: duplicate uttid {row.uttid!r}, first seen in {places[row.uttid]}")
        places[row.uttid] = row.place
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} is empty: it has no rows")
    return rows


def _row(place: str, line: bytes) -> _Row:
    try:
        fields = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{place}: not UTF-8 ({error}); convert the file, for example with: iconv -f GB18030 -t UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: broken JSON: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("uttid"), int | str):
        raise ValueError(f"{place}: each row must be a JSON object with an 'uttid' (a number or a text)")
    uttid = str(fields["uttid"])
    head = uttid.split("_", 1)[0]
    if not head.isdecimal():
        raise ValueError(f"{place}: uttid {uttid!r} must be a number, or a text that starts with a number before the first '_'")
    if Path(uttid).name != uttid:
        raise ValueError(f"{place}: uttid {uttid!r} must not contain path separators")
    return _Row(place, uttid, int(head), fields)


def _pairs(rows: Sequence[_Row]) -> list[tuple[_Row, _Row]]:
    """Neighbours by number: places 0 and 1 of the sorted rows, 2 and 3, and so on."""
    ordered = sorted(rows, key=lambda row: row.number)
    pairs: list[tuple[_Row, _Row]] = []
    for before, after in itertools.pairwise(ordered):
        if before.number == after.number:
            raise ValueError(f"{after.place}: uttid {after.uttid!r} has the same number {after.number} as {before.uttid!r}")
    for right, wrong in zip(ordered[::2], ordered[1::2], strict=False):
        if wrong.number != right.number + 1:
            raise ValueError(f"{right.place}: uttid {right.uttid!r} is unpaired: there is no row with the number {right.number + 1}")
        pairs.append((right, wrong))
    if len(ordered) % 2:
        last = ordered[-1]
        raise ValueError(f"{last.place}: uttid {last.uttid!r} is unpaired: there is no row with the number {last.number + 1}")
    return pairs


def _story_items(pairs: Sequence[tuple[_Row, _Row]], folder: Path | None, shared_audio: Literal["identical", "always"]) -> list[Item]:
    needed = [row for pair in pairs for row in (pair[:1] if shared_audio == "always" else pair)]
    recordings = _recordings([(row, folder / f"{row.uttid}.wav") for row in needed]) if folder else {}
    items, different = [], []
    for right, wrong in pairs:
        texts = (right.text("first"), wrong.text("first"))
        if texts[0] != texts[1]:
            different.append(right)
        audios = [recordings.get(right.uttid), recordings.get(right.uttid if shared_audio == "always" else wrong.uttid)]
        if audios[0] and audios[1] and audios[0].digest == audios[1].digest:
            audios[1] = audios[0]
        contexts = tuple(Context(text, audio) for text, audio in zip(texts, audios, strict=True))
        items.append(_item(right, contexts, (right.text("last"), wrong.text("last")), answer=0))
    if different:
        first = different[0]
        warnings.warn(
            f"{len(different)} of {len(pairs)} pairs have a different 'first' in their two rows, which the release does not check; each "
            f"candidate is scored with its own context. The first such pair: {first.place}, uttid {first.uttid!r}.",
            stacklevel=3,
        )
    return items


def _letters(row: _Row) -> list[str]:
    return [letter for letter in string.ascii_uppercase if letter in row.fields]


def _lettered_items(rows: Sequence[_Row], folder: Path | None) -> list[Item]:
    recordings = _recordings([(row, folder / f"{row.uttid}.wav") for row in rows]) if folder else {}
    items = []
    for row in sorted(rows, key=lambda row: row.number):
        letters = _letters(row)
        if letters != list(string.ascii_uppercase[: len(letters)]) or len(letters) < 2:
            raise ValueError(f"{row.place}: uttid {row.uttid!r} needs candidates under A, B, ... without a gap, got {', '.join(letters) or 'none'}")
        answer = row.fields["answer"]
        if answer not in letters:
            raise ValueError(f"{row.place}: answer {answer!r} of uttid {row.uttid!r} is no letter of the row; it has {', '.join(letters)}")
        context = Context(row.text("first"), recordings.get(row.uttid))
        items.append(_item(row, (context,) * len(letters), tuple(row.text(letter) for letter in letters), letters.index(answer)))
    return items


def _item(row: _Row, contexts: tuple[Context, ...], candidates: tuple[str, ...], answer: int) -> Item:
    try:
        return Item(row.uttid, contexts, candidates, answer)
    except ValueError as error:
        raise ValueError(f"{row.place}: {error}") from error


def _spoken_candidates(rows: Sequence[_Row], folder: Path) -> dict[str, tuple[Audio, ...]]:
    """Recordings of each question's candidates in their order, by the item's id."""
    if "answer" in rows[0].fields:
        named = {(row.uttid, letter): (row, folder / f"{row.uttid}_{letter}.wav") for row in rows for letter in _letters(row)}
        recordings = dict(zip(named, _read(list(named.values())), strict=True))
        return {row.uttid: tuple(recordings[row.uttid, letter] for letter in _letters(row)) for row in rows}
    by_row = _recordings([(row, folder / f"{row.uttid}.wav") for row in rows])
    return {right.uttid: (by_row[right.uttid], by_row[wrong.uttid]) for right, wrong in _pairs(rows)}


def _recordings(files: Sequence[tuple[_Row, Path]]) -> dict[str, Audio]:
    """The one recording of each row, by its uttid."""
    return {row.uttid: audio for (row, _), audio in zip(files, _read(files), strict=True)}


def _read(files: Sequence[tuple[_Row, Path]]) -> list[Audio]:
    """Opens and hashes recordings, several at a time: folders on network file systems are slow to answer."""
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(lambda file: _recording(*file), files))


def _recording(row: _Row, path: Path) -> Audio:
    return open_recording(path, f"{row.place}: the recording of uttid {row.uttid!r}")


def open_recording(path: Path, what: str) -> Audio:
    """A recording that is there, can be read and is whole.

    Args:
        path: The file.
        what: How to name it in an error.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{what} is missing: {path}")
    try:
        with soundfile.SoundFile(path) as file:
            frames, seconds = file.frames, file.frames / file.samplerate
            # A flac cut short fails here, a wav does not.
            file.seek(max(frames - 1, 0))
            file.read(1)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise ValueError(f"{what} cannot be read: {path}: {error}") from error
    if not frames or _is_cut_short(path):
        raise ValueError(f"{what} has no samples or is cut short: {path}")
    return Audio(path, recording_digest(path.read_bytes()), seconds)


def _is_cut_short(path: Path) -> bool:
    """Whether a wav holds less than its header promises; libsndfile would read what is left without a word."""
    with path.open("rb") as stream:
        header = stream.read(8)
    promised = int.from_bytes(header[4:], "little") + 8
    # Writers to a pipe cannot seek back and leave the largest size they know.
    return header[:4] == b"RIFF" and promised < 0x7FFF_F000 and promised > path.stat().st_size
