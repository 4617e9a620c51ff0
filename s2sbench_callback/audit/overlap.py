"""What a set repeats: questions of its own, of other sets, and of the material that a model was trained on."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s2sbench_callback.audit.texts import grams, spoken_texts, units
from s2sbench_callback.items import Benchmark, Item, Language, recording_digest

_SHINGLE = 4
_ALIKE = 0.5
_MOST_SHARED = 50
_LEAK_GRAM: dict[Language, int] = {"en": 8, "zh": 13}
_LEAKED = 0.5
_AUDIO_ENDINGS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a")


@dataclass(frozen=True)
class Repeated:
    """Two questions that are one, or nearly.

    Attributes:
        first: Set and id of the one.
        second: Set and id of the other.
        likeness: Share of the runs of four words or characters of their contexts that they have in common; 1 for the same context.
    """

    first: tuple[str, str]
    second: tuple[str, str]
    likeness: float


@dataclass(frozen=True)
class Leak:
    """A question that occurs in training material.

    Attributes:
        item: Its id.
        share: Of the runs of 8 words, or 13 characters, of its context that the material has; 1 where its recording is in it.
        place: File and line where most of them stand.
        is_recording: Whether the recording itself is in the material.
    """

    item: str
    share: float
    place: str
    is_recording: bool = False


def repeated(benchmarks: Sequence[Benchmark]) -> list[Repeated]:
    """Pairs of questions whose contexts are alike, within a set and across sets.

    Sets ``<set>@<voice>`` of one name are one set in several voices: the same question of theirs is not held against itself.

    Args:
        benchmarks: Sets to look through.
    """
    shingles: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    texts: dict[tuple[str, str], str] = {}
    holders: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    for benchmark in benchmarks:
        for item in benchmark.items:
            key = (benchmark.name, item.id)
            texts[key] = " ".join(spoken_texts(item))
            pieces = units(texts[key], benchmark.language)
            # A context shorter than a run is compared as a whole.
            shingles[key] = set(grams(pieces, _SHINGLE)) or ({tuple(pieces)} if pieces else set())
            for shingle in shingles[key]:
                holders[shingle].append(key)
    common: Counter[tuple[tuple[str, str], tuple[str, str]]] = Counter()
    for keys in holders.values():
        # What stands in a great many questions is a manner of speaking, and comparing them all would take time without end.
        for place, one in enumerate(keys if len(keys) <= _MOST_SHARED else ()):
            for other in keys[:place]:
                common[other, one] += 1
    found = []
    for (one, other), shared in common.items():
        likeness = shared / len(shingles[one] | shingles[other])
        is_one_set = one[0] != other[0] and "@" in one[0] and one[0].rpartition("@")[0] == other[0].rpartition("@")[0]
        same_in_another_voice = is_one_set and one[1] == other[1] and texts[one] == texts[other]
        if likeness >= _ALIKE and not same_in_another_voice:
            found.append(Repeated(one, other, likeness))
    return sorted(found, key=lambda pair: -pair.likeness)


def leaks(benchmark: Benchmark, manifests: Sequence[Path], progress: Callable[[Iterator[tuple[str, str]]], Iterator[tuple[str, str]]]) -> list[Leak]:
    """Questions of which a training manifest has the text or the recording.

    Args:
        benchmark: The questions.
        manifests: Files of training material: JSON lines, of which every text counts (and every path of a recording is opened where it is as
            large as one of the set's), or plain lines, such as TSV, CSV and text.
        progress: Wraps the lines as they are read, to draw a bar.

    Returns:
        The questions of which at least half is in the material, or the recording.

    Raises:
        OSError: If a manifest cannot be read.
    """
    size = _LEAK_GRAM[benchmark.language]
    runs = {item.id: _runs(item, benchmark.language, size) for item in benchmark.items}
    holders: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, own in runs.items():
        for run in own:
            holders[run].append(name)
    # Short contexts have runs of their own length.
    sizes = sorted({len(run) for run in holders})
    found: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    places: dict[str, Counter[str]] = defaultdict(Counter)
    recordings = _recordings(benchmark)
    heard: dict[str, str] = {}
    lines = ((f"{path}, line {number}", line) for path in manifests for number, line in _lines(path))
    for place, line in progress(lines):
        texts = _texts(line)
        for text in texts:
            pieces = units(text, benchmark.language)
            for length in sizes:
                for run in grams(pieces, length):
                    for name in holders.get(run, ()):
                        found[name].add(run)
                        places[name][place] += 1
        for path in (Path(text) for text in texts if text.lower().endswith(_AUDIO_ENDINGS)):
            beside = path if path.is_absolute() else Path(place.rpartition(", line")[0]).parent / path
            if beside.is_file() and beside.stat().st_size in recordings:
                for name in recordings[beside.stat().st_size].get(recording_digest(beside.read_bytes()), ()):
                    heard.setdefault(name, place)
    leaked = [Leak(name, 1.0, place, is_recording=True) for name, place in heard.items()]
    for name, own in runs.items():
        if name not in heard and own and len(found[name]) >= _LEAKED * len(own):
            leaked.append(Leak(name, len(found[name]) / len(own), places[name].most_common(1)[0][0]))
    order = {item.id: place for place, item in enumerate(benchmark.items)}
    return sorted(leaked, key=lambda leak: order[leak.item])


def _runs(item: Item, language: Language, size: int) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for text in spoken_texts(item):
        pieces = units(text, language)
        found |= set(grams(pieces, size)) or ({tuple(pieces)} if len(pieces) >= size // 2 else set())
    return found


def _recordings(benchmark: Benchmark) -> dict[int, dict[str, list[str]]]:
    """Questions by size and digest of their recordings, so that few files of the material have to be opened."""
    found: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for item in benchmark.items:
        for audio in [*(context.audio for context in item.contexts), *item.candidate_audios, *item.story_audios]:
            if audio and item.id not in found[audio.path.stat().st_size][audio.digest]:
                found[audio.path.stat().st_size][audio.digest].append(item.id)
    return {size: dict(by_digest) for size, by_digest in found.items()}


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8", errors="replace") as stream:
        yield from enumerate(stream, start=1)


def _texts(line: str) -> list[str]:
    """Every text of a JSON object, or the line."""
    if line.lstrip().startswith(("{", "[")):
        try:
            return list(_inside(json.loads(line)))
        except json.JSONDecodeError:
            pass
    # Cells of a table one by one, so that a path among them is seen as one.
    return line.rstrip("\n").split("\t")


def _inside(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _inside(part)
