"""The callback: hooks only. It reads as the story of one probe."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from s2sbench_callback.adapters import Adapter, find_adapter, find_language_model
from s2sbench_callback.adapters.find import Locator
from s2sbench_callback.averaged_weights import Weights, averaging_callback, probed_weights
from s2sbench_callback.benchmarks import mini
from s2sbench_callback.isolation import isolated
from s2sbench_callback.items import Benchmark
from s2sbench_callback.lightning_run import (
    checkpoint_triggers,
    default_dirpath,
    is_fast_dev_run,
    redirection,
    refusal,
    shows_progress,
    stage_number,
)
from s2sbench_callback.live_model import LiveModel
from s2sbench_callback.loggers import Showing, changed_sides, send, send_skipped
from s2sbench_callback.metrics import invalid_items
from s2sbench_callback.plots import CONDITION_NAMES, panels, pixels, png
from s2sbench_callback.probe import Probe
from s2sbench_callback.prompts import CONDITIONS, Condition
from s2sbench_callback.ranks import Ranks
from s2sbench_callback.record import RunRecord
from s2sbench_callback.reference import Reference
from s2sbench_callback.report import PREFIX, ProbeReport, Tables, build_report
from s2sbench_callback.schedule import ProbePlan, plan_probes
from s2sbench_callback.scoring import LossTable

_NAMED = 10


class S2SBenchCallback(pl.Callback):
    """Asks a speech LM the same questions spoken and written while it trains, and logs how much it loses by hearing.

    Example::

        from s2sbench_callback import S2SBenchCallback, official

        probe = S2SBenchCallback(benchmarks=[official("S2SBench/eval_s2t.yaml", name="sStory_s2t")])
        checkpoint = ModelCheckpoint(
            every_n_train_steps=1000, monitor="s2sbench/mean/s2t/accuracy", mode="max", auto_insert_metric_name=False
        )
        trainer = Trainer(callbacks=[probe, checkpoint], logger=[TensorBoardLogger("runs"), WandbLogger()])

    Args:
        benchmarks: The sets to ask; by default the embedded one.
        adapter: How the model is read; found from its class by default.
        locator: Where the language model is in the LightningModule, as a dotted path or a function of it; by default the
            LightningModule itself is looked at, then its children.
        conditions: ``s2t``, ``t2t`` or both.
        every_n_train_steps: Optimizer steps between probes; by default each ``ModelCheckpoint`` is followed, always before it saves.
        at_start: Whether to probe before the first step.
        at_end: Whether to probe after the last step.
        reference: What T→T is held against: the folder of another run's record, of which the first probe counts; by default the first
            T→T of this run.
        weights: ``current``, or ``average`` for those that Lightning's ``WeightAveraging`` or ``EMAWeightAveraging`` keeps.
        max_questions: Questions per set; a larger set is cut to a fixed subset, the same at every probe.
        max_tokens: Positions in one forward; chosen for the device by default, halved where memory does not suffice.
        cache_dir: Where audio tokens are kept between runs; by default the user's cache folder.
        dirpath: Folder of the record; by default ``s2sbench`` in the first logger's folder of this run.
        on_error: What a probe that fails does: ``raise`` ends the training, ``skip`` warns, logs ``s2sbench/skipped`` and goes on. By default
            the first probe raises and later ones skip.

    Metrics logged: below ``s2sbench/<set>/<condition>/``: ``accuracy``, ``question_accuracy`` (0..1, higher is better),
    ``positive_loss``, ``negative_loss``, ``positive_minus_negative`` (nats per token; the last is below 0 when the model is right),
    ``ties``, ``invalid`` (counts). Below ``s2sbench/<set>/``: ``degradation``, ``intelligence_loss`` (0 is best), ``t2t_change``. All but the
    counts with ``_low`` and ``_high``, the ends of the 95 % interval. The same below ``s2sbench/mean/``, averaged over sets. ``s2sbench/step``,
    ``stage``, ``seconds``, ``questions_per_second``, ``share_of_training`` (of the time since training began), ``skipped`` (probes so far).

    State saved: last probed step, folder of the record, number of skipped probes, reference losses. No configuration.

    Hooks used: ``setup``, ``on_train_start``, ``on_train_batch_end``, ``on_validation_end``, ``on_train_epoch_end``, ``on_train_end``.

    Attributes:
        record: The files of this run, once training has begun; ``None`` before, and in a ``fast_dev_run``.

    Cost: one forward over every context once and every candidate, without gradients, with text logits at answer positions alone; recordings
    are read and tokenised at the first probe only. The first probe prints what it cost.

    Raises:
        ValueError: If an argument is out of range, or a set is faulty.
        MisconfigurationException: At setup, if there is no regular moment to probe at, or the strategy cannot be probed.
    """

    def __init__(
        self,
        benchmarks: list[Benchmark] | None = None,
        adapter: Adapter | None = None,
        locator: Locator | None = None,
        conditions: list[Condition] | None = None,
        every_n_train_steps: int | None = None,
        at_start: bool = True,
        at_end: bool = True,
        reference: str | Path | None = None,
        weights: Weights = "current",
        max_questions: int | None = None,
        max_tokens: int | None = None,
        cache_dir: str | Path | None = None,
        dirpath: str | Path | None = None,
        on_error: Literal["raise", "skip"] | None = None,
    ) -> None:
        super().__init__()
        if on_error not in (None, "raise", "skip"):
            raise ValueError(f"on_error must be 'raise', 'skip' or None, got {on_error!r}")
        self.probe = Probe(
            benchmarks if benchmarks is not None else [mini()], CONDITIONS if conditions is None else conditions, max_questions, max_tokens, cache_dir
        )
        if weights not in get_args(Weights):
            raise ValueError(f"weights must be 'current' or 'average', got {weights!r}")
        self.weights = weights
        self.adapter = adapter
        self.locator = locator
        self.every_n_train_steps = every_n_train_steps
        self.at_start = at_start
        self.at_end = at_end
        self.max_questions = max_questions
        self.on_error = on_error
        self._reference = Reference(Path(reference) if reference is not None else None)
        self._dirpath = Path(dirpath) if dirpath is not None else None
        self.record: RunRecord | None = None
        self._start_anew()

    def _start_anew(self) -> None:
        """Forgets an earlier run, which may have been another trainer's or another model's."""
        self._plan = ProbePlan()
        self._last_step: int | None = None
        self._skipped = 0
        self._resumed_dirpath: Path | None = None
        self._found: Adapter | None = None
        self._previous: Tables | None = None
        self._history: list[ProbeReport] = []
        self._published: dict[str, float] = {}
        self._probe_seconds = 0.0
        self._probes_run = 0
        self._training_began = 0.0
        self._last_ended = 0.0
        self._cost_is_told = False
        self._reference.reset()

    @property
    def state_key(self) -> str:
        """By the names of the sets, so that two probes of one trainer keep their states apart."""
        return f"{type(self).__name__}{sorted(self.probe.benchmarks)}"

    # Hooks

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Decides when to probe, and fails early where that cannot be done."""
        if stage != "fit":
            return
        reason = refusal(trainer)
        if reason:
            raise MisconfigurationException(f"S2SBenchCallback cannot probe here: {reason}")
        if self.weights == "average" and averaging_callback(trainer) is None:
            raise MisconfigurationException("weights='average' needs Lightning's WeightAveraging or EMAWeightAveraging among the trainer's callbacks")
        self._start_anew()
        self._plan = self._make_plan(trainer)
        mismatches = self._reference.mismatches(self.probe.benchmarks)
        if mismatches:
            raise MisconfigurationException(f"the reference record holds other questions of {', '.join(mismatches)} than this run asks")
        unheld = [name for name in self.probe.benchmarks if self._reference.is_given and name not in self._reference.tables()]
        if unheld:
            rank_zero_warn(f"the reference record has no T→T of {', '.join(unheld)}, so there will be no intelligence_loss and t2t_change of it")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Opens the record, drops what a resumed run has left behind, and probes before the first step."""
        # Only now is it known whether there is validation to wait for.
        self._plan = self._make_plan(trainer)
        rank_zero_info(
            f"S2SBench probes {', '.join(self.probe.benchmarks)} {self._plan}{', at the start' * self.at_start}{', at the end' * self.at_end}."
        )
        self._training_began = time.monotonic()
        self._last_ended = self._training_began
        if not is_fast_dev_run(trainer):
            self._open_record(trainer)
        stale = self._reference.mismatches(self.probe.benchmarks)
        if stale:
            rank_zero_warn(f"the questions of {', '.join(stale)} have changed since the checkpoint; T→T is held against the next probe")
            self._reference.drop(stale)
        if self.at_start and trainer.global_step == 0:
            self._run_probe(trainer, pl_module)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Probes at optimizer steps."""
        if self._plan.due_at_step(trainer.global_step, self._last_step):
            self._run_probe(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Probes after validation where a checkpoint is saved after validation."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if self._plan.due_at_validation_end(trainer.current_epoch, trainer.global_step, self._last_step):
            self._run_probe(trainer, pl_module)
        self._publish(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Probes at the end of an epoch where a checkpoint is saved there."""
        if self._plan.due_at_train_epoch_end(trainer.current_epoch, trainer.global_step, self._last_step):
            self._run_probe(trainer, pl_module)
        self._publish(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Probes after the last step, unless it was probed already."""
        if self.at_end and trainer.global_step != self._last_step:
            self._run_probe(trainer, pl_module)
        self._publish(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Progress, never configuration."""
        return {
            "last_step": self._last_step,
            "skipped": self._skipped,
            "dirpath": str(self.record.dirpath) if self.record else None,
            "reference": self._reference.state(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where the checkpoint was saved."""
        self._last_step = state_dict["last_step"]
        self._skipped = state_dict["skipped"]
        self._resumed_dirpath = Path(state_dict["dirpath"]) if state_dict["dirpath"] else None
        self._reference.load(state_dict["reference"])

    # One probe

    def _make_plan(self, trainer: pl.Trainer) -> ProbePlan:
        if is_fast_dev_run(trainer):
            return ProbePlan(steps=(1,))
        try:
            return plan_probes(self.every_n_train_steps, checkpoint_triggers(trainer))
        except ValueError as error:
            raise MisconfigurationException(str(error)) from error

    def _run_probe(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        began = time.monotonic()
        self._last_step = trainer.global_step
        ranks = Ranks.of_this_run(trainer.strategy.root_device)
        try:
            with isolated(pl_module):
                tables, adapter = self._score(trainer, pl_module, ranks)
        except Exception as error:
            first = self._probes_run == 0
            if self.on_error == "raise" or (self.on_error is None and first):
                raise
            self._skip(trainer, error)
            return
        self._probes_run += 1
        self._reference.take(tables, self.probe.benchmarks)
        _name_the_invalid(tables)
        # The slowest rank's, so that every rank has the same figures.
        seconds = ranks.maximum(round((time.monotonic() - began) * 1e6)) / 1e6
        elapsed = ranks.maximum(round((time.monotonic() - self._training_began) * 1e6)) / 1e6
        self._probe_seconds += seconds
        report = self._report(trainer, adapter, tables, seconds, self._probe_seconds / elapsed if trainer.global_step else 0.0)
        self._show(trainer, report, tables)
        self._previous = tables
        self._tell_cost(report, began - self._last_ended if trainer.global_step and self._last_ended else 0.0)
        self._last_ended = time.monotonic()

    def _score(self, trainer: pl.Trainer, pl_module: pl.LightningModule, ranks: Ranks) -> tuple[dict[str, dict[Condition, LossTable]], Adapter]:
        with self._at_the_model(trainer, pl_module) as (adapter, live):
            return self.probe.run(adapter, live, ranks, progress=shows_progress(trainer)), adapter

    def encode(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Fills the cache of audio tokens without scoring anything; called on all ranks together.

        Args:
            trainer: A trainer that has set the model up.
            pl_module: The LightningModule.
        """
        ranks = Ranks.of_this_run(trainer.strategy.root_device)
        with isolated(pl_module), self._at_the_model(trainer, pl_module) as (adapter, live):
            self.probe.prepare(adapter, live, ranks, progress=shows_progress(trainer))

    @contextmanager
    def _at_the_model(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> Iterator[tuple[Adapter, LiveModel]]:
        """The model as it is now, with the weights to be probed, in the trainer's precision."""
        model = find_language_model(pl_module, self.locator)
        if self._found is None:
            self._found = self.adapter or find_adapter(pl_module, model)
            rank_zero_info(f"S2SBench reads {type(model).__name__} through {type(self._found).__name__}.")
        live = LiveModel(pl_module, model, pl_module.device, redirection(trainer, pl_module))
        try:
            with probed_weights(trainer, pl_module, self.weights), trainer.precision_plugin.val_step_context():
                yield self._found, live
        finally:
            live.leave()

    def _report(self, trainer: pl.Trainer, adapter: Adapter, tables: Tables, seconds: float, share: float) -> ProbeReport:
        questions = sum(len(next(iter(by_condition.values())).item_ids) for by_condition in tables.values())
        run_metrics = {
            "seconds": seconds,
            "questions_per_second": questions / seconds,
            "share_of_training": share,
            "skipped": float(self._skipped),
        }
        signature = {
            **self.probe.signature(adapter),
            "package": version("s2sbench_callback"),
            "precision": str(trainer.precision),
            "weights": self.weights,
            "max_questions": self.max_questions,
        }
        return build_report(
            self.probe.benchmarks, tables, self._reference.tables(), trainer.global_step, stage_number(trainer), run_metrics, signature
        )

    def _show(self, trainer: pl.Trainer, report: ProbeReport, tables: Tables) -> None:
        """To ``callback_metrics`` and the console on every rank, to disk and the loggers from rank 0."""
        self._published = dict(report.metrics)
        self._publish(trainer)
        rank_zero_info(_summary(report))
        if not trainer.is_global_zero:
            return
        self._history.append(report)
        if self.record:
            self._try("write the record", partial(self.record.append, report, tables))
        self._try("show the figures", partial(self._show_in_pictures, trainer, report, tables))

    def _show_in_pictures(self, trainer: pl.Trainer, report: ProbeReport, tables: Tables) -> None:
        figure = panels(self._history)
        if self.record:
            self._try("write the panels", partial((self.record.dirpath / "panels.png").write_bytes, png(figure)))
        changed = [
            row
            for benchmark in self.probe.benchmarks.values()
            for condition in CONDITIONS
            for row in changed_sides(benchmark, condition, self._previous, tables, report.step)
        ]
        showing = Showing(report, pixels(figure), changed, first=self._probes_run == 1)
        for logger in trainer.loggers:
            self._try(f"send the figures to {type(logger).__name__}", partial(send, logger, showing))

    def _try(self, what: str, action: Callable[[], object]) -> None:
        """Shows a probe in one place; a place that fails is named loudly and costs neither the training nor the other places anything."""
        try:
            action()
        except Exception as error:
            rank_zero_warn(f"The S2SBench probe could not {what}: {type(error).__name__}: {error}. Training goes on.")

    def _publish(self, trainer: pl.Trainer) -> None:
        """Puts the newest figures where ``ModelCheckpoint`` and ``EarlyStopping`` look; Lightning clears that place now and then."""
        device = trainer.strategy.root_device
        trainer.callback_metrics.update({key: torch.tensor(value, device=device) for key, value in self._published.items()})

    def _skip(self, trainer: pl.Trainer, error: Exception) -> None:
        self._skipped += 1
        rank_zero_warn(f"The S2SBench probe at step {trainer.global_step} was skipped: {type(error).__name__}: {error}")
        self._published |= {f"{PREFIX}/skipped": float(self._skipped)}
        self._publish(trainer)
        for logger in trainer.loggers if trainer.is_global_zero else []:
            self._try(f"tell {type(logger).__name__} of it", partial(send_skipped, logger, self._skipped, trainer.global_step))

    def _open_record(self, trainer: pl.Trainer) -> None:
        """Goes on in the folder of a resumed run; a new run takes a folder of its own."""
        resumed = trainer.global_step > 0
        chosen = self._dirpath or (self._earlier_dirpath() if resumed else None) or default_dirpath(trainer, self)
        self.record = RunRecord(Path(Ranks.of_this_run(trainer.strategy.root_device).broadcast(str(chosen))))
        if not trainer.is_global_zero:
            return
        moved = self.record.supersede_after(trainer.global_step if resumed else -1)
        if moved:
            name = self.record.superseded_path.name
            rank_zero_info(f"{moved} earlier probe(s) in {self.record.dirpath} are not of this run's weights and moved to {name}.")
        self._history = self.record.history()
        if self._history and self.record.losses_path(self._history[-1].step).is_file():
            self._previous = self.record.losses(self._history[-1].step)

    def _earlier_dirpath(self) -> Path | None:
        """Of the checkpoint, or of this callback's own fit before."""
        return self._resumed_dirpath or (self.record.dirpath if self.record else None)

    def _tell_cost(self, report: ProbeReport, training_seconds: float) -> None:
        """Once, as soon as there is training between two probes to hold it against."""
        if self._cost_is_told or not training_seconds:
            return
        self._cost_is_told = True
        seconds = report.metrics[f"{PREFIX}/seconds"]
        share = seconds / (seconds + training_seconds)
        advice = ""
        if share > 0.05:
            fits = 0.05 / 0.95 * training_seconds / seconds
            questions = max(len(benchmark.items) for benchmark in self.probe.benchmarks.values())
            advice = f" To stay below 5 %, set max_questions={max(1, int(questions * fits))}, or probe {math.ceil(1 / fits)} times less often."
        rank_zero_info(f"A probe takes {seconds:.1f} s, {share:.1%} of the time from one to the next.{advice}")


def _name_the_invalid(tables: Tables) -> None:
    for name, by_condition in tables.items():
        for condition, table in by_condition.items():
            names = invalid_items(table)
            if names:
                more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
                rank_zero_warn(f"{name}/{condition}: a NaN or infinite loss in {', '.join(names[:_NAMED])}{more}; comparisons with it count as lost")


def _summary(report: ProbeReport) -> str:
    """One line a set: ``step 300 | mini | S→T 0.562 [0.498, 0.625] | T→T 0.971 [...] | degradation ...``."""
    lines = []
    for name, conditions in report.sets.items():
        parts = [f"S2SBench step {report.step}", *([f"stage {report.stage}"] if report.stage is not None else []), name]
        for condition in conditions:
            accuracy = report.figure(name, condition, "accuracy")
            gap = report.figure(name, condition, "positive_minus_negative")
            parts.append(f"{CONDITION_NAMES[condition]} {accuracy.value:.3f} [{accuracy.low:.3f}, {accuracy.high:.3f}], pos-neg {gap.value:+.3f}")
        for figure in ("degradation", "intelligence_loss"):
            if f"{PREFIX}/{name}/{figure}" in report.metrics:
                parts.append(f"{figure.replace('_', ' ')} {report.figure(name, None, figure).value:+.3f}")
        lines.append(" | ".join(parts))
    return "\n".join(lines)
