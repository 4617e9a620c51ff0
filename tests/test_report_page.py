from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

from s2sbench_callback import Benchmark, Item, ProbeReport
from s2sbench_callback.cli import main
from s2sbench_callback.decisions import Decision, Verdict
from s2sbench_callback.items import Context
from s2sbench_callback.plots import lost_panels, panels_of_runs, pixels, svg
from s2sbench_callback.prompts import Condition
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import build_report
from s2sbench_callback.runs import disagreements, headlines, open_runs, warnings_of
from s2sbench_callback.scoring import LossTable

QUESTIONS = 100
ITEMS = tuple(Item(f"q{number}", (Context("c"),) * 2, ("a", "b"), 0) for number in range(QUESTIONS))


def table(rights: int) -> LossTable:
    """So many of the questions are right, the first ones."""
    names = tuple(item.id for item in ITEMS)
    nats = np.where((np.arange(QUESTIONS) < rights)[:, None], [1.0, 2.0], [2.0, 1.0])
    return LossTable(names, names, np.zeros(QUESTIONS, dtype=np.int64), nats, np.ones((QUESTIONS, 2), dtype=np.int64))


def write(folder: Path, rights: Sequence[tuple[int, int]], name: str = "mine", switch: int | None = None, reason: str = "it was flat") -> RunRecord:
    """A run that was probed every 100 steps: so many right in S→T and in T→T; stage 2 begins after a probe."""
    record = RunRecord(folder)
    benchmarks = {name: Benchmark("mine", "en", ITEMS)}
    object.__setattr__(benchmarks[name], "name", name)
    for number, (heard, read) in enumerate(rights):
        tables: dict[str, dict[Condition, LossTable]] = {name: {"s2t": table(heard), "t2t": table(read)}}
        signature = {"sets": {name: {"tie_rule": "lose", "fingerprint": "f", "questions": QUESTIONS, "language": "en"}}, "prompt": "p"}
        stage = 1 if switch is None or number <= switch else 2
        decision = Decision(False, "it still gains", 0.5, 0.1, 0.9, 0.95, 0.2) if switch is not None and stage == 1 else None
        verdict = Verdict(stage, 100 * (switch or 0) if stage == 2 else 0, reason if stage == 2 else None, decision) if switch is not None else None
        reference = {name: table(rights[0][1])}
        record.append(build_report(benchmarks, tables, reference, 100 * number, verdict, {}, signature), tables)
    return record


class Page(HTMLParser):
    """Tags, whether each is closed where it should be, references, and words."""

    VOID = ("meta", "link", "br", "img", "path", "use", "rect", "circle", "line")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def read(path: Path) -> tuple[Page, str]:
    content, page = path.read_text(encoding="utf-8"), Page()
    page.feed(content)
    assert page.open == []
    return page, content


def test_a_page_says_what_the_record_says_and_needs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = write(tmp_path / "run", [(50, 95), (60, 95), (80, 94)], switch=1)
    main(["report", str(tmp_path / "run")])
    path = tmp_path / "run" / "report.html"
    assert capsys.readouterr().out == f"{path}\n"
    page, content = read(path)
    assert all(reference.startswith("#") for reference in page.references)
    assert "@import" not in content
    assert not re.findall(r"url\((?!#)", content)
    assert "<script" not in content
    assert content.count("<svg") == 2
    last = record.history()[-1]
    for figure in ("accuracy", "positive_loss"):
        for condition in ("s2t", "t2t"):
            each = last.figure("mine", condition, figure)  # type: ignore[arg-type]
            assert f"{each.value:.3f} [{each.low:.3f}, {each.high:.3f}]" in page.words
    assert "Hearing instead of reading costs 0.140 [" in page.words
    assert "Stage 2 began after step 100: it was flat." in page.words
    assert "30 questions changed sides between the first probe and the last" not in page.words
    # 30 were gained in S→T and one lost in T→T.
    assert "31 questions changed sides between the first probe and the last" in page.words
    assert re.search(r"q94\s*wrong", page.words)


