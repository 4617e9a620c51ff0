"""The callback: hooks only. It reads as the story of one probe."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import lightning.pytorch as pl
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import nn

from s2sbench_callback.adapters import Adapter, find_adapter, find_language_model
from s2sbench_callback.adapters.find import Locator
from s2sbench_callback.averaged_weights import Weights, averaging_callback, ends_on_average, probed_weights
from s2sbench_callback.benchmarks import mini
from s2sbench_callback.controls import Control
from s2sbench_callback.decisions import Probed
from s2sbench_callback.isolation import isolated
from s2sbench_callback.items import Benchmark
from s2sbench_callback.lightning_run import (
    checkpoint_triggers,
    default_dirpath,
    end_launched,
    is_fast_dev_run,
    judge_of,
    place_of,
    redirection,
    refusal,
    shows_progress,
)
from s2sbench_callback.live_model import LiveModel
from s2sbench_callback.probe import Probe
from s2sbench_callback.prompts import DEFAULT_CONDITIONS, Condition
from s2sbench_callback.publishing import Publisher
from s2sbench_callback.ranks import Ranks
from s2sbench_callback.record import RunRecord
from s2sbench_callback.reference import Reference
from s2sbench_callback.report import PREFIX, ProbeReport, Tables, build_report
from s2sbench_callback.schedule import ProbePlan, plan_probes


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
        adapter: How the model is read; found from its class by default. ``docs/adapters.md`` lists all, and shows one of one's own.
        locator: Where the language model is in the LightningModule, as a dotted path, ``"."`` for itself, or a function of it; by default the
            LightningModule is looked at, then its children.
        conditions: Some of ``s2t``, ``t2t``, ``s2s`` and ``t2s`` (context to candidate, spoken or written); the first two by default.
        every_n_train_steps: Optimizer steps between probes; by default each ``ModelCheckpoint`` is followed, always before it saves.
        at_start: Whether to probe before the first step.
        at_end: Whether to probe after the last step.
        reference: What T→T is held against: the folder of another run's record, of which the first probe counts; by default the first
            T→T of this run.
        weights: ``current``, or ``average`` for those that Lightning's ``WeightAveraging`` or ``EMAWeightAveraging`` keeps.
        max_questions: Questions per set; a larger set is cut to a fixed subset, the same at every probe.
        max_tokens: Positions in one forward; chosen for the device by default, halved where memory does not suffice.
        packed: Whether candidates share the computation of their context; ``False`` scores one row a candidate, for a sharded model that
            cannot read a packed row.
        cache_dir: Where audio tokens are kept between runs; by default the user's cache folder.
        dirpath: Folder of the record; by default ``s2sbench`` in the first logger's folder of this run.
        controls: Some of ``no_context``, ``other_context`` and ``off_topic``, to be asked besides: whether a set can be answered without its
            contexts, and whether the model uses them at all.
        controls_every_n_probes: How often they are asked, from the first probe on; ``None`` for the first alone.
        on_error: What a probe that fails does: ``raise`` ends the training, ``skip`` warns, logs ``s2sbench/skipped`` and goes on. By default
            the first probe raises and later ones skip.

    Metrics logged: below ``s2sbench/<set>/<condition>/``: ``accuracy``, ``question_accuracy`` (0..1, higher is better),
    ``positive_loss``, ``negative_loss``, ``positive_minus_negative`` (nats per token; the last is below 0 when the model is right),
    ``ties``, ``invalid`` (counts), and ``<control>_accuracy`` of each control at the probes where it is asked. Below ``s2sbench/<set>/``:
    ``degradation``, ``ability_lost`` (the same as a share of T→T's accuracy above chance), ``intelligence_loss`` (0 is best), ``t2t_change``.
    All but the counts with ``_low`` and ``_high``, the ends of the 95 % interval. The same below ``s2sbench/mean/``, averaged over sets.
    ``s2sbench/step``, ``stage``, ``seconds``, ``questions_per_second``, ``share_of_training`` (of the time since training began), ``skipped``
    (probes so far).

    State saved: last probed step, folder of the record, number of skipped probes, reference losses. No configuration.

    Hooks used: ``setup``, ``on_train_start``, ``on_train_batch_end``, ``on_validation_end``, ``on_train_epoch_end``, ``on_train_end``.

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
        packed: bool = True,
        cache_dir: str | Path | None = None,
        dirpath: str | Path | None = None,
        controls: list[Control] | None = None,
        controls_every_n_probes: int | None = None,
        on_error: Literal["raise", "skip"] | None = None,
    ) -> None:
        super().__init__()
        if on_error not in (None, "raise", "skip"):
            raise ValueError(f"on_error must be 'raise', 'skip' or None, got {on_error!r}")
        self.probe = Probe(
            benchmarks if benchmarks is not None else [mini()],
            DEFAULT_CONDITIONS if conditions is None else conditions,
            max_questions,
            max_tokens,
            cache_dir,
            packed,
        )
        if controls_every_n_probes is not None and controls_every_n_probes < 1:
            raise ValueError(f"controls_every_n_probes must be at least 1, got {controls_every_n_probes}")
        self.control_probe = self.probe.of_controls(controls) if controls else None
        self.controls_every_n_probes = controls_every_n_probes
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
        self._trainer: pl.Trainer | None = None
        self._start_anew()

    def _start_anew(self) -> None:
        """Forgets an earlier run, which may have been another trainer's or another model's."""
        self._plan = ProbePlan()
        self._last_step: int | None = None
        self._skipped = 0
        self._earlier_dirpath: Path | None = None
        self.probe.start_anew()
        if self.control_probe:
            self.control_probe.start_anew()
        self._found: Adapter | None = None
        self._publisher = Publisher(self.probe.benchmarks)
        self._probe_seconds = 0.0
        self._probes_run = 0
        self._training_began = 0.0
        self._last_ended = 0.0
        self._cost_is_told = False
        self._holds_average = False
        self._reference.reset()

    @property
    def state_key(self) -> str:
        """By the names of the sets, so that two probes of one trainer keep their states apart."""
        return f"{type(self).__name__}{sorted(self.probe.benchmarks)}"

    @property
    def record(self) -> RunRecord | None:
        """The files of this run, once training has begun; none in a ``fast_dev_run``."""
        return self._publisher.record

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
        earlier = self.record.dirpath if self.record and self._trainer is trainer else None
        self._start_anew()
        self._trainer, self._earlier_dirpath = trainer, earlier
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
            resumed = trainer.global_step > 0
            chosen = self._dirpath or (self._earlier_dirpath if resumed else None) or default_dirpath(trainer, self)
            ranks = Ranks.of_this_run(trainer.strategy.root_device)
            dirpath = Path(ranks.broadcast(str(chosen)))
            from_step, place = trainer.global_step if resumed else -1, place_of(trainer, self)
            ranks.together(lambda: self._publisher.open(dirpath, from_step, trainer, place), "while opening the record")
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
        self._publisher.publish(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Probes at the end of an epoch where a checkpoint is saved there."""
        if self._plan.due_at_train_epoch_end(trainer.current_epoch, trainer.global_step, self._last_step):
            self._run_probe(trainer, pl_module)
        self._publisher.publish(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Probes after the last step, unless it was probed already."""
        if self.at_end and trainer.global_step != self._last_step:
            self._holds_average = ends_on_average(trainer, self)
            self._run_probe(trainer, pl_module)
        self._publisher.publish(trainer)
        self._publisher.end(trainer)

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
        self._earlier_dirpath = Path(state_dict["dirpath"]) if state_dict["dirpath"] else None
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
            with isolated(_outermost(trainer, pl_module)):
                tables, controls, adapter = self._score(trainer, pl_module, ranks)
        except Exception as error:
            first = self._probes_run == 0
            if self.on_error == "raise" or (self.on_error is None and first):
                raise
            self._skipped += 1
            self._publisher.show_skipped(trainer, self._skipped, error)
            return
        self._probes_run += 1
        self._reference.take(tables, self.probe.benchmarks)
        # The slowest rank's, so that every rank has the same figures.
        seconds = ranks.maximum(round((time.monotonic() - began) * 1e6)) / 1e6
        elapsed = ranks.maximum(round((time.monotonic() - self._training_began) * 1e6)) / 1e6
        self._probe_seconds += seconds
        report = self._report(trainer, adapter, tables, controls, seconds, self._probe_seconds / elapsed if trainer.global_step else 0.0)
        self._publisher.show(trainer, report, tables, controls)
        self._tell_cost(report, began - self._last_ended if trainer.global_step else 0.0)
        self._last_ended = time.monotonic()

    def _score(self, trainer: pl.Trainer, pl_module: pl.LightningModule, ranks: Ranks) -> tuple[Tables, Tables, Adapter]:
        """Losses of the sets, and of their controls where it is their turn."""
        with self._at_the_model(trainer, pl_module, ranks) as (adapter, live):
            tables = self.probe.run(adapter, live, ranks, progress=shows_progress(trainer))
            turn = self._probes_run % self.controls_every_n_probes if self.controls_every_n_probes else self._probes_run
            asked = self.control_probe if turn == 0 else None
            return tables, asked.run(adapter, live, ranks, progress=shows_progress(trainer)) if asked else {}, adapter

    def encode(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Fills the cache of audio tokens without scoring anything; called on all ranks together.

        Args:
            trainer: A trainer that has set the model up.
            pl_module: The LightningModule.
        """
        ranks = Ranks.of_this_run(trainer.strategy.root_device)
        reason = refusal(trainer)
        if reason:
            raise MisconfigurationException(f"S2SBenchCallback cannot encode here: {reason}")
        with isolated(_outermost(trainer, pl_module)), self._at_the_model(trainer, pl_module, ranks) as (adapter, live):
            self.probe.prepare(adapter, live, ranks, progress=shows_progress(trainer))

    @contextmanager
    def _at_the_model(self, trainer: pl.Trainer, pl_module: pl.LightningModule, ranks: Ranks) -> Iterator[tuple[Adapter, LiveModel]]:
        """The model as it is now, with the weights to be probed, in the trainer's precision."""
        model = find_language_model(pl_module, self.locator)
        if self._found is None:
            self._found = self.adapter or find_adapter(pl_module, model)
            rank_zero_info(f"S2SBench reads {type(model).__name__} through {type(self._found).__name__}.")
        live = LiveModel(pl_module, model, pl_module.device, redirection(trainer, pl_module), partial(end_launched, trainer))
        with ExitStack() as stack:
            stack.callback(live.leave)
            ranks.together(lambda: stack.enter_context(probed_weights(trainer, pl_module, self.weights)), "while putting in the averaged weights")
            stack.enter_context(trainer.precision_plugin.val_step_context())
            yield self._found, live

    def _report(self, trainer: pl.Trainer, adapter: Adapter, tables: Tables, controls: Tables, seconds: float, share: float) -> ProbeReport:
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
            "weights": "average" if self._holds_average else self.weights,
            "max_questions": self.max_questions,
        }
        judge = judge_of(trainer)
        reference = self._reference.tables()
        tie_rules = {name: benchmark.tie_rule for name, benchmark in self.probe.benchmarks.items()}
        verdict = judge.judge(Probed(trainer.global_step, tables, reference, tie_rules), self) if judge else None
        return build_report(self.probe.benchmarks, tables, reference, trainer.global_step, verdict, run_metrics, signature, controls)

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


def _outermost(trainer: pl.Trainer, pl_module: pl.LightningModule) -> nn.Module:
    """The strategy's wrapper around the LightningModule, whose flags are put back too."""
    return trainer.strategy.model or pl_module
