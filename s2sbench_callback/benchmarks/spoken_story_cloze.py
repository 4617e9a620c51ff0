"""Reads the spoken Story Cloze sets of textless speech LMs, which come as folders of recordings without a table.

Two layouts are known. In the original one (sSC and tSC of TWIST) each wav holds a whole story, ``<number>.wav`` or
``<number>_<anything>.wav``: neighbours by number are a question, the even place right and the odd place wrong. In the other each question
has ``<name>_correct.wav`` and ``<name>_incorrect.wav``; with a ``<name>_mutual.wav`` these hold the endings and that the context, otherwise
whole stories; texts may stand beside them in files of the same names that end in ``.txt``. Either may be spread over sub-folders, one a
voice for example.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from s2sbench_callback.benchmarks.recordings import open_recording
from s2sbench_callback.items import Benchmark, Context, Item, Language

_READERS = 8
_RIGHT, _WRONG, _SHARED = "_correct", "_incorrect", "_mutual"


@dataclass(frozen=True)
class _Story:
    """Files of one question."""

    name: str
    endings: tuple[Path, Path]
    context: Path | None = None


def spoken_story_cloze(folder: str | Path, set_name: str = "spoken-storycloze", language: Language = "en") -> Benchmark:
    """Reads a folder of spoken stories, right and wrong, for S→S (and for what else its files allow).

    Every recording is checked here, so that a fault shows before training starts.

    Args:
        folder: Where the recordings are.
        set_name: ``<set>`` in the metric keys.
        language: Language of the texts, where there are any.

    Returns:
        The benchmark; a tie loses. Where a wav holds a whole story, the whole story is scored, as TWIST's own evaluation does.

    Raises:
        FileNotFoundError: If the folder has no recordings, or a question lacks one.
        ValueError: If the names do not pair up or a recording is damaged.
    """
    base = Path(folder)
    places = [base, *sorted(path for path in base.iterdir() if path.is_dir())] if base.is_dir() else []
    stories = [story for place in places for story in _stories(place, "" if place == base else f"{place.name}/")]
    if not stories:
        raise FileNotFoundError(f"{base} has no recordings; it should hold <number>.wav, or <name>_correct.wav and <name>_incorrect.wav")
    with ThreadPoolExecutor(_READERS) as pool:
        items = list(pool.map(_item, stories))
    return Benchmark(set_name, language, tuple(items))


def _stories(folder: Path, prefix: str) -> list[_Story]:
    recordings = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".wav"} if folder.is_dir() else {}
    named = [stem.removesuffix(_RIGHT) for stem in recordings if stem.endswith(_RIGHT)]
    if named:
        taken = {f"{name}{part}" for name in named for part in (_RIGHT, _WRONG, _SHARED)}
        orphans = sorted(recordings.keys() - taken)
        if orphans:
            raise ValueError(f"{recordings[orphans[0]]}: belongs to no question; there is no {orphans[0].rpartition('_')[0]}{_RIGHT}.wav")
        shared = [name for name in named if f"{name}{_SHARED}" in recordings]
        if shared and len(shared) < len(named):
            lacking = next(name for name in named if name not in shared)
            raise FileNotFoundError(f"{folder / lacking}{_SHARED}.wav is missing, though other questions have such a context")
        return [
            _Story(
                f"{prefix}{name}",
                (recordings[f"{name}{_RIGHT}"], recordings.get(f"{name}{_WRONG}", folder / f"{name}{_WRONG}.wav")),
                recordings.get(f"{name}{_SHARED}"),
            )
            for name in named
        ]
    return [_Story(f"{prefix}{right.stem}", (right, wrong)) for right, wrong in _pairs(folder, list(recordings.values()))]


def _pairs(folder: Path, recordings: Sequence[Path]) -> list[tuple[Path, Path]]:
    for path in recordings:
        if not path.stem.split("_")[0].isdecimal():
            raise ValueError(
                f"{path}: the name of a whole story must begin with its number (<number>.wav or <number>_<anything>.wav), or end in _correct "
                "or _incorrect"
            )
    ordered = sorted(recordings, key=_number)
    for before, after in itertools.pairwise(ordered):
        if _number(before) == _number(after):
            raise ValueError(f"{after}: has the same number as {before.name}, so which of them is right cannot be told")
    if len(ordered) % 2:
        raise ValueError(f"{folder}: {len(ordered)} recordings do not make pairs of a right and a wrong story")
    for right, wrong in zip(ordered[::2], ordered[1::2], strict=True):
        if _number(wrong) != _number(right) + 1:
            raise ValueError(f"{right}: has no partner; there is no recording with the number {_number(right) + 1}")
    return list(zip(ordered[::2], ordered[1::2], strict=True))


def _number(path: Path) -> int:
    return int(path.stem.split("_")[0])


def _item(story: _Story) -> Item:
    endings = tuple(open_recording(path, f"question {story.name!r}: the recording") for path in story.endings)
    texts = tuple(_text(path) for path in story.endings)
    if story.context is None:
        return Item(story.name, (Context(""),) * 2, ("", ""), 0, story_audios=endings)
    context = Context(_text(story.context), open_recording(story.context, f"question {story.name!r}: the context"))
    return Item(story.name, (context,) * 2, texts if all(texts) else ("", ""), 0, candidate_audios=endings)


def _text(recording: Path) -> str:
    path = recording.with_suffix(".txt")
    return path.read_text(encoding="utf-8-sig").strip() if path.is_file() else ""