def test_what_users_have_named_cannot_become_markup(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    write(tmp_path / "run", [(50, 95), (60, 95)], name=bad, switch=0, reason=f"{bad} & co")
    main(["report", f"{bad}={tmp_path / 'run'}", f"b={tmp_path / 'run'}", "--output", str(tmp_path / "page.html")])
    page, content = read(tmp_path / "page.html")
    assert bad not in content
    assert f"{bad} & co" in page.words


def test_several_runs_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "seed_1", [(50, 95), (70, 90)])
    write(tmp_path / "seed_2", [(50, 95), (75, 90)])
    write(tmp_path / "other", [(50, 95), (50, 95)])
    main(["report", f"one={tmp_path}/seed_*", f"{tmp_path}/other", "--output", str(tmp_path / "page.html")])
    page, _ = read(tmp_path / "page.html")
    assert page.words.count("at step 100 the model answers") == 3
    # Two names: the seeds of one against the other.
    assert re.search(r"degradation +0\.175 +0\.450 +\+0\.275", page.words)
    capsys.readouterr()
    main(["report", f"one={tmp_path}/seed_*", f"{tmp_path}/other", "--json"])
    content = json.loads(capsys.readouterr().out)
    assert [run["label"] for run in content["runs"]] == ["one", "one", "other"]
    assert content["runs"][1]["metrics"][1]["s2sbench/mine/s2t/accuracy"] == 0.75
    main(["report", f"{tmp_path}/seed_1", "--format", "md"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "## seed_1"
    assert any(line.startswith("| S→T accuracy | 0.500 [") for line in lines)
    for style, beginning in (("png", b"\x89PNG"), ("svg", b"<svg")):
        main(["report", f"{tmp_path}/seed_1", "--format", style, "--output", str(tmp_path / f"x.{style}")])
        assert (tmp_path / f"x.{style}").read_bytes().startswith(beginning)


def test_headlines_say_how_sure_they_are(tmp_path: Path) -> None:
    def says(name: str, *rights: tuple[int, int]) -> str:
        write(tmp_path / name, rights)
        return " ".join(headlines(open_runs([str(tmp_path / name)])[0]))

    lost = says("lost", (50, 95), (60, 70))
    assert "Hearing instead of reading costs 0.100 [" in lost
    assert "T→T has fallen by 0.250 [" in lost
    even = says("even", (80, 80), (81, 80))
    assert "No loss by hearing can be told: -0.010 [" in even
    assert "T→T has not changed so that it could be told: 0.000 [" in even
    assert "answers better when it hears than when it reads, by 0.200 [" in says("better", (80, 60), (80, 60))
    assert "T→T has risen by 0.300 [" in says("risen", (60, 60), (60, 90))


def test_warnings_name_what_is_wrong(tmp_path: Path) -> None:
    record = write(tmp_path / "run", [(50, 95), (55, 60)])
    (run,) = open_runs([str(tmp_path / "run")])
    assert any("T→T accuracy is 0.350" in warning and "degradation alone does not show it" in warning for warning in warnings_of(run))
    last = run.last
    spoilt = {"s2sbench/mine/s2t/ties": 20.0, "s2sbench/mine/s2t/invalid": 3.0, "s2sbench/skipped": 2.0}
    broken = replace(last, metrics={**last.metrics, **spoilt}, signature={**last.signature, "prompt": "q"})
    found = warnings_of(replace(run, history=[run.history[0], broken]))
    for words in (
        "mine, S→T: 3 question(s) have a NaN or infinite loss",
        "mine, S→T: 20 comparisons are ties; so many mean a broken model",
        "2 probe(s) failed and were skipped",
        "from step 100 on, the probe's prompt is another than before",
    ):
        assert any(words in warning for warning in found), words
    other = replace(run, history=[replace(last, signature={**last.signature, "sets": {"mine": {"fingerprint": "g"}}, "prompt": "q"})])
    assert disagreements([run, other]) == [
        "mine: the runs were not asked the same questions, so their figures cannot be compared",
        "the runs differ in more than their weights: prompt is p and q",
    ]
    assert disagreements([run]) == []
    record.losses_path(0).write_bytes(b"x")
    main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "page.html")])
    page, _ = read(tmp_path / "page.html")
    assert "questions that changed sides cannot be shown: " in page.words


def test_foreign_folders_are_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["report", str(tmp_path)], "s2sbench report: .* holds no probes.jsonl", capsys)
    refused(["report", f"{tmp_path}/x*"], "matches nothing", capsys)
    (tmp_path / "probes.jsonl").write_text('{"step": 1}\n')
    refused(["report", str(tmp_path)], "line 1: not the report of a probe", capsys)


@pytest.mark.parametrize("probes", [2, 200])
def test_panels_of_three_sets_stay_legible(probes: int) -> None:
    """Markers are seen where there are two points, and do not crowd where there are two hundred."""
    benchmarks = {name: Benchmark(name, "en", ITEMS) for name in ("sstorycloze", "zh-sstorycloze", "scmmlu")}
    tables: dict[str, dict[Condition, LossTable]] = {name: {"s2t": table(60), "t2t": table(90)} for name in benchmarks}
    report = build_report(benchmarks, tables, {}, 0, None, {}, {})
    history: list[ProbeReport] = [replace(report, step=1000 * step) for step in range(probes)]
    figure = panels_of_runs([("", history)])
    assert len(figure.axes) == 12
    for axis in figure.axes:
        for line in axis.lines:
            if line.get_marker() in "os^Dv" and line.get_marker():
                shown = len(np.asarray(line.get_xdata())[:: line.get_markevery() or 1])
                assert 2 <= shown <= 26
    grey = pixels(figure) @ np.array([0.299, 0.587, 0.114])
    inks = [np.dot([int(colour[start : start + 2], 16) for start in (1, 3, 5)], [0.299, 0.587, 0.114]) for colour in _curves(figure)]
    assert max(inks) - min(inks) > 60
    assert grey.std() > 5
    assert svg(panels_of_runs([("", history)])) == svg(panels_of_runs([("", history)]))


def _curves(figure: object) -> set[str]:
    """Colours of S→T and T→T."""
    axis = figure.axes[0]  # type: ignore[attr-defined]
    return {str(line.get_color()) for line in axis.lines if line.get_label() in ("S→T", "T→T")}


def test_what_is_lost_has_a_picture_where_it_is_known(tmp_path: Path) -> None:
    (run,) = (write(tmp_path / "run", [(50, 95), (60, 90)]),)
    figure = lost_panels([("", run.history())])
    assert figure is not None
    (axis,) = figure.axes
    curves = {line.get_label(): list(line.get_ydata()) for line in axis.lines if not str(line.get_label()).startswith("_")}  # type: ignore[arg-type]
    assert curves["T→T minus S→T"] == pytest.approx([0.45, 0.3])
    assert curves["reference minus S→T"] == pytest.approx([0.45, 0.35])
    assert curves["T→T minus reference"] == pytest.approx([0.0, -0.05])
    alone = replace(run.history()[0], metrics={})
    assert lost_panels([("", [alone])]) is None
