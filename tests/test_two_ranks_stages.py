"""Changes of stage in two real processes over gloo, against one process on the same global batches, and against Lightning's own unfreezing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY

from s2sbench_callback import mini
from s2sbench_callback.mini_world.pretraining import build_model, load_pretrained, pretrained_weights

SCRIPT = Path(__file__).parent / "two_ranks_stages.py"
SECONDS = 280
KINDS = ("plain", "rows", "accumulate", "filtered", "checkpoints")

pytestmark = pytest.mark.slow

Results = list[dict[str, dict[str, Any]]]


def run(processes: int, strategy: str, folder: Path, cache: Path, *jobs: str) -> Results:
    """Several trainings in one launch, since starting up is what takes time."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
        str(SCRIPT),
        strategy,
        str(folder),
        *jobs,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "S2SBENCH_CACHE": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return [torch.load(folder / f"{strategy}.rank{rank}.pt") for rank in range(processes)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Path:
    # What the processes would otherwise make at the same time.
    mini(questions=12, cache_dir=cache_dir)
    pretrained_weights(TINY, cache_dir)
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def alone(folder: Path, cache_dir: Path) -> dict[str, dict[str, Any]]:
    (result,) = run(1, "one", folder, cache_dir, *KINDS)
    return result


@pytest.fixture(scope="module")
def ddp(folder: Path, cache_dir: Path, alone: dict[str, dict[str, Any]]) -> Results:
    from_one = [f"one_{step}={checkpoint(folder, 'one', step)}" for step in (2, 5)]
    return run(2, "ddp", folder, cache_dir, *KINDS, "base_finetuning", "lazy", *from_one)


@pytest.fixture(scope="module")
def fsdp2(folder: Path, cache_dir: Path) -> Results:
    return run(2, "fsdp2", folder, cache_dir, *(kind for kind in KINDS if kind != "filtered"))


def checkpoint(folder: Path, strategy: str, step: int) -> Path:
    return folder / strategy / "checkpoints" / "checkpoints" / f"step={step}.ckpt"


def apart(one: dict[str, Any], other: dict[str, Any], what: str = "weights") -> float:
    assert set(one[what]) == set(other[what])
    return max(float((one[what][name] - other[what][name]).abs().max()) for name in one[what])


def changes(kind: str) -> list[int]:
    """The change comes at step 3 of 8 in the epoch (batch 6 of 8 under accumulation), decided at the probe of that step."""
    return [1] * 5 + [2] * 15 if kind == "accumulate" else [1, 1] + [2] * 8


@pytest.mark.parametrize("kind", KINDS)
def test_one_process_trains_what_the_stages_say(kind: str, alone: dict[str, dict[str, Any]], cache_dir: Path) -> None:
    assert alone[kind]["stages"] == changes(kind)
    model = build_model(TINY)
    load_pretrained(model, pretrained_weights(TINY, cache_dir))
    start = {name: parameter.detach() for name, parameter in model.named_parameters()}
    moved = {name for name, weight in alone[kind]["weights"].items() if not torch.equal(weight, start[name])}
    assert {"model.layers.0.mlp.up_proj.weight", "audio_head.0.weight"} <= moved
    rows = alone[kind]["weights"]["model.embed_tokens.weight"] != start["model.embed_tokens.weight"]
    assert rows.any(1).nonzero().flatten().tolist() == (list(range(3, 40)) if kind == "rows" else [])
    assert "lm_head.weight" not in moved


@pytest.mark.parametrize("kind", KINDS)
def test_ddp_ranks_stay_equal_and_do_what_one_process_does(kind: str, ddp: Results, alone: dict[str, dict[str, Any]]) -> None:
    equal_and_as_alone(kind, ddp, alone)
    # Another wrapper since the change, with the arguments of the first.
    assert ddp[0][kind]["wrappers"] == [["DistributedDataParallel", True, 7 * 2**20]] * 2


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "filtered"])
def test_fsdp2_ranks_stay_equal_and_do_what_one_process_does(kind: str, fsdp2: Results, alone: dict[str, dict[str, Any]]) -> None:
    equal_and_as_alone(kind, fsdp2, alone)


def equal_and_as_alone(kind: str, results: Results, alone: dict[str, dict[str, Any]]) -> None:
    first, second = (result[kind] for result in results)
    assert apart(first, second) == 0.0
    assert max(first["apart"]) == max(second["apart"]) == 0.0
    assert first["stages"] == second["stages"] == changes(kind)
    assert apart(first, alone[kind]) < 1e-6
    assert apart(first, alone[kind], "moments") < 1e-7
    assert first["rates"] == second["rates"] == alone[kind]["rates"]


def test_lightnings_own_unfreezing_drifts_under_ddp(ddp: Results) -> None:
    first, second = (result["base_finetuning"] for result in ddp)
    assert max(first["apart"][:8]) == 0.0
    assert first["apart"][-1] > 1e-3
    assert apart(first, second) > 1e-3


def test_a_model_built_late_is_frozen_and_wrapped_anew_before_the_first_step(ddp: Results, alone: dict[str, dict[str, Any]]) -> None:
    first, second = (result["lazy"] for result in ddp)
    assert apart(first, second) == 0.0
    assert apart(first, alone["plain"]) < 1e-6


@pytest.mark.parametrize("strategy", ["one", "ddp", "fsdp2"])
def test_a_resumed_run_goes_on_to_the_bit_in_either_stage(strategy: str, alone: dict[str, dict[str, Any]], request: pytest.FixtureRequest) -> None:
    for result in [alone] if strategy == "one" else request.getfixturevalue(strategy):
        whole = result["checkpoints"]
        for step in (2, 3, 5):
            resumed = result[f"from_{step}"]
            assert apart(whole, resumed) == 0.0
            assert apart(whole, resumed, "moments") == 0.0
            assert whole["rates"] == resumed["rates"]
            assert whole["stages"][step:] == resumed["stages"]
            assert whole["modes"] == resumed["modes"] == [False]


def test_a_run_goes_on_with_another_number_of_ranks(
    alone: dict[str, dict[str, Any]], ddp: Results, fsdp2: Results, folder: Path, cache_dir: Path
) -> None:
    (from_ddp,) = run(1, "one", folder, cache_dir, *(f"ddp_{step}={checkpoint(folder, 'ddp', step)}" for step in (2, 5)))
    (from_fsdp2,) = run(1, "fsdp2_one", folder, cache_dir, *(f"fsdp2_{step}={checkpoint(folder, 'fsdp2', step)}" for step in (2, 5)))
    for resumed, before in [(from_ddp, "ddp"), (from_fsdp2, "fsdp2"), *((result, "one") for result in ddp)]:
        for step in (2, 5):
            assert apart(resumed[f"{before}_{step}"], alone["checkpoints"]) < 1e-6
            assert resumed[f"{before}_{step}"]["stages"] == changes("checkpoints")[step:]
