from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from conftest import TINY

from s2sbench_callback.cli import main


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
    codes = list((tmp_path / "codes").rglob("*.npy"))
    assert len(codes) == 12
    assert "12 recordings tokenised for mini" in capsys.readouterr().out
    codes[0].unlink()
    main(["encode", "--config", str(config)])
    assert "1 recordings tokenised for mini" in capsys.readouterr().out
    assert len(list((tmp_path / "codes").rglob("*.npy"))) == 12
    assert not list(tmp_path.rglob("*.ckpt"))
    assert not list(tmp_path.rglob("probes.jsonl"))


def test_encode_needs_a_probe_in_the_config(config: Path) -> None:
    content = yaml.safe_load(config.read_text())
    content["trainer"]["callbacks"] = []
    config.write_text(yaml.safe_dump(content))
    with pytest.raises(SystemExit, match="the config has no S2SBenchCallback"):
        main(["encode", "--config", str(config)])


def test_unknown_commands_are_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["s2sbench", "sing"])
    with pytest.raises(SystemExit):
        main()
    assert "invalid choice: 'sing'" in capsys.readouterr().err
