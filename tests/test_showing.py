from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_record import BENCHMARK, probe

from s2sbench_callback.decisions import Decision, Verdict
from s2sbench_callback.findings import damage_findings
from s2sbench_callback.flips import flips
from s2sbench_callback.loggers import send, send_words
from s2sbench_callback.outcome import outcome
from s2sbench_callback.plots import panels, pixels, png
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import ProbeReport
from s2sbench_callback.showing import Showing
from s2sbench_callback.tensorboard_dashboard import tensorboard_layout


def test_panels_show_each_curve_of_each_set() -> None:
    history = [probe(0, "rwww")[0], probe(100, "rrww")[0], probe(200, "rrrw", stage=2)[0]]
    figure = panels(history)
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["mine: accuracy", "mine: losses, S→T", "mine: losses, T→T", "mine: positive minus negative"]
    curve = figure.axes[0].lines[0]
    assert list(curve.get_xdata()) == [0, 100, 200]
    assert list(curve.get_ydata()) == [0.25, 0.5, 0.75]
    for axis in figure.axes:
        # The switch is drawn where the first stage ended.
        assert any(list(line.get_xdata()) == [100, 100] for line in axis.lines)
        assert [text.get_text() for text in axis.texts] == ["stage 2"]
    picture = pixels(figure)
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert len(np.unique(picture)) > 10
    assert png(figure).startswith(b"\x89PNG")


def test_the_lowest_panel_shows_what_was_decided_from() -> None:
    def decided(step: int, gain: float, stage: int = 1) -> ProbeReport:
        decision = Decision(gain < 0.1, f"gain {gain} is what it is", gain, gain - 1, gain + 1, 0.9, 0.1) if stage == 1 else None
        return replace(probe(step, stage=stage)[0], verdict=Verdict(stage, 150 * (stage - 1), None, decision))

    history = [decided(0, math.nan), decided(100, 0.5), decided(150, 0.05), decided(200, 0.0, stage=2)]
    *above, panel = panels(history).axes
    assert len(above) == 4
    gains, threshold, *_ = panel.lines
    assert list(gains.get_xdata()) == [0, 100, 150]
    np.testing.assert_array_equal(gains.get_ydata(), [math.nan, 0.5, 0.05])
    assert list(threshold.get_ydata()) == [0.1] * 3
    assert panel.get_title() == "step 150: gain 0.05 is what it is"
    assert panel.get_xlim() == above[0].get_xlim()
    assert any(list(line.get_xdata()) == [150, 150] for line in panel.lines)


def test_questions_that_changed_sides() -> None:
    before, now = probe(0, "rwwr")[1], probe(100, "wrwr")[1]
    rows = flips(BENCHMARK, "s2t", before, now)
    assert [(flip.item, flip.changed.is_right) for flip in rows] == [("q0", False), ("q1", True)]
    # Two tokens of 2 and 1 nats against 1 and 2 before: the margin of half a nat per token has turned round.
    changed = rows[0].changed
    assert (changed.answer_loss_before, changed.best_other_loss_before) == (0.5, 1.0)
    assert (changed.answer_loss, changed.best_other_loss, changed.margin_change) == (1.0, 0.5, -1.0)
    assert (rows[0].set, rows[0].condition, rows[0].context, rows[0].answer, rows[0].others) == ("mine", "s2t", "c", "a", ("b",))
    assert flips(BENCHMARK, "s2t", None, now) == []
    assert flips(BENCHMARK, "t2t", before, now) == []


def test_the_greatest_changes_come_first() -> None:
    before, now = probe(0, "rrrr")[1], probe(100, "wwww")[1]
    now["mine"]["s2t"].nats[2] = [9.0, 1.0]
    assert [flip.item for flip in flips(BENCHMARK, "s2t", before, now)] == ["q2", "q0", "q1", "q3"]


