"""When a stage has done its work: once the probes have excluded that it still improves fast enough to go on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from s2sbench_callback.decisions import FIGURES, Decision, Figure, StageHistory
from s2sbench_callback.improvement import MIN_PROBES, Rate, recent_rate
from s2sbench_callback.prompts import CONDITION_NAMES, CONDITIONS, Condition

# How slowly the error rate is spent: of its first few parts, none takes more than a fifth, and late looks are left with enough.
_SPENDING = 4


@dataclass(frozen=True)
class Plateau:
    """Ends a stage whose improvement has fallen below a rate that is worth waiting for.

    The stage ends when, at ``patience`` probes in a row, the interval of the recent improvement rate lies below ``min_gain`` as a whole. The
    interval knows the noise of the questions and the noise from probe to probe that all questions share, and is widened for the number of
    probes at which the question is asked. A stage that starts slowly, in a warm-up for example, needs ``min_steps``.

    Attributes:
        min_gain: Improvement per 1,000 optimizer steps that is worth going on for: nats per token, or accuracy in 0..1.
        patience: Probes in a row that must agree.
        min_steps: Optimizer steps since the start of the stage before which it does not end.
        max_steps: Optimizer steps since the start of the stage at which it ends in any case.
        error_rate: Probability of ending, at any probe of the stage, while it still improves by ``min_gain`` or more.
        figure: What is to improve: ``positive_minus_negative`` and ``positive_loss`` fall, ``accuracy`` rises.
        condition: ``s2t`` or ``t2t``.
        sets: Sets to average over; all that have the condition by default. Whoever gathers the history picks them.

    Raises:
        ValueError: If a setting is out of range.
    """

    min_gain: float = 0.01
    patience: int = 3
    min_steps: int = 0
    max_steps: int | None = None
    error_rate: float = 0.05
    figure: Figure = "positive_minus_negative"
    condition: Condition = "s2t"
    sets: list[str] | None = None

    def __post_init__(self) -> None:
        # Written so that NaN is refused as well.
        if not 0 < self.min_gain < math.inf:
            raise ValueError(
                f"plateau: min_gain must be above 0, got {self.min_gain}; no number of probes can show that a stage gains nothing at all"
            )
        if self.patience < 1:
            raise ValueError(f"plateau: patience must be at least 1, got {self.patience}")
        if not 0 < self.error_rate < 0.5:
            raise ValueError(f"plateau: error_rate must lie between 0 and 0.5, got {self.error_rate}")
        if self.min_steps < 0:
            raise ValueError(f"plateau: min_steps must be at least 0, got {self.min_steps}")
        if self.max_steps is not None and self.max_steps < max(1, self.min_steps):
            raise ValueError(f"plateau: max_steps must be at least 1 and no less than min_steps {self.min_steps}, got {self.max_steps}")
        if self.figure not in FIGURES:
            raise ValueError(f"plateau: unknown figure {self.figure!r}; the figures are {', '.join(FIGURES)}")
        if self.condition not in CONDITIONS:
            raise ValueError(f"plateau: unknown condition {self.condition!r}; the conditions are {', '.join(CONDITIONS)}")
        if self.sets is not None and not self.sets:
            raise ValueError("plateau: sets is empty; name at least one, or leave it out for all")

    def decide(self, history: StageHistory) -> Decision:
        """Says whether the stage has done its work, from nothing but its probes.

        Args:
            history: The probes of the current stage in this rule's figure, condition and sets.
        """
        rate = self.rate(history)
        in_a_row = self._in_a_row(history, rate)
        passed = history.steps[-1] - history.start if history.steps else 0
        flat = in_a_row >= self.patience
        overdue = self.max_steps is not None and passed >= self.max_steps
        advance = (flat and passed >= self.min_steps) or overdue
        reason = self._finding(history, rate, in_a_row)
        if flat and not advance:
            reason += f", but min_steps {self.min_steps} is not reached"
        if overdue and not flat:
            reason = f"max_steps {self.max_steps} is reached: {reason}"
        if rate is None:
            return Decision(advance, reason, min_gain=self.min_gain)
        return Decision(advance, reason, rate.gain, rate.low, rate.high, rate.confidence, self.min_gain)

    def rate(self, history: StageHistory) -> Rate | None:
        """The recent improvement rate, as it is judged at the newest probe.

        Of any ``patience`` looks in a row, the number of one can be divided by ``patience``, so only these can end a stage and only they are
        paid for: the m-th with ``error_rate * a / ((m + a - 1) * (m + a))``, which adds up to ``error_rate`` over all m.

        Args:
            history: The probes of the current stage.

        Returns:
            ``None`` where there are too few probes, or too few questions with finite losses.
        """
        look = len(history.steps) - MIN_PROBES + 1
        if look < 1:
            return None
        block = math.ceil(look / self.patience)
        share = _SPENDING / ((block + _SPENDING - 1) * (block + _SPENDING))
        return recent_rate(history, 1 if self.figure == "accuracy" else -1, self.error_rate * share)

    def is_flat(self, rate: Rate | None) -> bool:
        """Whether a rate excludes ``min_gain``."""
        return rate is not None and rate.high < self.min_gain

    def _in_a_row(self, history: StageHistory, newest: Rate | None) -> int:
        """Looks up to the newest that agree that the stage is flat, no more than ``patience`` of them."""
        count = 0
        while count < self.patience and self.is_flat(newest):
            count += 1
            newest = self.rate(history.first(len(history.steps) - count)) if count < self.patience else None
        return count

    def _finding(self, history: StageHistory, rate: Rate | None, in_a_row: int) -> str:
        probes = len(history.steps)
        if probes < MIN_PROBES:
            return f"{probes} probe{'s' * (probes != 1)} so far, a rate needs at least {MIN_PROBES}"
        if rate is None:
            return f"too few questions have finite losses at all of the last {MIN_PROBES} probes for a rate"
        figure = f"{CONDITION_NAMES[self.condition]} {self.figure.replace('_', ' ')}"
        finding = (
            f"{figure} improved by {_short(rate.gain)} [{_short(rate.low)}, {_short(rate.high)}] per 1,000 steps over the last {rate.probes} probes "
            f"(steps {rate.first_step} to {rate.last_step}), "
        )
        if not in_a_row:
            return finding + f"which still allows min_gain {self.min_gain:g}"
        needed = "" if in_a_row >= self.patience else f", of {self.patience} needed"
        return finding + f"below min_gain {self.min_gain:g} at {in_a_row} probe{'s' * (in_a_row != 1)} in a row{needed}"


def _short(number: float) -> str:
    """Three digits; what only rounding keeps from 0 is 0, without a sign."""
    return f"{round(number, 9) + 0.0:.3g}"
