"""What is doubtful about a set's recordings and texts: from figures to sentences."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from s2sbench_callback.audit.measures import SILENT_DBFS, Measures
from s2sbench_callback.audit.texts import units
from s2sbench_callback.benchmarks.faults import Fault
from s2sbench_callback.items import Benchmark, Language

LOWEST_RATE_HZ = 16_000
_NARROWEST_HZ = 6_500
_CLIPPED_SHARE = 5e-4
_LONGEST_SILENCE_SECONDS = 1.0
_CUT_OFF_DB = -20.0
_LEVEL_DB = 6.0
_QUIETEST_LUFS, _LOUDEST_LUFS = -40.0, -9.0
_PACE = 1.3
_DEVIATIONS = 6.0
_MISHEARD = 0.3
_UNINTELLIGIBLE = 0.6
_FEWEST_EDITS = 4


@dataclass(frozen=True)
class Spoken:
    """A recording with what it should say.

    Attributes:
        path: The file.
        place: File and row, or file, for messages.
        name: Of the question, and of the candidate where it is one's.
        text: What it should say; empty where that is unknown.
        part: ``context``, ``candidate`` or ``story``.
    """

    path: Path
    place: str
    name: str
    text: str
    part: str


def pace(spoken: Spoken, measures: Measures, language: Language) -> float:
    """Words, in Chinese characters, a second of speech; NaN where text or speech is missing."""
    pieces = len(units(spoken.text, language))
    return pieces / measures.speech_seconds if pieces and measures.speech_seconds > 0 else math.nan


def of_recordings(spoken: Sequence[Spoken], measures: Mapping[Path, Measures], language: Language) -> Iterator[tuple[bool, Fault]]:
    """What is wrong or doubtful about single recordings.

    Args:
        spoken: The recordings of one set.
        measures: Their figures, by path.
        language: Of the set.

    Yields:
        Whether the recording is useless, and what is the matter with it.
    """
    heard = [(each, measures[each.path]) for each in spoken if each.path in measures]
    rates = statistics.mode(figures.sample_rate for _, figures in heard) if heard else 0
    usual_level = _median(figures.loudness_lufs for _, figures in heard)
    paces = {part: [pace(each, figures, language) for each, figures in heard if each.part == part] for part in ("context", "candidate", "story")}
    for each, figures in heard:
        found = _of_one(figures, rates, usual_level) if figures.peak_dbfs > SILENT_DBFS else [(True, "silent", "is silent throughout")]
        if not figures.is_finite:
            found.insert(0, (True, "not_finite", "has samples that are NaN or infinite"))
        odd = _odd_pace(pace(each, figures, language), paces[each.part], language)
        if odd and figures.peak_dbfs > SILENT_DBFS:
            found.append((False, "odd_pace", odd))
        yield from ((useless, Fault(kind, each.place, f"{each.path.name}, {each.part} of {each.name}, {reason}")) for useless, kind, reason in found)


def _of_one(figures: Measures, usual_rate: int, usual_level: float) -> list[tuple[bool, str, str]]:
    found: list[tuple[bool, str, str]] = []

    def doubt(kind: str, reason: str) -> None:
        found.append((False, kind, reason))

    if figures.channels > 1:
        doubt("not_mono", f"has {figures.channels} channels, which are averaged")
    if figures.sample_rate < LOWEST_RATE_HZ:
        doubt("low_sample_rate", f"is sampled at {figures.sample_rate:,} Hz; speech models hear up to 8 kHz, for which it takes 16,000 Hz")
    elif figures.bandwidth_hz < _NARROWEST_HZ:
        doubt(
            "narrow_band",
            f"has nothing above {figures.bandwidth_hz:,.0f} Hz, as if it had been recorded at a lower rate than {figures.sample_rate:,} Hz",
        )
    if figures.sample_rate != usual_rate:
        doubt("other_sample_rate", f"is sampled at {figures.sample_rate:,} Hz, most others of the set at {usual_rate:,} Hz")
    if figures.clipped_share > _CLIPPED_SHARE:
        doubt("clipped", f"is clipped: {figures.clipped_share:.2%} of its samples lie in flat tops")
    if figures.silence_before_seconds > _LONGEST_SILENCE_SECONDS:
        doubt("silence_before", f"begins with {figures.silence_before_seconds:.1f} s of silence")
    if figures.silence_after_seconds > _LONGEST_SILENCE_SECONDS:
        doubt("silence_after", f"ends with {figures.silence_after_seconds:.1f} s of silence")
    if figures.last_db > _CUT_OFF_DB:
        doubt("cut_off", "ends in the middle of speech")
    level = figures.loudness_lufs
    if not math.isnan(level) and not _QUIETEST_LUFS <= level <= _LOUDEST_LUFS:
        doubt("odd_level", f"has a loudness of {level:.1f} LUFS; {_QUIETEST_LUFS:.0f} to {_LOUDEST_LUFS:.0f} is usual for speech")
    elif math.isfinite(level) and abs(level - usual_level) > _LEVEL_DB:
        doubt("odd_level", f"has a loudness of {level:.1f} LUFS, the set's median is {usual_level:.1f}")
    return found


def _odd_pace(own: float, all_of_them: Sequence[float], language: Language) -> str:
    """Why a pace is out of the ordinary, as it is where a header states a wrong sample rate, speech is cut short, or a text is another's."""
    usual = _median(all_of_them)
    if not math.isfinite(own) or not math.isfinite(usual):
        return ""
    spread = 1.4826 * _median(abs(math.log(each / usual)) for each in all_of_them if each > 0)
    if abs(math.log(own / usual)) <= max(math.log(_PACE), _DEVIATIONS * spread):
        return ""
    unit = "words" if language == "en" else "characters"
    return (
        f"has {own:.1f} {unit} of its text a second, the set's median is {usual:.1f}: cut short, another text, or a wrong sample rate in its header?"
    )


