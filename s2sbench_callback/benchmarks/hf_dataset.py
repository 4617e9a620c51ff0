"""Reads a folder of Hugging Face ``datasets`` with, or without, a column of recordings."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s2sbench_callback.benchmarks.recordings import open_recording
from s2sbench_callback.cache import cache_folder
from s2sbench_callback.items import Audio, Benchmark, Context, Item, Language, TieRule, recording_digest

if TYPE_CHECKING:
    from datasets import Dataset

_LETTERS = "ABCDEFGHIJ"
_CONTEXTS = ("first", "context", "premise", "ctx", "question", "text")
_CANDIDATES = ("candidates", "choices", "endings", "options")
_ANSWERS = ("answer", "label", "answerKey", "gold")


def hf_dataset(
    folder: str | Path,
    language: Language = "en",
    split: str | None = None,
    context: str | None = None,
    candidates: str | Sequence[str] | None = None,
    answer: str | None = None,
    audio: str | None = None,
    item_id: str | None = None,
    group: str | None = None,
    tie_rule: TieRule = "lose",
    set_name: str | None = None,
    cache_dir: str | Path | None = None,
) -> Benchmark:
    """Reads questions from what ``Dataset.save_to_disk`` has written, or from a folder of Parquet files or of audio files with ``metadata.csv``.

    Nothing is downloaded. Without a column of recordings T→T alone can be asked of the set; ``s2sbench speak`` makes recordings of sets in other
    layouts.

    Example::

        hf_dataset("/data/spoken_copa", context="premise", candidates=["choice1", "choice2"], answer="label", audio="premise_audio")

    Args:
        folder: The folder.
        language: Of the texts.
        split: Which part; may be left out where there is one.
        context: Column of the written context; by default one of ``first``, ``context``, ``premise``, ``ctx``, ``question``, ``text``.
        candidates: Column of a list of candidates, by default one of ``candidates``, ``choices``, ``endings``, ``options``; or their columns one by
            one, by default ``A``, ``B``, ….
        answer: Column of the right one, by default one of ``answer``, ``label``, ``answerKey``, ``gold``: its number from 0, its letter, its
            column, or its text.
        audio: Column of the spoken contexts; by default the one whose feature is ``Audio``.
        item_id: Column of the questions' names; by default their number.
        group: Column of what makes questions depend on each other.
        tie_rule: Whether the answer loses or wins a comparison of equal losses.
        set_name: ``<set>`` in the metric keys; by default the folder's name.
        cache_dir: Where recordings that stand inside the files are kept; by default below the user's cache folder.

    Raises:
        FileNotFoundError: If there is no such folder.
        ModuleNotFoundError: If ``datasets`` is not installed.
        ValueError: If columns are missing or ambiguous, or a row is faulty; the message names folder, row and reason.
    """
    path = Path(folder)
    rows = _opened(path, split)
    columns = list(rows.column_names)
    spoken = _audio_column(path, rows, audio)
    written = _column(path, columns, context, _CONTEXTS, "context")
    listed = _candidate_columns(path, columns, candidates)
    answers = _column(path, columns, answer, _ANSWERS, "answer")
    for name in (item_id, group):
        if name is not None and name not in columns:
            raise ValueError(f"{path}: there is no column {name!r}; it has {', '.join(columns)}")
    if spoken:
        from datasets import Audio as AudioFeature

        # The bytes as they are: decoding is for whoever listens.
        rows = rows.cast_column(spoken, AudioFeature(decode=False))
    kept = cache_folder(cache_dir) / "datasets"
    items = []
    for number, row in enumerate(rows):
        place = f"{path}, row {number}"
        texts = _candidates(place, row, listed)
        right = _answer(place, row[answers], texts, listed)
        heard = _recording(place, row[spoken], path, kept) if spoken else None
        try:
            asked = Context(str(row[written]), heard)
            name = str(row[item_id]) if item_id else str(number)
            items.append(Item(name, (asked,) * len(texts), texts, right, group=str(row[group]) if group else ""))
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
    return Benchmark(set_name or path.name, language, tuple(items), tie_rule)


def _opened(path: Path, split: str | None) -> Dataset:
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder")
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("reading this folder needs datasets: pip install 's2sbench_callback[datasets]'", name="datasets") from error
    home = path / split if split and (path / split).is_dir() else path
    if metadata := [each for each in (home / "metadata.csv", home / "metadata.jsonl") if each.is_file()]:
        # Not as an AudioFolder, for which the library wants a decoder although nothing is decoded.
        kind = "csv" if metadata[0].suffix == ".csv" else "json"
        table = datasets.load_dataset(kind, data_files=str(metadata[0]), split="train")
        if "file_name" not in table.column_names:
            raise ValueError(f"{metadata[0]}: there is no column 'file_name'; it has {', '.join(table.column_names)}")
        files = [{"bytes": None, "path": str(home / name)} for name in table["file_name"]]
        return table.remove_columns("file_name").add_column("audio", files).cast_column("audio", datasets.Audio(decode=False))
    is_saved = (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file()
    try:
        found = datasets.load_from_disk(str(path)) if is_saved else datasets.load_dataset(str(path))
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(f"{path} cannot be opened as a folder of datasets: {error.__cause__ or error}") from error
    if isinstance(found, datasets.Dataset):
        if split is not None and str(found.split) != split:
            raise ValueError(f"{path} holds one part, {found.split}, and no split {split!r}")
        return found
    if split is None and len(found) > 1:
        raise ValueError(f"{path} has several parts; choose one of {', '.join(map(str, found))} with split=")
    if split is not None and split not in found:
        raise ValueError(f"{path}: there is no split {split!r}; there are {', '.join(map(str, found))}")
    return found[split] if split is not None else next(iter(found.values()))


def _column(path: Path, columns: Sequence[str], wanted: str | None, usual: Sequence[str], what: str) -> str:
    if wanted is not None:
        if wanted not in columns:
            raise ValueError(f"{path}: there is no column {wanted!r}; it has {', '.join(columns)}")
        return wanted
    found = [name for name in usual if name in columns]
    if len(found) != 1:
        several = f"{' and '.join(found)} may be it" if found else f"none of {', '.join(usual)} is there"
        raise ValueError(f"{path}: name the column of the {what} with {what}=; {several}, and it has {', '.join(columns)}")
    return found[0]


def _candidate_columns(path: Path, columns: Sequence[str], wanted: str | Sequence[str] | None) -> list[str]:
    if isinstance(wanted, str):
        return [_column(path, columns, wanted, (), "candidates")]
    if wanted is not None:
        return [_column(path, columns, name, (), "candidates") for name in wanted]
    lettered = [letter for letter in _LETTERS if letter in columns]
    return lettered if len(lettered) > 1 else [_column(path, columns, None, _CANDIDATES, "candidates")]


def _audio_column(path: Path, rows: Dataset, wanted: str | None) -> str | None:
    import datasets

    found = [name for name, feature in rows.features.items() if isinstance(feature, datasets.Audio)]
    if wanted is not None:
        if wanted not in found:
            raise ValueError(f"{path}: {wanted!r} is no column of recordings; of the type Audio are {', '.join(found) or 'none'}")
        return wanted
    if len(found) > 1:
        raise ValueError(f"{path}: name the column of the spoken contexts with audio=; {' and '.join(found)} may be it")
    if not found:
        warnings.warn(f"{path} has no column of recordings, so it is asked in T→T alone", stacklevel=4)
    return found[0] if found else None


def _candidates(place: str, row: Mapping[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    values = [row[name] for name in columns] if len(columns) > 1 else row[columns[0]]
    # As ARC and its like keep them.
    values = values.get("text", values) if isinstance(values, dict) else values
    # Questions with fewer options than others leave the last columns empty.
    texts = [value for value in values if value is not None] if isinstance(values, list) else None
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{place}: {', '.join(columns)} must hold texts, got {values!r}")
    return tuple(texts)


def _answer(place: str, value: Any, texts: Sequence[str], columns: Sequence[str]) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(texts):
        return value
    if isinstance(value, str):
        names = list(columns) if len(columns) > 1 else list(_LETTERS)
        for known in (names[: len(texts)], [str(number) for number in range(len(texts))], list(texts)):
            if known.count(value) == 1:
                return known.index(value)
    raise ValueError(f"{place}: answer {value!r} is neither number, letter, column nor text of one of {len(texts)} candidates")


def _recording(place: str, value: Mapping[str, Any] | None, folder: Path, kept: Path) -> Audio:
    """The file itself, or its bytes as a file of the cache."""
    if not value or not (value.get("bytes") or value.get("path")):
        raise ValueError(f"{place}: there is no recording")
    content = value.get("bytes")
    path = Path(value["path"]) if value.get("path") else None
    if content is None:
        assert path is not None  # one of the two is there
        return open_recording(path if path.is_absolute() else folder / path, f"{place}: the recording")
    ending = path.suffix if path and path.suffix else ".wav"
    name = recording_digest(content)
    target = kept / name[:2] / f"{name}{ending}"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
        temporary.write_bytes(content)
        temporary.replace(target)
    return open_recording(target, f"{place}: the recording")
