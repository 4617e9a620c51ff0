"""Probes of saved models, outside training, into the record that a callback would write."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from s2sbench_callback.averaged_weights import Weights
from s2sbench_callback.checkpoints import Checkpoint
from s2sbench_callback.controls import Control
from s2sbench_callback.isolation import isolated
from s2sbench_callback.items import Benchmark
from s2sbench_callback.live_model import LiveModel
from s2sbench_callback.plots import panels, png
from s2sbench_callback.probe import Probe
from s2sbench_callback.prompts import DEFAULT_CONDITIONS, Condition
from s2sbench_callback.ranks import Ranks
from s2sbench_callback.record import RunRecord
from s2sbench_callback.reference import Reference
from s2sbench_callback.report import ProbeReport, Tables, build_report
from s2sbench_callback.systems import System

_AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


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
    probe = Probe(benchmarks, conditions, max_questions, max_tokens, cache_dir, packed)
    saved = SavedProbe(probe, Path(dirpath), device, max_questions=max_questions)
    saved.ask(system, step)
    saved.draw()
    return saved.record


class SavedProbe:
    """Asks one saved model after the other the same questions; under ``torchrun``, all ranks together.

    Args:
        probe: The questions.
        dirpath: Folder of the record.
        device: For example ``cuda:1``; by default this rank's GPU where there is one.
        reference: What T→T is held against: another record, of which the first probe counts; by default the first probe of this one.
        controls: Changed sets to be asked besides.
        precision: As Lightning names it; ``bf16-mixed`` and ``16-mixed`` score under autocast, as such a training does.
        max_questions: What the sets were cut to, for the signature.
        weights: Which weights are given, for the signature.

    Raises:
        ValueError: If there is no such device, or the reference was asked other questions.
    """

    def __init__(
        self,
        probe: Probe,
        dirpath: Path,
        device: str = "auto",
        reference: Path | None = None,
        controls: Sequence[Control] = (),
        precision: str | None = None,
        max_questions: int | None = None,
        weights: Weights = "current",
    ) -> None:
        self.probe = probe
        self.record = RunRecord(dirpath)
        self.place = _place(device)
        self.ranks = Ranks.of_this_run(self.place)
        self.controls = probe.of_controls(controls) if controls else None
        self._precision = precision
        self._settings = {"max_questions": max_questions, "weights": weights}
        known = reference or (dirpath if self.record.history() else None)
        self._reference = Reference(known)
        mismatches = self._reference.mismatches(probe.benchmarks)
        if mismatches and reference:
            raise ValueError(f"{reference}: the reference was asked other questions of {', '.join(mismatches)}")
        self._reference.drop(mismatches)

    def is_done(self, step: int, checkpoint: Checkpoint) -> bool:
        """Whether the record has these weights' answers to these questions.

        Args:
            step: Number of the checkpoint.
            checkpoint: The weights.
        """
        report = next((each for each in self.record.history() if each.step == step), None)
        if report is None or report.signature.get("checkpoint") != dict(checkpoint.stamp):
            return False
        asked = {name: (benchmark.fingerprint, len(benchmark.items)) for name, benchmark in self.probe.benchmarks.items()}
        found = {name: (each["fingerprint"], each["questions"]) for name, each in report.signature.get("sets", {}).items()}
        # A condition that the model or a set refused is not in the report, and need not be tried again.
        return asked == found and report.signature.get("conditions") == list(self.probe.conditions)

    def ask(self, system: System, step: int, checkpoint: Checkpoint | None = None, progress: bool = True) -> tuple[ProbeReport, Tables]:
        """Probes a model and puts the probe into the record, in the place of one of the same step.

        Args:
            system: The model and its adapter.
            step: Number of the checkpoint.
            checkpoint: Where its weights come from.
            progress: Whether rank 0 shows bars.

        Returns:
            The report and the losses, the same on every rank.

        Raises:
            FloatingPointError: If half of a set's questions have a loss that is not finite.
            ProbeError: On all ranks, if one of several failed.
        """
        began = time.monotonic()
        shows = progress and self.ranks.rank == 0
        system.root.to(self.place)
        for module in system.beside:
            module.to(self.place)
        live = LiveModel(system.root, system.model, self.place)
        with ExitStack() as stack:
            stack.callback(live.leave)
            stack.enter_context(isolated(system.root))
            stack.enter_context(self._autocast())
            tables = self.probe.run(system.adapter, live, self.ranks, shows)
            controls = self.controls.run(system.adapter, live, self.ranks, shows) if self.controls else {}
        self._reference.take(tables, self.probe.benchmarks)
        seconds = self.ranks.maximum(round((time.monotonic() - began) * 1e6)) / 1e6
        questions = sum(len(benchmark.items) for benchmark in self.probe.benchmarks.values())
        run_metrics = {"seconds": seconds, "questions_per_second": questions / seconds}
        signature = self._signature(system, checkpoint)
        report = build_report(self.probe.benchmarks, tables, self._reference.tables(), step, None, run_metrics, signature, controls)
        if self.ranks.rank == 0:
            self.record.put(report, tables, controls)
        return report, tables

    def draw(self) -> None:
        """Writes the panels of the record, from rank 0."""
        if self.ranks.rank == 0:
            self.record.write_panels(png(panels(self.record.history())))

    def _signature(self, system: System, checkpoint: Checkpoint | None) -> dict[str, Any]:
        own = ", ".join(sorted({str(parameter.dtype).removeprefix("torch.") for parameter in system.model.parameters()}))
        return {
            **self.probe.signature(system.adapter),
            "package": version("s2sbench_callback"),
            "precision": self._precision or own,
            "conditions": list(self.probe.conditions),
            **self._settings,
            **({"checkpoint": dict(checkpoint.stamp)} if checkpoint else {}),
        }

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = _AUTOCAST.get(self._precision or "")
        return torch.autocast(self.place.type, dtype) if dtype else nullcontext()


def _place(device: str) -> torch.device:
    if device == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        # One process a GPU, as torchrun starts them.
        return torch.device("cuda", torch.cuda.current_device())
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={device!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return place
