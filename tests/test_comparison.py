from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from s2sbench_callback.comparison import MCNEMAR, NOTHING_TOLD, SIGN_FLIPS, STUDENT, Comparison, Row, compare, worse_rows
from s2sbench_callback.comparison_text import markdown, text
from s2sbench_callback.paired_tests import holm
from s2sbench_callback.scoring import LossTable
from s2sbench_callback.sides import RecordedProbe

QUESTIONS = 200
IDS = tuple(f"q{number}" for number in range(QUESTIONS))
SIGNATURE = {"prompt": "s2sbench-1", "precision": "32-true", "adapter": {"adapter": "a"}}


def table(gaps: np.ndarray, answer: float = 1.0, groups: tuple[str, ...] = IDS) -> LossTable:
    """``[Q, others]`` how much lower the answer's loss is than each other's."""
    nats = np.concatenate([np.full((len(gaps), 1), answer), answer + gaps], axis=1)
    ids = tuple(f"q{number}" for number in range(len(gaps)))
    return LossTable(ids, groups[: len(gaps)], np.zeros(len(gaps), dtype=np.int64), nats, np.ones(nats.shape, dtype=np.int64))


def right(first: int, last: int, answer: float = 1.0) -> LossTable:
    """Questions from the first to before the last are right."""
    number = np.arange(QUESTIONS)
    return table(np.where((number >= first) & (number < last), 0.5, -0.5)[:, None], answer)


def probed(name: str, step: int = 0, **tables: LossTable) -> RecordedProbe:
    return RecordedProbe(name, step, SIGNATURE, {"set": "f"}, {"set": "lose"}, {"set": tables})  # type: ignore[dict-item]


def rows(comparison: Comparison) -> Mapping[str, Row]:
    assert len({row.key for row in comparison.rows}) == len(comparison.rows)
    return {row.key: row for row in comparison.rows}


def test_every_figure_is_held_against_the_other_side() -> None:
    first = probed("a", t2t=right(0, 180), s2t=right(0, 120, answer=2.0))
    second = probed("b", t2t=right(0, 180), s2t=right(5, 150, answer=1.5))
    found = rows(compare([first], [second]))
    losses = {f"{condition}/{figure}" for condition in ("s2t", "t2t") for figure in ("positive_loss", "negative_loss", "positive_minus_negative")}
    assert set(found) == losses | {"s2t/accuracy", "t2t/accuracy", "degradation", "ability_lost"}
    accuracy = found["s2t/accuracy"]
    assert (accuracy.first, accuracy.second, accuracy.difference) == pytest.approx((0.6, 0.725, 0.125))
    assert 0.05 < accuracy.low < 0.125 < accuracy.high < 0.2
    # 5 questions only the first has right, 30 only the second.
    assert accuracy.p == pytest.approx(binomtest(5, 35).pvalue)
    assert accuracy.test == MCNEMAR
    assert accuracy.verdict == "better"
    assert found["t2t/accuracy"].verdict == NOTHING_TOLD
    # A loss is better when it is lower; that of wrong candidates is neither.
    assert (found["s2t/positive_loss"].difference, found["s2t/positive_loss"].verdict) == (-0.5, "better")
    assert found["s2t/negative_loss"].verdict == "lower"
    assert (found["degradation"].difference, found["degradation"].verdict) == (pytest.approx(-0.125), "better")
    lost = found["ability_lost"]
    assert (lost.first, lost.second) == pytest.approx((0.3 / 0.4, 0.175 / 0.4))
    assert lost.difference == pytest.approx(-0.125 / 0.4)
    assert lost.low < lost.difference < lost.high < 0
    assert lost.verdict == "better"


def test_the_other_way_round_everything_turns() -> None:
    first, second = probed("a", t2t=right(0, 180), s2t=right(0, 120)), probed("b", t2t=right(0, 170), s2t=right(5, 150))
    there, back = rows(compare([first], [second])), rows(compare([second], [first]))
    opposite = {"better": "worse", "worse": "better", NOTHING_TOLD: NOTHING_TOLD, "higher": "lower", "lower": "higher"}
    for key, row in there.items():
        assert back[key].difference == pytest.approx(-row.difference)
        assert (back[key].p, back[key].verdict) == (row.p, opposite[row.verdict])
        if key != "ability_lost":
            assert (back[key].low, back[key].high) == pytest.approx((-row.high, -row.low), abs=0.011)


def test_the_correction_is_holms_over_all_tests_and_decides() -> None:
    # 5 questions only the first has right, 16 only the second: a p-value of 0.027.
    compared = compare([probed("a", s2t=right(0, 100))], [probed("b", s2t=right(5, 116))])
    assert [row.corrected for row in compared.rows] == pytest.approx(holm([row.p for row in compared.rows]))
    undecided = [row for row in compared.rows if row.p < 0.05 <= row.corrected]
    assert undecided, "the case is made so that the correction matters"
    assert {row.verdict for row in undecided} == {NOTHING_TOLD}


