from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from s2sbench_callback import Benchmark, Item, ProbeReport
from s2sbench_callback.decisions import Decision, Verdict
from s2sbench_callback.items import Context
from s2sbench_callback.record import RunRecord, find_record
from s2sbench_callback.report import build_report
from s2sbench_callback.scoring import LossTable

ITEMS = tuple(Item(f"q{index}", (Context("c"),) * 2, ("a", "b"), 0) for index in range(4))
BENCHMARK = Benchmark("mine", "en", ITEMS)


def table(rights: str) -> LossTable:
    nats = np.array([[1.0, 2.0] if right == "r" else [2.0, 1.0] for right in rights])
    names = tuple(item.id for item in ITEMS)
    return LossTable(names, names, np.zeros(4, dtype=np.int64), nats, np.full((4, 2), 2))


def probe(step: int, s2t: str = "rwww", t2t: str = "rrrw", reference: str = "rrrr", stage: int = 1) -> tuple[ProbeReport, dict]:
    tables = {"mine": {"s2t": table(s2t), "t2t": table(t2t)}}
    report = build_report(
        {"mine": BENCHMARK}, tables, {"mine": table(reference)}, step, Verdict(stage, 100 * (stage - 1)), {"seconds": 2.0}, {"package": "1"}
    )
    return report, tables


def test_metric_keys_and_their_meaning() -> None:
    metrics = probe(10)[0].metrics
    value = lambda key: metrics[f"s2sbench/{key}"]  # noqa: E731
    assert value("mine/s2t/accuracy") == 0.25
    assert value("mine/t2t/accuracy") == 0.75
    assert value("mine/s2t/positive_loss") == (0.5 + 3 * 1.0) / 4
    assert value("mine/degradation") == 0.5
    # Three of four right is not above chance beyond noise, so there is no ability to lose a share of.
    assert math.isnan(value("mine/ability_lost"))
    assert math.isnan(value("mean/ability_lost_high"))
    assert value("mine/intelligence_loss") == 0.75
    assert value("mine/t2t_change") == -0.25
    assert value("mean/s2t/accuracy") == 0.25
    assert (value("step"), value("stage"), value("seconds")) == (10, 1, 2.0)
    assert (value("mine/s2t/ties"), value("mine/s2t/invalid")) == (0, 0)
    estimates = ["accuracy", "question_accuracy", "positive_loss", "negative_loss", "positive_minus_negative"]
    keys = {f"{place}/{c}/{name}" for place in ("mine", "mean") for c in ("s2t", "t2t") for name in estimates}
    keys |= {f"{place}/{name}" for place in ("mine", "mean") for name in ("degradation", "ability_lost", "intelligence_loss", "t2t_change")}
    keys |= {f"{key}{end}" for key in keys for end in ("_low", "_high")}
    keys |= {f"mine/{c}/{name}" for c in ("s2t", "t2t") for name in ("ties", "invalid")} | {"step", "stage", "seconds"}
    assert set(metrics) == {f"s2sbench/{key}" for key in keys}


def test_the_mean_is_over_sets() -> None:
    other = Benchmark("other", "zh", ITEMS)
    tables = {"mine": {"s2t": table("rwww")}, "other": {"s2t": table("rrrr")}}
    metrics = build_report({"mine": BENCHMARK, "other": other}, tables, {}, 0, None, {}, {}).metrics
    assert metrics["s2sbench/mean/s2t/accuracy"] == (0.25 + 1.0) / 2
    assert "s2sbench/mean/degradation" not in metrics
    assert "s2sbench/stage" not in metrics


