"""Several voices of one set: figures over them, voices in turn, and T→T that is scored once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import yaml
from scipy import stats

from s2sbench_callback.benchmarks import in_turns, official
from s2sbench_callback.isolation import isolated
from s2sbench_callback.items import Audio, Benchmark, Context, Item
from s2sbench_callback.live_model import LiveModel
from s2sbench_callback.metrics import accuracy_difference
from s2sbench_callback.mini_world.model import MiniSpeechLM
from s2sbench_callback.mini_world.pretraining import mini_adapter
from s2sbench_callback.probe import Probe
from s2sbench_callback.ranks import Ranks
from s2sbench_callback.report import build_report
from s2sbench_callback.scoring import LossTable, Questions, Scorer
from s2sbench_callback.voice_figures import across_voices
from s2sbench_callback.voices import rotating, sets_in_voices

QUESTIONS = 60


def benchmark(name: str, questions: int = QUESTIONS) -> Benchmark:
    def context(index: int) -> Context:
        return Context(f"Context {index}.", Audio(Path(f"{name}-{index}.wav"), f"{name}-{index}", 1.0))

    return Benchmark(name, "en", tuple(Item(str(index), (context(index),) * 2, ("Right.", "Wrong."), 0) for index in range(questions)))


def table(right: np.ndarray) -> LossTable:
    """Losses in which the answer wins where ``right`` says so."""
    nats = np.stack([np.where(right, 1.0, 2.0), np.where(right, 2.0, 1.0)], axis=1)
    names = tuple(str(index) for index in range(len(right)))
    return LossTable(names, names, np.zeros(len(right), dtype=np.int64), nats, np.ones_like(nats, dtype=np.int64))


def answers(share: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(QUESTIONS) < share


def test_figures_over_voices_equal_a_two_way_analysis_of_variance() -> None:
    """Mean, interval and deviation, from the mean squares of a textbook."""
    heard = np.stack([answers(0.5, 0), answers(0.7, 1), answers(0.8, 2), answers(0.9, 3)]).astype(float)
    tables = [{"s2t": table(row > 0)} for row in heard]
    figures = across_voices(benchmark("mine@a"), tables, None)
    voices, questions = heard.shape
    grand = heard.mean()
    of_voices = questions * ((heard.mean(1) - grand) ** 2).sum() / (voices - 1)
    of_questions = voices * ((heard.mean(0) - grand) ** 2).sum() / (questions - 1)
    rest = ((heard - heard.mean(1)[:, None] - heard.mean(0) + grand) ** 2).sum() / ((voices - 1) * (questions - 1))
    accuracy = figures["s2t/accuracy"]
    assert accuracy.value == pytest.approx(grand)
    error = np.sqrt((of_voices + of_questions - rest) / (voices * questions))
    # Degrees of freedom of that sum of mean squares by Satterthwaite.
    squares = of_voices**2 / (voices - 1) + of_questions**2 / (questions - 1) + rest**2 / ((voices - 1) * (questions - 1))
    freedom = (of_voices + of_questions - rest) ** 2 / squares
    low = grand - stats.t.isf(0.025, freedom) * error
    assert accuracy.low == pytest.approx(low, abs=0.03)
    assert figures["voice_deviation"] == pytest.approx(np.sqrt(max(0.0, (of_voices - rest) / questions)), rel=1e-6)
    assert figures["voice_range"] == pytest.approx(heard.mean(1).max() - heard.mean(1).min())
    assert figures["voices"] == 4


def test_voices_that_differ_by_chance_alone_have_no_deviation_on_average() -> None:
    """The range of four equal voices is well above 0; the deviation corrects for that."""
    found = []
    for seed in range(40):
        tables = [{"s2t": table(answers(0.7, 1_000 * seed + voice))} for voice in range(4)]
        found.append(across_voices(benchmark("mine@a"), tables, None))
    assert np.mean([each["voice_range"] for each in found]) > 0.08
    assert np.mean([each["voice_deviation"] ** 2 for each in found]) < 0.05**2


def test_a_report_has_the_set_and_its_voices_and_counts_it_once_in_the_mean() -> None:
    sets = {name: benchmark(name) for name in ("mine@a", "mine@b", "other")}
    read = table(answers(0.95, 9))
    tables = {name: {"s2t": table(answers(0.7, seed)), "t2t": read} for seed, name in enumerate(sets)}
    report = build_report(sets, tables, {"mine@a": read}, 100, None, {}, {})
    figure = {
        key: report.figure("mine", None, key).value for key in ("degradation", "intelligence_loss", "t2t_change", "ability_lost", "voice_range")
    }
    each = [report.figure(f"mine@{voice}", "s2t", "accuracy").value for voice in "ab"]
    whole = report.figure("mine", "s2t", "accuracy").value
    assert whole == pytest.approx(np.mean(each))
    assert figure["voice_range"] == pytest.approx(abs(each[0] - each[1]))
    assert figure["degradation"] == figure["intelligence_loss"] == pytest.approx(report.figure("mine", "t2t", "accuracy").value - whole)
    assert figure["t2t_change"] == 0
    assert figure["ability_lost"] == pytest.approx(figure["degradation"] / (report.figure("mine", "t2t", "accuracy").value - 0.5))
    other = report.figure("other", "s2t", "accuracy").value
    assert report.figure("mean", "s2t", "accuracy").value == pytest.approx((whole + other) / 2)
    assert list(report.sets) == ["mine@a", "mine@b", "other"]


@pytest.mark.parametrize(("heard", "exceeds"), [(0.5, 1.0), (0.9, 0.0)])
def test_whether_the_degradation_exceeds_the_voices(heard: float, exceeds: float) -> None:
    questions = np.arange(QUESTIONS)
    voices = [questions < heard * QUESTIONS, questions < (heard + 0.05) * QUESTIONS, questions < (heard + 0.02) * QUESTIONS]
    sets = {f"mine@{number}": benchmark(f"mine@{number}") for number in range(3)}
    tables = {name: {"s2t": table(voice), "t2t": table(questions < 0.95 * QUESTIONS)} for name, voice in zip(sets, voices, strict=True)}
    assert build_report(sets, tables, {}, 0, None, {}, {}).metrics["s2sbench/mine/degradation_exceeds_voices"] == exceeds


def test_voices_in_turn() -> None:
    """Each question in one voice, and each voice by its own questions."""
    turned = rotating([benchmark("mine@a"), benchmark("mine@b"), benchmark("mine@c")], "mine")
    assert [item.voice for item in turned.items[:5]] == ["a", "b", "c", "a", "b"]
    assert [str(item.contexts[0].audio.path) for item in turned.items[:3] if item.contexts[0].audio] == [
        "mine@a-0.wav",
        "mine@b-1.wav",
        "mine@c-2.wav",
    ]
    right = np.arange(QUESTIONS) % 3 == 0  # voice a is always right, the others never
    read = table(np.ones(QUESTIONS, dtype=bool))
    report = build_report({"mine": turned}, {"mine": {"s2t": table(right), "t2t": read}}, {}, 0, None, {}, {})
    assert [report.metrics[f"s2sbench/mine@{voice}/s2t/accuracy"] for voice in "abc"] == [1.0, 0.0, 0.0]
    assert report.metrics["s2sbench/mine/voice_range"] == 1.0
    assert report.metrics["s2sbench/mine/voice_deviation"] == pytest.approx(np.std([1.0, 0.0, 0.0], ddof=1))
    assert report.metrics["s2sbench/mine/degradation_exceeds_voices"] == 0.0
    assert report.figure("mine", None, "degradation") == accuracy_difference(read, table(right), "lose")
    assert "mean" not in {key.split("/")[1] for key in report.metrics if "@" in key}


def test_what_is_read_alike_is_scored_once(mini_set: Benchmark, tiny_speech_lm: MiniSpeechLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two voices S→T is scored twice and T→T once, with the figures that each has alone."""
    scored: list[tuple[str, str]] = []
    score = Scorer.score

    def remembered(self: Scorer, live: LiveModel, asked: Questions, *rest: Any) -> LossTable:
        scored.append((asked.benchmark.name, asked.condition))
        return score(self, live, asked, *rest)

    monkeypatch.setattr(Scorer, "score", remembered)
    # The other voice says every question with the recording of the next.
    contexts = [item.contexts[0].audio for item in mini_set.items]
    turned = tuple(
        replace(item, contexts=(Context(item.contexts[0].text, audio),) * 2)
        for item, audio in zip(mini_set.items, [*contexts[1:], contexts[0]], strict=True)
    )
    voices = [replace(mini_set, name="mini@a"), replace(mini_set, name="mini@b", items=turned)]
    with isolated(tiny_speech_lm):
        live = LiveModel(tiny_speech_lm, tiny_speech_lm, torch.device("cpu"))
        together = Probe(voices)
        for _ in range(2):
            tables = together.run(mini_adapter(), live, Ranks())
        alone = {voice.name: Probe([voice]).run(mini_adapter(), live, Ranks())[voice.name] for voice in voices}
    expected = [("mini@a", "s2t"), ("mini@a", "t2t"), ("mini@b", "s2t")]
    assert scored[:6] == expected * 2
    assert list(tables["mini@b"]) == ["s2t", "t2t"]
    for name, of_set in alone.items():
        for condition, table in of_set.items():
            np.testing.assert_allclose(tables[name][condition].nats, table.nats, atol=1e-4)
    assert not np.allclose(tables["mini@a"]["s2t"].nats, tables["mini@b"]["s2t"].nats)