def test_several_comparisons_a_question_are_tested_by_question() -> None:
    draw = np.random.default_rng(0)
    gaps = draw.normal(0.5, 1, size=(60, 3))
    first, second = probed("a", s2t=table(gaps)), probed("b", s2t=table(gaps + draw.normal(0.5, 0.3, size=(60, 1))))
    found = rows(compare([first], [second]))
    assert (found["s2t/accuracy"].test, found["s2t/question_accuracy"].test) == (SIGN_FLIPS, MCNEMAR)
    assert (found["s2t/accuracy"].first, found["s2t/question_accuracy"].first) == ((gaps > 0).mean(), (gaps > 0).all(1).mean())
    # The same questions under names that make one cluster of three: less to go by.
    clustered = tuple(f"c{number // 3}" for number in range(60))
    fewer = rows(compare(*([probed(p.name, s2t=replace(p.tables["set"]["s2t"], groups=clustered))] for p in (first, second))))
    assert fewer["s2t/question_accuracy"].test == SIGN_FLIPS
    assert fewer["s2t/accuracy"].p != found["s2t/accuracy"].p
    assert fewer["s2t/accuracy"].questions == 60


def test_conditions_of_one_probe_are_held_against_t2t() -> None:
    probe = probed("a", t2t=right(0, 180), s2t=right(0, 150, 2.0), s2s=right(0, 120), t2s=right(0, 180))
    compared = compare([probe])
    found = rows(compared)
    assert compared.is_within
    assert (found["s2t/accuracy"].first, found["s2t/accuracy"].second, found["s2t/accuracy"].verdict) == (0.9, 0.75, "worse")
    assert found["s2t/positive_loss"].difference == pytest.approx(1.0)
    assert found["t2s/accuracy"].verdict == NOTHING_TOLD
    assert "s2s/positive_loss" not in found
    assert any("losses of S→S are per audio token" in warning for warning in compared.warnings)


def seeds(name: str, shift: float, jitter: float, draw: np.random.Generator, level: np.ndarray) -> list[RecordedProbe]:
    own = np.random.default_rng(1).normal(size=level.shape) * 0.1
    return [
        probed(f"{name}{number}", s2t=table(level + own + shift + jitter * draw.normal() + 0.2 * draw.normal(size=level.shape)))
        for number in range(3)
    ]


def test_seeds_are_pooled_and_their_variance_counts() -> None:
    draw = np.random.default_rng(0)
    level = draw.normal(1, 0.5, size=(QUESTIONS, 1))
    compared = compare(seeds("a", 0.0, 0.5, draw, level), seeds("b", 0.3, 0.5, draw, level))
    row = rows(compared)["s2t/positive_minus_negative"]
    assert row.test == STUDENT
    assert row.seeds_variance > 0.9
    assert row.questions_variance + row.seeds_variance + row.rest_variance == pytest.approx(1)
    assert row.verdict == NOTHING_TOLD
    assert "seeds are taken to vary alike" in text(compared)
    # One of each side would have been sure of itself, by the questions alone.
    alone = rows(compare(*([side[0]] for side in (seeds("a", 0.0, 0.0, draw, level), seeds("b", 0.3, 0.0, draw, level)))))
    assert alone["s2t/positive_minus_negative"].verdict == "better"
    assert math.isnan(alone["s2t/positive_minus_negative"].seeds_variance)
    steady = rows(compare(seeds("a", 0.0, 0.0, draw, level), seeds("b", 0.3, 0.0, draw, level)))["s2t/positive_minus_negative"]
    assert steady.verdict == "better"
    assert steady.difference == pytest.approx(-0.3, abs=0.05)


def test_what_so_many_questions_could_show() -> None:
    draw = np.random.default_rng(0)
    gaps = draw.normal(1, 1, size=(QUESTIONS, 1))
    other = gaps + draw.normal(0.0, 0.4, size=gaps.shape)
    row = rows(compare([probed("a", s2t=table(gaps))], [probed("b", s2t=table(other))], sought=0.02))["s2t/positive_minus_negative"]
    error = (other - gaps).std(ddof=1) / math.sqrt(QUESTIONS)
    # 1.96 + 0.84 standard errors, a little more for Student's t.
    assert row.detectable == pytest.approx(2.8 * error, rel=0.01)
    assert row.needed == pytest.approx(QUESTIONS * (row.detectable / 0.02) ** 2, rel=0.02)
    assert rows(compare([probed("a", s2t=table(gaps))], [probed("b", s2t=table(other))]))["s2t/accuracy"].needed is None


def test_sides_that_answer_alike_are_not_said_to_be_equal_for_sure() -> None:
    same = {"t2t": right(0, 180), "s2t": right(0, 150)}
    found = rows(compare([probed("a", **same)], [probed("b", **same)]))
    for key in ("s2t/accuracy", "degradation", "ability_lost"):
        assert found[key].difference == 0
        assert found[key].low < 0 < found[key].high
        assert found[key].detectable > 0
        assert found[key].p == 1.0


