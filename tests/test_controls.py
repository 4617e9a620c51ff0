from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import soundfile
import torch
from conftest import TINY

from s2sbench_callback import Benchmark, Item, S2SBenchCallback
from s2sbench_callback.controls import CONTROLS, Control, control_metrics, controlled
from s2sbench_callback.findings import control_findings
from s2sbench_callback.isolation import isolated
from s2sbench_callback.items import Audio, Context
from s2sbench_callback.live_model import LiveModel
from s2sbench_callback.mini_world.data import MiniData
from s2sbench_callback.mini_world.model import MiniSpeechLM
from s2sbench_callback.mini_world.pretraining import mini_adapter
from s2sbench_callback.mini_world.task import MiniTask
from s2sbench_callback.probe import Probe
from s2sbench_callback.ranks import Ranks
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import ProbeReport
from s2sbench_callback.scoring import LossTable


def lettered(questions: int, spoken: bool = False) -> Benchmark:
    """Four candidates each; two neighbours are one cluster."""

    def context(number: int) -> Context:
        return Context(f"context {number}", Audio(Path(f"{number}.wav"), f"digest {number}", 2.0) if spoken else None)

    items = tuple(
        Item(f"q{n}", (context(n),) * 4, tuple(f"{'right' if index == n % 4 else 'wrong'} {n} {index}" for index in range(4)), n % 4, f"g{n // 2}")
        for n in range(questions)
    )
    return Benchmark("letters", "en", items, "win")


def test_without_context_nothing_is_written_or_heard_but_a_full_stop_and_silence() -> None:
    for language, nothing in (("en", "."), ("zh", "。")):
        original = replace(lettered(6, spoken=True), language=language)
        changed = controlled(original, "no_context")
        assert changed.name == "letters+no_context"
        assert (changed.language, changed.tie_rule) == (language, "win")
        for before, after in zip(original.items, changed.items, strict=True):
            assert (after.id, after.group, after.candidates, after.answer) == (before.id, before.group, before.candidates, before.answer)
            assert {context.text for context in after.contexts} == {nothing}
            audio = after.contexts[0].audio
            assert audio is not None
            samples, rate = soundfile.read(audio.path)
            assert len(samples) == rate == audio.seconds * rate
            assert not np.any(samples)
    assert not controlled(lettered(6), "no_context").items[0].has_audio


def test_another_context_is_never_of_the_same_cluster_and_the_same_for_all_candidates() -> None:
    original = lettered(9, spoken=True)
    changed = controlled(original, "other_context")
    of = {item.contexts[0].text: item for item in original.items}
    for before, after in zip(original.items, changed.items, strict=True):
        assert len(set(after.contexts)) == 1
        donor = of[after.contexts[0].text]
        assert donor.group != before.group
        # Written and spoken context of one question.
        assert after.contexts[0] == donor.contexts[donor.answer]
        assert (after.id, after.candidates, after.answer) == (before.id, before.candidates, before.answer)
    assert controlled(original, "other_context") == changed
    assert len({item.contexts[0].text for item in changed.items}) > 5


def test_off_topic_candidates_are_answers_of_other_clusters() -> None:
    original = lettered(12)
    answers = {item.candidates[item.answer]: item.group for item in original.items}
    for before, after in zip(original.items, controlled(original, "off_topic").items, strict=True):
        assert after.answer == before.answer
        assert after.candidates[after.answer] == before.candidates[before.answer]
        others = [candidate for index, candidate in enumerate(after.candidates) if index != after.answer]
        assert len(set(others)) == 3
        assert all(answers[other] != before.group for other in others)
        assert after.contexts == before.contexts


def test_sets_too_small_and_unknown_controls_are_refused() -> None:
    with pytest.raises(ValueError, match="letters: the control 'other_context' needs more questions that differ than the set has"):
        controlled(lettered(2), "other_context")
    with pytest.raises(ValueError, match="letters: the control 'off_topic' needs more questions"):
        controlled(lettered(4), "off_topic")
    with pytest.raises(ValueError, match=r"controls must be some of \['no_context', 'other_context', 'off_topic'\], got 'silence'"):
        controlled(lettered(9), "silence")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="controls need s2t or t2t among the conditions"):
        Probe([lettered(9)], ["s2s"]).of_controls(["no_context"])
    with pytest.raises(ValueError, match="two benchmarks have the same name"):
        Probe([lettered(9)]).of_controls(["no_context", "no_context"])
    with pytest.raises(ValueError, match="controls_every_n_probes must be at least 1, got 0"):
        S2SBenchCallback([lettered(9)], controls_every_n_probes=0)


