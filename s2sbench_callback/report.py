"""One probe as data: its figures under the metric keys, and the signature that says what produced them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from s2sbench_callback.controls import control_metrics
from s2sbench_callback.decisions import Verdict
from s2sbench_callback.items import Benchmark
from s2sbench_callback.metrics import ConditionFigures, ability_lost, accuracy_difference, condition_figures, normalised_accuracies
from s2sbench_callback.prompts import CANDIDATES, CONDITIONS, Condition
from s2sbench_callback.scoring import LossTable
from s2sbench_callback.significance import Estimate, average
from s2sbench_callback.voice_figures import Figures, across_voices, rotated
from s2sbench_callback.voices import sets_in_voices

PREFIX = "s2sbench"
ESTIMATES = ("accuracy", "question_accuracy", "positive_loss", "negative_loss", "positive_minus_negative")
COUNTS = ("ties", "invalid")

Tables = Mapping[str, Mapping[Condition, LossTable]]


@dataclass(frozen=True)
class ProbeReport:
    """What one probe found.

    Attributes:
        step: Optimizer steps done.
        stage: Number of the training stage from 1, where the run has stages.
        sets: The conditions asked, by set.
        metrics: Every figure under its key, intervals under ``<key>_low`` and ``<key>_high``.
        signature: Everything that can change a figure besides the model's weights.
        normalised: Accuracy by other normalisations, below ``<set>/<condition>``; in the report alone, never logged.
        verdict: What the stages say to it, where the run has stages.
    """

    step: int
    stage: int | None
    sets: Mapping[str, tuple[Condition, ...]]
    metrics: Mapping[str, float]
    signature: Mapping[str, Any] = field(default_factory=dict)
    normalised: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    verdict: Verdict | None = None

    def figure(self, name: str, condition: Condition | None, figure: str) -> Estimate:
        """A figure with its interval.

        Args:
            name: A set, or ``mean``.
            condition: The condition, or ``None`` for figures across conditions.
            figure: For example ``accuracy``.

        Raises:
            KeyError: If the probe has no such figure.
        """
        key = "/".join(part for part in (PREFIX, name, condition, figure) if part)
        return Estimate(self.metrics[key], self.metrics.get(f"{key}_low", math.nan), self.metrics.get(f"{key}_high", math.nan))

    def to_json(self) -> str:
        """One line; NaN becomes null."""
        content = asdict(self)
        content["metrics"] = {key: value if math.isfinite(value) else None for key, value in self.metrics.items()}
        content["verdict"] = self.verdict.to_state() if self.verdict else None
        return json.dumps(content, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> ProbeReport:
        """The report that :meth:`to_json` wrote.

        Raises:
            ValueError: If the line is not such a report.
        """
        try:
            content = json.loads(line)
            content["sets"] = {name: tuple(conditions) for name, conditions in content["sets"].items()}
            content["metrics"] = {key: math.nan if value is None else float(value) for key, value in content["metrics"].items()}
            content["verdict"] = Verdict.from_state(content["verdict"]) if content.get("verdict") else None
            return cls(**content)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the report of a probe: {error!r} in {line[:80]!r}") from error


def flat(content: Mapping[str, Any], beginning: str = "") -> dict[str, Any]:
    """Nested settings, a signature for example, by dotted names."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        found |= flat(value, f"{beginning}{name}.") if isinstance(value, Mapping) else {f"{beginning}{name}": value}
    return found


def set_metrics(benchmark: Benchmark, tables: Mapping[Condition, LossTable], reference: LossTable | None) -> Figures:
    """Figures of one set, keyed below its name.

    Args:
        benchmark: The set.
        tables: Losses by condition.
        reference: T→T losses of the same questions that T→T and S→T are held against, where there are any.
    """
    figures: Figures = {}
    for condition, table in tables.items():
        found: ConditionFigures = condition_figures(table, benchmark.tie_rule)
        figures.update({f"{condition}/{name}": getattr(found, name) for name in (*ESTIMATES, *COUNTS)})
    s2t, t2t = tables.get("s2t"), tables.get("t2t")
    if s2t and t2t:
        figures["degradation"] = accuracy_difference(t2t, s2t, benchmark.tie_rule)
        figures["ability_lost"] = ability_lost(t2t, s2t, benchmark.tie_rule)
    if s2t and reference:
        figures["intelligence_loss"] = accuracy_difference(reference, s2t, benchmark.tie_rule)
    if t2t and reference:
        figures["t2t_change"] = accuracy_difference(t2t, reference, benchmark.tie_rule)
    return figures


def build_report(
    benchmarks: Mapping[str, Benchmark],
    tables: Tables,
    reference: Mapping[str, LossTable],
    step: int,
    verdict: Verdict | None,
    run_metrics: Mapping[str, float],
    signature: Mapping[str, Any],
    controls: Tables | None = None,
) -> ProbeReport:
    """Puts a probe's tables under the metric keys.

    Args:
        benchmarks: The sets by name.
        tables: Losses by set and condition.
        reference: T→T losses to hold against, by set.
        step: Optimizer steps done.
        verdict: What the stages say to the probe, where there are stages.
        run_metrics: Figures of the run itself (``seconds``, ``share_of_training``, ...), without prefix.
        signature: What produced the figures.
        controls: Losses by control set and condition, where controls were asked.
    """
    by_set = {name: set_metrics(benchmarks[name], tables[name], reference.get(name)) for name in tables}
    for name, figures in by_set.items():
        figures.update(control_metrics(benchmarks[name], controls or {}))
    # A set in several voices counts once in the mean.
    counted = dict(by_set)
    for base, names in sets_in_voices({name: benchmarks[name] for name in tables}).items():
        by_set[base] = across_voices(benchmarks[names[0]], [tables[name] for name in names], reference.get(names[0]))
        counted = {base: by_set[base], **{name: figures for name, figures in counted.items() if name not in names}}
    for name in [name for name in tables if benchmarks[name].items[0].voice and "s2t" in tables[name]]:
        figures, by_voice = rotated(benchmarks[name], tables[name]["s2t"], by_set[name].get("degradation"))
        by_set[name].update(figures)
        by_set.update(by_voice)
    across: dict[str, list[Estimate]] = {}
    for figures in counted.values():
        for key, figure in figures.items():
            if isinstance(figure, Estimate):
                across.setdefault(key, []).append(figure)
    by_set["mean"] = {key: average(estimates) for key, estimates in across.items()}

    metrics: dict[str, float] = {}
    for name, figures in by_set.items():
        for key, figure in figures.items():
            full = f"{PREFIX}/{name}/{key}"
            if isinstance(figure, Estimate):
                metrics.update({full: figure.value, f"{full}_low": figure.low, f"{full}_high": figure.high})
            else:
                metrics[full] = float(figure)
    metrics[f"{PREFIX}/step"] = float(step)
    if verdict is not None:
        metrics.update({f"{PREFIX}/{key}": value for key, value in verdict.metrics().items()})
    metrics.update({f"{PREFIX}/{key}": value for key, value in run_metrics.items()})
    sets = {name: tuple(condition for condition in CONDITIONS if condition in tables[name]) for name in tables}
    normalised = {
        f"{name}/{condition}": normalised_accuracies(table, benchmarks[name], CANDIDATES[condition])
        for name, by_condition in tables.items()
        for condition, table in by_condition.items()
    }
    return ProbeReport(step, verdict.stage if verdict else None, sets, metrics, signature, normalised, verdict)
