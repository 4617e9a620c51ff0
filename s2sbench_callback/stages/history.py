"""What a rule has seen since its stage began, kept with the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from s2sbench_callback.decisions import Probed, QuestionSeries, StageHistory, stage_history
from s2sbench_callback.plateau import Plateau


class RuleHistory:
    """The figure of one rule, by question, probe after probe.

    Args:
        rule: Says which figure of which sets and condition.
    """

    def __init__(self, rule: Plateau) -> None:
        self.rule = rule
        self._steps: list[int] = []
        self._questions: dict[str, tuple[str, ...]] = {}
        self._fixed: dict[str, QuestionSeries] = {}
        self._values: dict[str, list[npt.NDArray[np.float64]]] = {}

    def add(self, probed: Probed) -> bool:
        """Takes a probe in.

        Returns:
            Whether what was known could be kept: other questions than before begin a new history.

        Raises:
            ValueError: If the probe lacks what the rule looks at.
        """
        now = stage_history(0, [(probed.step, probed.tables)], probed.tie_rules, self.rule.condition, self.rule.figure, self.rule.sets)
        if not now.sets:
            raise ValueError(f"the stage's rule looks at {self.rule.condition}, which the probe could not ask of any set")
        questions = {name: probed.tables[name][self.rule.condition].item_ids for name in now.sets}
        kept = not self._steps or questions == self._questions
        if not kept:
            self.restart()
        self._questions, self._fixed = questions, dict(now.sets)
        self._steps.append(probed.step)
        for name, series in now.sets.items():
            self._values.setdefault(name, []).append(series.values[0])
        return kept

    def restart(self) -> None:
        """Forgets all probes."""
        self._steps, self._questions, self._fixed, self._values = [], {}, {}, {}

    def since(self, start: int) -> StageHistory:
        """The history of the stage that began at a step."""
        sets = {name: QuestionSeries(np.stack(self._values[name]), fixed.weights, fixed.groups) for name, fixed in self._fixed.items()}
        return StageHistory(start, tuple(self._steps), sets)

    @property
    def _looks_at(self) -> str:
        return f"{self.rule.condition} {self.rule.figure}"

    @property
    def last_step(self) -> int | None:
        """Step of the newest probe."""
        return self._steps[-1] if self._steps else None

    def state(self) -> dict[str, Any]:
        """Plain data that ``torch.load(weights_only=True)`` accepts."""
        return {
            "looks_at": self._looks_at,
            "steps": list(self._steps),
            "sets": {
                name: {
                    "questions": list(self._questions[name]),
                    "groups": list(fixed.groups),
                    "weights": torch.from_numpy(fixed.weights.copy()),
                    "values": torch.from_numpy(np.stack(self._values[name])),
                }
                for name, fixed in self._fixed.items()
            },
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on with what :meth:`state` gave, unless the rule looks at something else now."""
        if state["looks_at"] != self._looks_at:
            return
        self._steps = list(state["steps"])
        for name, kept in state["sets"].items():
            values = kept["values"].cpu().numpy()
            self._questions[name] = tuple(kept["questions"])
            self._fixed[name] = QuestionSeries(values[:1], kept["weights"].cpu().numpy(), tuple(kept["groups"]))
            self._values[name] = list(values)
