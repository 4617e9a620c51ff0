"""The audit of the sets that a YAML names: faults of their layout, figures of their recordings, what gives their answers away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tqdm.auto import tqdm

from s2sbench_callback.audit.baselines import Baseline, baselines
from s2sbench_callback.audit.findings import Spoken, misheard, of_recordings, of_repeated_recordings, of_texts, of_words, pace
from s2sbench_callback.audit.measures import Measures, measured
from s2sbench_callback.audit.overlap import Leak, Repeated, leaks, repeated
from s2sbench_callback.audit.pairs import ContextPair, context_pairs
from s2sbench_callback.audit.recogniser import Recogniser, error_rate, nearest
from s2sbench_callback.audit.workers import in_processes
from s2sbench_callback.benchmarks.faults import Fault, Faults
from s2sbench_callback.benchmarks.release_layout import SetContent, SetFiles, read_set, set_files
from s2sbench_callback.items import Benchmark, Item, Language

_WORST_FOLLOWED = 20
Value = TypeVar("Value")


@dataclass(frozen=True)
class RecordingAudit:
    """One recording: what it should say, its figures, and what a recogniser made of it."""

    spoken: Spoken
    measures: Measures
    pace: float
    error_rate: float | None = None
    heard: str | None = None


@dataclass
class SetAudit:
    """One set.

    Attributes:
        name: In the YAML.
        language: Its language, where its entry can be read.
        rows: Rows that can be read.
        benchmark: The questions that are whole; ``None`` where none is.
        faults: What keeps the set from being used.
        doubts: What may distort its figures.
        recordings: Its recordings, each file once.
        pairs: Recordings of the two contexts of a question.
        baselines: How far it is answered without contexts and model.
        leaks: Questions that training material has.
    """

    name: str
    language: Language | None = None
    rows: int = 0
    benchmark: Benchmark | None = None
    faults: list[Fault] = field(default_factory=list)
    doubts: list[Fault] = field(default_factory=list)
    recordings: list[RecordingAudit] = field(default_factory=list)
    pairs: list[ContextPair] = field(default_factory=list)
    baselines: list[Baseline] = field(default_factory=list)
    leaks: list[Leak] = field(default_factory=list)


@dataclass(frozen=True)
class Audit:
    """What was found in all of them.

    Attributes:
        path: The YAML.
        sets: One each.
        faults: Of the YAML itself.
        repeated: Questions that are alike, within a set or across sets.
    """

    path: Path
    sets: tuple[SetAudit, ...]
    faults: tuple[Fault, ...]
    repeated: tuple[Repeated, ...]

    @property
    def all_faults(self) -> list[Fault]:
        """Of the YAML and of every set."""
        return [*self.faults, *(fault for each in self.sets for fault in each.faults)]

    @property
    def all_doubts(self) -> list[Fault]:
        """Of every set."""
        return [doubt for each in self.sets for doubt in each.doubts]


def audit(
    path: Path,
    names: Sequence[str],
    root: Path | None = None,
    recogniser: Recogniser | None = None,
    manifests: Sequence[Path] = (),
    workers: int = 1,
    progress: bool = True,
    faults: Faults | None = None,
) -> Audit:
    """Audits sets in the release's layout, all faults in one pass.

    Args:
        path: The YAML that names them.
        names: Which of them.
        root: Folder, or archive, that the paths in the YAML start from; by default the YAML's own.
        recogniser: What to listen with; without one, words are not checked.
        manifests: Training material to look for the questions in.
        workers: Processes for the recordings, and threads for the recogniser.
        progress: Whether to draw bars.
        faults: Those of the YAML that were found already.

    Raises:
        OSError: If a manifest cannot be read.
    """
    sets = []
    for name in names:
        one = SetAudit(name)
        found = Faults(at_once=False)
        try:
            files = set_files(path, name, root, found)
            content = read_set(files, "identical", found) if files else None
        except ValueError as error:  # an archive that cannot be unpacked
            found.add("damaged_archive", str(path), str(error))
            files = content = None
        one.faults = found.found
        if files and content:
            _audit_set(one, files, content, recogniser, manifests, workers, progress)
        sets.append(one)
    alike = repeated([one.benchmark for one in sets if one.benchmark])
    for pair in alike:
        one = next(each for each in sets if each.name == pair.second[0])
        other = "" if pair.first[0] == pair.second[0] else f" of {pair.first[0]}"
        one.doubts.append(
            Fault("repeated_question", one.name, f"the context of {pair.second[1]} is that of {pair.first[1]}{other} to {pair.likeness:.0%}")
        )
    return Audit(path, tuple(sets), tuple(faults.found if faults else ()), tuple(alike))


def _audit_set(
    one: SetAudit, files: SetFiles, content: SetContent, recogniser: Recogniser | None, manifests: Sequence[Path], workers: int, progress: bool
) -> None:
    one.language, one.rows = files.language, len(content.rows)
    places = {row.uttid: row.place for row in content.rows}
    one.doubts += [
        Fault("different_contexts", row.place, f"the two rows of {row.uttid} have a different 'first'; each candidate is scored with its own")
        for row in content.different_contexts
    ]
    one.doubts += _orphans(files, content)
    if not content.items:
        return
    one.benchmark = benchmark = Benchmark(one.name, files.language, content.items, "win" if content.is_lettered else "lose")
    one.doubts += of_texts(benchmark, places)
    spoken = list(_spoken(benchmark, places))
    paths = list(dict.fromkeys(each.path for each in spoken))
    results = zip(paths, _bar(in_processes(measured, paths, workers), len(paths), f"{one.name}: measuring", progress), strict=True)
    measures = {path: figures for path, figures in results if isinstance(figures, Measures)}
    one.pairs = context_pairs(benchmark, measures, workers, lambda lines, total: _bar(lines, total, f"{one.name}: comparing pairs", progress))
    rates, heard = _listen(one.name, spoken, measures, recogniser, files.language, workers, progress)
    one.recordings = [
        RecordingAudit(each, measures[each.path], pace(each, measures[each.path], files.language), rates.get(each.path), heard.get(each.path))
        for each in spoken
        if each.path in measures
    ]
    for is_useless, finding in of_recordings(spoken, measures, files.language):
        (one.faults if is_useless else one.doubts).append(finding)
    one.doubts += of_words(spoken, rates, heard, _whose(spoken, rates, heard, files.language), files.language)
    one.doubts += of_repeated_recordings(spoken, measures)
    one.doubts += _of_pairs(one.pairs, places)
    one.baselines = baselines(benchmark, measures)
    one.doubts += [_gives_away(one.name, each) for each in one.baselines if each.gives_away]
    if manifests:
        one.leaks = leaks(benchmark, manifests, lambda lines: _bar(lines, None, f"{one.name}: looking for leaks", progress))
        one.doubts += [_leaked(leak, places) for leak in one.leaks]


def _of_pairs(pairs: Sequence[ContextPair], places: Mapping[str, str]) -> Iterator[Fault]:
    for pair in pairs:
        if pair.sameness == "other words":
            names = ", ".join(path.name for path in pair.paths)
            apart = f"their spectra are {pair.distance:.2f} apart, those of different questions mostly above {pair.usual_distance:.2f}"
            yield Fault(
                "pair_says_other_words", places[pair.item], f"the recordings of the two rows of {pair.item} differ in their words: {apart}: {names}"
            )


def _gives_away(name: str, each: Baseline) -> Fault:
    won = f"{each.accuracy.value:.3f} [{each.accuracy.low:.3f}, {each.accuracy.high:.3f}]"
    return Fault("gives_answers_away", name, f"without context and model, the {each.name} wins {won} of the comparisons; 0.5 would be a guess")


def _leaked(leak: Leak, places: Mapping[str, str]) -> Fault:
    what = "the recording" if leak.is_recording else f"{leak.share:.0%} of the context"
    return Fault("leaked", places[leak.item], f"{what} of {leak.item} is in the training material: {leak.place}")


def _spoken(benchmark: Benchmark, places: Mapping[str, str]) -> Iterator[Spoken]:
    """Every recording of a set, each file once, at the row whose it is: of a pair, also the second."""
    seen: set[Path] = set()
    for item in benchmark.items:
        for path, text, part in _of_item(item):
            if path not in seen:
                seen.add(path)
                yield Spoken(path, places.get(path.stem, places[item.id]), item.id, text, part)


def _of_item(item: Item) -> Iterator[tuple[Path, str, str]]:
    """File, what it should say, and which part of the question it is."""
    for context in item.contexts:
        if context.audio:
            yield context.audio.path, context.text, "context"
    for candidate, audio in zip(item.candidates, item.candidate_audios, strict=False):
        yield audio.path, candidate, "candidate"
    for context, candidate, audio in zip(item.contexts, item.candidates, item.story_audios, strict=False):
        yield audio.path, f"{context.text} {candidate}", "story"


def _orphans(files: SetFiles, content: SetContent) -> list[Fault]:
    """Recordings that belong to no row."""
    found = []
    for folder in files.folders.values():
        names = {name for row in content.rows for name in (row.uttid, *(f"{row.uttid}_{letter}" for letter in row.letters))}
        strays = sorted(path.name for path in folder.glob("*") if path.suffix.lower() in (".wav", ".flac") and path.stem not in names)
        if strays:
            more = f" and {len(strays) - 3} more" if len(strays) > 3 else ""
            found.append(Fault("orphan_recording", str(folder), f"{len(strays)} recordings belong to no row: {', '.join(strays[:3])}{more}"))
    return found


def _listen(
    name: str,
    spoken: Sequence[Spoken],
    measures: Mapping[Path, Measures],
    recogniser: Recogniser | None,
    language: Language,
    workers: int,
    progress: bool,
) -> tuple[dict[Path, float], dict[Path, str]]:
    """Error rate and words of each recording that has a text."""
    if recogniser is None:
        return {}, {}
    # Recordings of equal samples are heard once.
    asked = {measures[each.path].samples_digest: each for each in spoken if each.text and each.path in measures}
    with ThreadPoolExecutor(workers) as pool:
        texts = pool.map(lambda each: recogniser(each.path, language), asked.values())
        heard = dict(zip(asked, _bar(texts, len(asked), f"{name}: listening", progress), strict=True))
    words = {each.path: heard[measures[each.path].samples_digest] for each in spoken if each.text and each.path in measures}
    return {each.path: error_rate(each.text, words[each.path], language) for each in spoken if each.path in words}, words


def _whose(spoken: Sequence[Spoken], rates: Mapping[Path, float], heard: Mapping[Path, str], language: Language) -> dict[Path, str]:
    """For recordings far from their text, the question whose text they are, where there is one."""
    found: dict[Path, str] = {}
    for each in misheard(spoken, rates, language)[:_WORST_FOLLOWED]:
        others = [other for other in spoken if other.part == each.part and other.text and other.text != each.text]
        if others:
            other = others[nearest(heard[each.path], [other.text for other in others], language)]
            if error_rate(other.text, heard[each.path], language) < rates[each.path] / 2:
                found[each.path] = other.name
    return found


def _bar(values: Iterable[Value], total: int | None, text: str, progress: bool) -> Iterator[Value]:
    return iter(tqdm(values, total=total, desc=text, disable=not progress or total == 0, leave=False))
