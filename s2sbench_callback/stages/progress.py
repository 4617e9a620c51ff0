"""Where a training stands among its stages, and what says that the next one begins: no trainer, no model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from s2sbench_callback.decisions import Decision, Probed, Verdict
from s2sbench_callback.guard import Guard
from s2sbench_callback.plateau import Plateau
from s2sbench_callback.stages.history import RuleHistory
from s2sbench_callback.stages.stage import Stage
from s2sbench_callback.stages.watch import GuardWatch


class Progress:
    """The stage that is being trained, and all that its end depends on.

    Args:
        stages: The stages.
        guard: Watches T→T.
        applies: Whether stages change by themselves; otherwise only an operator moves them on.

    Attributes:
        tokens: Seen so far, over all ranks.
    """

    def __init__(self, stages: Sequence[Stage], guard: Guard | None, applies: bool) -> None:
        self.tokens = 0
        self._stages = stages
        self._applies = applies
        # The step at which each stage so far began, and why.
        self._begun: list[tuple[int, str | None]] = [(0, None)]
        self._due: str | None = None
        self._tokens_at_start = 0
        self._watch = GuardWatch(guard, applies) if guard else None
        self._histories = [RuleHistory(stage.until) if isinstance(stage.until, Plateau) else None for stage in stages]

    @property
    def index(self) -> int:
        """Of the stage that is being trained, from 0."""
        return len(self._begun) - 1

    @property
    def since(self) -> int:
        """Step at which it began."""
        return self._begun[-1][0]

    @property
    def is_last(self) -> bool:
        """Whether no stage comes after it."""
        return len(self._begun) == len(self._stages)

    @property
    def lowered(self) -> float:
        """Factor that the guard has put on its learning rates."""
        return self._watch.lowered if self._watch else 1.0

    @property
    def is_alarmed(self) -> bool:
        """Whether the guard found T→T damaged at the last probe."""
        return self._watch is not None and self._watch.is_alarmed

    @property
    def is_held(self) -> bool:
        """Whether the guard keeps it from ending by itself."""
        return self._watch is not None and self._watch.holds

    def standing(self, step: int) -> Verdict:
        """The stage that the weights of a step belong to: at the step of a change the one that ends there."""
        begun = self._begun[:-1] if self.index and step == self.since else self._begun
        since, entered = begun[-1]
        return Verdict(len(begun), since, entered)

    def judge(self, probed: Probed, agree: Callable[[str], str]) -> tuple[Verdict, bool]:
        """Lets the guard and the stage's rule look at a probe.

        Args:
            probed: The probe.
            agree: Gives every rank the words of rank 0, so that there is one decision for all of them.

        Returns:
            What goes into the probe's report, with the damage to T→T in its notes, and whether the guard wants something done about that which has
            not been done.
        """
        damage, acts = self._watch.look(probed, agree) if self._watch else (None, False)
        decision = self._decision(probed, agree)
        # The next stage may begin at this very step, and then this probe is the first that its rule sees.
        upcoming = None if self.is_last else self._histories[self.index + 1]
        if upcoming is not None:
            upcoming.restart()
            _take(upcoming, probed)
        if decision and decision.advance and self.is_held:
            held = "held back" if self._applies else "it would be held back"
            decision = replace(decision, advance=False, reason=f"{decision.reason}; {held} because T→T is damaged")
        if decision and decision.advance and self._applies:
            self._due = decision.reason
        return replace(self.standing(probed.step), decision=decision, notes=(damage,) if damage else ()), acts

    def end(self, step: int, by_hand: str | None, catches_up: bool = False) -> tuple[str, int] | None:
        """Why the stage ends now and the step at which the next one begins, or ``None``.

        Args:
            step: Optimizer steps done.
            by_hand: How an operator has asked for it.
            catches_up: Whether the steps done were done without stages, so that the change is dated to where the stages would have had it.
        """
        if self.is_last:
            return None
        if by_hand is not None:
            return f"by hand, {by_hand}", step
        if not self._applies or self.is_held:
            return None
        if self._due is not None:
            return self._due, step
        stage, tokens = self._stages[self.index], self.tokens - self._tokens_at_start
        if stage.steps is not None and step - self.since >= stage.steps:
            return f"{stage.steps:,} steps are done", self.since + stage.steps if catches_up else step
        if stage.tokens is not None and tokens >= stage.tokens:
            return f"{tokens:,} tokens are seen, of {stage.tokens:,}", step
        longest = stage.until.max_steps if isinstance(stage.until, Plateau) else None
        if longest is not None and step - self.since >= longest:
            return f"max_steps {longest:,} of its rule are done", self.since + longest if catches_up else step
        return None

    def begin_next(self, reason: str, step: int) -> None:
        """Goes to the next stage."""
        self._begun.append((step, reason))
        self._due = None
        self._tokens_at_start = self.tokens
        if self._watch:
            self._watch.begin_stage()
        history = self._histories[self.index]
        if history is not None and history.last_step != step:
            history.restart()

    def state(self) -> dict[str, Any]:
        """Plain data that ``torch.load(weights_only=True)`` accepts; never configuration."""
        return {
            "begun": [list(each) for each in self._begun],
            "due": self._due,
            "tokens": self.tokens,
            "tokens_at_start": self._tokens_at_start,
            "histories": [history.state() if history else None for history in self._histories],
            "guard": self._watch.state() if self._watch else None,
            "applies": self._applies,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on with what :meth:`state` gave.

        Raises:
            MisconfigurationException: If that was in a stage that there is none of now.
        """
        if len(state["begun"]) > len(self._stages):
            raise MisconfigurationException(
                f"the checkpoint was saved in stage {len(state['begun'])}, and there are {len(self._stages)} now; keep those already done"
            )
        self._begun = [(step, reason) for step, reason in state["begun"]]
        self._due = state["due"]
        self.tokens, self._tokens_at_start = state["tokens"], state["tokens_at_start"]
        for history, kept in zip(self._histories, state["histories"], strict=False):
            if history and kept:
                history.load(kept)
        if self._watch and state["guard"]:
            self._watch.load(state["guard"])
            # What was only advised has lowered nothing, and the other way round.
            if state.get("applies", True) != self._applies:
                self._watch.begin_stage()

    def _decision(self, probed: Probed, agree: Callable[[str], str]) -> Decision | None:
        history = self._histories[self.index]
        if history is None or self.is_last:
            return None
        _take(history, probed)
        decision = history.rule.decide(history.since(self.since))
        return Decision.from_state(json.loads(agree(json.dumps(decision.to_state()))))


def _take(history: RuleHistory, probed: Probed) -> None:
    if not history.add(probed):
        rank_zero_warn("the probe asks other questions than before, so the history that the stage's rule looks at begins anew")
