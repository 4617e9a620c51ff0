"""What a decision on the stage is made from, and what it says: plain data, of which the rules are functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from s2sbench_callback.items import TieRule
from s2sbench_callback.metrics import compare
from s2sbench_callback.prompts import Condition
from s2sbench_callback.scoring import LossTable

Figure = Literal["positive_minus_negative", "positive_loss", "accuracy"]

FIGURES: tuple[Figure, ...] = get_args(Figure)


@dataclass(frozen=True)
class QuestionSeries:
    """One figure of one set over several probes, by question.

    Attributes:
        values: ``[T, Q]``, NaN where a loss of the question was not finite.
        weights: ``[Q]`` comparisons of each question.
        groups: ``[Q]`` cluster of each question.
    """

    values: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64]
    groups: tuple[str, ...]


@dataclass(frozen=True)
class StageHistory:
    """The probes of one stage, in the figure that a rule looks at.

    Attributes:
        start: Optimizer step at which the stage began.
        steps: ``T`` optimizer steps of the probes, ascending; the first may be ``start`` itself.
        sets: Series by set, each over all ``T`` probes and always the same questions.
    """

    start: int
    steps: tuple[int, ...]
    sets: Mapping[str, QuestionSeries]

    def first(self, probes: int) -> StageHistory:
        """The history as it was after so many probes."""
        sets = {name: QuestionSeries(series.values[:probes], series.weights, series.groups) for name, series in self.sets.items()}
        return StageHistory(self.start, self.steps[:probes], sets)


@dataclass(frozen=True)
class Decision:
    """What a rule says after a probe.

    Attributes:
        advance: Whether the stage has done its work.
        reason: Why or why not, in one sentence with the numbers.
        gain: Improvement of the figure per 1,000 steps, positive when it gets better; NaN where there are too few probes.
        low: Lower end of its interval.
        high: Upper end of its interval.
        confidence: Coverage of that interval, 0..1.
        min_gain: What the upper end is held against.
    """

    advance: bool
    reason: str
    gain: float = math.nan
    low: float = math.nan
    high: float = math.nan
    confidence: float = math.nan
    min_gain: float = math.nan

    def to_state(self) -> dict[str, Any]:
        """Plain data for JSON; NaN becomes null."""
        return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in asdict(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Decision:
        """The decision that :meth:`to_state` gave."""
        content: dict[str, Any] = {key: math.nan if value is None else value for key, value in state.items()}
        return cls(**content)


@dataclass(frozen=True)
class Probed:
    """What a probe hands to whoever judges it.

    Attributes:
        step: Optimizer steps done.
        tables: Losses by set and condition.
        reference: T→T losses that T→T is held against, by set.
        tie_rules: By set.
    """

    step: int
    tables: Mapping[str, Mapping[Condition, LossTable]]
    reference: Mapping[str, LossTable]
    tie_rules: Mapping[str, TieRule]


@dataclass(frozen=True)
class Verdict:
    """What is said about a probe; it goes into the probe's report.

    Attributes:
        stage: Number, from 1, of the stage whose weights were probed.
        stage_since: Optimizer step at which that stage began.
        entered: Why it began, for a stage that is not the first.
        decision: What its rule says, where it has one.
        notes: What else there is to say, damage to T→T above all.
    """

    stage: int
    stage_since: int
    entered: str | None = None
    decision: Decision | None = None
    notes: tuple[str, ...] = ()

    def metrics(self) -> dict[str, float]:
        """Figures to log, keyed below the package's prefix."""
        figures = {"stage": float(self.stage)}
        if self.decision:
            decision = self.decision
            figures |= {"decision/gain": decision.gain, "decision/gain_low": decision.low, "decision/gain_high": decision.high}
            figures |= {"decision/min_gain": decision.min_gain, "decision/advance": float(decision.advance)}
        return figures

    def to_state(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "decision": self.decision.to_state() if self.decision else None}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Verdict:
        """The verdict that :meth:`to_state` gave."""
        content: dict[str, Any] = {**state, "notes": tuple(state["notes"])}
        content["decision"] = Decision.from_state(content["decision"]) if content["decision"] else None
        return cls(**content)


@runtime_checkable
class Judge(Protocol):
    """A callback that says in which stage the training is, and whether the stage has done its work."""

    def judge(self, probed: Probed, source: object) -> Verdict:
        """Called by all ranks together after each probe, before its figures are shown.

        Args:
            probed: The probe.
            source: The callback that probed.
        """
        ...


def question_values(table: LossTable, tie_rule: TieRule, figure: Figure) -> npt.NDArray[np.float64]:
    """One figure of each question.

    Args:
        table: Losses of one probe, set and condition.
        tie_rule: Whether equal losses count as lost or won.
        figure: Which.

    Returns:
        ``[Q]``; NaN where a loss of the question is not finite.
    """
    compared = compare(table, tie_rule)
    values = {
        "positive_minus_negative": compared.positive - compared.negative,
        "positive_loss": compared.positive,
        "accuracy": np.where(compared.invalid, np.nan, compared.share),
    }
    return values[figure]


def stage_history(
    start: int,
    probes: Sequence[tuple[int, Mapping[str, Mapping[Condition, LossTable]]]],
    tie_rules: Mapping[str, TieRule],
    condition: Condition,
    figure: Figure,
    sets: Sequence[str] | None = None,
) -> StageHistory:
    """The probes of a stage in one figure.

    Args:
        start: Step at which the stage began.
        probes: Step and tables of each probe, ascending.
        tie_rules: By set.
        condition: Condition to look at.
        figure: Figure to look at.
        sets: Sets to look at; all that have the condition by default.

    Raises:
        ValueError: If a set is unknown, has no such condition, or was asked other questions from one probe to the next.
    """
    series: dict[str, QuestionSeries] = {}
    known = list(dict.fromkeys(name for _, tables in probes for name, by_condition in tables.items() if condition in by_condition))
    for name in known if sets is None else sets:
        if probes and name not in known:
            raise ValueError(f"the probes have no {condition} losses of {name!r}; they have {', '.join(known) or 'none of any set'}")
        tables = [tables[name][condition] for _, tables in probes]
        if any(table.item_ids != tables[0].item_ids for table in tables):
            raise ValueError(f"{name}: the probes from step {probes[0][0]} to {probes[-1][0]} were not all asked the same questions")
        values = np.stack([question_values(table, tie_rules[name], figure) for table in tables])
        series[name] = QuestionSeries(values, compare(tables[0], tie_rules[name]).count.astype(np.float64), tables[0].groups)
    return StageHistory(start, tuple(step for step, _ in probes), series)
