"""The callback that changes stages: hooks only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch.optim import Optimizer

from s2sbench_callback.adapters import Adapter
from s2sbench_callback.adapters.find import Locator
from s2sbench_callback.callback import S2SBenchCallback
from s2sbench_callback.decisions import Probed, Verdict
from s2sbench_callback.guard import Guard
from s2sbench_callback.lightning_run import before_sharded_load
from s2sbench_callback.publishing import tell_loggers
from s2sbench_callback.ranks import Ranks
from s2sbench_callback.stages.by_hand import Operator
from s2sbench_callback.stages.carrying import saved_names
from s2sbench_callback.stages.following import probe_to_follow
from s2sbench_callback.stages.progress import Progress
from s2sbench_callback.stages.stage import Stage, refuse_plan
from s2sbench_callback.stages.strategies import check_before_sharded_load, stage_refusal
from s2sbench_callback.stages.switch import Switch
from s2sbench_callback.stages.tokens import count_tokens as count_tokens_of
from s2sbench_callback.stages.way_back import WayBack


class StageUnfreeze(pl.Callback):
    """Trains a speech LM in stages, and decides from the probe when the next one begins.

    Example::

        from s2sbench_callback import Guard, Plateau, S2SBenchCallback, StageUnfreeze, two_stage

        stages = two_stage(until=Plateau(min_gain=0.01, patience=3, max_steps=50_000), lr=1e-4, lm_lr=1e-5, warm_up_steps=500)
        trainer = Trainer(callbacks=[S2SBenchCallback(every_n_train_steps=1000), StageUnfreeze(stages, guard=Guard("lower_lr"))])

    A change of stage takes place between two optimizer steps, also in the middle of an epoch, on all ranks at once. A probe at the step of a change
    still belongs to the stage that ends there. Parameters that learn in no stage need no optimizer; those that the optimizer does not have are added
    at the start, if their stage names a learning rate.

    Args:
        stages: In order; all but the last say what ends them.
        adapter: Names the roles; by default the probe's, or found from the model's class.
        locator: Where the language model is in the LightningModule; by default where the probe finds it.
        mode: ``apply``, or ``advise``: nothing is frozen or changed, the first stage's rule is followed and its decision logged and sent as an alert.
        guard: What to do when T→T falls below its reference.
        count_tokens: Tokens in a batch, for stages that end by ``tokens``; by default those of its ``attention_mask`` or ``input_ids``.
        advance_file: A file that, once touched, begins the next stage, and is removed; by default ``advance`` in the folder of the probe's record,
            else ``advance_stage`` in the trainer's root.
        advance_signal: A signal that does the same when sent to any rank, for example ``SIGUSR2``.
        check_every_n_steps: Optimizer steps between looks at tokens, file and signal, each of which is one small reduction over the ranks.

    Metrics logged: by the probe, below ``s2sbench/``: ``stage``; where a rule decides ``decision/gain`` (improvement per 1,000 steps, higher is
    better), ``decision/gain_low``, ``decision/gain_high`` (its interval), ``decision/min_gain``, ``decision/advance`` (0 or 1).

    State saved: stage, the step and reason it began with, tokens, the rule's figure by question at each probe of the stage, the guard's memory. No
    configuration. Learning rates and momentum are the optimizer's own state.

    Hooks used: ``setup``, ``on_fit_start``, ``on_train_start``, ``on_train_batch_start``, ``on_train_batch_end``, ``on_train_epoch_start``,
    ``on_validation_end``, ``on_before_optimizer_step``, ``on_load_checkpoint``, ``teardown``.

    Cost: a walk over the parameters, and under DDP a new wrapper, at each change; one reduction of two numbers every ``check_every_n_steps``; where
    rows of a matrix are frozen, a copy of them at each step.

    Raises:
        ValueError: If a setting is out of range.
        MisconfigurationException: At setup, if the strategy cannot change stages, or a rule has no probe to decide from.
    """

    def __init__(
        self,
        stages: list[Stage],
        adapter: Adapter | None = None,
        locator: Locator | None = None,
        mode: Literal["apply", "advise"] = "apply",
        guard: Guard | None = None,
        count_tokens: Callable[[Any], int] | None = None,
        advance_file: str | Path | None = None,
        advance_signal: str | None = None,
        check_every_n_steps: int = 10,
    ) -> None:
        super().__init__()
        refuse_plan(stages)
        _refuse(mode, check_every_n_steps)
        self.stages = list(stages)
        self.adapter = adapter
        self.locator = locator
        self.mode = mode
        self.guard = guard
        self.count_tokens = count_tokens or count_tokens_of
        self.advance_file = Path(advance_file) if advance_file is not None else None
        self.check_every_n_steps = check_every_n_steps
        self._operator = Operator(advance_signal)
        self._trainer: pl.Trainer | None = None
        self._start_anew()

    def _start_anew(self) -> None:
        self._progress = Progress(self.stages, self.guard, self.mode == "apply")
        self._switch: Switch | None = None
        self._probe: S2SBenchCallback | None = None
        self._has_advised = False
        self._way_back: WayBack | None = None
        self._knows_its_past = False
        self._tokens_here = 0
        self._between_steps = True
        self._last_step = 0
        self._stop_waiting: Callable[[], object] = lambda: None

    @property
    def stage_number(self) -> int:
        """The stage that is being trained, from 1."""
        return self._progress.index + 1

    @property
    def table(self) -> str:
        """The plan of the stages, once the model is known: stage, end, parts, counts and learning rates."""
        return self._switch.table() if self._switch else ""

    # Hooks

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuses what cannot be done, and freezes for the first stage before the strategy wraps the model."""
        if stage != "fit":
            return
        if self._trainer is not trainer or trainer.global_step == 0:
            self._start_anew()
        self._trainer = trainer
        reason = stage_refusal(trainer) if self.mode == "apply" else None
        if reason:
            raise MisconfigurationException(f"StageUnfreeze cannot change stages here: {reason}")
        self._probe = probe_to_follow(trainer, self.stages, self.guard)
        followed = (self._probe.adapter, self._probe.locator) if self._probe else (None, None)
        where = (self.adapter or followed[0], self.locator if self.locator is not None else followed[1])
        self._switch = Switch(self.stages, *where) if self.mode == "apply" else None
        self._way_back = WayBack() if self.mode == "advise" else None
        if self._switch:
            self._switch.freeze_early(pl_module, self._progress.index)
        self._operator.listen()

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Lets the optimizer's state find its groups by name."""
        saved = saved_names(checkpoint, self.state_key)
        if self._switch:
            self._switch.saved_names = saved
            self._switch.load(checkpoint)
        elif self._way_back:
            self._way_back.load(trainer, pl_module, checkpoint, saved)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keeps the rates of a warm-up that is under way out of the checkpoint."""
        if self._switch:
            self._switch.write_full_rates(checkpoint)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where the checkpoint was saved; the configuration comes from the code."""
        self._progress.load(state_dict["progress"])
        self._has_advised = state_dict["has_advised"]
        self._knows_its_past = True
        if self._switch:
            self._switch.freeze_again(self._progress.index)

    def state_dict(self) -> dict[str, Any]:
        """Progress, never configuration."""
        progress = self._progress.state()
        # Between two looks the other ranks' are not known; they are taken for like this one's.
        progress["tokens"] += self._tokens_here * (self._trainer.world_size if self._trainer else 1)
        return {
            "progress": progress,
            "has_advised": self._has_advised,
            "optimizer_names": self._switch.optimizer_names() if self._switch else None,
            "with_momentum": self._switch.names_with_state() if self._switch else [],
        }

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Arranges optimizer groups, before a checkpoint's state comes into them, and prints the plan."""
        if self._switch:
            self._switch.arrange(trainer, pl_module, self._progress.index, lowers=self.guard is not None and self.guard.action == "lower_lr")
            rank_zero_info(self.table)
            switch, key = self._switch, self.state_key
            check_before_sharded_load(trainer, lambda saved, in_shards: switch.before_sharded_load(saved, saved_names(saved, key), in_shards))
            self._stop_waiting = before_sharded_load(trainer, self.state_key, lambda saved: switch.expect_state_of(saved["with_momentum"]))
        elif self._way_back:
            self._way_back.arrange(trainer, pl_module)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Goes to the stage that the run starts or goes on in."""
        if self._switch:
            self._switch.go_on(trainer, pl_module, self._progress.index, self._progress.since, self._progress.lowered)
        elif self._way_back:
            self._way_back.take_back_rates()
        self._stop_waiting()
        self._between_steps, self._last_step = True, trainer.global_step
        self._change_if_due(trainer, pl_module, looks=False, catches_up=not self._knows_its_past)
        self._knows_its_past = True

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Sees to it that frozen modules are in eval mode where that is asked for."""
        if self._switch:
            self._switch.modes_are_due = True

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Likewise: whoever puts a model back to training after validation may not know of frozen modules."""
        if self._switch:
            self._switch.modes_are_due = True

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        """Changes the stage where a probe after the last batch decided so."""
        if self._between_steps:
            self._change_if_due(trainer, pl_module, looks=False)
        if self._switch:
            self._switch.apply_modes(pl_module, self._progress.index)

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer) -> None:
        """Takes the gradient from frozen rows, before it is clipped."""
        if self._switch:
            self._switch.mask_gradients()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Counts, looks, and changes the stage between two optimizer steps."""
        if any(stage.tokens for stage in self.stages):
            self._tokens_here += self.count_tokens(batch)
        step, before = trainer.global_step, self._last_step
        self._between_steps, self._last_step = step != before, step
        if self._between_steps:
            self._change_if_due(trainer, pl_module, looks=step // self.check_every_n_steps != before // self.check_every_n_steps)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Puts rates and modes back, before a checkpoint is saved; Lightning does not tear callbacks down then."""
        self.teardown(trainer, pl_module, "fit")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Stops listening, and puts rates and modes back; what is frozen stays so."""
        self._operator.stop()
        if self._switch:
            self._switch.let_go()

    # Deciding

    def judge(self, probed: Probed, source: object) -> Verdict:
        """Lets the stage's rule and the guard look at a probe; called by the probe on all ranks together."""
        if source is not self._probe or self._trainer is None:
            return self._progress.standing(probed.step)
        was_alarmed = self._progress.is_alarmed
        verdict, acts = self._progress.judge(probed, Ranks.of_this_run(self._trainer.strategy.root_device).broadcast)
        for damage in verdict.notes:
            self._heed_damage(self._trainer, damage, acts, is_new=acts or not was_alarmed)
        decision = verdict.decision
        if decision and decision.advance and self.mode == "advise" and not self._has_advised:
            self._has_advised = True
            tell_loggers(self._trainer, f"Stage {self.stage_number}, {self._stage.name}, has done its work", decision.reason)
        return verdict

    @property
    def _stage(self) -> Stage:
        return self.stages[self._progress.index]

    def _heed_damage(self, trainer: pl.Trainer, damage: str, acts: bool, is_new: bool) -> None:
        rank_zero_warn(damage)
        # Not at every probe of one fall.
        if is_new:
            tell_loggers(trainer, "T→T is damaged", damage, "WARN")
        # Advice leaves even this to a person.
        if not acts or self.guard is None or self._switch is None:
            return
        if self.guard.action == "stop":
            trainer.should_stop = True
        elif self.guard.action == "lower_lr":
            self._switch.set_rates(self._progress.index, self._progress.lowered)

    def _change_if_due(self, trainer: pl.Trainer, pl_module: pl.LightningModule, looks: bool, catches_up: bool = False) -> None:
        by_hand = self._look_around(trainer) if looks and not self._progress.is_last else None
        while (found := self._progress.end(trainer.global_step, by_hand, catches_up)) is not None:
            by_hand = None
            reason, began = found
            self._progress.begin_next(reason, began)
            self._has_advised = False
            if self._switch:
                self._switch.change(trainer, pl_module, self._progress.index, began)
            words = f"Stage {self.stage_number} of {len(self.stages)}, {self._stage.name}, begins after step {began}: {reason}."
            rank_zero_info(words)
            tell_loggers(trainer, f"Stage {self.stage_number}, {self._stage.name}, begins", words)

    def _look_around(self, trainer: pl.Trainer) -> str | None:
        """Sums tokens over ranks and asks whether the operator wants the next stage; called by all ranks together."""
        ranks = Ranks.of_this_run(trainer.strategy.root_device)
        mine = self._operator.wish(self._file(trainer), looks=trainer.is_global_zero)
        asked, tokens = ranks.total(np.array([mine is not None, self._tokens_here], dtype=np.float64))
        self._progress.tokens += int(tokens)
        self._tokens_here = 0
        return ranks.words(mine)[0] if asked else None

    def _file(self, trainer: pl.Trainer) -> Path:
        if self.advance_file is not None:
            return self.advance_file
        if self._probe is not None and self._probe.record is not None:
            return self._probe.record.dirpath / "advance"
        return Path(trainer.default_root_dir) / "advance_stage"


def _refuse(mode: str, check_every_n_steps: int) -> None:
    if mode not in ("apply", "advise"):
        raise ValueError(f"mode must be 'apply' or 'advise', got {mode!r}")
    if check_every_n_steps < 1:
        raise ValueError(f"check_every_n_steps must be at least 1, got {check_every_n_steps}")
