from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from scipy import stats
from statsmodels.stats.multitest import multipletests

from s2sbench_callback import ProbeReport
from s2sbench_callback.cli import main
from s2sbench_callback.comparison import Probed, compare_conditions, compare_sides
from s2sbench_callback.record import RunRecord
from s2sbench_callback.scoring import LossTable

QUESTIONS = 200


def table(gaps: np.ndarray, groups: Sequence[str] | None = None) -> LossTable:
    """Each question's answer has a loss below the other's by its gap: right where that is above 0."""
    names = tuple(f"q{number}" for number in range(len(gaps)))
    nats = np.stack([3.0 - gaps, np.full(len(gaps), 3.0)], axis=1)
    return LossTable(names, tuple(groups or names), np.zeros(len(gaps), dtype=np.int64), nats, np.ones((len(gaps), 2), dtype=np.int64))


def probed(name: str, step: int = 10, *, fingerprint: str = "f", precision: str = "bf16", **gaps: np.ndarray) -> Probed:
    tables = {"mine": {condition: table(each) for condition, each in gaps.items()}}
    signature = {"sets": {"mine": {"tie_rule": "lose", "fingerprint": fingerprint}}, "precision": precision}
    return Probed(name, ProbeReport(step, 1, {"mine": tuple(gaps)}, {}, signature), tables)  # type: ignore[arg-type]


def gaps(seed: int, level: float) -> np.ndarray:
    return np.random.default_rng(seed).normal(level, 1.0, size=QUESTIONS)


def test_rows_of_two_checkpoints_are_those_of_scipy_and_holm() -> None:
    before, after = {"s2t": gaps(1, 0.2), "t2t": gaps(2, 1.0)}, {"s2t": gaps(1, 0.2) + gaps(3, 0.4), "t2t": gaps(2, 1.0) + 0.001 * gaps(4, 0.0)}
    found = compare_sides([probed("a", **before)], [probed("b", **after)])
    rows = {(row.condition, row.figure): row for row in found.rows}
    assert set(rows) == {(c, f) for c in ("s2t", "t2t") for f in ("accuracy", "positive_loss", "negative_loss", "positive_minus_negative")} | {
        (None, "degradation")
    }
    right = [(each["s2t"] > 0) for each in (before, after)]
    accuracy = rows["s2t", "accuracy"]
    assert (accuracy.first, accuracy.second) == pytest.approx((right[0].mean(), right[1].mean()))
    changed = [int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())]
    assert accuracy.p == pytest.approx(stats.binomtest(changed[0], sum(changed)).pvalue)
    assert accuracy.test == "McNemar, exact"
    gap = rows["s2t", "positive_minus_negative"]
    t_test = stats.ttest_rel(-after["s2t"], -before["s2t"])
    assert gap.difference.value == pytest.approx((before["s2t"] - after["s2t"]).mean())
    assert (gap.difference.low, gap.difference.high) == pytest.approx(tuple(t_test.confidence_interval()), abs=0.03)
    assert gap.verdict == "better"
    assert rows["s2t", "positive_loss"].verdict == "better"
    # The others' losses are the same: nothing to test, and no direction.
    assert (rows["s2t", "negative_loss"].p, rows["s2t", "negative_loss"].verdict) == (1.0, "no difference can be told")
    assert rows["t2t", "accuracy"].verdict == "no difference can be told"
    degradation = (right_of(before["t2t"]) - right_of(before["s2t"])).mean(), (right_of(after["t2t"]) - right_of(after["s2t"])).mean()
    assert (rows[None, "degradation"].first, rows[None, "degradation"].second) == pytest.approx(degradation)
    corrected = multipletests([row.p for row in found.rows], method="holm")[1]
    assert [row.corrected_p for row in found.rows] == pytest.approx(list(corrected))


def right_of(each: np.ndarray) -> np.ndarray:
    return (each > 0).astype(float)


