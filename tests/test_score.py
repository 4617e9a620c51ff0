"""One model outside training: the record that the command writes."""

from __future__ import annotations

import json
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import yaml
from conftest import refused
from transformers import Qwen2Config, Qwen2ForCausalLM

from s2sbench_callback import Benchmark, S2SBenchCallback
from s2sbench_callback.adapters import TextOnly
from s2sbench_callback.cli import main
from s2sbench_callback.mini_world.model import MiniSpeechLM
from s2sbench_callback.mini_world.pretraining import mini_adapter
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer
from s2sbench_callback.record import RunRecord
from s2sbench_callback.score import score
from s2sbench_callback.systems import System


def test_the_figures_are_those_of_the_callback(tiny_speech_lm: MiniSpeechLM, mini_set: Benchmark, tmp_path: Path) -> None:
    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny_speech_lm

        def s2sbench_adapter(self) -> object:
            return mini_adapter()

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return self.model.lm_head.weight.sum() * 0

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    probe = S2SBenchCallback([mini_set], every_n_train_steps=10, at_end=False, dirpath=tmp_path / "callback")
    pl.Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[probe]).fit(
        Module(), [torch.zeros(1)]
    )
    tiny_speech_lm.train()
    record = score(System(tiny_speech_lm, mini_adapter()), [mini_set], tmp_path / "score", device="cpu")
    assert tiny_speech_lm.training
    assert probe.record is not None
    for condition in ("s2t", "t2t"):
        expected, found = (each.losses(0)["mini"][condition].losses for each in (probe.record, record))  # type: ignore[index]
        np.testing.assert_array_equal(found, expected)
    (report,) = record.history()
    assert report.signature["precision"] == "float32"
    assert report.signature["adapter"]["adapter"] == "summed_codebooks"
    assert (tmp_path / "score" / "panels.png").is_file()


def test_a_step_that_is_scored_again_takes_the_place_of_the_first(tiny_qwen2: Qwen2ForCausalLM, mini_set: Benchmark, tmp_path: Path) -> None:
    system = System(tiny_qwen2, TextOnly(build_text_tokenizer()))
    for step in (10, 20, 20):
        score(system, [mini_set], tmp_path, conditions=["t2t"], device="cpu", step=step, max_questions=4)
    record = RunRecord(tmp_path)
    assert [report.step for report in record.history()] == [10, 20]
    assert record.history()[0].signature["max_questions"] == 4


def tiny_system(hidden_size: int = 32) -> System:
    """A loader as those of ``s2sbench_callback.systems``, of random weights."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32}
    config = Qwen2Config(vocab_size=len(build_text_tokenizer()), hidden_size=hidden_size, **sizes)
    return System(Qwen2ForCausalLM(config), TextOnly(build_text_tokenizer()))


def no_system() -> System:
    """Weights that must not be read."""
    raise AssertionError("the system was made although a set is faulty")


def config_file(folder: Path, **changes: object) -> str:
    config = {
        "system": {"class_path": "test_score.tiny_system", "init_args": {"hidden_size": 16}},
        "conditions": ["t2t"],
        "benchmarks": [{"class_path": "s2sbench_callback.mini", "init_args": {"questions": 12}}],
        "dirpath": str(folder / "record"),
        "published": {"mini/t2t": 70.0, "mini/s2t": 60.0},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config | changes))
    return str(folder / "config.yaml")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["score", "--config", config_file(tmp_path), "--max_questions", "8"])
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "record" / "probes.jsonl").read_text())
    assert f"published 70.0 %, found {100 * report['metrics']['s2sbench/mini/t2t/accuracy']:.1f} %" in printed
    assert "published 60.0 %, found nothing: not asked" in printed
    assert "T→T accuracy" in printed
    assert report["signature"]["max_questions"] == 8


def test_what_is_not_there_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    official = {"class_path": "s2sbench_callback.official", "init_args": {"yaml": str(tmp_path / "none.yaml"), "name": "a"}}
    loaded = {"class_path": "test_score.no_system"}
    refused(["score", "--config", config_file(tmp_path, benchmarks=[official], system=loaded)], r"s2sbench score: .*none\.yaml: no such file", capsys)
    folder = tmp_path / "no_model"
    folder.mkdir()
    system = {"class_path": "s2sbench_callback.systems.baichuan_audio", "init_args": {"folder": str(folder)}}
    refused(["score", "--config", config_file(tmp_path, system=system)], r"(?s)s2sbench score: .*config\.json does not exist", capsys)
