from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

from s2sbench_callback import Benchmark, Item
from s2sbench_callback.cli import main
from s2sbench_callback.items import Context
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import build_report
from s2sbench_callback.scoring import LossTable

QUESTIONS = 120
ITEMS = tuple(Item(f"q{number}", (Context("c"),) * 2, ("a", "b"), 0) for number in range(QUESTIONS))
BENCHMARK = Benchmark("mine", "en", ITEMS)


def table(right: int) -> LossTable:
    nats = np.tile([1.0, 2.0], (QUESTIONS, 1))
    nats[right:] = nats[right:, ::-1]
    ids = tuple(item.id for item in ITEMS)
    return LossTable(ids, ids, np.zeros(QUESTIONS, dtype=np.int64), nats, np.full((QUESTIONS, 2), 2))


def recorded(folder: Path, *rights: int, benchmark: Benchmark = BENCHMARK) -> str:
    """A run with a probe every 100 steps, each with so many right answers in S→T and 110 in T→T."""
    record = RunRecord(folder / "version_0" / "s2sbench")
    signature = {"prompt": "s2sbench-1", "sets": {"mine": {"fingerprint": benchmark.fingerprint, "questions": QUESTIONS, "tie_rule": "lose"}}}
    for number, right in enumerate(rights):
        tables = {"mine": {"s2t": table(right), "t2t": table(110)}}
        record.append(build_report({"mine": benchmark}, tables, {}, 100 * number, None, {}, signature), tables)
    return str(folder)


