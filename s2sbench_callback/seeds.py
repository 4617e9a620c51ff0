"""Several trainings a side: what of a difference's variance comes from the questions, what from the seeds, and what from both together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.stats import t  # type: ignore[import-untyped]

from s2sbench_callback.significance import clustered

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """Variance of an estimate pooled over questions and seeds, in a two-way random-effects model without replication.

    Attributes:
        questions: From the choice of questions.
        seeds: From the choice of seeds; NaN where each side has one training, which cannot tell.
        rest: From what each question does in each training beyond the two; with one training a side it cannot be told from the questions, and
            stands with them.
        groups: Groups of questions.
        trainings: Degrees of freedom between trainings of one side.
    """

    questions: float
    seeds: float
    rest: float
    groups: float
    trainings: int

    @property
    def error(self) -> float:
        """Standard error, by all of the variance that is known."""
        return math.sqrt(self.questions + self.rest + (0.0 if math.isnan(self.seeds) else self.seeds))

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the standard error (Satterthwaite 1946)."""
        between_groups = self.groups - 1
        if not self.seeds > 0:
            return between_groups
        squares = (self.questions + self.rest) ** 2 / between_groups
        squares += (self.seeds + self.rest) ** 2 / self.trainings + self.rest**2 / (self.trainings * between_groups)
        return self.error**4 / squares

    def half_width(self, coverage: float = 0.95) -> float:
        """Of the interval by Student's t."""
        return float(t.isf((1 - coverage) / 2, self.freedom)) * self.error

    def p_value(self, value: float) -> float:
        """Two-sided, of an estimate of which this is the variance."""
        if not self.error:
            return float(value == 0)
        return float(2 * t.sf(abs(value) / self.error, self.freedom))

    def with_groups(self, groups: float) -> Spread:
        """What it would be with so many groups of questions."""
        factor = self.groups / groups
        return replace(self, questions=self.questions * factor, rest=self.rest * factor, groups=groups)


def spread(sides: Sequence[Array], weights: Array, groups: Sequence[str], imagined: Array | None = None) -> Spread:
    """Where the variance of a mean over questions, or of the difference of two, comes from.

    Mean squares of the analysis of variance, set against their expectations; what would come out negative counts as 0. Both sides' seeds are taken
    to vary alike. In simulations of 2 to 5 seeds a side and 240 questions the 95 % interval held the truth in 93 to 97 %.

    Args:
        sides: One or two arrays ``[S, Q]``, a row a training; the estimate is the mean of the only one, or the second's minus the first's.
        weights: ``[Q]`` weight of each question.
        groups: ``[Q]`` cluster of each question.
        imagined: Values of imagined questions of average weight, each a group of its own, so that no variance is 0 where hardly a question differs.
    """
    numbers = np.unique(np.asarray(groups), return_inverse=True)[1]
    by_question = sides[-1].mean(0) - (sides[0].mean(0) if len(sides) > 1 else 0.0)
    padded, padded_weights, padded_numbers = by_question, weights, numbers
    if imagined is not None and len(imagined):
        typical = float(weights.sum()) / np.count_nonzero(weights)
        padded = np.append(by_question, imagined)
        padded_weights = np.append(weights, np.full(len(imagined), typical))
        padded_numbers = np.append(numbers, numbers.max() + 1 + np.arange(len(imagined)))
    _, variance, units = clustered(padded, padded_weights, padded_numbers)
    found = variance * units / (units - 1) if units > 1 else math.nan
    groups_found = int(numbers.max()) + 1
    trainings = sum(len(side) - 1 for side in sides)
    if not trainings:
        return Spread(found, math.nan, 0.0, groups_found, 0)
    between = within = 0.0
    for side in sides:
        means = side @ weights / weights.sum()
        between += float(((means - means.mean()) ** 2).sum()) / trainings
        residuals = side - means[:, None] - side.mean(0) + means.mean()
        within += sum(clustered(row, weights, numbers)[1] for row in residuals) * groups_found / (groups_found - 1) / trainings
    scale = sum(1 / len(side) for side in sides)
    return Spread(max(0.0, found - scale * within), scale * max(0.0, between - within), scale * within, groups_found, trainings)