def test_a_report_survives_json() -> None:
    report = probe(10)[0]
    broken = ProbeReport(report.step, report.stage, report.sets, {**report.metrics, "s2sbench/x": math.nan}, report.signature)
    back = ProbeReport.from_json(broken.to_json())
    assert math.isnan(back.metrics["s2sbench/x"])
    known = {key: value for key, value in report.metrics.items() if not math.isnan(value)}
    assert len(known) > 20
    assert {key: value for key, value in back.metrics.items() if not math.isnan(value)} == known
    assert (back.step, back.stage, back.sets, back.signature) == (report.step, report.stage, report.sets, report.signature)
    assert back.figure("mine", "s2t", "accuracy").value == 0.25
    assert back.figure("mine", None, "degradation").value == 0.5
    with pytest.raises(ValueError, match="not the report of a probe"):
        ProbeReport.from_json('{"step": 1}')


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    record = RunRecord(tmp_path / "s2sbench")
    assert record.history() == []
    for step in (0, 1000):
        record.append(*probe(step))
    assert [report.step for report in record.history()] == [0, 1000]
    assert (tmp_path / "s2sbench" / "losses" / "step=00001000.npz").is_file()
    tables = record.losses(1000)
    assert set(tables["mine"]) == {"s2t", "t2t"}
    for condition, expected in probe(1000)[1]["mine"].items():
        found = tables["mine"][condition]
        assert (found.item_ids, found.groups) == (expected.item_ids, expected.groups)
        for name in ("answers", "nats", "tokens"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    with pytest.raises(FileNotFoundError, match=r"no losses of step 5; this record has steps \[0, 1000\]"):
        record.losses(5)


def test_no_unfinished_file_is_left(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.append(*probe(0))
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["probes.jsonl", "step=00000000.npz"]


def test_a_failed_write_leaves_the_history_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = RunRecord(tmp_path)
    record.append(*probe(0))
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        record.append(*probe(100))
    assert [report.step for report in record.history()] == [0]
    assert not record.losses_path(100).exists()


def test_resuming_moves_later_reports_out_of_the_history(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    for step in (0, 100, 200, 300):
        record.append(*probe(step))
    assert record.supersede_after(100) == 2
    assert [report.step for report in record.history()] == [0, 100]
    with pytest.raises(FileNotFoundError, match=r"no losses of step 300; this record has steps \[0, 100\]"):
        record.losses(300)
    assert record.supersede_after(100) == 0
    record.append(*probe(200))
    assert record.supersede_after(150) == 1
    steps = [ProbeReport.from_json(line).step for line in record.superseded_path.read_text().splitlines()]
    assert steps == [200, 300, 200]
    names = sorted(path.name for path in (tmp_path / "losses.superseded").iterdir())
    assert names == ["step=00000200.1.npz", "step=00000200.npz", "step=00000300.npz"]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "probes.jsonl").write_text(probe(0)[0].to_json() + "\n{\n")
    with pytest.raises(ValueError, match=r"probes\.jsonl, line 2: not the report of a probe"):
        RunRecord(tmp_path).history()


def test_a_record_is_found_in_the_folder_of_its_run(tmp_path: Path) -> None:
    run, empty = tmp_path / "run", tmp_path / "empty"
    empty.mkdir()
    RunRecord(run / "version_0" / "s2sbench").append(*probe(0))
    for place in (run, run / "version_0", run / "version_0" / "s2sbench"):
        assert find_record(place).dirpath == run / "version_0" / "s2sbench"
    RunRecord(run / "version_0" / "s2sbench_scored").append(*probe(0))
    assert find_record(run / "version_0").dirpath == run / "version_0" / "s2sbench"
    RunRecord(run / "version_1" / "s2sbench").append(*probe(0))
    with pytest.raises(
        FileNotFoundError, match=r"holds several records \(.*version_0/s2sbench, .*version_0/s2sbench_scored, .*version_1/s2sbench\): name one"
    ):
        find_record(run)
    with pytest.raises(FileNotFoundError, match=r"empty holds no probes\.jsonl, so no probe was recorded there"):
        find_record(empty)
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        find_record(tmp_path / "nowhere")
    (empty / "probes.jsonl").touch()
    with pytest.raises(ValueError, match="holds no probes"):
        find_record(empty)
    (empty / "probes.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"probes\.jsonl is no text"):
        find_record(empty)


def test_damaged_losses_are_named(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.append(*probe(0))
    path = record.losses_path(0)
    whole = path.read_bytes()
    foreign = tmp_path / "foreign.npz"
    np.savez(foreign, weights=np.zeros(3))
    for content in (b"", b"not an archive", whole[: len(whole) // 2], foreign.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"step=00000000\.npz is damaged, or not written by a probe"):
            record.losses(0)


def test_a_verdict_comes_back_from_its_line_with_nan_and_all() -> None:
    report, _ = probe(10)
    decision = Decision(False, "too few probes", min_gain=0.1)
    judged = replace(report, verdict=Verdict(2, 5, "somebody said so", decision, ("T→T is damaged",)))
    back = ProbeReport.from_json(judged.to_json()).verdict
    assert back is not None
    assert back.decision is not None
    assert math.isnan(back.decision.gain)
    assert back == replace(judged.verdict, decision=back.decision)  # type: ignore[type-var]
    # As lines were written before there were verdicts.
    older = json.loads(report.to_json())
    del older["verdict"]
    assert ProbeReport.from_json(json.dumps(older)).verdict is None
