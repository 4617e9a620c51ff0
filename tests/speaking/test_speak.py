"""A spoken set from a written one: what is written, that it is the same each time, and that an interrupted run goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sines
import soundfile
import torch
import torchaudio
from conftest import refused

from s2sbench_callback.benchmarks import official, starter
from s2sbench_callback.cli import main
from s2sbench_callback.items import Benchmark, Context, Item, recording_digest
from s2sbench_callback.speaking.speak import Delivery, speak
from s2sbench_callback.synthesisers import VoiceSpec, parse_voice

TONE = parse_voice("tone=python:sines.speak")


def stories(*texts: str) -> Benchmark:
    items = (Item(f"s/{n}", (Context(text),) * 2, (f"Wrong {n}.", f"Right {n}."), 1, group="g") for n, text in enumerate(texts))
    return Benchmark("tales", "en", tuple(items))


def manifest(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


def test_a_story_set_comes_back_as_it_went_in(tmp_path: Path) -> None:
    """Right endings first, one recording a pair, ids and groups kept."""
    written = stories("A man walks in.", "Nobody is there at all.")
    assert speak(written, [TONE], tmp_path, progress=False) == {"tone": 2}
    spoken = official(tmp_path / "sets.yaml", "tales@tone")
    assert (spoken.name, spoken.language, spoken.tie_rule) == ("tales@tone", "en", "lose")
    for number, (before, after) in enumerate(zip(written.items, spoken.items, strict=True)):
        assert after.id == f"{2 * number}_s-{number}"
        assert after.group == "g"
        assert after.answer == 0
        assert after.candidates == (before.candidates[1], before.candidates[0])
        assert after.contexts[0].text == before.contexts[0].text
        assert after.contexts[0].audio is after.contexts[1].audio
        assert after.contexts[0].audio
        assert after.contexts[0].audio.seconds == pytest.approx(0.05 * len(before.contexts[0].text), abs=1e-3)


def test_a_lettered_set_comes_back_as_it_went_in(tmp_path: Path) -> None:
    items = (Item("q1", (Context("Water"),) * 3, ("burns.", "is wet.", "is dry."), 1), Item("q2", (Context("Fire"),) * 3, ("a.", "b.", "c."), 2))
    written = Benchmark("facts", "en", tuple(items), "win")
    speak(written, [TONE], tmp_path, Delivery(candidates=True), progress=False)
    spoken = official(tmp_path / "sets.yaml", "facts@tone")
    assert spoken.tie_rule == "win"
    assert [(item.candidates, item.answer) for item in spoken.items] == [(item.candidates, item.answer) for item in written.items]
    assert [audio.path.name for audio in spoken.items[0].candidate_audios] == ["0_q1_A.wav", "0_q1_B.wav", "0_q1_C.wav"]
    assert spoken.items[1].candidate_audios[2].seconds == pytest.approx(0.05 * len("c."), abs=1e-3)


def test_a_reading_for_each_row(tmp_path: Path) -> None:
    speak(stories("A man walks in."), [TONE], tmp_path, Delivery(per="row"), progress=False)
    one, other = official(tmp_path / "sets.yaml", "tales@tone").items[0].contexts
    assert one.audio
    assert other.audio
    assert one.audio.digest != other.audio.digest


def test_level_rate_and_manifest(tmp_path: Path) -> None:
    """Loudness by torchaudio's own meter; the manifest says what is in the files."""
    speak(stories("A man walks in.", "It rains."), [TONE], tmp_path, Delivery(sample_rate=22_050, loudness_lufs=-26.0), progress=False)
    for record in manifest(tmp_path / "tales@tone"):
        path = tmp_path / "tales@tone" / record["files"][0]
        samples, rate = soundfile.read(path, dtype="float32")
        info = soundfile.info(path)
        assert (rate, info.channels, info.subtype) == (22_050, 1, "PCM_16")
        long_enough = np.resize(samples, max(len(samples), round(0.4 * rate)))
        assert float(torchaudio.functional.loudness(torch.from_numpy(long_enough)[None], rate)) == pytest.approx(-26.0, abs=0.2)
        assert record["loudness_lufs"] == pytest.approx(-26.0, abs=0.2)
        assert record["seconds"] == pytest.approx(len(samples) / rate, abs=1e-3)
        assert record["digest"] == recording_digest(path.read_bytes())
        assert (record["engine"], record["voice"], record["version"], record["sample_rate"]) == ("python", "sines.speak", "unknown", 22_050)
    assert manifest(tmp_path / "tales@tone")[0]["text"] == "A man walks in."


