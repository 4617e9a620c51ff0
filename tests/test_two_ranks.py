"""Two real processes over gloo, on the embedded speech LM and the real adapter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from s2sbench_callback import Benchmark
from s2sbench_callback.live_model import LiveModel
from s2sbench_callback.mini_world.model import MiniSpeechLM
from s2sbench_callback.mini_world.pretraining import mini_adapter
from s2sbench_callback.probe import Probe
from s2sbench_callback.ranks import Ranks, share
from s2sbench_callback.record import RunRecord

SCRIPT = Path(__file__).parent / "two_ranks.py"
SECONDS = 200

pytestmark = pytest.mark.slow


def launch(strategy: str, folder: Path, kind: str, on_error: str = "default") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(SCRIPT),
        strategy,
        str(folder),
        kind,
        on_error,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)


def two_ranks(strategy: str, folder: Path, kind: str, on_error: str = "default") -> list[dict[str, Any]]:
    done = launch(strategy, folder, kind, on_error)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture
def prepared(mini_set: Benchmark, tiny_speech_lm: MiniSpeechLM) -> MiniSpeechLM:
    """What both processes would otherwise make at the same time."""
    return tiny_speech_lm


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "fsdp2_tied"])
def test_two_ranks_score_what_one_scores_and_train_as_without(strategy: str, tmp_path: Path, prepared: MiniSpeechLM, mini_set: Benchmark) -> None:
    first, second = two_ranks(strategy, tmp_path, "agree")
    if strategy.endswith("tied"):
        prepared.lm_head.weight = prepared.model.embed_tokens.weight
    for count in (12, 11, 1):
        one, other = first["sets"][str(count)], second["sets"][str(count)]
        assert one["steps"] == [0, 1, 2]
        assert one["published"] == other["published"]
        assert one["forwards"] == other["forwards"]
        assert one["dirpath"] == other["dirpath"]
        assert one["packed"]
        assert one["identical"]
        assert other["identical"]
        benchmark = replace(mini_set, items=mini_set.items[:count])
        with torch.no_grad():
            expected = Probe([benchmark]).run(mini_adapter(), LiveModel(prepared, prepared, torch.device("cpu")), Ranks())
        found = RunRecord(Path(one["dirpath"])).losses(0)
        for condition in ("s2t", "t2t"):
            np.testing.assert_allclose(found["mini"][condition].losses, expected["mini"][condition].losses, atol=1e-5)
    # Twelve recordings in all, shared out; what was tokenised for the first set is found on disk for the later ones.
    shared = [result["sets"]["12"]["front_end_forwards"] for result in (first, second)]
    assert sum(shared) in (12, 13, 14)
    assert shared[0] == shared[1]


def test_a_failure_while_preparing_is_raised_by_all_ranks(tmp_path: Path, prepared: MiniSpeechLM) -> None:
    message = "ProbeError: rank 1, while tokenising speech: ArithmeticError: the front-end gave up"
    assert [result["raised"] for result in two_ranks("ddp", tmp_path, "encode")] == [message, message]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_failure_in_a_forward_under_ddp_ends_or_skips_the_probe_on_all_ranks(on_error: str, tmp_path: Path, prepared: MiniSpeechLM) -> None:
    results = two_ranks("ddp", tmp_path, "forward", on_error)
    for result in results:
        if on_error == "raise":
            assert result["raised"].startswith("ProbeError: rank 1, while scoring item")
            assert result["raised"].endswith("of 'mini': ArithmeticError: the adapter gave up")
        else:
            assert (result["raised"], result["steps"], result["skipped"]) == (None, [], 3)


def test_memory_that_does_not_suffice_on_one_rank_halves_the_rows_on_all(tmp_path: Path, prepared: MiniSpeechLM) -> None:
    for result in two_ranks("ddp", tmp_path, "memory"):
        assert result["raised"] is None
        assert result["steps"] == [0, 1, 2]
        assert result["skipped"] == 0
        assert result["max_tokens"] == 150


def test_a_failure_inside_a_sharded_forward_ends_the_job_at_once(tmp_path: Path, prepared: MiniSpeechLM) -> None:
    done = launch("fsdp2", tmp_path, "forward", "skip")
    assert done.returncode != 0
    assert "S2SBench: rank 1, while scoring item" in done.stderr
    assert "ArithmeticError: the adapter gave up" in done.stderr
    assert not list(tmp_path.glob("rank*.json"))


def test_shares_are_whole_balanced_and_the_same_on_every_rank() -> None:
    costs = [float(cost) for cost in np.random.default_rng(0).integers(20, 400, size=101)]
    for ranks in (1, 2, 8, 64, 200):
        shares = share(costs, ranks)
        assert sorted(index for each in shares for index in each) == list(range(101))
        loads = [sum(costs[index] for index in each) for each in shares]
        assert max(loads) - min(loads) <= max(costs)
    assert share([], 2) == [[], []]
