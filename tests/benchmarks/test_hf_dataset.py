"""Folders of Hugging Face ``datasets``, written by that library itself."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import soundfile

from s2sbench_callback.benchmarks import hf_dataset
from s2sbench_callback.items import recording_digest
from s2sbench_callback.speech import load_waveform


def tone(pitch: float) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, 0.1 * np.sin(np.arange(8_000) * pitch), 16_000, format="WAV")
    return stream.getvalue()


RECORDINGS = [tone(0.1), tone(0.2)]


def spoken(**changed: Any) -> datasets.Dataset:
    columns = {
        "context": ["It rained.", "The sun shone."],
        "choices": [["She got wet.", "She got dry."], ["It froze.", "It melted.", "It burned."]],
        "label": [0, 1],
        "audio": [{"bytes": content, "path": f"{n}.wav"} for n, content in enumerate(RECORDINGS)],
        "story": ["a", "a"],
        **changed,
    }
    return datasets.Dataset.from_dict({name: values for name, values in columns.items() if values is not ...}).cast_column(
        "audio", datasets.Audio(decode=False)
    )


def test_a_saved_dataset(tmp_path: Path) -> None:
    """Texts, answers and the very bytes of the recordings, which a probe can hear."""
    spoken().save_to_disk(str(tmp_path / "mine"))
    benchmark = hf_dataset(tmp_path / "mine", group="story")
    assert (benchmark.name, benchmark.language, benchmark.tie_rule) == ("mine", "en", "lose")
    rain, sun = benchmark.items
    assert (rain.id, rain.contexts[0].text, rain.candidates, rain.answer, rain.group) == ("0", "It rained.", ("She got wet.", "She got dry."), 0, "a")
    assert (sun.candidates, sun.answer) == (("It froze.", "It melted.", "It burned."), 1)
    for item, content in zip(benchmark.items, RECORDINGS, strict=True):
        audio = item.contexts[0].audio
        assert audio is not None
        assert audio.digest == recording_digest(content)
        assert audio.seconds == 0.5
        assert load_waveform(audio, 16_000).shape == (8_000,)
    assert hf_dataset(tmp_path / "mine", group="story").fingerprint == benchmark.fingerprint


def test_parts_have_to_be_chosen(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": spoken(), "test": spoken().select([1])}).save_to_disk(str(tmp_path / "mine"))
    assert [item.contexts[0].text for item in hf_dataset(tmp_path / "mine", split="test").items] == ["The sun shone."]
    with pytest.raises(ValueError, match="has several parts; choose one of train, test with split="):
        hf_dataset(tmp_path / "mine")
    with pytest.raises(ValueError, match="there is no split 'dev'; there are train, test"):
        hf_dataset(tmp_path / "mine", split="dev")


def test_a_folder_of_parquet_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    spoken().to_parquet(str(tmp_path / "data" / "test-00000-of-00001.parquet"))
    (rain, _) = hf_dataset(tmp_path, set_name="mine").items
    assert rain.contexts[0].audio
    assert rain.contexts[0].audio.digest == recording_digest(RECORDINGS[0])


def test_a_folder_of_audio_files_with_metadata(tmp_path: Path) -> None:
    """Columns of their own names, answers by letter; files are used where they lie."""
    for number, content in enumerate(RECORDINGS):
        (tmp_path / f"{number}.wav").write_bytes(content)
    (tmp_path / "metadata.csv").write_text("file_name,premise,A,B,right\n0.wav,It rained.,wet,dry,B\n1.wav,The sun shone.,cold,hot,A\n")
    items = hf_dataset(tmp_path, answer="right", set_name="mine", tie_rule="win").items
    assert [(item.candidates, item.answer) for item in items] == [(("wet", "dry"), 1), (("cold", "hot"), 0)]
    paths = [item.contexts[0].audio.path for item in items if item.contexts[0].audio]
    assert paths == [tmp_path / "0.wav", tmp_path / "1.wav"]


def test_without_recordings_it_is_asked_in_text_alone(tmp_path: Path) -> None:
    spoken().remove_columns("audio").save_to_disk(str(tmp_path / "mine"))
    with pytest.warns(UserWarning, match="has no column of recordings, so it is asked in T→T alone"):
        benchmark = hf_dataset(tmp_path / "mine")
    assert not benchmark.items[0].has_audio


@pytest.mark.parametrize(
    ("changed", "arguments", "message"),
    [
        ({}, {"context": "ctx"}, "there is no column 'ctx'; it has context, choices, label, audio, story"),
        ({"premise": ["a", "b"]}, {}, "name the column of the context with context=; context and premise may be it"),
        ({"label": [0, 3]}, {}, r"mine, row 1: answer 3 is neither number, letter, column nor text of one of 3 candidates"),
        ({"label": ["A", "D"]}, {}, r"mine, row 1: answer 'D' is neither"),
        ({"choices": [["a", "b"], ["c", "c"]]}, {}, r"mine, row 1: item '1' has identical candidates"),
        ({"context": ["a", ""]}, {}, r"mine, row 1: item '1' has an empty context"),
        ({"audio": [{"bytes": RECORDINGS[0], "path": None}, None]}, {}, r"mine, row 1: there is no recording"),
        ({"audio": [{"bytes": RECORDINGS[0], "path": None}, {"bytes": b"RIFF", "path": None}]}, {}, r"mine, row 1: the recording cannot be read"),
        ({}, {"audio": "story"}, "'story' is no column of recordings; of the type Audio are audio"),
        ({}, {"group": "voice"}, "there is no column 'voice'"),
    ],
)
def test_what_is_refused(tmp_path: Path, changed: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    spoken(**changed).save_to_disk(str(tmp_path / "mine"))
    with pytest.raises(ValueError, match=message):
        hf_dataset(tmp_path / "mine", **arguments)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        hf_dataset(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty cannot be opened as a folder of datasets"):
        hf_dataset(tmp_path / "empty")


def test_answers_by_letter_and_by_text(tmp_path: Path) -> None:
    spoken(label=["A", "It burned."]).save_to_disk(str(tmp_path / "mine"))
    assert [item.answer for item in hf_dataset(tmp_path / "mine").items] == [0, 2]