def test_a_peak_is_not_clipped(tmp_path: Path) -> None:
    speak(stories("A man walks in."), [TONE], tmp_path, Delivery(loudness_lufs=-1.0), progress=False)
    samples, _ = soundfile.read(tmp_path / "tales@tone" / "0_s-0.wav")
    assert np.abs(samples).max() == pytest.approx(0.99, abs=0.01)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_same_call_gives_the_same_files_in_one_process_or_two(tmp_path: Path) -> None:
    """And another seed others."""
    texts = [f"Story number {n} of some length." for n in range(6)]
    for name, workers, seed in (("one", 1, 0), ("two", 2, 0), ("seed", 1, 7)):
        speak(stories(*texts), [parse_voice("hibari")], tmp_path / name, Delivery(sample_rate=16_000, seed=seed), workers, progress=False)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    one, other = (tmp_path / name / "tales@hibari-heart" / "0_s-0.wav" for name in ("one", "seed"))
    assert one.read_bytes() != other.read_bytes()


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    """Made again is what is missing, damaged or to be spoken otherwise; nothing else."""
    texts = [f"Story {n}." for n in range(5)]
    with pytest.raises(RuntimeError, match="gave up"):
        speak(stories(*texts[:3], "unspeakable"), [TONE], tmp_path / "broken", progress=False)
    assert len(manifest(tmp_path / "broken" / "tales@tone")) == 3
    speak(stories(*texts), [TONE], tmp_path / "whole", progress=False)
    before = contents(tmp_path / "whole")
    base = tmp_path / "whole" / "tales@tone"
    (base / "0_s-0.wav").unlink()
    (base / "5_s-2.wav").write_bytes(b"RIFF")
    lines = (base / "manifest.jsonl").read_text()
    (base / "manifest.jsonl").write_text(lines[: lines.rindex("{") + 20])  # killed in the middle of the last line
    sines.calls.clear()
    assert speak(stories(*texts), [TONE], tmp_path / "whole", progress=False) == {"tone": 3}
    assert sines.calls == [texts[0], texts[2], texts[4]]
    assert contents(tmp_path / "whole") == before
    assert speak(stories(*texts), [TONE], tmp_path / "whole", progress=False) == {"tone": 0}
    assert speak(stories(*texts), [TONE], tmp_path / "whole", Delivery(loudness_lufs=-30), progress=False) == {"tone": 5}


def test_a_voice_is_added_later(tmp_path: Path) -> None:
    speak(stories("One.", "Two."), [TONE], tmp_path, progress=False)
    other = VoiceSpec("other", "python", "sines.speak")
    speak(stories("One.", "Two."), [TONE, other], tmp_path, progress=False)
    first, second = (official(tmp_path / "sets.yaml", f"tales@{name}") for name in ("tone", "other"))
    assert [item.id for item in first.items] == [item.id for item in second.items]
    assert first.fingerprint != second.fingerprint


