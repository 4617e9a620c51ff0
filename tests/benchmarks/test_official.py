from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import yaml

from s2sbench_callback import Benchmark, official


def tone(path: Path, pitch: float = 220.0, seconds: float = 0.1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    time = np.arange(int(16_000 * seconds)) / 16_000
    soundfile.write(path, 0.5 * np.sin(2 * np.pi * pitch * time), 16_000)


def story_rows(count: int = 2, first_number: int = 0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for question in range(count):
        number = first_number + 2 * question
        context = f"Story {question} begins."
        rows += [
            {"uttid": number, "first": context, "last": f"Right end {question}."},
            {"uttid": number + 1, "first": context, "last": f"Wrong end {question}."},
        ]
    return rows


def lettered_rows() -> list[dict[str, Any]]:
    return [
        {"uttid": "7_physics", "first": "光速", "A": "很快", "B": "很慢", "C": "不变", "D": "未知", "answer": "C"},
        {"uttid": "3_law", "first": "法律", "A": "公平", "B": "严格", "C": "简单", "D": "复杂", "answer": "A"},
    ]


def write_set(folder: Path, rows: list[dict[str, Any]], lang: str = "en", audio: bool = True) -> Path:
    (folder / "set.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    if audio:
        for row in rows:
            tone(folder / "wavs" / f"{row['uttid']}.wav")
    path = folder / "sets.yaml"
    path.write_text(yaml.safe_dump({"datasets": {"mine": {"path": "set.jsonl", "audio_path": "wavs", "lang": lang}}}))
    return path


def read(path: Path, **arguments: Any) -> Benchmark:
    return official(path, name="mine", **arguments)


def test_stories_pair_neighbours_by_number_whatever_the_order_of_lines(tmp_path: Path) -> None:
    rows = story_rows(3)
    rows[0]["uttid"], rows[1]["uttid"] = "0_a", "1_a"
    benchmark = read(write_set(tmp_path, [rows[i] for i in (5, 0, 3, 1, 4, 2)]))
    assert [item.id for item in benchmark.items] == ["0_a", "2", "4"]
    assert benchmark.items[0].candidates == ("Right end 0.", "Wrong end 0.")
    assert all(item.answer == 0 for item in benchmark.items)
    assert benchmark.tie_rule == "lose"


def test_pairs_may_start_at_any_number(tmp_path: Path) -> None:
    benchmark = read(write_set(tmp_path, story_rows(2, first_number=11)))
    assert [item.candidates[0] for item in benchmark.items] == ["Right end 0.", "Right end 1."]


def test_lettered_rows(tmp_path: Path) -> None:
    benchmark = read(write_set(tmp_path, lettered_rows(), lang="zh"))
    assert benchmark.language == "zh"
    assert benchmark.tie_rule == "win"
    law, physics = benchmark.items
    assert (law.id, law.answer, law.candidates) == ("3_law", 0, ("公平", "严格", "简单", "复杂"))
    assert (physics.answer, physics.contexts[0].text) == (2, "光速")
    assert len(set(physics.contexts)) == 1
    assert physics.contexts[0].audio is not None
    assert physics.contexts[0].audio.path.name == "7_physics.wav"


def test_a_set_of_ones_own_may_have_other_numbers_of_candidates(tmp_path: Path) -> None:
    rows = [
        {"uttid": 1, "first": "One", "A": "a", "B": "b", "answer": "B"},
        {"uttid": 2, "first": "Two", "A": "a", "B": "b", "C": "c", "D": "d", "E": "e", "answer": "E"},
    ]
    benchmark = read(write_set(tmp_path, rows))
    assert [len(item.candidates) for item in benchmark.items] == [2, 5]
    assert [item.answer for item in benchmark.items] == [1, 4]


@pytest.mark.parametrize(("name", "expected"), [("sStory_s2t", "sstorycloze"), ("zh_story", "zh-sstorycloze"), ("cmmlu_write_4", "scmmlu")])
def test_the_releases_sets_carry_the_papers_names(tmp_path: Path, name: str, expected: str) -> None:
    path = write_set(tmp_path, lettered_rows() if name == "cmmlu_write_4" else story_rows())
    entry = yaml.safe_load(path.read_text())["datasets"]["mine"]
    path.write_text(yaml.safe_dump({"datasets": {name: entry, "other": entry}}))
    assert official(path, name=name).name == expected
    assert official(path, name=name, set_name="v2").name == "v2"


def test_root_moves_the_data(tmp_path: Path) -> None:
    path = write_set(tmp_path, story_rows())
    elsewhere = tmp_path / "elsewhere.yaml"
    path.rename(elsewhere)
    (tmp_path / "data").mkdir()
    (tmp_path / "set.jsonl").rename(tmp_path / "data" / "set.jsonl")
    (tmp_path / "wavs").rename(tmp_path / "data" / "wavs")
    assert len(read(elsewhere, root=tmp_path / "data").items) == 2


def test_identical_recordings_of_a_pair_are_one_context_and_others_are_not(tmp_path: Path) -> None:
    path = write_set(tmp_path, story_rows(2))
    tone(tmp_path / "wavs" / "3.wav", pitch=440.0)
    same, different = read(path).items
    assert same.contexts[0] == same.contexts[1]
    assert different.contexts[0].audio != different.contexts[1].audio
    forced = read(path, shared_audio="always").items[1]
    assert forced.contexts[0].audio == forced.contexts[1].audio == different.contexts[0].audio


def test_shared_audio_always_needs_no_second_recording(tmp_path: Path) -> None:
    path = write_set(tmp_path, story_rows(1))
    (tmp_path / "wavs" / "1.wav").unlink()
    assert read(path, shared_audio="always").items[0].has_audio


def test_pairs_with_different_contexts_warn_once_and_keep_both(tmp_path: Path) -> None:
    rows = story_rows(3)
    rows[1]["first"], rows[5]["first"] = "Another beginning.", "A third beginning."
    with pytest.warns(UserWarning, match=r"2 of 3 pairs have a different 'first'.*row 1, uttid '0'") as caught:
        benchmark = read(write_set(tmp_path, rows))
    assert len(caught) == 1
    assert [context.text for context in benchmark.items[0].contexts] == ["Story 0 begins.", "Another beginning."]


def test_clean_pairs_warn_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(write_set(tmp_path, story_rows()))


def test_fingerprint_depends_on_content_alone(tmp_path: Path) -> None:
    def fingerprint(folder: str, rows: list[dict[str, Any]], pitch: float = 220.0) -> str:
        (tmp_path / folder).mkdir()
        path = write_set(tmp_path / folder, rows)
        tone(tmp_path / folder / "wavs" / "0.wav", pitch)
        tone(tmp_path / folder / "wavs" / "1.wav", pitch)
        return read(path).fingerprint

    changed = story_rows()
    changed[3]["last"] = "Another end."
    original = fingerprint("a", story_rows())
    assert fingerprint("b", story_rows()) == original
    assert fingerprint("c", changed) != original
    assert fingerprint("d", story_rows(), pitch=221.0) != original


def change(rows: list[dict[str, Any]], index: int, **fields: Any) -> list[dict[str, Any]]:
    rows[index] = {key: value for key, value in {**rows[index], **fields}.items() if value is not ...}
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (story_rows()[:3], r"set\.jsonl, row 3: uttid '2' is unpaired: there is no row with the number 3"),
        (change(story_rows(), 1, uttid=9), r"row 1: uttid '0' is unpaired: there is no row with the number 1"),
        (change(story_rows(), 3, uttid=0), r"row 4: duplicate uttid '0', first seen in .*row 1"),
        (change(story_rows(), 3, uttid="0_b"), r"row 4: uttid '0_b' has the same number 0 as '0'"),
        (change(story_rows(), 2, last="  "), r"row 3: 'last' of uttid '2' must be a text that is not empty"),
        (change(story_rows(), 2, last=...), r"row 3: the row of uttid '2' has no 'last'"),
        (change(story_rows(), 2, first=""), r"row 3: 'first' of uttid '2' must be a text that is not empty"),
        (change(story_rows(), 3, last="Right end 1. "), r"row 3: item '2' has identical candidates"),
        (change(story_rows(), 0, uttid="abc"), r"row 1: uttid 'abc' must be a number"),
        (change(story_rows(), 0, uttid="1_../x"), r"row 1: uttid '1_\.\./x' must not contain path separators"),
        (change(story_rows(), 0, uttid=...), r"row 1: each row must be a JSON object with an 'uttid'"),
        (change(lettered_rows(), 1, answer="E"), r"row 2: answer 'E' of uttid '3_law' is no letter of the row; it has A, B, C, D"),
        (change(lettered_rows(), 1, answer=2), r"row 2: answer 2 of uttid '3_law' is no letter"),
        (change(lettered_rows(), 0, B="很快"), r"row 1: item '7_physics' has identical candidates"),
        (change(lettered_rows(), 0, C=""), r"row 1: 'C' of uttid '7_physics' must be a text"),
        (change(lettered_rows(), 0, B=...), r"row 1: uttid '7_physics' needs candidates under A, B, \.\.\. without a gap, got A, C, D"),
        ([*story_rows(1), *lettered_rows()], r"row 3: story rows and lettered rows are mixed"),
    ],
)
def test_faulty_rows(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    path = write_set(tmp_path, rows, audio=False)
    for row in rows:
        if "/" not in str(row.get("uttid", "/")):
            tone(tmp_path / "wavs" / f"{row['uttid']}.wav")
    with pytest.raises(ValueError, match=message):
        read(path)


def test_broken_json(tmp_path: Path) -> None:
    path = write_set(tmp_path, story_rows())
    with (tmp_path / "set.jsonl").open("a") as stream:
        stream.write('\n{"uttid": 4, "first": "cut sh')
    with pytest.raises(ValueError, match=r"set\.jsonl, row 6: broken JSON"):
        read(path)


def test_missing_files(tmp_path: Path) -> None:
    path = write_set(tmp_path, story_rows())
    with pytest.raises(FileNotFoundError, match=r"nowhere\.yaml: no such file; it should name the sets"):
        official(tmp_path / "nowhere.yaml", name="mine")
    (tmp_path / "wavs" / "2.wav").unlink()
    with pytest.raises(FileNotFoundError, match=r"set\.jsonl, row 3: the recording of uttid '2' is missing: .*wavs/2\.wav"):
        read(path)
    (tmp_path / "set.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"set\.jsonl: no such file, though the YAML names it"):
        read(path)


def test_empty_jsonl(tmp_path: Path) -> None:
    path = write_set(tmp_path, story_rows())
    (tmp_path / "set.jsonl").write_text("\n")
    with pytest.raises(ValueError, match=r"set\.jsonl: is empty"):
        read(path)


def test_separators_that_json_allows_inside_a_text(tmp_path: Path) -> None:
    rows = story_rows()
    rows[0]["first"] = rows[1]["first"] = "One line\u2028and another\u0085and a third."
    path = write_set(tmp_path, rows)
    content = (tmp_path / "set.jsonl").read_bytes()
    (tmp_path / "set.jsonl").write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    assert read(path).items[0].contexts[0].text == rows[0]["first"]


def test_other_encodings_are_named_with_their_row(tmp_path: Path) -> None:
    path = write_set(tmp_path, lettered_rows())
    lines = (tmp_path / "set.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "set.jsonl").write_bytes(lines[0].encode("utf-8") + b"\n" + lines[1].encode("gb18030"))
    with pytest.raises(ValueError, match=r"set\.jsonl, row 2: not UTF-8 .*iconv"):
        read(path)


def test_lettered_rows_may_share_a_number(tmp_path: Path) -> None:
    rows = lettered_rows()
    rows[1]["uttid"] = "7_law"
    assert [item.id for item in read(write_set(tmp_path, rows)).items] == ["7_physics", "7_law"]


def test_a_flac_cut_short(tmp_path: Path) -> None:
    path = write_set(tmp_path, story_rows())
    wav = tmp_path / "wavs" / "3.wav"
    soundfile.write(wav, np.random.default_rng(0).normal(size=48_000) * 0.1, 16_000, format="FLAC")
    read(path)
    wav.write_bytes(wav.read_bytes()[:20_000])
    with pytest.raises(ValueError, match=r"row 4: the recording of uttid '3' cannot be read"):
        read(path)


@pytest.mark.parametrize("content", [b"", b"RIFF but no more", b"\0" * 4000])
def test_unreadable_recording(tmp_path: Path, content: bytes) -> None:
    path = write_set(tmp_path, story_rows())
    (tmp_path / "wavs" / "3.wav").write_bytes(content)
    with pytest.raises(ValueError, match=r"set\.jsonl, row 4: the recording of uttid '3' cannot be read: .*3\.wav"):
        read(path)


def test_recording_without_samples(tmp_path: Path) -> None:
    path = write_set(tmp_path, story_rows())
    soundfile.write(tmp_path / "wavs" / "3.wav", np.zeros(0), 16_000)
    with pytest.raises(ValueError, match=r"row 4: the recording of uttid '3' has no samples or is cut short"):
        read(path)


def test_recording_cut_short(tmp_path: Path) -> None:
    path = write_set(tmp_path, story_rows())
    whole = (tmp_path / "wavs" / "3.wav").read_bytes()
    (tmp_path / "wavs" / "3.wav").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"row 4: the recording of uttid '3' has no samples or is cut short"):
        read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("datasets: [", r"sets\.yaml: is not valid YAML"),
        ("sets: {}", r"the key 'datasets' is missing"),
        ("datasets: {other: {}}", r"no set 'mine' under 'datasets'; it has other"),
        ("datasets: {mine: {audio_path: wavs, lang: en}}", r"set 'mine' has no text under the key 'path'"),
        ("datasets: {mine: {path: set.jsonl, lang: en}}", r"set 'mine' has no text under the key 'audio_path'"),
        ("datasets: {mine: {path: set.jsonl, audio_path: wavs}}", r"set 'mine' has no text under the key 'lang'"),
        ("datasets: {mine: {path: set.jsonl, audio_path: wavs, lang: fr}}", r"lang of set 'mine' must be 'en' or 'zh', got 'fr'"),
    ],
)
def test_faulty_yaml(tmp_path: Path, content: str, message: str) -> None:
    path = write_set(tmp_path, story_rows())
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read(path)


def test_messages_are_for_the_copy_that_was_read(tmp_path: Path) -> None:
    """The path in a message is the one the user gave, not a resolved one."""
    path = write_set(tmp_path, story_rows()[:1])
    shutil.copytree(tmp_path, tmp_path / "copy")
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "copy" / "set.jsonl"))):
        read(tmp_path / "copy" / path.name)