def test_questions_without_a_finite_loss_are_left_out_of_losses() -> None:
    broken = right(0, 150)
    broken.nats[:10, 1] = np.nan
    found = rows(compare([probed("a", s2t=right(0, 150))], [probed("b", s2t=broken)]))
    assert (found["s2t/positive_loss"].questions, found["s2t/accuracy"].questions) == (190, 200)
    assert found["s2t/accuracy"].difference == pytest.approx(-0.05)


def test_no_ability_is_lost_where_there_is_none() -> None:
    compared = compare([probed("a", t2t=right(0, 101), s2t=right(0, 90))], [probed("b", t2t=right(0, 180), s2t=right(0, 90))])
    assert "ability_lost" not in rows(compared)
    assert "set: T→T of a@0 is not above chance, so there is no ability to lose" in compared.warnings


def test_other_questions_are_refused() -> None:
    first, second = probed("a", s2t=right(0, 150)), probed("b", s2t=right(0, 150))
    with pytest.raises(ValueError, match=r"a@0 and b@0 were not asked the same questions of 'set' \(200 of fingerprint f and 200 of fingerprint g\)"):
        compare([first], [replace(second, fingerprints={"set": "g"})])
    with pytest.raises(ValueError, match="200 of fingerprint f and 60 of fingerprint f"):
        compare([first], [probed("b", s2t=table(np.ones((60, 1))))])
    with pytest.raises(ValueError, match="no set in common; they have set; other"):
        compare([first], [replace(second, tables={"other": second.tables["set"]}, fingerprints={"other": "f"}, tie_rules={"other": "lose"})])
    with pytest.raises(ValueError, match="a@0 stands on both sides"):
        compare([first], [first])
    with pytest.raises(ValueError, match="there is nothing to compare: set: not every probe has T→T"):
        compare([first])
    with pytest.raises(ValueError, match="there is nothing to compare: the probes have no condition in common"):
        compare([first], [probed("b", t2t=right(0, 150))])


def test_what_else_differs_is_warned_of() -> None:
    first, second = probed("a", s2t=right(0, 150)), probed("b", s2t=right(0, 150))
    assert compare([first], [second]).warnings == ()
    other = replace(second, signature={**SIGNATURE, "precision": "bf16-mixed"}, tables={**second.tables, "more": second.tables["set"]})
    warnings = compare([first], [other]).warnings
    assert "the probes differ in precision, which can change figures by itself (a@0: 32-true; b@0: bf16-mixed)" in warnings
    assert "more is not compared: a@0 did not ask it" in warnings


def test_what_is_worse_can_be_asked_for() -> None:
    compared = compare([probed("a", t2t=right(0, 180), s2t=right(0, 150))], [probed("b", t2t=right(0, 180), s2t=right(0, 100))])
    assert [row.key for row in worse_rows(compared, ["accuracy"])] == ["s2t/accuracy"]
    assert worse_rows(compared, ["t2t/accuracy"]) == []
    assert [row.key for row in worse_rows(compared, ["t2t/accuracy", "degradation"])] == ["degradation"]
    for unknown in ("acuracy", "s2t/negative_loss"):
        with pytest.raises(ValueError, match=rf"nothing was compared that is called {unknown} and can be worse; there are s2t/accuracy,"):
            worse_rows(compared, [unknown])


def test_the_same_seed_gives_the_same_comparison_and_json_holds_no_nan() -> None:
    sides = [probed("a", t2t=right(0, 180), s2t=right(0, 120))], [probed("b", t2t=right(0, 170), s2t=right(0, 150))]
    states = [json.dumps(compare(*sides, sought=0.01, seed=seed).to_state(), allow_nan=False) for seed in (0, 0, 1)]
    assert states[0] == states[1] != states[2]
    assert json.loads(states[0])["rows"][0]["seeds_variance"] is None


def test_tables_say_how_they_were_made() -> None:
    compared = compare([probed("a", t2t=right(0, 180), s2t=right(0, 120))], [probed("b", t2t=right(0, 170), s2t=right(0, 150))], sought=0.01)
    written = text(compared)
    assert written.splitlines()[:2] == ["A  a@0", "B  b@0"]
    for words in ("McNemar's exact test", "Holm", "2,000 draws, seed 0", "200 of set", "80 % power", "another seed would change is unknown"):
        assert words in " ".join(written.split())
    line = next(line for line in written.splitlines() if line.startswith("S→T accuracy"))
    assert line.split()[2:5] == ["0.600", "0.750", "+0.150"]
    assert "better" in line
    table_lines = [line for line in markdown(compared).splitlines() if line.startswith("|")]
    assert len(table_lines) == 2 + len(compared.rows)
    assert len({line.count("|") for line in table_lines}) == 1