def fit(folder: Path, benchmark: Benchmark, steps: int, **arguments: object) -> RunRecord:
    pl.seed_everything(0)
    probe = S2SBenchCallback([benchmark], dirpath=folder / "record", every_n_train_steps=1, **arguments)  # type: ignore[arg-type]
    settings = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(accelerator="cpu", max_steps=steps, default_root_dir=folder, callbacks=[probe], **settings)  # type: ignore[arg-type]
    trainer.fit(MiniTask(TINY), datamodule=MiniData(batch_size=2, pretraining=TINY))
    assert probe.record is not None
    return probe.record


def test_controls_are_asked_at_every_nth_probe_and_put_into_the_record(tmp_path: Path, mini_set: Benchmark, tiny_speech_lm: MiniSpeechLM) -> None:
    record = fit(tmp_path, mini_set, 3, controls=list(CONTROLS), controls_every_n_probes=2)
    keys = {f"s2sbench/mini/{condition}/{control}_accuracy" for condition in ("s2t", "t2t") for control in CONTROLS}
    assert [keys <= set(report.metrics) for report in record.history()] == [True, False, True, False]
    assert [record.controls_path(step).is_file() for step in range(4)] == [True, False, True, False]
    assert not record.control_losses(1)
    assert set(record.losses(0)) == {"mini"}
    # The same questions put together by hand, asked of the same weights as at step 0.
    silent = tuple(replace(item, contexts=(Context("."),) * 2) for item in mini_set.items)
    with isolated(tiny_speech_lm):
        live = LiveModel(tiny_speech_lm, tiny_speech_lm, torch.device("cpu"))
        expected = Probe([replace(mini_set, items=silent)], ["t2t"]).run(mini_adapter(), live, Ranks())["mini"]["t2t"]
    found = record.control_losses(0)["mini+no_context"]
    np.testing.assert_allclose(found["t2t"].nats, expected.nats, atol=1e-5)
    accuracy = control_metrics(mini_set, record.control_losses(0))["t2t/no_context_accuracy"]
    assert record.history()[0].metrics["s2sbench/mini/t2t/no_context_accuracy"] == accuracy.value
    # What goes with weights that are gone goes with the losses.
    record.supersede_after(1)
    assert not record.controls_path(2).is_file()
    assert (record.dirpath / "controls.superseded" / record.controls_path(2).name).is_file()


def test_controls_leave_the_figures_as_they_are_and_are_asked_once_by_default(tmp_path: Path, mini_set: Benchmark) -> None:
    with_controls = fit(tmp_path / "with", mini_set, 2, controls=["other_context"])
    without = fit(tmp_path / "without", mini_set, 2)
    for step in range(3):
        for condition in ("s2t", "t2t"):
            first, second = (record.losses(step)["mini"][condition].nats for record in (with_controls, without))
            np.testing.assert_array_equal(first, second)
    assert [bool(with_controls.control_losses(step)) for step in range(3)] == [True, False, False]


def asked(control: Control, rights: int, questions: int = 400) -> list[str]:
    """What is said where so many of the questions are right."""
    benchmark = Benchmark("mine", "en", tuple(Item(f"q{n}", (Context("c"),) * 2, ("a", "b"), 0) for n in range(questions)))
    names = tuple(item.id for item in benchmark.items)
    nats = np.where((np.arange(questions) < rights)[:, None], [1.0, 2.0], [2.0, 1.0])
    table = LossTable(names, names, np.zeros(questions, dtype=np.int64), nats, np.ones((questions, 2), dtype=np.int64))
    (key, accuracy), *more = control_metrics(benchmark, {f"mine+{control}": {"t2t": table}, "other+no_context": {"t2t": table}}).items()
    assert not more
    assert key == f"t2t/{control}_accuracy"
    full = f"s2sbench/mine/{key}"
    metrics = {full: accuracy.value, f"{full}_low": accuracy.low, f"{full}_high": accuracy.high}
    return control_findings(ProbeReport(0, None, {"mine": ("s2t", "t2t")}, metrics))


@pytest.mark.parametrize(
    ("control", "rights", "message"),
    [
        ("no_context", 200, None),
        # 216 of 400 is within noise of chance, 260 is not; 1,100 of 2,000 is not noise, but of no weight.
        ("no_context", 216, None),
        (
            "no_context",
            260,
            "mine, T→T: accuracy 0.650 [0.602, 0.695] without any context, where chance is 0.5: the candidates alone give answers away",
        ),
        ("no_context", 140, "mine, T→T: accuracy 0.350 [0.305, 0.398] without any context"),
        ("other_context", 260, "with another question's context, where chance is 0.5"),
        ("other_context", 205, None),
        ("off_topic", 380, None),
        ("off_topic", 210, "against candidates that are off topic, no better than chance: the model makes no use of the context"),
    ],
)
def test_findings_are_sentences_where_there_is_something_to_say(control: Control, rights: int, message: str | None) -> None:
    found = asked(control, rights)
    assert len(found) == (message is not None)
    if message:
        assert message in found[0]


def test_what_is_sure_but_small_is_not_worth_a_sentence() -> None:
    assert asked("no_context", 1090, 2000) == []