def spoken_yaml(folder: Path, rows: list[dict[str, object]], **paths: str) -> Path:
    (folder / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder / "sets.yaml"
    file.write_text(yaml.safe_dump({"datasets": {"mine": {"path": "set.jsonl", "lang": "en", **paths}}}))
    return file


def record_all(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        soundfile.write(folder / f"{name}.wav", np.full(800 + 10 * number, 0.1), 16_000)


def test_spoken_candidates_of_a_story_set(tmp_path: Path) -> None:
    rows = [{"uttid": number, "first": "It rained.", "last": last} for number, last in ((4, "He was wet."), (5, "He was dry."))]
    for folder in ("wavs", "endings", "stories"):
        record_all(tmp_path / folder, "4", "5")
    file = spoken_yaml(tmp_path, rows, audio_path="wavs", candidate_audio_path="endings", story_audio_path="stories")
    (item,) = official(file, "mine").items
    assert [audio.path for audio in item.candidate_audios] == [tmp_path / "endings" / "4.wav", tmp_path / "endings" / "5.wav"]
    assert [audio.path for audio in item.story_audios] == [tmp_path / "stories" / "4.wav", tmp_path / "stories" / "5.wav"]
    (plain,) = official(spoken_yaml(tmp_path, rows, audio_path="wavs"), "mine").items
    assert (plain.candidate_audios, plain.story_audios) == ((), ())
    (whole,) = official(spoken_yaml(tmp_path, rows, story_audio_path="stories"), "mine").items
    assert not whole.has_audio


def test_spoken_candidates_of_a_lettered_set(tmp_path: Path) -> None:
    rows = [{"uttid": "3_x", "first": "Water", "A": "is wet.", "B": "is dry.", "C": "burns.", "answer": "A"}]
    record_all(tmp_path / "wavs", "3_x")
    record_all(tmp_path / "endings", "3_x_A", "3_x_B")
    file = spoken_yaml(tmp_path, rows, audio_path="wavs", candidate_audio_path="endings")
    with pytest.raises(FileNotFoundError, match=r"set.jsonl, row 1: the recording of uttid '3_x' is missing: .*endings/3_x_C\.wav"):
        official(file, "mine")
    record_all(tmp_path / "endings", "3_x_A", "3_x_B", "3_x_C")
    (item,) = official(file, "mine").items
    assert [audio.path.stem for audio in item.candidate_audios] == ["3_x_A", "3_x_B", "3_x_C"]


def test_a_set_needs_recordings_of_some_kind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no text under the key 'audio_path'"):
        official(spoken_yaml(tmp_path, []), "mine")


def test_candidates_alone_need_no_spoken_context(tmp_path: Path) -> None:
    yaml_path = write_set(tmp_path, story_rows(2), audio=False)
    content = yaml.safe_load(yaml_path.read_text())
    entry = content["datasets"]["mine"]
    entry.pop("audio_path", None)
    entry["candidate_audio_path"] = "endings"
    yaml_path.write_text(yaml.safe_dump(content))
    (tmp_path / "endings").mkdir()
    for number in range(4):
        tone(tmp_path / "endings" / f"{number}.wav", 200.0 + number)
    benchmark = read(yaml_path)
    assert not benchmark.items[0].has_audio
    assert len(benchmark.items[0].candidate_audios) == 2
    (tmp_path / "endings" / "1.wav").write_bytes((tmp_path / "endings" / "0.wav").read_bytes())
    with pytest.raises(ValueError, match=r"has one recording for two candidates, so that no model can tell them apart: .*0\.wav, .*1\.wav"):
        read(yaml_path)
