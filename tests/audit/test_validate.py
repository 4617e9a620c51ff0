"""``s2sbench validate``: every planted fault is found where it was planted, and a clean set has none."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import speechlike
import torch
import torchaudio
import yaml
from conftest import refused

from s2sbench_callback.audit.audit import Audit, audit
from s2sbench_callback.benchmarks import starter
from s2sbench_callback.cli import main

STORIES = starter("stories-en").items[:26]
Rows = list[dict[str, Any]]


def beginning(index: int) -> str:
    """The first sentence of a story."""
    return re.split(r"(?<=[.!?]) ", STORIES[index].contexts[0].text)[0]


def rows_of(count: int = len(STORIES)) -> Rows:
    return [
        {"uttid": 2 * index + place, "first": beginning(index), "last": candidate}
        for index, item in enumerate(STORIES[:count])
        for place, candidate in enumerate(item.candidates)
    ]


def write_rows(path: Path, rows: Rows) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def write_yaml(folder: Path, **sets: dict[str, Any]) -> Path:
    path = folder / "sets.yaml"
    path.write_text(yaml.safe_dump({"datasets": sets}, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """26 stories, most with one recording a pair, the last six with two readings."""
    folder = tmp_path_factory.mktemp("clean")
    write_rows(folder / "mine.jsonl", rows_of())
    for index in range(len(STORIES)):
        for place in range(2):
            samples = speechlike.say(beginning(index), reading=place if index >= 20 else 0)
            speechlike.write(folder / "wavs" / f"{2 * index + place}.wav", samples)
    write_yaml(folder, mine={"path": "mine.jsonl", "audio_path": "wavs", "lang": "en"})
    return folder


@pytest.fixture
def broken(clean: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    for path in clean.rglob("*"):
        if path.is_file():
            target = tmp_path / path.relative_to(clean)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path


def look(folder: Path, **options: Any) -> Audit:
    names = list(yaml.safe_load((folder / "sets.yaml").read_text())["datasets"])
    return audit(folder / "sets.yaml", names, recogniser=speechlike.hear, progress=False, **options)


def test_a_clean_set_has_neither_faults_nor_doubts(clean: Path) -> None:
    found = look(clean)
    assert [str(each) for each in (*found.all_faults, *found.all_doubts)] == []
    (one,) = found.sets
    assert one.rows == 52
    assert [pair.sameness for pair in one.pairs] == ["one file"] * 20 + ["two readings"] * 6
    assert all(each.error_rate == 0 for each in one.recordings)
    assert len(one.recordings) == 20 + 2 * 6


def spoil(change: Callable[[np.ndarray], np.ndarray], rate: int = speechlike.RATE, subtype: str = "PCM_16") -> Callable[[Path], None]:
    def spoiled(path: Path) -> None:
        samples, _ = soundfile.read(path, dtype="float64")
        speechlike.write(path, change(samples), rate, subtype)

    return spoiled


def resampled(samples: np.ndarray, *rates: int) -> np.ndarray:
    wave = torch.from_numpy(samples)
    for before, after in itertools.pairwise(rates):
        wave = torchaudio.functional.resample(wave, before, after)
    return wave.numpy()


def quiet(seconds: float) -> np.ndarray:
    return 1e-4 * np.random.default_rng(0).standard_normal(int(seconds * speechlike.RATE))


RECORDINGS: list[tuple[str, str, Callable[[Path], Any]]] = [
    ("missing_recording", "row 1", Path.unlink),
    ("damaged_recording", "row 1", lambda path: path.write_bytes(b"")),
    ("damaged_recording", "row 1", lambda path: path.write_bytes(path.read_bytes()[:9_000])),  # truncated
    ("damaged_recording", "row 1", spoil(lambda samples: samples[:0])),  # a header alone
    ("damaged_recording", "row 1", lambda path: path.write_text("404: not found")),
    ("not_finite", "row 1", spoil(lambda samples: np.where(np.arange(len(samples)) == 500, np.nan, samples), subtype="FLOAT")),
    ("silent", "row 1", spoil(lambda samples: samples * 0)),
    ("not_mono", "row 1", spoil(lambda samples: np.stack([samples, samples], axis=1))),
    ("low_sample_rate", "row 1", spoil(lambda samples: resampled(samples, 16_000, 8_000), rate=8_000)),
    ("other_sample_rate", "row 1", spoil(lambda samples: resampled(samples, 16_000, 24_000), rate=24_000)),
    ("odd_pace", "row 1", spoil(lambda samples: samples, rate=24_000)),  # a wrong rate in the header
    ("odd_pace", "row 1", spoil(lambda samples: samples[: len(samples) // 2])),  # cut short, with a header that fits
    ("cut_off", "row 1", spoil(lambda samples: samples[: len(samples) - 12_000 + int(np.abs(samples[-12_000:]).argmax())])),
    ("narrow_band", "row 1", spoil(lambda samples: resampled(samples, 16_000, 8_000, 16_000))),
    ("clipped", "row 1", spoil(lambda samples: np.clip(40 * samples, -0.9, 0.9) / 5)),
    ("odd_level", "row 1", spoil(lambda samples: samples / 10)),
    ("odd_level", "row 1", spoil(lambda samples: samples / 100)),
    ("silence_before", "row 1", spoil(lambda samples: np.concatenate([quiet(1.5), samples]))),
    ("silence_after", "row 1", spoil(lambda samples: np.concatenate([samples, quiet(1.5)]))),
    ("text_mismatch", "row 1", lambda path: speechlike.write(path, speechlike.say(beginning(1)))),
    ("one_recording_two_texts", "row 3", lambda path: path.write_bytes(path.with_name("2.wav").read_bytes())),
]


@pytest.mark.parametrize(("kind", "row", "damage"), RECORDINGS, ids=[f"{n}-{kind}" for n, (kind, _, _) in enumerate(RECORDINGS)])
def test_faults_of_a_recording(broken: Path, kind: str, row: str, damage: Callable[[Path], Any]) -> None:
    damage(broken / "wavs" / "0.wav")
    # Both rows of the pair, so that it is the recording that is at fault and not the pair.
    if (broken / "wavs" / "0.wav").is_file():
        (broken / "wavs" / "1.wav").write_bytes((broken / "wavs" / "0.wav").read_bytes())
    found = look(broken)
    hits = [each for each in (*found.all_faults, *found.all_doubts) if each.kind == kind]
    assert [each.place for each in hits][:1] == [f"{broken / 'mine.jsonl'}, {row}"], [str(each) for each in (*found.all_faults, *found.all_doubts)]
    assert all("wav" in each.reason for each in hits)
    is_fault = kind in ("missing_recording", "damaged_recording", "not_finite", "silent")
    assert (hits[0] in found.all_faults) == is_fault
    if not is_fault:
        assert not found.all_faults


def test_a_mismatch_says_whose_text_it_is(broken: Path) -> None:
    """Two pairs whose recordings were exchanged."""
    wavs = broken / "wavs"
    for one, other in ((6, 10), (7, 11)):
        first, second = (wavs / f"{number}.wav" for number in (one, other))
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)
    reasons = [each.reason for each in look(broken).all_doubts if each.kind == "text_mismatch"]
    assert len(reasons) == 2
    assert reasons[0].endswith("which is the text of 10")
    assert reasons[1].endswith("which is the text of 6")


def test_a_recording_exchanged_with_that_of_another_pair_is_heard_without_a_recogniser(broken: Path) -> None:
    first, second = (broken / "wavs" / f"{number}.wav" for number in (6, 10))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    found = audit(broken / "sets.yaml", ["mine"], progress=False)
    hits = [each for each in found.all_doubts if each.kind == "pair_says_other_words"]
    assert [each.place.rpartition(", ")[2] for each in hits] == ["row 7", "row 11"]


def changed(rows: Rows, index: int, **fields: Any) -> Rows:
    rows[index] = {key: value for key, value in {**rows[index], **fields}.items() if value is not ...}
    return rows


ROWS: list[tuple[str, str, Rows]] = [
    ("no_uttid", "row 1", changed(rows_of(), 0, uttid=...)),
    ("bad_uttid", "row 1", changed(rows_of(), 0, uttid="zero")),
    ("bad_uttid", "row 1", changed(rows_of(), 0, uttid="0_../../x")),
    ("duplicate_uttid", "row 3", changed(rows_of(), 2, uttid=1)),
    ("same_number", "row 3", changed(rows_of(), 2, uttid="1_b")),
    ("unpaired", "row 1", changed(rows_of(), 1, uttid=999)),
    ("no_field", "row 2", changed(rows_of(), 1, last=...)),
    ("no_text", "row 2", changed(rows_of(), 1, first=" ")),
    ("no_text", "row 2", changed(rows_of(), 1, last=["a"])),
    ("bad_question", "row 1", changed(rows_of(), 1, last=STORIES[0].candidates[0])),
    ("mixed_rows", "row 3", changed(rows_of(), 2, answer="A", A="x", B="y")),
    ("different_contexts", "row 1", changed(rows_of(), 1, first="Something else was told here.")),
    ("stray_space", "row 1", changed(rows_of(), 1, last=f" {STORIES[0].candidates[1]}")),
    ("markup", "row 1", changed(rows_of(), 1, last="He <b>left</b>.")),
    ("other_language", "row 1", changed(changed(rows_of(), 0, first="春天来了，花开了。"), 1, first="春天来了，花开了。")),
    ("repeated_question", "mine", changed(changed(rows_of(), 2, first=beginning(0)), 3, first=beginning(0))),
]


@pytest.mark.parametrize(("kind", "row", "rows"), ROWS, ids=[f"{n}-{kind}" for n, (kind, _, _) in enumerate(ROWS)])
def test_faults_of_rows(broken: Path, kind: str, row: str, rows: Rows) -> None:
    write_rows(broken / "mine.jsonl", rows)
    found = look(broken)
    places = [each.place for each in (*found.all_faults, *found.all_doubts) if each.kind == kind]
    assert places[:1] == [row if row == "mine" else f"{broken / 'mine.jsonl'}, {row}"]


def test_faults_of_lettered_rows(tmp_path: Path) -> None:
    question = {"first": "Water", "A": "is wet.", "B": "is dry.", "C": "burns.", "answer": "A"}
    rows = [{"uttid": n, **question, "first": f"Water number {n}"} for n in range(5)]
    changed(rows, 1, answer="D")
    changed(rows, 2, B=...)
    changed(rows, 3, B="is wet.")
    write_rows(tmp_path / "mine.jsonl", rows)
    for n in range(5):
        speechlike.write(tmp_path / "wavs" / f"{n}.wav", speechlike.say(f"Water number {n}"))
    write_yaml(tmp_path, mine={"path": "mine.jsonl", "audio_path": "wavs", "lang": "en"})
    found = look(tmp_path)
    assert [(each.kind, each.place.rpartition(", ")[2]) for each in found.all_faults] == [
        ("bad_answer", "row 2"),
        ("bad_letters", "row 3"),
        ("bad_question", "row 4"),
    ]
    assert found.sets[0].benchmark
    assert [item.id for item in found.sets[0].benchmark.items] == ["0", "4"]


def test_all_faults_in_one_pass(broken: Path) -> None:
    """Faults of the YAML, of bytes, of rows and of recordings, of two sets, in one report; the sound set beside them is audited all the same."""
    rows = rows_of()
    changed(rows, 4, last=...)
    changed(rows, 8, uttid=1)
    write_rows(broken / "mine.jsonl", rows)
    lines = (broken / "mine.jsonl").read_bytes().split(b"\n")
    lines[12], lines[14] = b'{"uttid": 12, "first": "cut', '{"uttid": 14, "first": "花"}'.encode("gb18030")
    (broken / "mine.jsonl").write_bytes(b"\n".join(lines))
    (broken / "wavs" / "20.wav").unlink()
    (broken / "wavs" / "stray.wav").write_bytes(b"")
    entry = {"path": "mine.jsonl", "audio_path": "wavs", "lang": "en"}
    write_rows(broken / "other.jsonl", rows_of(8))
    sets = {"mine": entry, "french": {**entry, "lang": "fr"}, "bare": {"path": "mine.jsonl", "lang": "en"}, "gone": {**entry, "path": "gone.jsonl"}}
    write_yaml(broken, **sets, none="nothing", other={**entry, "path": "other.jsonl"})
    found = look(broken)
    kinds = {each.kind for each in found.all_faults}
    expected = {
        "no_field",
        "duplicate_uttid",
        "broken_json",
        "not_utf8",
        "unpaired",
        "missing_recording",
        "bad_language",
        "bad_entry",
        "missing_file",
    }
    assert kinds == expected
    assert {each.kind for each in found.all_doubts} == {"orphan_recording", "repeated_question"}
    assert "3 recordings belong to no row" not in str(found.all_doubts[0])
    assert [one.name for one in found.sets if one.benchmark and len(one.benchmark.items) == 8] == ["other"]
    overlap = [each for each in found.repeated if {each.first[0], each.second[0]} == {"mine", "other"}]
    assert {each.first[1] for each in overlap} <= {str(2 * n) for n in range(8)}
    assert overlap[0].likeness == 1


def test_answers_that_are_given_away(broken: Path) -> None:
    rows = [{**row, "last": f"Luckily {row['last']}" if row["uttid"] % 2 == 0 else row["last"]} for row in rows_of()]
    write_rows(broken / "mine.jsonl", rows)
    found = look(broken)
    reasons = [each.reason for each in found.all_doubts if each.kind == "gives_answers_away"]
    assert any("the words of the candidates alone wins 1.000" in reason for reason in reasons)
    shorter = next(each for each in found.sets[0].baselines if each.name == "shorter candidate")
    lengths = [[len(row["last"]) for row in rows[place::2]] for place in (0, 1)]
    assert shorter.accuracy.value == pytest.approx(np.mean([(a < b) + 0.5 * (a == b) for a, b in zip(*lengths, strict=True)]))


def test_prosody_that_gives_answers_away(broken: Path) -> None:
    """The right row of each pair read faster: shorter recordings win every comparison."""
    for index in range(len(STORIES)):
        speechlike.write(broken / "wavs" / f"{2 * index}.wav", speechlike.say(beginning(index), reading=7, pace=1.15))
    found = look(broken)
    baseline = next(each for each in found.sets[0].baselines if each.name == "shorter context recording")
    assert baseline.accuracy.value == 1.0
    assert baseline.gives_away
    assert {pair.sameness for pair in found.sets[0].pairs} == {"two readings"}


def test_leaks_from_a_manifest(broken: Path, tmp_path: Path) -> None:
    """By text, in other case and punctuation, and by recording; a few shared words are no leak."""
    lines = [
        json.dumps({"audio_filepath": "elsewhere.wav", "text": f"so then {beginning(3).upper().replace('.', ' ')} and on it went"}),
        json.dumps({"audio_filepath": str(broken / "wavs" / "10.wav"), "text": "unknown"}),
        json.dumps({"text": "She went upstairs and came back."}),
        "plain text\twith a tab",
    ]
    (tmp_path / "manifest.json").write_text("\n".join(lines))
    found = look(broken, manifests=[tmp_path / "manifest.json"])
    assert [(leak.item, leak.is_recording, leak.place.rpartition(", ")[2]) for leak in found.sets[0].leaks] == [
        ("6", False, "line 1"),
        ("10", True, "line 2"),
    ]
    assert [each.place.rpartition(", ")[2] for each in found.all_doubts if each.kind == "leaked"] == ["row 7", "row 11"]


def test_two_processes_find_what_one_finds(clean: Path) -> None:
    one, two = (look(clean, workers=workers).sets[0] for workers in (1, 2))
    assert one.recordings == two.recordings
    assert one.pairs == two.pairs


def test_the_command(clean: Path, broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines on stdout, the page where it is wished, statuses for scripts."""
    arguments = ["validate", str(clean / "sets.yaml"), "--workers", "1"]
    main([*arguments, "--strict", "--output", str(broken / "out" / "page.html")])
    said = capsys.readouterr().out
    assert "mine: no fault and nothing doubtful was found." in said
    assert "52 rows, 26 questions, en; 26 with 2 candidates" in said
    page = (broken / "out" / "page.html").read_text()
    assert page.count("<svg") == 1
    assert "Can this set be believed?" in page
    (broken / "wavs" / "0.wav").unlink()
    speechlike.write(broken / "wavs" / "4.wav", speechlike.say(beginning(2)) / 10)
    (broken / "wavs" / "5.wav").write_bytes((broken / "wavs" / "4.wav").read_bytes())
    with pytest.raises(SystemExit) as ended:
        main(["validate", str(broken / "sets.yaml"), "--workers", "1", "--json"])
    assert ended.value.code == 1
    (one,) = json.loads(capsys.readouterr().out)["sets"]
    assert [fault["kind"] for fault in one["faults"]] == ["missing_recording"]
    assert [doubt["kind"] for doubt in one["doubts"]] == ["odd_level"]
    assert len(one["recordings"]) == 32
    (broken / "wavs" / "0.wav").write_bytes((broken / "wavs" / "1.wav").read_bytes())
    main(["validate", str(broken / "sets.yaml"), "--workers", "1", "--output", str(broken / "page.md")])
    assert "### Doubts (1)" in (broken / "page.md").read_text()
    with pytest.raises(SystemExit) as ended:
        main(["validate", str(broken / "sets.yaml"), "--workers", "1", "--strict"])
    assert ended.value.code == 1
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], r"nowhere\.yaml: no such file"),
        (["sets.yaml", "--set", "yours"], r"no set 'yours' under 'datasets'; it has mine"),
        (["sets.yaml", "--manifest", "nowhere.json"], r"nowhere\.json: no such file"),
        (["sets.yaml", "--output", "page.pdf"], r"--output .*page\.pdf: the ending must be one of \.html, \.md, \.json"),
        (["sets.yaml", "--whisper", "."], r"no model\.bin, so this is no Whisper model for faster-whisper"),
    ],
)
def test_what_cannot_be_looked_at(clean: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(clean / word) if "." in word else word for word in arguments]
    refused(["validate", *words], message, capsys)
