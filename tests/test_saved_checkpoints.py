"""Checkpoints of real trainings, scored afterwards: the figures are those of the probes that ran in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
import yaml
from conftest import TINY, refused
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from safetensors.torch import save_file
from transformers import Qwen2ForCausalLM

from s2sbench_callback import Benchmark, S2SBenchCallback
from s2sbench_callback.checkpoints import BrokenCheckpoint, as_checkpoint, find_checkpoints
from s2sbench_callback.cli import main
from s2sbench_callback.mini_world.data import MiniData
from s2sbench_callback.mini_world.task import MiniTask
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer
from s2sbench_callback.record import RunRecord
from s2sbench_callback.saved_models import put_in


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Path:
    """A short training that has probed before each of its checkpoints, with the config that LightningCLI would leave beside it."""
    os.environ["S2SBENCH_CACHE"] = str(cache_dir)
    folder = tmp_path_factory.mktemp("run")
    from s2sbench_callback import mini

    pl.seed_everything(3)
    probe = S2SBenchCallback([mini(questions=12)], dirpath=folder / "s2sbench")
    saving = ModelCheckpoint(folder / "checkpoints", filename="{step}", every_n_train_steps=2, save_top_k=-1, save_last=True)
    trainer = pl.Trainer(
        max_steps=6,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[probe, saving],
        default_root_dir=folder,
    )
    trainer.fit(MiniTask(TINY), datamodule=MiniData(batch_size=2, pretraining=TINY))
    pretraining = {**vars(TINY), "codebook_sizes": list(TINY.codebook_sizes)}
    sets = [{"class_path": "s2sbench_callback.mini", "init_args": {"questions": 12}}]
    config = {
        "model": {"class_path": "s2sbench_callback.mini_world.task.MiniTask", "init_args": {"pretraining": pretraining}},
        "data": {"class_path": "nowhere.Data"},
        # More GPUs than there are: nothing of the trainer is made but its probe.
        "trainer": {
            "max_steps": 6,
            "devices": 64,
            "accelerator": "cuda",
            "callbacks": [
                {"class_path": "nowhere.Callback"},
                {"class_path": "s2sbench_callback.S2SBenchCallback", "init_args": {"benchmarks": sets}},
            ],
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """The run, to be spoilt."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_a_series_of_checkpoints_has_the_figures_of_the_training(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["score", f"{copy}/checkpoints/*.ckpt", "--device", "cpu"])
    printed = capsys.readouterr()
    trained, scored = RunRecord(copy / "s2sbench"), RunRecord(copy / "s2sbench_scored")
    assert [report.step for report in scored.history()] == [2, 4, 6]
    for report in scored.history():
        for condition in ("s2t", "t2t"):
            expected, found = (record.losses(report.step)["mini"][condition].nats for record in (trained, scored))  # type: ignore[index]
            np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (copy / "s2sbench_scored" / "panels.png").is_file()
    assert "last.ckpt is left out: it is of step 6, like " in printed.err
    assert printed.out.startswith("mini ")
    assert "step 2" in printed.out
    # The reference is the first probe of the series.
    assert scored.history()[0].metrics["s2sbench/mini/t2t_change"] == 0

    before = (copy / "s2sbench_scored" / "probes.jsonl").read_bytes()
    main(["score", f"{copy}/checkpoints", "--device", "cpu", "--json"])
    printed = capsys.readouterr()
    content = json.loads(printed.out)
    assert content["scored"] == []
    assert [probe["step"] for probe in content["probes"]] == [2, 4, 6]
    assert printed.err.count("is in the record already") == 3
    assert (copy / "s2sbench_scored" / "probes.jsonl").read_bytes() == before
    main(["score", f"{copy}/checkpoints/step=4.ckpt", "--device", "cpu", "--again", "true", "--json"])
    assert json.loads(capsys.readouterr().out)["scored"] == [4]
    assert [report.step for report in scored.history()] == [2, 4, 6]
    # Other questions are not done yet.
    main(["score", f"{copy}/checkpoints/step=4.ckpt", "--device", "cpu", "--max_questions", "4", "--json"])
    assert json.loads(capsys.readouterr().out)["scored"] == [4]
    assert scored.history()[1].signature["sets"]["mini"]["questions"] == 4


def test_a_broken_checkpoint_is_named_and_the_rest_goes_on(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (copy / "checkpoints" / "step=4.ckpt").read_bytes()
    (copy / "checkpoints" / "step=4.ckpt").write_bytes(whole[: len(whole) // 2])
    (copy / "checkpoints" / "last.ckpt").unlink()
    other = torch.load(copy / "checkpoints" / "step=6.ckpt", weights_only=True)
    other["state_dict"]["model.more.weight"] = torch.zeros(1)
    torch.save(other, copy / "checkpoints" / "step=6.ckpt")
    with pytest.raises(SystemExit) as ended:
        main(["score", f"{copy}/checkpoints/*", "--device", "cpu", "--json"])
    printed = capsys.readouterr()
    assert ended.value.code == 1
    content = json.loads(printed.out)
    assert content["scored"] == [2]
    assert {Path(path).name for path in content["broken"]} == {"step=4.ckpt", "step=6.ckpt"}
    assert "step=4.ckpt cannot be read: " in printed.err
    assert "step=6.ckpt does not fit MiniTask: it lacks nothing, and has model.more.weight besides" in printed.err
    assert "Traceback" not in printed.err
    for path in (copy / "checkpoints").iterdir():
        path.write_bytes(b"")
    refused(["score", f"{copy}/checkpoints/*", "--device", "cpu"], "none of the checkpoints could be scored", capsys)


def test_weights_that_are_not_numbers_are_a_broken_checkpoint(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = torch.load(copy / "checkpoints" / "step=4.ckpt", weights_only=True)
    for tensor in content["state_dict"].values():
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
    torch.save(content, copy / "checkpoints" / "step=4.ckpt")
    with pytest.raises(SystemExit) as ended:
        main(["score", f"{copy}/checkpoints/step=2.ckpt", f"{copy}/checkpoints/step=4.ckpt", "--device", "cpu", "--json"])
    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert json.loads(printed.out)["scored"] == [2]
    assert "have a NaN or infinite loss" in printed.err


def make_tiny() -> MiniTask:
    """What ``--model`` names."""
    return MiniTask(TINY)


def test_the_model_may_come_from_a_function_and_the_weights_from_any_file(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = torch.load(run / "checkpoints" / "step=4.ckpt", weights_only=True)["state_dict"]
    torch.save(state, tmp_path / "weights_step=11.pt")
    save_file({f"_orig_mod.{name}": tensor.contiguous() for name, tensor in state.items()}, tmp_path / "ckpt_7_12_0.safetensors")
    # As Lightning's FSDP and ModelParallelStrategy shard it.
    dcp.save({"model": state}, checkpoint_id=tmp_path / "sharded13", no_dist=True)
    torch.save({"global_step": 13}, tmp_path / "sharded13" / "meta.pt")
    dcp.save({"state_dict": state}, checkpoint_id=tmp_path / "step=14", no_dist=True)
    sets = tmp_path / "probe.yaml"
    sets.write_text(yaml.safe_dump({"benchmarks": [{"class_path": "s2sbench_callback.mini", "init_args": {"questions": 12}}], "device": "cpu"}))
    main(["score", str(tmp_path), "--model", f"{__name__}.make_tiny", "--config", str(sets), "--dirpath", str(tmp_path / "record"), "--json"])
    assert json.loads(capsys.readouterr().out)["scored"] == [11, 12, 13, 14]
    expected = RunRecord(run / "s2sbench").losses(4)["mini"]["s2t"].nats
    for step in (11, 12, 13, 14):
        np.testing.assert_allclose(RunRecord(tmp_path / "record").losses(step)["mini"]["s2t"].nats, expected, atol=1e-6)


def test_a_hugging_face_folder_needs_nothing_else(tiny_qwen2: Qwen2ForCausalLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "checkpoint-30"
    tiny_qwen2.save_pretrained(folder)
    build_text_tokenizer().save_pretrained(folder)
    sets = "[{'class_path': 's2sbench_callback.mini', 'init_args': {'questions': 12}}]"
    main(["score", str(folder), "--benchmarks", sets, "--conditions", "[t2t]", "--dtype", "float32", "--device", "cpu"])
    assert "step 30" in capsys.readouterr().out
    assert RunRecord(tmp_path / "s2sbench_scored").history()[0].signature["adapter"]["adapter"] == "text_only"


def test_averaged_weights_are_those_that_lightning_saves(run: Path, tmp_path: Path, cache_dir: Path, mini_set: Benchmark) -> None:
    probe = S2SBenchCallback([mini_set], dirpath=tmp_path / "average", weights="average")
    saving = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=3)
    trainer = pl.Trainer(
        max_steps=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[EMAWeightAveraging(decay=0.5), probe, saving],
    )
    trainer.fit(MiniTask(TINY), datamodule=MiniData(batch_size=2, pretraining=TINY))
    checkpoint = as_checkpoint(tmp_path / "step=3.ckpt")
    assert checkpoint is not None
    content = torch.load(checkpoint.path, weights_only=True)
    current, average = (checkpoint.state_dict(weights=weights) for weights in ("current", "average"))  # type: ignore[arg-type]
    name = "model.lm_head.weight"
    assert torch.equal(current[name], content["current_model_state"][name])
    assert torch.equal(average[name], content["state_dict"][name])
    assert not torch.equal(current[name], average[name])
    plain = as_checkpoint(run / "checkpoints" / "step=4.ckpt")
    assert plain is not None
    with pytest.raises(BrokenCheckpoint, match="holds no averaged weights"):
        plain.state_dict(weights="average")


def test_two_ranks_of_torchrun_score_as_one_does(run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "s2sbench_callback", "score"]
    arguments = [f"{run}/checkpoints/step=2.ckpt", "--device", "cpu", "--dirpath", str(tmp_path / "two"), "--json"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == [2]
    for condition in ("s2t", "t2t"):
        expected, found = (record.losses(2)["mini"][condition].nats for record in (RunRecord(run / "s2sbench"), RunRecord(tmp_path / "two")))  # type: ignore[index]
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_cannot_be_done_is_a_sentence(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = f"{run}/checkpoints/step=2.ckpt"
    refused(["score"], "nothing to score: name checkpoints", capsys)
    refused(["score", f"{tmp_path}/*.ckpt"], "matches no checkpoint", capsys)
    refused(["score", f"{tmp_path}/none.ckpt"], "none.ckpt: no such checkpoint", capsys)
    (tmp_path / "notes.txt").write_text("hello")
    refused(["score", f"{tmp_path}/notes.txt"], "is no checkpoint that can be read", capsys)
    refused(["score", checkpoint, "--device", "abacus"], "device='abacus' cannot be used here", capsys)
    refused(["score", checkpoint, "--device", "cuda:7"], "device='cuda:7' cannot be used here", capsys)
    refused(["score", checkpoint, "--model", "nowhere.make"], "--model nowhere.make is no function that can be imported", capsys)
    refused(["score", checkpoint, "--model", "json.JSONDecoder"], "returned JSONDecoder; it must return a torch module", capsys)
    refused(["score", checkpoint, "--model", f"{__name__}.make_tiny", "--device", "cpu"], "no benchmarks: name them with --benchmarks", capsys)
    refused(["score", f"{run}/checkpoints", "--step", "3", "--device", "cpu"], "--step 3 is for one checkpoint, and there are 4", capsys)
    shutil.copy(checkpoint, tmp_path / "weights.pt")
    sets = "[{'class_path': 's2sbench_callback.mini', 'init_args': {'questions': 12}}]"
    refused(
        ["score", f"{tmp_path}/weights.pt", "--benchmarks", sets, "--device", "cpu", "--step", "1"],
        "weights.pt holds weights alone: name the run's",
        capsys,
    )
    deepspeed = tmp_path / "zero"
    (deepspeed / "checkpoint").mkdir(parents=True)
    (deepspeed / "checkpoint" / "latest").write_text("checkpoint")
    refused(["score", str(deepspeed)], "is DeepSpeed's: put its parts together first", capsys)


class Stranger:
    """Something that is neither tensor nor plain data."""


def test_python_objects_are_read_only_where_they_are_trusted(run: Path, tmp_path: Path) -> None:
    content = torch.load(run / "checkpoints" / "step=2.ckpt", weights_only=True)
    torch.save({**content, "hyper_parameters": {"stranger": Stranger()}}, tmp_path / "a.ckpt")
    (checkpoint,) = find_checkpoints([str(tmp_path / "a.ckpt")])
    with pytest.raises(BrokenCheckpoint, match=r"holds objects besides tensors and plain data.*--trust true"):
        checkpoint.step()
    assert checkpoint.step(trust=True) == 2
    assert checkpoint.state_dict(trust=True).keys() == content["state_dict"].keys()


@pytest.mark.parametrize(
    ("name", "step"),
    [("step=1000", 1000), ("epoch=1-step=250-v2", 250), ("checkpoint-70", 70), ("ckpt_3_5000_x", 5000), ("global_step40", 40), ("9", 9)],
)
def test_steps_by_name(tmp_path: Path, name: str, step: int) -> None:
    save_file({"w": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    (checkpoint,) = find_checkpoints([str(tmp_path)])
    assert checkpoint.step() == step


def test_a_name_without_a_step_asks_for_one(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(1)}, tmp_path / "best.safetensors")
    with pytest.raises(ValueError, match=r"best\.safetensors does not say which step it is of, nor does its name .* give --step"):
        find_checkpoints([str(tmp_path)])[0].step()


def test_unfinished_folders_are_told_from_finished_ones(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert not find_checkpoints([str(folder)])[0].is_complete()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    save_file({"a": torch.zeros(1)}, folder / "1.safetensors")
    assert not find_checkpoints([str(folder)])[0].is_complete()
    save_file({"b": torch.zeros(1)}, folder / "2.safetensors")
    assert find_checkpoints([str(folder)])[0].is_complete()
    shards = tmp_path / "sharded"
    dcp.save({"model": {"a": torch.zeros(1)}}, checkpoint_id=shards, no_dist=True)
    assert find_checkpoints([str(shards)])[0].is_complete()
    (shards / ".metadata").unlink()
    assert not find_checkpoints([str(shards)])[0].is_complete()


def test_weights_of_the_language_model_alone_fit_it_with_and_without_its_name(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    state = {name: torch.full_like(tensor, 3.0) for name, tensor in module.state_dict().items()}
    put_in(module, {f"model.{name}": tensor for name, tensor in state.items()}, tmp_path)
    assert all((tensor == 3).all() for tensor in module.state_dict().values())
    with pytest.raises(BrokenCheckpoint, match=r"size mismatch for 0\.bias"):
        put_in(module, {**state, "0.bias": torch.zeros(3)}, tmp_path)
    with pytest.raises(BrokenCheckpoint, match=r"it lacks 0\.bias, and has nothing besides"):
        put_in(module, {"0.weight": state["0.weight"]}, tmp_path)