def test_a_checkpoint_that_is_worse_is_called_so() -> None:
    found = compare_sides([probed("a", s2t=gaps(1, 1.0))], [probed("b", s2t=gaps(1, 1.0) - np.abs(gaps(2, 0.6)))])
    verdicts = {row.figure: row.verdict for row in found.rows}
    assert verdicts == {
        "accuracy": "worse",
        "positive_loss": "worse",
        "negative_loss": "no difference can be told",
        "positive_minus_negative": "worse",
    }


def test_clusters_are_permuted_as_a_whole() -> None:
    """Three equal questions a cluster are one: p is that of a third of them, and not McNemar's."""
    first, second = np.repeat(gaps(1, 0.0)[:40], 3), np.repeat(gaps(2, 0.5)[:40], 3)
    groups = [str(number // 3) for number in range(120)]
    sides = [replace(probed("a", s2t=each), tables={"mine": {"s2t": table(each, groups)}}) for each in (first, second)]
    threes = {row.figure: row for row in compare_sides(sides[:1], sides[1:]).rows}
    ones = {row.figure: row for row in compare_sides([probed("a", s2t=first[::3])], [probed("b", s2t=second[::3])]).rows}
    assert threes["accuracy"].test == "permutation of signs"
    assert threes["accuracy"].p == pytest.approx(ones["accuracy"].p, rel=0.25, abs=0.01)
    assert threes["positive_loss"].smallest_detectable == pytest.approx(ones["positive_loss"].smallest_detectable)


def test_seeds_are_pooled_and_their_spread_counts() -> None:
    """Ten questions' worth of certainty within each training, but trainings that differ among themselves as much as the strategies do."""
    levels = [(0.0, 0.6), (0.7, 0.2), (0.3, 1.0)]
    first = [probed(f"a{seed}", s2t=gaps(1, one)) for seed, (one, _) in enumerate(levels)]
    second = [probed(f"b{seed}", s2t=gaps(1, two)) for seed, (_, two) in enumerate(levels)]
    rows = {row.figure: row for row in compare_sides(first, second).rows}
    loss = rows["positive_minus_negative"]
    assert loss.difference.value == pytest.approx(np.mean([one for one, _ in levels]) - np.mean([two for _, two in levels]))
    assert loss.verdict == "no difference can be told"
    assert loss.by_seeds > 0.2
    assert loss.by_questions < 1e-6
    assert loss.test == "Student's t, questions and seeds crossed"
    alone = compare_sides(first[:1], second).rows[0]
    assert alone.test == "Student's t, questions alone: a side has one seed"


def test_hearing_against_reading_in_one_checkpoint() -> None:
    found = compare_conditions(probed("a", s2t=gaps(1, 0.1), t2t=gaps(1, 0.1) + np.abs(gaps(2, 1.0))))
    accuracy = next(row for row in found.rows if row.figure == "accuracy")
    assert (accuracy.first, accuracy.second) == pytest.approx((right_of(gaps(1, 0.1) + np.abs(gaps(2, 1.0))).mean(), right_of(gaps(1, 0.1)).mean()))
    assert accuracy.verdict == "worse"
    with pytest.raises(ValueError, match="a has no set that was asked in S→T and in T→T"):
        compare_conditions(probed("a", s2t=gaps(1, 0.1)))


def test_questions_without_a_finite_loss_are_lost_but_have_no_loss() -> None:
    broken = gaps(1, 2.0)
    broken[:20] = np.nan
    rows = {row.figure: row for row in compare_sides([probed("a", s2t=gaps(1, 2.0))], [probed("b", s2t=broken)]).rows}
    assert rows["accuracy"].questions == QUESTIONS
    assert rows["accuracy"].second < 0.91
    assert rows["positive_loss"].questions == QUESTIONS - 20
    assert rows["positive_loss"].p == 1.0


def test_what_cannot_be_paired_is_refused_and_what_else_differs_is_said() -> None:
    one = probed("a", s2t=gaps(1, 0.0))
    with pytest.raises(ValueError, match="b was asked other questions of 'mine' than a"):
        compare_sides([one], [probed("b", fingerprint="g", s2t=gaps(1, 0.0))])
    fewer = probed("b", s2t=gaps(1, 0.0)[:50])
    with pytest.raises(ValueError, match="b was asked other questions"):
        compare_sides([one], [fewer])
    with pytest.raises(ValueError, match="were not asked one set in one condition"):
        compare_sides([one], [probed("b", t2t=gaps(1, 0.0))])
    warned = compare_sides([one], [probed("b", precision="fp32", s2t=gaps(1, 0.0))]).warnings
    assert warned == ("the two sides differ in more than their weights: precision is bf16 and fp32",)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, level in (("good_1", 1.0), ("good_2", 1.1), ("bad_1", 0.2), ("bad_2", 0.3)):
        record = RunRecord(tmp_path / name / "version_0" / "s2sbench")
        for step, more in ((0, 0.0), (100, level)):
            each = probed(name, step, s2t=gaps(7, more), t2t=gaps(7, 1.5))
            record.append(each.report, each.tables)
    return tmp_path


def test_the_command_prints_a_table_json_and_an_exit_status(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", f"{runs}/good_1", f"{runs}/bad_1"])
    printed = capsys.readouterr()
    assert printed.err == ""
    line = next(line for line in printed.out.splitlines() if line.startswith("mine  S→T        accuracy"))
    assert "worse" in line
    assert "Corrected over 9 tests by Holm's method" in printed.out
    with pytest.raises(SystemExit) as ended:
        main(["compare", f"{runs}/good_1", f"{runs}/bad_1", "--fail-if-worse"])
    assert ended.value.code == 1
    main(["compare", f"{runs}/bad_1", f"{runs}/good_1", "--fail-if-worse"])
    capsys.readouterr()
    main(["compare", f"{runs}/good_1@0", f"{runs}/good_1@100", "--json", "--difference", "0.01"])
    content = json.loads(capsys.readouterr().out)
    accuracy = next(row for row in content["rows"] if (row["condition"], row["figure"]) == ("s2t", "accuracy"))
    assert accuracy["second"] == pytest.approx(right_of(gaps(7, 1.0)).mean())
    assert accuracy["questions_needed"] > QUESTIONS
    assert content["first"] == [f"{runs}/good_1@0"]
    assert content["correction"] == "Holm"
    main(["compare", f"{runs}/bad_*", f"{runs}/good_1,{runs}/good_2", "--format", "md"])
    lines = capsys.readouterr().out.splitlines()
    assert f"first   {runs}/bad_1@100, {runs}/bad_2@100" in lines
    assert sum(line.startswith("| mine |") for line in lines) == 9
    main(["compare", f"{runs}/good_1"])
    assert "good_1@100 T→T" in capsys.readouterr().out


def test_faults_are_sentences(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = f"{runs}/good_1"
    refused(["compare", good, f"{runs}/none"], "s2sbench compare: .*none is not a folder", capsys)
    refused(["compare", good, f"{runs}/none_*"], "none_.* matches nothing", capsys)
    refused(["compare", good, f"{good}@7"], "good_1 has no probe at step 7; it has 0, 100", capsys)
    refused(["compare", f"{runs}/good_*"], "one checkpoint at a time", capsys)
    refused(["compare", good, good, "--difference", "0"], "--difference must be above 0", capsys)
    refused(["compare", good, good, "--draws", "5"], "--draws must be at least 100", capsys)
    (runs / "good_2" / "version_0" / "s2sbench" / "losses" / "step=00000100.npz").write_bytes(b"PK")
    refused(["compare", good, f"{runs}/good_2"], r"step=00000100\.npz is damaged", capsys)
    (runs / "bad_2" / "version_0" / "s2sbench" / "probes.jsonl").write_text("{}\n")
    refused(["compare", good, f"{runs}/bad_2"], r"probes\.jsonl, line 1: not the report of a probe", capsys)
