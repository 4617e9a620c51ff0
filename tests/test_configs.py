from __future__ import annotations

import runpy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import TINY
from jsonargparse import ArgumentParser

from s2sbench_callback import Guard, Plateau, S2SBenchCallback, StageUnfreeze
from s2sbench_callback.adapters import Rows
from s2sbench_callback.commands.score import score_parser
from s2sbench_callback.record import RunRecord

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def test_there_are_configs() -> None:
    assert {path.name for path in CONFIGS} >= {"two_stage_mini.yaml", "single_stage_mini.yaml"}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_each_config_names_its_command(config: Path) -> None:
    header = [line for line in config.read_text().splitlines() if line.startswith("#")]
    assert any(f"--config configs/{config.name}" in line for line in header)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_each_config_runs_with_its_recipe(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The YAML as it is, with less of everything."""
    content = yaml.safe_load(config.read_text())
    tiny = {**asdict(TINY), "codebook_sizes": list(TINY.codebook_sizes)}
    for part in ("model", "data"):
        content[part]["init_args"]["pretraining"] = tiny
    content["trainer"].update(max_steps=3, accelerator="cpu", enable_progress_bar=False)
    for callback in content["trainer"]["callbacks"]:
        match callback["class_path"].rsplit(".", 1)[-1]:
            case "S2SBenchCallback":
                callback["init_args"]["benchmarks"][0]["init_args"] = {"questions": 12}
                callback["init_args"]["every_n_train_steps"] = 2
            case "ModelCheckpoint":
                callback["init_args"]["every_n_train_steps"] = 2
            case "StageUnfreeze":
                stages = callback["init_args"]["stages"]
                if len(stages) > 1:
                    stages[0]["until"]["max_steps"] = 2
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["two_stage.py", "fit", "--config", "config.yaml"])
    runpy.run_path(str(ROOT / "recipes" / "two_stage.py"), run_name="__main__")
    (probes,) = tmp_path.rglob("probes.jsonl")
    assert [report.step for report in RunRecord(probes.parent).history()] == [0, 2, 3]
    printed = capsys.readouterr().out
    assert "S→T accuracy" in printed
    assert "tensorboard --logdir" in printed
    assert str(probes.relative_to(tmp_path)) in printed
    if len(stages) > 1:
        assert "stage 2   from step 2: max_steps 2" in printed


@pytest.mark.parametrize(
    "adapter",
    [
        {"class_path": "s2sbench_callback.adapters.TextOnly", "init_args": {"tokenizer": {"class_path": "test_configs.Tokenizer"}}},
        {
            "class_path": "s2sbench_callback.adapters.SummedCodebooks",
            "init_args": {"tokenizer": {"class_path": "test_configs.Tokenizer"}, "audio_start": "<a>", "audio_end": "</a>"},
        },
    ],
)
def test_every_argument_can_be_written_in_yaml(adapter: dict[str, Any], tmp_path: Path) -> None:
    arguments = {
        "benchmarks": [{"class_path": "s2sbench_callback.mini", "init_args": {"questions": 12}}],
        "adapter": adapter,
        "locator": "model.llm",
        "conditions": ["t2t"],
        "every_n_train_steps": 5,
        "at_start": False,
        "at_end": False,
        "max_questions": 4,
        "max_tokens": 100,
        "packed": False,
        "cache_dir": str(tmp_path / "codes"),
        "dirpath": str(tmp_path / "record"),
        "on_error": "skip",
    }
    parser = ArgumentParser()
    parser.add_subclass_arguments(S2SBenchCallback, "probe")
    parsed = parser.parse_object({"probe": {"class_path": "s2sbench_callback.S2SBenchCallback", "init_args": arguments}})
    probe = parser.instantiate_classes(parsed).probe
    assert isinstance(probe, S2SBenchCallback)
    assert type(probe.adapter).__name__ == adapter["class_path"].rsplit(".", 1)[-1]
    assert (probe.every_n_train_steps, probe.locator, probe.on_error) == (5, "model.llm", "skip")
    assert len(probe.probe.benchmarks["mini"].items) == 4


def test_stages_can_be_written_in_yaml() -> None:
    arguments = {
        "stages": [
            {
                "name": "first",
                "train": ["audio_head", {"parameter": "lm_head.weight", "start": 0, "stop": 9}],
                "freeze": ["*.bias"],
                "lr": 0.001,
                "until": {"min_gain": 0.5, "patience": 2, "sets": ["mini"]},
                "frozen_in_eval": True,
            },
            {"name": "second", "train": ["lm_body"], "lr": {"lm_body": 0.0001}, "until": "hand", "schedulers": "restart", "warm_up_steps": 5},
            {"name": "third", "train": ["lm_head"]},
        ],
        "mode": "advise",
        "guard": {"action": "lower_lr", "tolerance": 0.01},
        "count_tokens": "test_configs.tokens_in",
        "advance_file": "next",
        "advance_signal": "SIGUSR2",
        "check_every_n_steps": 2,
    }
    parser = ArgumentParser()
    parser.add_subclass_arguments(StageUnfreeze, "stages")
    parsed = parser.parse_object({"stages": {"class_path": "s2sbench_callback.StageUnfreeze", "init_args": arguments}})
    unfreezer = parser.instantiate_classes(parsed).stages
    assert isinstance(unfreezer, StageUnfreeze)
    first, second, _ = unfreezer.stages
    assert list(first.train) == ["audio_head", Rows("lm_head.weight", 0, 9)]
    assert first.until == Plateau(0.5, 2, sets=["mini"])
    assert (second.until, second.lr, second.schedulers) == ("hand", {"lm_body": 0.0001}, "restart")
    assert unfreezer.guard == Guard("lower_lr", 0.01)
    assert unfreezer.count_tokens({}) == 7


def tokens_in(batch: object) -> int:
    return 7


class Tokenizer:
    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [2] * len(text)}

    def get_vocab(self) -> dict[str, int]:
        return {"<a>": 0, "</a>": 1}


TABLE_1 = sorted((ROOT / "configs" / "table1").glob("*.yaml"))


def test_every_row_of_table_1_has_a_config() -> None:
    assert {path.stem for path in TABLE_1} == {"twist", "moshi", "glm_4_voice", "qwen2_5", "baichuan_audio_single_stage", "baichuan_audio_two_stage"}


@pytest.mark.parametrize("config", TABLE_1, ids=lambda path: path.stem)
def test_a_row_of_table_1(config: Path) -> None:
    """Its header tells what is needed and what is uncertain, its arguments are those of a loader, its figures are for what it asks."""
    header = " ".join(line for line in config.read_text().splitlines() if line.startswith("#"))
    for word in (f"s2sbench score --config configs/table1/{config.name}", "Needs:", "Published:", "Uncertain:"):
        assert word in header
    chosen = score_parser().parse_args(["--config", str(config)])
    names = {"sStory_s2t": "sstorycloze", "zh_story": "zh-sstorycloze", "cmmlu_write_4": "scmmlu"}
    sets = {benchmark.init_args.get("set_name") or names[benchmark.init_args["name"]] for benchmark in chosen.benchmarks}
    assert {key.split("/")[0] for key in chosen.published} <= sets
    assert {key.split("/")[1] for key in chosen.published} <= set(chosen.conditions)
    for key, percent in chosen.published.items():
        assert f"{percent:.1f}" in header, key
