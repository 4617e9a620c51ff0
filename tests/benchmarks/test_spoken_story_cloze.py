from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from s2sbench_callback import spoken_story_cloze
from s2sbench_callback.prompts import lacks, prompt


def record(*paths: Path) -> None:
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, np.full(1600 + 10 * number + len(path.name), 0.1), 16_000)


def test_whole_stories_pair_up_by_number(tmp_path: Path) -> None:
    record(*(tmp_path / f"{number}_story.wav" for number in (2, 10, 3, 11)))
    benchmark = spoken_story_cloze(tmp_path)
    assert [item.id for item in benchmark.items] == ["2_story", "10_story"]
    assert [[audio.path.name for audio in item.story_audios] for item in benchmark.items] == [
        ["2_story.wav", "3_story.wav"],
        ["10_story.wav", "11_story.wav"],
    ]
    assert prompt("s2s", "en", benchmark.items[0], 1).candidate.path.name == "3_story.wav"  # type: ignore[union-attr]
    assert prompt("s2s", "en", benchmark.items[0], 1).context == ()
    assert [lacks(benchmark, condition) for condition in ("s2t", "t2t", "t2s")] == [
        "no written candidates",
        "no written candidates",
        "no written contexts",
    ]


def test_endings_apart_from_their_context_in_folders_of_voices(tmp_path: Path) -> None:
    for voice in ("a", "b"):
        record(*(tmp_path / voice / f"7_{part}.wav" for part in ("correct", "incorrect", "mutual")))
        for part, text in (("correct", "He was wet."), ("incorrect", "He was dry."), ("mutual", "It rained.")):
            (tmp_path / voice / f"7_{part}.txt").write_text(f"{text}\n")
    benchmark = spoken_story_cloze(tmp_path, "voices")
    assert [item.id for item in benchmark.items] == ["a/7", "b/7"]
    first = benchmark.items[0]
    assert (first.contexts[0].text, first.candidates, first.answer) == ("It rained.", ("He was wet.", "He was dry."), 0)
    assert [lacks(benchmark, condition) for condition in ("s2t", "t2t", "s2s", "t2s")] == [None] * 4
    assert [part.path.name for part in prompt("s2s", "en", first, 0).recordings] == ["7_mutual.wav", "7_correct.wav"]


def test_named_whole_stories(tmp_path: Path) -> None:
    record(tmp_path / "x_correct.wav", tmp_path / "x_incorrect.wav")
    (item,) = spoken_story_cloze(tmp_path).items
    assert [audio.path.name for audio in item.story_audios] == ["x_correct.wav", "x_incorrect.wav"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), r"has no recordings; it should hold <number>\.wav"),
        (("1.wav", "2.wav", "3.wav"), "3 recordings do not make pairs"),
        (("1_a.wav", "1_b.wav"), r"1_b\.wav: has the same number as 1_a\.wav"),
        (("story.wav", "2.wav"), r"story\.wav: the name of a whole story must begin with its number"),
        (("1.wav", "2.wav", "4.wav", "7.wav"), r"4\.wav: has no partner; there is no recording with the number 5"),
        (("x_correct.wav", "x_incorrect.WAV", "y_incorrect.wav"), r"y_incorrect\.wav: belongs to no question; there is no y_correct\.wav"),
        (("x_correct.wav", "x_incorrect.wav", "x_mutual.wav", "y_correct.wav", "y_incorrect.wav"), r"y_mutual\.wav is missing"),
        (("x_correct.wav",), r"question 'x': the recording is missing: .*x_incorrect\.wav"),
    ],
)
def test_what_does_not_pair_up_is_named(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    record(*(tmp_path / name for name in names))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        spoken_story_cloze(tmp_path)