def compared(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict:
    capsys.readouterr()
    main(["compare", *arguments, "--json"])
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


def accuracy(result: dict) -> dict:
    return next(row for row in result["rows"] if (row["condition"], row["figure"]) == ("s2t", "accuracy"))


def test_two_runs_are_compared_at_their_last_probes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = recorded(tmp_path / "a", 60, 70), recorded(tmp_path / "b", 60, 100)
    result = compared(first, second, capsys=capsys)
    assert result["first"] == [f"{first}/version_0/s2sbench@100"]
    row = accuracy(result)
    assert (row["first"], row["second"], row["verdict"]) == (pytest.approx(70 / 120), pytest.approx(100 / 120), "better")
    main(["compare", first, second])
    printed = capsys.readouterr()
    assert printed.err == ""
    assert f"B  {second}/version_0/s2sbench@100" in printed.out
    main(["compare", first, second, "--format", "md"])
    assert "| S→T accuracy | 0.583 | 0.833 |" in capsys.readouterr().out


def test_sides_are_steps_patterns_and_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = recorded(tmp_path / "one_1", 60, 70, 80)
    others = [recorded(tmp_path / f"two_{seed}", 60, 90 + seed) for seed in (1, 2)]
    (tmp_path / "two_notes.txt").touch()
    result = compared(f"{first}@100", first, capsys=capsys)
    assert (accuracy(result)["first"], accuracy(result)["second"]) == (pytest.approx(70 / 120), pytest.approx(80 / 120))
    pattern, listed = (compared(first, second, capsys=capsys) for second in (str(tmp_path / "two_*"), ",".join(others)))
    assert pattern == listed
    assert accuracy(pattern)["second"] == pytest.approx(91.5 / 120)
    assert accuracy(pattern)["test"] == "Student's t over questions and seeds"
    early = compared(str(tmp_path / "two_*@0"), f"{first}@100", capsys=capsys)
    assert [title.rpartition("@")[2] for title in early["first"]] == ["0", "0"]
    within = compared(first, capsys=capsys)
    assert within["is_within"]
    assert (accuracy(within)["first"], accuracy(within)["second"]) == (pytest.approx(110 / 120), pytest.approx(80 / 120))
    # A folder may itself be called so.
    odd = recorded(tmp_path / "run@7", 60)
    assert compared(odd, capsys=capsys)["first"] == [f"{odd}/version_0/s2sbench@0"]


def test_the_exit_status_says_whether_it_is_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = recorded(tmp_path / "good", 100), recorded(tmp_path / "bad", 60)
    for arguments in (
        [good, bad, "--fail-if-worse"],
        [good, bad, "--fail-if-worse=accuracy"],
        [good, bad, "--fail-if-worse=t2t/accuracy,degradation"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(["compare", *arguments])
        assert ended.value.code == 1
        printed = capsys.readouterr()
        assert "s2sbench compare: worse in mine/" in printed.err
        assert "worse" in printed.out
    with pytest.raises(SystemExit) as ended:
        main(["compare", good, bad, "--json", "--fail-if-worse"])
    assert ended.value.code == 1
    assert json.loads(capsys.readouterr().out)["worse"] == ["mine/s2t/accuracy", "mine/s2t/positive_minus_negative"]
    for arguments in ([good, bad], [bad, good, "--fail-if-worse"], [good, bad, "--fail-if-worse=t2t/accuracy"]):
        main(["compare", *arguments])
    refused(
        ["compare", good, bad, "--fail-if-worse=luck"], "nothing was compared that is called luck and can be worse; there are s2t/accuracy", capsys
    )


def test_how_many_questions_it_would_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = recorded(tmp_path / "a", 60), recorded(tmp_path / "b", 70)
    assert accuracy(compared(first, second, capsys=capsys))["needed"] is None
    assert accuracy(compared(first, second, "--difference", "0.01", capsys=capsys))["needed"] > 1000
    refused(["compare", first, second, "--difference", "-1"], "a difference must be above 0", capsys)


def test_what_cannot_be_compared_is_said_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = recorded(tmp_path / "good", 60)
    other = recorded(tmp_path / "other", 60, benchmark=replace(BENCHMARK, language="zh"))
    broken, foreign, empty = Path(recorded(tmp_path / "broken", 60)), tmp_path / "foreign", tmp_path / "empty"
    (broken / "version_0/s2sbench/losses/step=00000000.npz").write_bytes(b"no archive")
    foreign.mkdir()
    (foreign / "probes.jsonl").write_text('{"loss": 1}\n')
    empty.mkdir()
    unsigned = Path(recorded(tmp_path / "unsigned", 60)) / "version_0/s2sbench/probes.jsonl"
    unsigned.write_text(unsigned.read_text().replace('"fingerprint"', '"print"'))
    lossless = Path(recorded(tmp_path / "lossless", 60))
    (lossless / "version_0/s2sbench/losses/step=00000000.npz").unlink()
    for second, message in [
        (other, "were not asked the same questions of 'mine'"),
        (str(broken), r"step=00000000\.npz is damaged, or not written by a probe"),
        (str(foreign), r"probes\.jsonl, line 1: not the report of a probe"),
        (str(empty), "empty holds no probes.jsonl"),
        (str(unsigned.parent), "the signature of step 0 does not say which questions mine asked"),
        (str(lossless), "no losses of step 0"),
        (str(tmp_path / "nowhere"), "nowhere is not a folder"),
        (f"{good}@7", "has no probe of step 7; it has those of 0"),
        (str(tmp_path / "none_*"), "none_\\*: no folder matches"),
        (f"{good},{good}@0", "@0 is named twice on one side"),
        (good, "@0 stands on both sides"),
        (",", "',' names no run"),
    ]:
        refused(["compare", good, second], f"s2sbench compare: .*{message}", capsys)
    refused(["compare"], "the following arguments are required: A", capsys)


def test_a_reader_that_has_read_enough_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(tmp_path / "run", 60)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as ended:
            main(["compare", run, "--json"])
    assert ended.value.code == 141
    assert capsys.readouterr().err == ""


def test_help_shows_examples_and_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for words in ("FOLDER@STEP", "'runs/single_*' 'runs/two_*'", "--fail-if-worse", "exit status:", "significantly worse"):
        assert words in printed