def test_a_fall_of_t2t_is_an_alarm_when_it_is_sure() -> None:
    fallen = replace(probe(100)[0], metrics={f"s2sbench/mine/t2t_change{end}": value for end, value in (("", -0.2), ("_low", -0.3), ("_high", -0.1))})
    assert "mine: at step 100 T→T accuracy is 0.200 [0.100, 0.300] below its reference" in damage_findings(fallen)["mine"]
    unsure = replace(fallen, metrics={**fallen.metrics, "s2sbench/mine/t2t_change_high": 0.01})
    assert damage_findings(unsure) == {}
    assert damage_findings(None) == {}


def test_the_layout_overlays_conditions_and_losses() -> None:
    charts = tensorboard_layout(probe(0)[0])
    assert charts["mine: accuracy, S→T and T→T"] == ["Multiline", ["^s2sbench/mine/s2t/accuracy$", "^s2sbench/mine/t2t/accuracy$"]]
    losses = [f"^s2sbench/mine/s2t/{side}_loss$" for side in ("positive", "negative")]
    assert charts["mine: positive and negative loss, S→T"] == ["Multiline", losses]


def test_loggers_that_take_images_get_the_picture() -> None:
    class Recording:
        def __init__(self) -> None:
            self.calls: list[tuple[str, Any]] = []

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            self.calls.append(("metrics", (metrics, step)))

        def log_image(self, key: str, images: list[Any], step: int) -> None:
            self.calls.append(("image", (key, len(images), step)))

        def save(self) -> None:
            self.calls.append(("save", None))

    logger, report = Recording(), probe(7)[0]
    send(logger, Showing([report], np.zeros((2, 2, 3), np.uint8), [], {}, first=True), {})
    assert logger.calls == [("metrics", (dict(report.metrics), 7)), ("image", ("s2sbench/panels", 1, 7)), ("save", None)]


def test_the_outcome_names_beginning_switch_and_end(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    with pytest.raises(ValueError, match="holds no probes"):
        outcome(record)
    for step, stage, rights in ((0, 1, "rwww"), (100, 1, "rwww"), (200, 1, "rrww"), (300, 2, "rrww"), (400, 2, "rrrr")):
        record.append(*probe(step, rights, stage=stage))
    lines = outcome(record, ["logs"]).splitlines()
    assert lines[0].split() == ["mine", "step", "0,", "stage", "1", "step", "200,", "stage", "1", "step", "400,", "stage", "2"]
    accuracy = next(line for line in lines if line.startswith("S→T accuracy"))
    assert [float(part) for part in accuracy.split() if part.startswith(("0.", "1.")) and "," not in part] == [0.25, 0.5, 1.0]
    assert any("tensorboard --logdir logs" in line for line in lines)


def test_mlflow_gets_names_that_it_takes() -> None:
    class MLFlowLogger:
        names: tuple[str, ...] = ()

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            self.names = tuple(metrics)

        def save(self) -> None: ...

    logger, report = MLFlowLogger(), replace(probe(7)[0], metrics={"s2sbench/mine@ann+x/s2t/accuracy": 1.0})
    send(logger, Showing([report], np.zeros((2, 2, 3), np.uint8), [], {}, first=True), {})
    assert logger.names == ("s2sbench/mine_ann_x/s2t/accuracy",)


def test_words_go_where_a_person_looks() -> None:
    told: list[Any] = []

    class WandbLogger:
        experiment = SimpleNamespace(alert=lambda title, text, level: told.append((title, text, level)))

    class TensorBoardLogger:
        experiment = SimpleNamespace(add_text=lambda tag, text, step: told.append((tag, text, step)))

    for logger in (WandbLogger(), TensorBoardLogger(), object()):
        send_words(logger, "Stage 2 begins", "somebody said so", 5)
    assert told == [("S2SBench: Stage 2 begins", "somebody said so", "INFO"), ("s2sbench/stages", "**Stage 2 begins**: somebody said so", 5)]