def test_sets_are_one_in_several_voices_only_where_they_ask_the_same() -> None:
    a, b = benchmark("mine@a"), benchmark("mine@b")
    other = replace(b, items=b.items[1:])
    assert sets_in_voices({"mine@a": a, "mine@b": b, "single@x": benchmark("single@x")}) == {"mine": ["mine@a", "mine@b"]}
    assert sets_in_voices({"mine@a": a, "mine@b": other}) == {}
    with pytest.raises(ValueError, match="mine@b and mine@a do not ask the same questions"):
        rotating([a, other], "mine")


def test_in_turns_reads_the_voices_of_a_yaml(tmp_path: Path) -> None:
    rows = "\n".join(f'{{"uttid": {n}, "first": "Story {n // 2}.", "last": "End {n}."}}' for n in range(6))
    (tmp_path / "mine.jsonl").write_text(rows)
    datasets = {}
    for number, voice in enumerate(("anna", "ben")):
        (tmp_path / voice).mkdir()
        for n in range(6):
            soundfile.write(tmp_path / voice / f"{n}.wav", np.full(1_600, 0.1 * (number + 1) + 0.01 * (n // 2)), 16_000)
        datasets[f"mine@{voice}"] = {"path": "mine.jsonl", "audio_path": voice, "lang": "en"}
    (tmp_path / "sets.yaml").write_text(yaml.safe_dump({"datasets": datasets}))
    turned = in_turns(tmp_path / "sets.yaml", "mine")
    ben = official(tmp_path / "sets.yaml", "mine@ben")
    assert [item.voice for item in turned.items] == ["anna", "ben", "anna"]
    assert turned.items[1].contexts == ben.items[1].contexts
    with pytest.raises(ValueError, match="'yours' has 0: no set yours@<voice>"):
        in_turns(tmp_path / "sets.yaml", "yours")
