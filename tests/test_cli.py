from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import TINY, refused

from s2sbench_callback import ProbeReport
from s2sbench_callback.cli import main
from s2sbench_callback.decisions import Verdict
from s2sbench_callback.record import RunRecord
from s2sbench_callback.scoring import LossTable


@pytest.fixture
def config(tmp_path: Path) -> Path:
    pretraining = {**vars(TINY), "codebook_sizes": list(TINY.codebook_sizes)}
    part = {"init_args": {"pretraining": pretraining}}
    content = {
        "model": {"class_path": "s2sbench_callback.mini_world.task.MiniTask", **part},
        "data": {"class_path": "s2sbench_callback.mini_world.data.MiniData", **part},
        "trainer": {
            "accelerator": "cpu",
            "max_steps": 1000,
            "default_root_dir": str(tmp_path),
            "callbacks": [
                {
                    "class_path": "s2sbench_callback.S2SBenchCallback",
                    "init_args": {
                        "benchmarks": [{"class_path": "s2sbench_callback.mini", "init_args": {"questions": 12}}],
                        "cache_dir": str(tmp_path / "codes"),
                    },
                }
            ],
        },
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_encode_fills_the_cache_once_and_trains_nothing(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["encode", "--config", str(config)])
    codes = list((tmp_path / "codes").rglob("*.safetensors"))
    assert len(codes) == 12
    assert "12 recordings tokenised for mini" in capsys.readouterr().out
    codes[0].unlink()
    main(["encode", "--config", str(config)])
    assert "1 recordings tokenised for mini" in capsys.readouterr().out
    main(["encode", "--config", str(config), "--json"])
    assert json.loads(capsys.readouterr().out) == [{"sets": ["mini"], "tokenised": 0}]
    assert len(list((tmp_path / "codes").rglob("*.safetensors"))) == 12
    assert not list(tmp_path.rglob("*.ckpt"))
    assert not list(tmp_path.rglob("probes.jsonl"))


def test_encode_needs_a_probe_in_the_config(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = yaml.safe_load(config.read_text())
    content["trainer"]["callbacks"] = []
    config.write_text(yaml.safe_dump(content))
    refused(["encode", "--config", str(config)], "s2sbench encode: the config has no S2SBenchCallback", capsys)


def test_unknown_commands_are_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["s2sbench", "sing"])
    with pytest.raises(SystemExit):
        main()
    assert "invalid choice: 'sing'" in capsys.readouterr().err


def test_stages_prints_the_plan_and_trains_nothing(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = yaml.safe_load(config.read_text())
    stages = [
        {"name": "first", "train": ["audio_head", {"parameter": "lm_head.weight", "start": 0, "stop": 3}], "lr": 0.01, "until": {"min_gain": 0.3}},
        {"name": "second", "train": ["lm_body"], "freeze": ["*.layers.0.*"], "lr": {"lm_body": 0.002}},
    ]
    unfreeze = {"class_path": "s2sbench_callback.StageUnfreeze", "init_args": {"stages": stages, "guard": {"action": "lower_lr"}}}
    content["trainer"]["callbacks"].append(unfreeze)
    content["trainer"]["callbacks"].append({"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"every_n_train_steps": 1}})
    config.write_text(yaml.safe_dump(content))
    main(["stages", "--config", str(config)])
    lines = capsys.readouterr().out.splitlines()
    main(["stages", "--config", str(config), "--json"])
    assert json.loads(capsys.readouterr().out) == {"tables": [lines]}
    table = [" ".join(line.split()) for line in lines]
    assert "1 first plateau of s2t positive_minus_negative, min_gain 0.3 audio_head 3 2,048 0.01" in table
    assert "lm_head.weight[0:3] 1 192 0.01" in table
    assert any(line.startswith("2 second with the training lm_body 13") and line.endswith(" 0.002") for line in table)
    assert not list(tmp_path.rglob("*.ckpt"))
    assert not list(tmp_path.rglob("probes.jsonl"))
    main(["encode", "--config", str(config)])
    assert "12 recordings tokenised for mini" in capsys.readouterr().out
    assert not list(tmp_path.rglob("probes.jsonl"))
    for wrong, message in (
        ({"train": ["model.layer.*"]}, r"s2sbench stages: stage 'first': no parameter matches 'model.layer.\*'; near names are"),
        ({"train": ["frontend"]}, "s2sbench stages: stage 'first': the role 'frontend' has no parameters"),
        ({"until": {"condition": "t2s"}}, "s2sbench stages: stage 'first' decides from t2s, which the probe does not ask"),
    ):
        stages[0], right = {**stages[0], **wrong}, stages[0]
        config.write_text(yaml.safe_dump(content))
        refused(["stages", "--config", str(config)], message, capsys)
        stages[0] = right
    content["trainer"]["callbacks"] = content["trainer"]["callbacks"][:1]
    config.write_text(yaml.safe_dump(content))
    refused(["stages", "--config", str(config)], "the config has no StageUnfreeze, so there are no stages to print", capsys)


def recorded(folder: Path, stages: list[int], gaps: list[float]) -> RunRecord:
    """A run whose figure is known at each probe, one every 100 steps."""
    draw = np.random.default_rng(0)
    ids = tuple(f"q{number}" for number in range(40))
    levels = draw.normal(size=40)
    record = RunRecord(folder)
    for number, (stage, gap) in enumerate(zip(stages, gaps, strict=True)):
        noise = draw.normal(size=40) * 0.01
        nats = np.stack([10 + levels + gap + noise - noise.mean(), np.full(40, 10.0)], axis=1)
        table = LossTable(ids, ids, np.zeros(40, dtype=np.int64), nats, np.ones((40, 2), dtype=np.int64))
        verdict = Verdict(stage, 0 if stage == 1 else 100 * (stages.index(2) - 1), None if stage == 1 else "somebody said so")
        signature = {"sets": {"mini": {"tie_rule": "lose"}}}
        record.append(ProbeReport(100 * number, stage, {"mini": ("s2t",)}, {}, signature, verdict=verdict), {"mini": {"s2t": table}})
    return record


def test_decide_replays_a_rule_over_a_recorded_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jitter = np.random.default_rng(1).normal(size=24) * 0.002
    gaps = [-0.1 * number for number in range(6)] + [-0.5] * 14 + [-0.9] * 4
    recorded(tmp_path, [1] * 20 + [2] * 4, [gap + wobble for gap, wobble in zip(gaps, jitter, strict=True)])

    def ends(*settings: str) -> tuple[int | None, str]:
        main(["decide", str(tmp_path), *settings])
        printed = capsys.readouterr().out
        found = re.search(r"would have ended at step (\d+)", printed)
        return (int(found[1]) if found else None), printed

    step, printed = ends("--min_gain", "0.1")
    assert step is not None
    assert 800 <= step <= 1500
    step_at_0_1 = step
    # One line a probe of the stage, and none of the next.
    assert len(re.findall(r"^ +\d+  ", printed, re.MULTILINE)) == 20
    assert "In the recorded run it ended at step 1900: somebody said so." in printed
    assert (ends("--min_gain", "0.1", "--patience", "5")[0] or 0) > step
    assert ends("--min_gain", "0.1", "--min_steps", "1900")[0] == 1900
    assert ends("--min_gain", "0.1", "--max_steps", "300")[0] == 300
    # Between two probes, as in a run; and not where the stage's record does not reach.
    between, printed = ends("--min_gain", "0.1", "--max_steps", "250")
    assert between == 250
    assert "Stage 1 would have ended at step 250: max_steps 250 of its rule are done." in printed
    assert ends("--min_gain", "0.0001", "--max_steps", "1950")[0] is None
    never, printed = ends("--min_gain", "0.0001")
    assert never is None
    assert "Stage 1 would not have ended within its 20 recorded probes" in printed
    main(["decide", str(tmp_path), "--min_gain", "0.1", "--json"])
    decided = json.loads(capsys.readouterr().out)
    assert next(each["step"] for each in decided if each["advance"]) == step_at_0_1
    _, printed = ends("--stage", "2", "--max_steps", "200", "--min_gain", "0.1")
    assert "Stage 2 would have ended at step 2100" in printed
    for settings, message in [
        (["--stage", "3"], "holds no probes of stage 3; it has those of stage.s. 1, 2"),
        (["--condition", "t2t"], "holds no t2t losses"),
        (["--sets", "[scmmlu]"], "have no s2t losses of 'scmmlu'; they have mini"),
    ]:
        refused(["decide", str(tmp_path), *settings], message, capsys)
