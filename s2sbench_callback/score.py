"""A probe of one model outside training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from s2sbench_callback.isolation import isolated
from s2sbench_callback.items import Benchmark
from s2sbench_callback.live_model import LiveModel
from s2sbench_callback.plots import panels, png
from s2sbench_callback.probe import Probe
from s2sbench_callback.prompts import DEFAULT_CONDITIONS, Condition
from s2sbench_callback.ranks import Ranks
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import build_report
from s2sbench_callback.systems import System


def score(
    system: System,
    benchmarks: Sequence[Benchmark],
    dirpath: str | Path,
    conditions: Sequence[Condition] = DEFAULT_CONDITIONS,
    device: str = "auto",
    step: int = 0,
    max_questions: int | None = None,
    max_tokens: int | None = None,
    packed: bool = True,
    cache_dir: str | Path | None = None,
) -> RunRecord:
    """Asks benchmarks of a model as a callback would, and writes the same record.

    Args:
        system: The model and its adapter.
        benchmarks: The sets.
        dirpath: Folder of the record; a probe of the same step in it is superseded.
        conditions: How contexts and candidates are given.
        device: For example ``cuda:1``; by default a GPU where there is one.
        step: Number of the checkpoint, for the record.
        max_questions: Questions per set; a larger set is cut to a fixed subset.
        max_tokens: Positions in one forward; chosen for the device by default.
        packed: Whether candidates share the computation of their context.
        cache_dir: Where audio tokens are kept; by default the user's cache folder.

    Returns:
        The record, which holds the report and the losses.
    """
    began = time.monotonic()
    place = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    probe = Probe(benchmarks, conditions, max_questions, max_tokens, cache_dir, packed)
    model = system.model.to(place)
    for module in system.beside:
        module.to(place)
    with isolated(model):
        tables = probe.run(system.adapter, LiveModel(model, model, place), Ranks(), progress=True)
    seconds = time.monotonic() - began
    questions = sum(len(benchmark.items) for benchmark in probe.benchmarks.values())
    signature = {
        **probe.signature(system.adapter),
        "package": version("s2sbench_callback"),
        "precision": ", ".join(sorted({str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()})),
        "weights": "current",
        "max_questions": max_questions,
    }
    run_metrics = {"seconds": seconds, "questions_per_second": questions / seconds}
    report = build_report(probe.benchmarks, tables, {}, step, None, run_metrics, signature)
    record = RunRecord(Path(dirpath))
    record.supersede_after(step - 1)
    record.append(report, tables)
    record.write_panels(png(panels(record.history())))
    return record
