"""The audit's figures against slow, obvious computations and values worked out by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import speechlike
import torch
import torchaudio

from s2sbench_callback.audit.baselines import baselines
from s2sbench_callback.audit.likeness import distance, warped_distance
from s2sbench_callback.audit.measures import measure
from s2sbench_callback.audit.overlap import leaks, repeated
from s2sbench_callback.audit.recogniser import FasterWhisper, error_rate, nearest
from s2sbench_callback.audit.texts import units
from s2sbench_callback.items import Benchmark, Context, Item


def items_of(text: str) -> tuple[Context, Context]:
    return (Context(text),) * 2


def test_units_are_words_or_characters() -> None:
    assert units("It's  RAINING, isn’t it?", "en") == ["its", "raining", "isnt", "it"]
    assert units("ＡＢＣ公司，成立于1998年。", "zh") == ["abc", "公", "司", "成", "立", "于", "1998", "年"]


@pytest.mark.parametrize(
    ("text", "heard", "language", "rate"),
    [
        ("The cat sat on the mat.", "the cat sat on the mat", "en", 0.0),
        ("The cat sat on the mat.", "the bat sat on mat", "en", 2 / 6),  # one word for another, one left out
        ("Go home.", "please go home now and rest", "en", 2.0),  # four put in
        ("春天来了。", "春天到了", "zh", 1 / 4),
        ("春天來了。", "春天来了", "zh", 0.0),  # both scripts
        ("", "", "en", 0.0),
        ("", "noise", "en", 1.0),
    ],
)
def test_error_rates_by_hand(text: str, heard: str, language: str, rate: float) -> None:
    assert error_rate(text, heard, language) == pytest.approx(rate)  # type: ignore[arg-type]


def test_whose_text_is_nearest() -> None:
    assert nearest("the dog ran away", ["the cat sat", "a dog ran away", "nothing"], "en") == 1


def test_measures_of_a_signal_that_is_known(tmp_path: Path) -> None:
    """Half a second of digital silence, a second of a tone, a quarter of silence; loudness by torchaudio's meter."""
    rate = 16_000
    # Fades of 30 ms, since a sudden tone is a wide one.
    fade = np.clip(np.minimum(np.arange(rate), rate - 1 - np.arange(rate)) / 480, 0, 1)
    tone = 0.5 * np.sin(2 * np.pi * 1_000 * np.arange(rate) / rate) * np.sin(np.pi / 2 * fade) ** 2
    samples = np.concatenate([np.zeros(rate // 2), tone, np.zeros(rate // 4)])
    soundfile.write(tmp_path / "tone.wav", np.stack([samples, samples], axis=1), rate, subtype="FLOAT")
    found = measure(tmp_path / "tone.wav")
    assert (found.seconds, found.sample_rate, found.channels, found.is_finite) == (1.75, rate, 2, True)
    assert found.peak_dbfs == pytest.approx(20 * np.log10(0.5), abs=0.01)
    assert found.silence_before_seconds == pytest.approx(0.5, abs=0.011)
    assert found.silence_after_seconds == pytest.approx(0.25, abs=0.011)
    assert found.speech_seconds == pytest.approx(1.0, abs=0.021)
    assert found.last_db < -60
    assert found.bandwidth_hz == pytest.approx(1_000, abs=100)
    expected = torchaudio.functional.loudness(torch.from_numpy(samples.astype(np.float32))[None], rate)
    assert found.loudness_lufs == pytest.approx(float(expected), abs=0.01)
    assert found.clipped_share == 0


def test_clipping_is_counted_in_flat_tops(tmp_path: Path) -> None:
    """Ten tops of five samples, and single peaks that are none."""
    samples = 0.3 * np.sin(np.arange(10_000) * 0.37)
    for start in range(500, 10_500, 1_000):
        samples[start : start + 5] = 0.8
    samples[250::1_000] = 0.8
    soundfile.write(tmp_path / "clipped.wav", samples, 16_000, subtype="FLOAT")
    assert measure(tmp_path / "clipped.wav").clipped_share == pytest.approx(10 * 5 / 10_000)


def test_warping_equals_a_slow_table() -> None:
    chance = np.random.default_rng(0)
    for rows, columns in ((1, 1), (1, 6), (7, 4), (12, 15)):
        first, second = chance.standard_normal((rows, 3)), chance.standard_normal((columns, 3))
        total = np.full((rows + 1, columns + 1), np.inf)
        total[0, 0] = 0
        for i in range(1, rows + 1):
            for j in range(1, columns + 1):
                cost = np.linalg.norm(first[i - 1] - second[j - 1])
                total[i, j] = min(total[i - 1, j] + cost, total[i, j - 1] + cost, total[i - 1, j - 1] + 2 * cost)
        assert warped_distance(first, second) == pytest.approx(total[rows, columns] / (rows + columns))


def test_readings_of_the_same_words_are_nearer_than_other_words(tmp_path: Path) -> None:
    texts = ["the old man walked slowly home", "rain fell on every roof in town", "she bought seven yellow lemons"]
    for number, text in enumerate(texts):
        for reading in range(2):
            speechlike.write(tmp_path / f"{number}{reading}.wav", speechlike.say(text, reading, pace=1 + 0.2 * reading))
    same = [distance(tmp_path / f"{n}0.wav", tmp_path / f"{n}1.wav") for n in range(3)]
    other = [distance(tmp_path / f"{n}0.wav", tmp_path / f"{m}1.wav") for n in range(3) for m in range(3) if n != m]
    assert max(same) < 0.6 * min(other)
    assert distance(tmp_path / "00.wav", tmp_path / "00.wav") == pytest.approx(0, abs=1e-6)


def test_baselines_by_hand() -> None:
    """Three questions: the answer is shorter in two, as long in one; its words are the more frequent ones in one."""
    benchmark = Benchmark(
        "mine",
        "en",
        (
            Item("a", items_of("we like tea"), ("tea", "coffee"), 0),
            Item("b", items_of("tea is hot"), ("milk is cold", "tea"), 1),
            Item("c", items_of("hot tea is tea"), ("hot", "zoo"), 1),
        ),
    )
    found = {each.name: each.accuracy.value for each in baselines(benchmark, {})}
    assert found["shorter candidate"] == pytest.approx((1 + 1 + 0.5) / 3)
    # In other questions: a: tea often, coffee never; b: tea often, "milk is cold" hardly; c: hot once, zoo never.
    assert found["candidate of more frequent words"] == pytest.approx(2 / 3)
    assert "words of the candidates alone" not in found


def test_repeated_questions_by_a_slow_count() -> None:
    chance = np.random.default_rng(1)
    words = [f"w{n}" for n in range(40)]
    texts = [" ".join(chance.choice(words, 12)) for _ in range(30)]
    texts[7] = texts[3] + " more"
    texts[20] = " ".join([*texts[11].split()[:8], "x", "y", "z", "u"])
    benchmark = Benchmark("mine", "en", tuple(Item(str(n), items_of(text), ("a", "b"), 0) for n, text in enumerate(texts)))
    shingles = [{tuple(text.split()[n : n + 4]) for n in range(len(text.split()) - 3)} for text in texts]
    expected = {
        (str(i), str(j)): len(shingles[i] & shingles[j]) / len(shingles[i] | shingles[j])
        for j in range(30)
        for i in range(j)
        if len(shingles[i] & shingles[j]) >= 0.5 * len(shingles[i] | shingles[j])
    }
    assert {(pair.first[1], pair.second[1]): pair.likeness for pair in repeated([benchmark])} == expected
    assert ("3", "7") in expected


def test_a_set_in_two_voices_does_not_repeat_itself() -> None:
    items = tuple(Item(str(n), items_of(f"question number {n} about thing {n}"), ("a", "b"), 0) for n in range(3))
    voices = [Benchmark(name, "en", items) for name in ("mine@a", "mine@b")]
    assert repeated(voices) == []
    assert len(repeated([Benchmark(name, "en", items) for name in ("mine", "other")])) == 3


def test_leaks_need_half_of_a_context(tmp_path: Path) -> None:
    long = " ".join(f"word{n}" for n in range(20))  # 13 runs of 8
    benchmark = Benchmark("mine", "en", (Item("long", items_of(long), ("a", "b"), 0), Item("zh", items_of("一二三四五"), ("a", "b"), 0)))
    for words, share in ((13, None), (14, 7 / 13), (20, 1.0)):
        (tmp_path / "m.txt").write_text(f"before {' '.join(long.split()[:words])} after\n")
        found = leaks(benchmark, [tmp_path / "m.txt"], lambda lines: lines)
        assert [leak.share for leak in found] == ([] if share is None else [pytest.approx(share)])


def test_faster_whisper_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"no model\.bin, so this is no Whisper model for faster-whisper"):
        FasterWhisper(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 's2sbench_callback\[audit\]'"):
        FasterWhisper(tmp_path)