def of_words(
    spoken: Sequence[Spoken], rates: Mapping[Path, float], heard: Mapping[Path, str], nearest: Mapping[Path, str], language: Language
) -> Iterator[Fault]:
    """Recordings that say something else than their text.

    Args:
        spoken: The recordings.
        rates: Error rate of each that was recognised.
        heard: What was heard.
        nearest: For those that are far from their text, whose text is nearest, where it is another's.
        language: Of the set.
    """
    usual = _median(rates.values())
    if rates and usual > _UNINTELLIGIBLE:
        reason = f"the recogniser hears something else nearly everywhere (median error rate {usual:.2f}): does it know the language, is this speech?"
        yield Fault("unintelligible", str(spoken[0].path.parent), reason)
        return
    for each in misheard(spoken, rates, language):
        whose = f", which is the text of {nearest[each.path]}" if each.path in nearest else ""
        far = f"error rate {rates[each.path]:.2f}, the set's median is {usual:.2f}"
        said = f"{each.path.name}, {each.part} of {each.name}, says something else ({far}): {heard[each.path][:120]!r}{whose}"
        yield Fault("text_mismatch", each.place, said)


def misheard(spoken: Sequence[Spoken], rates: Mapping[Path, float], language: Language) -> list[Spoken]:
    """Recordings that are much farther from their text than what the recogniser makes of the set otherwise."""
    known = sorted(rates.values())
    if not known:
        return []
    quarter, usual = (known[round(share * (len(known) - 1))] for share in (0.25, 0.5))
    # The better half tells how much the recogniser errs: the other may be what is looked for.
    limit = usual + max(_MISHEARD, _DEVIATIONS * 2 * (usual - quarter) / 1.349)
    found = [each for each in spoken if rates.get(each.path, 0.0) > limit]
    # In a text of a few words, one or two misheard ones are a large share.
    return [each for each in found if rates[each.path] * len(units(each.text, language)) >= _FEWEST_EDITS]


def of_repeated_recordings(spoken: Sequence[Spoken], measures: Mapping[Path, Measures]) -> Iterator[Fault]:
    """Recordings that two questions with other texts share."""
    by_samples: dict[str, list[Spoken]] = defaultdict(list)
    for each in spoken:
        if each.path in measures and measures[each.path].peak_dbfs > SILENT_DBFS:
            by_samples[measures[each.path].samples_digest].append(each)
    for same in by_samples.values():
        first = same[0]
        for other in same[1:]:
            if other.text != first.text:
                said = f"{other.path.name}, {other.part} of {other.name}, is the recording of {first.name} too, whose text is another: {first.place}"
                yield Fault("one_recording_two_texts", other.place, said)


def of_texts(benchmark: Benchmark, places: Mapping[str, str]) -> Iterator[Fault]:
    """What is doubtful about the texts of a set, and about the order of its answers.

    Args:
        benchmark: The questions.
        places: File and row of each, by its id.
    """
    for item in benchmark.items:
        texts = [text for text in dict.fromkeys((*(context.text for context in item.contexts), *item.candidates)) if text]
        for text in texts:
            if text != text.strip() or "\n" in text:
                yield Fault("stray_space", places[item.id], f"a text of {item.id} has blanks or line breaks at its ends or inside: {text[:60]!r}")
            if any(mark in text for mark in ("<", ">", "&amp;", "&quot;", "\ufffd", "http://", "https://")):
                yield Fault(
                    "markup", places[item.id], f"a text of {item.id} has markup or broken characters, which are scored and spoken: {text[:60]!r}"
                )
        contexts = list(dict.fromkeys(context.text for context in item.contexts))
        if any(_is_of_another_language(text, benchmark.language) for text in (*contexts, " ".join(texts))):
            yield Fault("other_language", places[item.id], f"the texts of {item.id} do not look like {benchmark.language!r}: {texts[0][:60]!r}")
    letters_of = [item.answer for item in benchmark.items]
    # In a story set the place says nothing: the right ending is always the first.
    if max(letters_of) > 0 or any(len(item.candidates) > 2 for item in benchmark.items):
        most = statistics.mode(letters_of)
        share = letters_of.count(most) / len(letters_of)
        if len(letters_of) >= 20 and share > 0.5 and len(benchmark.items[0].candidates) > 2:
            yield Fault("answers_in_one_place", places[benchmark.items[0].id], f"{share:.0%} of the answers are {'ABCDEFGHIJ'[most]}")


def _is_of_another_language(text: str, language: Language) -> bool:
    letters = [letter for letter in text if letter.isalpha()]
    hanzi = sum("\u4e00" <= letter <= "\u9fff" for letter in letters)
    return bool(letters) and (hanzi > 0.2 * len(letters) if language == "en" else hanzi < 0.5 * len(letters))


def _median(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.median(finite) if finite else math.nan
