"""From a written set to figures by voice: spoken by two engines, then asked of a speech LM that trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lightning.pytorch as pl
import pytest
from conftest import TINY

from s2sbench_callback import S2SBenchCallback, official
from s2sbench_callback.benchmarks import in_turns, starter
from s2sbench_callback.mini_world.data import MiniData
from s2sbench_callback.mini_world.task import MiniTask
from s2sbench_callback.report_page import as_markdown
from s2sbench_callback.runs import open_runs
from s2sbench_callback.speaking.speak import Delivery, speak
from s2sbench_callback.synthesisers import parse_voice


@pytest.mark.slow
def test_a_spoken_starter_set_is_probed_by_voice(tmp_path: Path) -> None:
    written = starter("stories-en", set_name="tales")
    voices = [parse_voice("hibari"), parse_voice("tone=python:sines.speak")]
    speak(replace(written, items=written.items[:8]), voices, tmp_path / "spoken", Delivery(sample_rate=16_000), progress=False)
    yaml = tmp_path / "spoken" / "sets.yaml"
    sets = [official(yaml, f"tales@{voice.name}") for voice in voices]
    probe = S2SBenchCallback([*sets, in_turns(yaml, "tales", set_name="turns")], dirpath=tmp_path / "record", every_n_train_steps=1)
    settings = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(accelerator="cpu", max_steps=1, default_root_dir=tmp_path, callbacks=[probe], **settings)  # type: ignore[arg-type]
    trainer.fit(MiniTask(TINY), datamodule=MiniData(batch_size=2, pretraining=TINY))
    metrics = {key.removeprefix("s2sbench/"): float(value) for key, value in trainer.callback_metrics.items() if key.startswith("s2sbench/")}
    each = [metrics[f"tales@{name}/s2t/accuracy"] for name in ("hibari-heart", "tone")]
    assert metrics["tales/s2t/accuracy"] == pytest.approx(sum(each) / 2, abs=1e-6)
    assert metrics["tales/voice_range"] == pytest.approx(abs(each[0] - each[1]), abs=1e-6)
    assert metrics["tales/t2t/accuracy"] == metrics["tales@tone/t2t/accuracy"] == metrics["turns/t2t/accuracy"]
    assert {"turns@tone/s2t/accuracy", "turns@hibari-heart/s2t/accuracy", "turns/degradation_exceeds_voices"} <= set(metrics)
    page = as_markdown(open_runs([str(tmp_path / "record")]))
    assert "tales: 2 voices differ in S→T accuracy by up to" in page
    assert "turns: 2 voices differ in S→T accuracy by up to" in page
