"""How far a set can be answered without its contexts and without a model: what a candidate's length, its words or its recording give away."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from s2sbench_callback.audit.measures import Measures
from s2sbench_callback.audit.texts import units
from s2sbench_callback.items import Audio, Benchmark, Item
from s2sbench_callback.significance import Estimate, proportion

_FOLDS = 10
_FEWEST_QUESTIONS = 2 * _FOLDS
_GIVES_AWAY = 0.05
_SURELY = 1.5


@dataclass(frozen=True)
class Baseline:
    """One way of guessing.

    Attributes:
        name: Of the rule by which it picks a candidate.
        accuracy: Share of (answer, other) comparisons that it wins, ties half, with its interval by question.
        works_backwards: Whether the opposite rule is a rule too: preferring the longer instead of the shorter.
    """

    name: str
    accuracy: Estimate
    works_backwards: bool

    @property
    def gives_away(self) -> bool:
        """Whether it is better than a guess by at least 0.05, and as surely as 99.7 %, since several ways are tried."""
        value, low, high = self.accuracy.value, self.accuracy.low, self.accuracy.high
        up = value >= 0.5 + _GIVES_AWAY and value - _SURELY * (value - low) > 0.5
        down = self.works_backwards and value <= 0.5 - _GIVES_AWAY and value + _SURELY * (high - value) < 0.5
        return up or down


def baselines(benchmark: Benchmark, measures: Mapping[Path, Measures]) -> list[Baseline]:
    """Every way of guessing that the set has material for.

    Args:
        benchmark: The questions.
        measures: Figures of their recordings, by path; those that are missing are not guessed from.
    """
    found: list[Baseline] = []
    written = [item for item in benchmark.items if item.has_texts]
    if written:
        found.append(_baseline("shorter candidate", written, lambda item, place: -len(item.candidates[place]), works_backwards=True))
        found.append(_baseline("candidate of more frequent words", written, _frequencies(benchmark), works_backwards=True))
    if len({item.group for item in written}) >= _FEWEST_QUESTIONS:
        scores = _n_gram_scores(benchmark, written)
        found.append(_baseline("words of the candidates alone", written, lambda item, place: scores[item.id][place], works_backwards=False))
    for words, recordings in (
        ("context", lambda item: [context.audio for context in item.contexts]),
        ("candidate", lambda item: list(item.candidate_audios)),
        ("story", lambda item: list(item.story_audios)),
    ):
        found += _from_recordings(words, benchmark, recordings, measures)
    return found


def _baseline(name: str, items: Sequence[Item], score: Callable[[Item, int], float], works_backwards: bool) -> Baseline:
    won, compared = [], []
    for item in items:
        scores = [score(item, place) for place in range(len(item.contexts))]
        others = [scores[place] for place in range(len(scores)) if place != item.answer]
        won.append(float(np.mean([(scores[item.answer] > other) + 0.5 * (scores[item.answer] == other) for other in others])))
        compared.append(float(len(others)))
    return Baseline(name, proportion(np.array(won), np.array(compared), [item.group for item in items]), works_backwards)


def _frequencies(benchmark: Benchmark) -> Callable[[Item, int], float]:
    """Mean logarithm of how often a candidate's words, or characters, occur in the other questions of the set."""
    language = benchmark.language
    own = {
        item.id: Counter(piece for text in {*(context.text for context in item.contexts), *item.candidates} for piece in units(text, language))
        for item in benchmark.items
    }
    everywhere: Counter[str] = Counter()
    for counts in own.values():
        everywhere.update(counts)

    def score(item: Item, place: int) -> float:
        pieces = units(item.candidates[place], language)
        return sum(math.log1p(everywhere[piece] - own[item.id][piece]) for piece in pieces) / max(1, len(pieces))

    return score


def _n_gram_scores(benchmark: Benchmark, items: Sequence[Item]) -> dict[str, list[float]]:
    """How much each candidate looks like an answer to a logistic regression over its one- and two-grams, fitted to other questions' candidates."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    texts = [candidate for item in items for candidate in item.candidates]
    answers = [place == item.answer for item in items for place in range(len(item.candidates))]
    # Folds keep questions together that are not independent, and are drawn: by their names alone, neighbours in the file would share one.
    drawn = np.random.default_rng(0).permutation(len(items)).tolist()
    numbers = {group: drawn[place] for place, group in enumerate(dict.fromkeys(item.group for item in items))}
    groups = [numbers[item.group] for item in items for _ in item.candidates]
    model = make_pipeline(
        CountVectorizer(analyzer=lambda text: _one_and_two_grams(units(text, benchmark.language)), binary=True),
        LogisticRegression(class_weight="balanced", max_iter=1_000),
    )
    scores = iter(cross_val_predict(model, texts, answers, groups=groups, cv=GroupKFold(_FOLDS), method="decision_function").tolist())
    return {item.id: [next(scores) for _ in item.candidates] for item in items}


def _one_and_two_grams(pieces: Sequence[str]) -> list[str]:
    return [*pieces, *(f"{one} {two}" for one, two in itertools.pairwise(pieces))]


def _from_recordings(
    words: str, benchmark: Benchmark, recordings: Callable[[Item], Sequence[Audio | None]], measures: Mapping[Path, Measures]
) -> list[Baseline]:
    """Guesses from length and level, where candidates have recordings that differ."""
    figures: dict[str, list[Measures]] = {}
    for item in benchmark.items:
        found = [measures.get(audio.path) for audio in recordings(item) if audio]
        whole = [figure for figure in found if figure]
        if len(whole) == len(item.contexts) and len({figure.samples_digest for figure in whole}) > 1:
            figures[item.id] = whole
    items = [item for item in benchmark.items if item.id in figures]
    if not items:
        return []
    return [
        _baseline(f"shorter {words} recording", items, lambda item, place: -figures[item.id][place].speech_seconds, works_backwards=True),
        _baseline(f"quieter {words} recording", items, lambda item, place: -_loudness(figures[item.id][place]), works_backwards=True),
    ]


def _loudness(figures: Measures) -> float:
    return figures.loudness_lufs if math.isfinite(figures.loudness_lufs) else -99.0