def test_what_cannot_be_spoken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tales@tone, 0_s-0: python gave silence, or samples that are no numbers, for 'silence'"):
        speak(stories("silence"), [TONE], tmp_path, progress=False)
    with pytest.raises(ValueError, match="two voices have one name: tone, tone"):
        speak(stories("One."), [TONE, TONE], tmp_path, progress=False)
    speak(stories("One."), [TONE], tmp_path / "other", progress=False)
    with pytest.raises(ValueError, match=r"tales\.jsonl holds other questions than those to be spoken"):
        speak(stories("Two."), [TONE], tmp_path / "other", progress=False)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["speak", "starter:statements-en", "--limit", "3", "--voice", "tone=python:sines.speak", "--output", str(tmp_path), "--workers", "1"]
    main(arguments)
    assert capsys.readouterr().out.splitlines() == [
        "starter-statements-en@tone: 3 questions, 3 recordings made, the rest was there",
        str(tmp_path / "sets.yaml"),
    ]
    spoken = official(tmp_path / "sets.yaml", "starter-statements-en@tone")
    expected = starter("statements-en").items[:3]
    assert [(item.contexts[0].text, item.candidates, item.answer) for item in spoken.items] == [
        (item.contexts[0].text, item.candidates, item.answer) for item in expected
    ]
    main([*arguments, "--json"])
    assert json.loads(capsys.readouterr().out) == {"yaml": str(tmp_path / "sets.yaml"), "questions": 3, "made": {"starter-statements-en@tone": 0}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--voice", "polly"], "there is no engine 'polly'; there are hibari, piper, espeak, python"),
        (["--voice", "hibari,volume=2"], "there is no option 'volume'"),
        (["--voice", "hibari,speed=fast"], "speed must be a number, got 'fast'"),
        (["--voice", "piper"], "piper needs the .onnx file of a voice, as piper:…"),
        (["--voice", "piper:nowhere.onnx"], r"nowhere\.onnx: no such file; a Piper voice is an \.onnx file with its \.onnx\.json beside it"),
        (["--voice", "python:sines.nothing"], "python:sines.nothing cannot be imported"),
        (["--voice", "hibari", "--sample_rate", "10"], "--sample_rate must lie between 4,000 and 192,000 Hz, got 10"),
        (["--voice", "hibari", "--limit", "0"], "--limit must be at least 1, got 0"),
        (["--voice", "hibari", "--language", "zh"], "the starter set statements-en is not 'zh'"),
    ],
)
def test_what_the_command_refuses(tmp_path: Path, changed: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["speak", "starter:statements-en", "--output", str(tmp_path / "out"), *changed], message, capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "a,b\n1,2\n", "its first line is that of no known layout: it names a, b"),
        ("x.jsonl", '{"question": 1}\n', "rows without 'premise' and 'choice1' are not COPA's"),
        ("x.yaml", "datasets: {a: {}, b: {}}", "names several sets; choose one of a, b with --set"),
    ],
)
def test_files_of_no_known_layout(tmp_path: Path, name: str, content: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text(content)
    refused(["speak", str(tmp_path / name), "--voice", "hibari", "--output", str(tmp_path / "out")], message, capsys)


def test_written_sets_of_every_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each becomes a spoken set of as many questions."""
    sentences = ",".join(f"InputSentence{n}" for n in range(1, 5))
    (tmp_path / "cloze.csv").write_text(
        f"InputStoryid,{sentences},RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding\nx,A.,B.,C.,D.,No.,Yes.,2\n"
    )
    (tmp_path / "copa.jsonl").write_text(
        '{"premise": "It rained.", "choice1": "It was wet.", "choice2": "It was dry.", "question": "effect", "label": 0}\n'
    )
    (tmp_path / "mc.csv").write_text("Question,A,B,C,D,Answer\n中国的首都是,北京,上海,广州,深圳,A\n")
    (tmp_path / "mine.jsonl").write_text('{"uttid": 0, "first": "Hello.", "last": "Good."}\n{"uttid": 1, "first": "Hello.", "last": "Bad."}\n')
    (tmp_path / "sets.yaml").write_text("datasets: {mine: {path: mine.jsonl, audio_path: wavs, lang: en}}")
    for source, name in (("cloze.csv", "cloze"), ("copa.jsonl", "copa"), ("mc.csv", "mc"), ("sets.yaml", "mine")):
        main(["speak", str(tmp_path / source), "--voice", "t=python:sines.speak", "--output", str(tmp_path / "out"), "--workers", "1"])
        assert f"{name}@t: 1 questions, 1 recordings made" in capsys.readouterr().out
    assert official(tmp_path / "out" / "sets.yaml", "cloze@t").items[0].candidates == ("Yes.", "No.")
    assert official(tmp_path / "out" / "sets.yaml", "mc@t").language == "zh"


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_espeak_speaks_both_languages_and_knows_its_trap(tmp_path: Path) -> None:
    """Under ``cmn`` Debian's 1.51 reads hanzi as English: many times as long."""
    english = speak(stories("A man walks in."), [parse_voice("espeak:en-us+f3")], tmp_path / "en", progress=False)
    assert english == {"espeak-en-us+f3": 1}
    chinese = Benchmark("故事", "zh", (Item("0", (Context("春天来了，花开了。"),) * 2, ("对。", "错。"), 0),))
    speak(chinese, [parse_voice("espeak")], tmp_path / "zh", progress=False)
    (item,) = official(tmp_path / "zh" / "sets.yaml", "故事@espeak").items
    assert item.contexts[0].audio
    assert 1.0 < item.contexts[0].audio.seconds < 4.0
    with pytest.raises(ValueError, match="speaks no Chinese; take espeak:cmn-latn-pinyin"):
        speak(chinese, [parse_voice("espeak:en-us")], tmp_path / "no", progress=False)
    with pytest.raises(ValueError, match="has no voice 'klingon'"):
        speak(chinese, [parse_voice("espeak:klingon")], tmp_path / "no", progress=False)


def test_hibari_speaks_no_chinese(tmp_path: Path) -> None:
    chinese = Benchmark("x", "zh", (Item("0", (Context("春天来了。"),) * 2, ("对。", "错。"), 0),))
    with pytest.raises(ValueError, match="hibari speaks English alone, and the set is Chinese; espeak:cmn-latn-pinyin"):
        speak(chinese, [parse_voice("hibari")], tmp_path, progress=False)
