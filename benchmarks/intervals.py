"""How often 95 % intervals hold the true figure, by method, and what the bootstrap costs.

Questions are drawn from populations whose figures are known, an interval is taken by each method, and it is counted how often it holds the truth.
``closed`` is Wilson's with a design effect for accuracies, Bonett and Price's for degradation, Fieller's for the ability lost and the normal one for
losses; ``imagined`` is the percentile bootstrap with four imagined questions among the real ones. The method of each logged figure was chosen from
this table, as the docstrings of ``s2sbench_callback.metrics`` say. Run it with ``python benchmarks/intervals.py``: about ten minutes.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri
from scipy.stats import norm
from tqdm import tqdm

from s2sbench_callback.bootstrap import DRAWS, Columns, Statistic, cluster_counts, drawn_sums, percentiles
from s2sbench_callback.metrics import IMAGINED, ability_lost, accuracy_difference, condition_figures, share_lost
from s2sbench_callback.scoring import LossTable
from s2sbench_callback.significance import Estimate, average, mean, paired_difference, proportion

Array = npt.NDArray[np.float64]
Interval = tuple[float, float]
Draw = np.random.Generator

QUESTIONS = (100, 240, 1871)
METHODS = ("closed", "percentile", "bca", "imagined")
NOTHING = (math.nan, math.nan)
# True shares vary by so much from one sample to the next: at a single value, coverage hangs on which shares so many questions can make.
JITTER = 0.01


@dataclass(frozen=True)
class Population:
    """Where questions come from.

    Attributes:
        name: What it is like.
        sample: Columns of so many questions, each ``[Q]``, and the figure's true value.
        statistic: The figure as a function of sums.
        closed: The closed form's interval.
        has_imagined: Whether imagined questions make sense for it.
    """

    name: str
    sample: Callable[[int, Draw], tuple[Columns, float]]
    statistic: Statistic
    closed: Callable[[Columns], Estimate]
    has_imagined: bool = True


def accuracy(right: float, comparisons: int) -> Population:
    def sample(questions: int, draw: Draw) -> tuple[Columns, float]:
        truth = right + draw.uniform(-JITTER, JITTER)
        # A question's comparisons go together through its own difficulty: a correlation of 1 / (1 + 1.5) = 0.4.
        chance = draw.beta(1.5 * truth, 1.5 * (1 - truth), size=questions)
        won = draw.binomial(comparisons, chance).astype(np.float64)
        return {"first": won, "count": np.full(questions, float(comparisons))}, truth

    def closed(columns: Columns) -> Estimate:
        return proportion(columns["first"] / columns["count"], columns["count"], names(columns))

    return Population(f"accuracy {right}, {comparisons} comparison(s) each", sample, lambda sums: sums["first"] / sums["count"], closed)


def two_conditions(written: float, spoken: float, correlation: float, questions: int, draw: Draw) -> tuple[Columns, float, float]:
    """Answers in two conditions that a question's own difficulty ties together, and both true accuracies."""
    shift = draw.uniform(-JITTER, JITTER)
    latent = draw.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], size=questions)
    right = (latent < norm.ppf([written + shift, spoken + shift])).astype(np.float64)
    return {"first": right[:, 0], "second": right[:, 1], "count": np.ones(questions)}, written + shift, spoken + shift


def degradation(written: float, spoken: float, correlation: float) -> Population:
    def sample(questions: int, draw: Draw) -> tuple[Columns, float]:
        columns, first, second = two_conditions(written, spoken, correlation, questions, draw)
        return columns, first - second

    def closed(columns: Columns) -> Estimate:
        return paired_difference(columns["first"], columns["second"], columns["count"], names(columns))

    name = f"degradation {written} to {spoken}, correlation {correlation}"
    return Population(name, sample, lambda sums: (sums["first"] - sums["second"]) / sums["count"], closed)


def ability(written: float, spoken: float, correlation: float) -> Population:
    def sample(questions: int, draw: Draw) -> tuple[Columns, float]:
        columns, first, second = two_conditions(written, spoken, correlation, questions, draw)
        return columns, (first - second) / (first - 0.5)

    name = f"ability lost {written} to {spoken}, correlation {correlation}"
    return Population(name, sample, lambda sums: share_lost(sums["first"], sums["second"], sums["count"]), fieller)


def fieller(columns: Columns) -> Estimate:
    """All shares that a test would not refuse (Fieller 1954)."""
    lost, above = columns["first"] - columns["second"], columns["first"] - 0.5
    a, b = lost.mean(), above.mean()
    (aa, ab), (_, bb) = np.cov(lost, above) / len(lost) * norm.ppf(0.975) ** 2
    if b * b <= bb:
        return Estimate(math.nan, -math.inf, math.inf)
    root = math.sqrt(max(0.0, (a * b - ab) ** 2 - (b * b - bb) * (a * a - aa)))
    return Estimate(a / b, (a * b - ab - root) / (b * b - bb), (a * b - ab + root) / (b * b - bb))


def losses(name: str, skew: float) -> Population:
    def sample(questions: int, draw: Draw) -> tuple[Columns, float]:
        return {"sum": draw.lognormal(0.0, skew, size=questions), "count": np.ones(questions)}, math.exp(skew**2 / 2)

    def closed(columns: Columns) -> Estimate:
        return mean(columns["sum"], columns["count"], names(columns))

    return Population(name, sample, lambda sums: sums["sum"] / sums["count"], closed, has_imagined=False)


def names(columns: Columns) -> list[str]:
    return [str(number) for number in range(len(columns["count"]))]


POPULATIONS = (
    *(accuracy(right, comparisons) for comparisons in (1, 3) for right in (0.5, 0.8, 0.98)),
    degradation(0.8, 0.7, 0.6),
    degradation(0.98, 0.9, 0.6),
    degradation(0.98, 0.975, 0.9),
    degradation(0.83, 0.83, 0.99),
    ability(0.65, 0.55, 0.6),
    ability(0.8, 0.7, 0.6),
    ability(0.98, 0.9, 0.6),
    ability(0.98, 0.975, 0.9),
    losses("loss, log-normal, sigma 0.4", 0.4),
    losses("loss, log-normal, sigma 1", 1.0),
)


def bca(drawn: Array, left_out: Array, value: float) -> Interval:
    """The bias-corrected and accelerated interval (Efron 1987) from draws, and from the figure with each group left out."""
    # The mean percentile, as ties are common among shares.
    below = ((drawn < value).mean() + (drawn <= value).mean()) / 2
    influence = left_out.mean() - left_out
    scale = (influence**2).sum() ** 1.5
    if not np.isfinite(drawn).all() or not 0 < below < 1 or not scale:
        return NOTHING
    bias, acceleration = ndtri(below), (influence**3).sum() / (6 * scale)
    z = bias + ndtri(np.array([0.025, 0.975]))
    low, high = np.quantile(drawn, ndtr(bias + z / (1 - acceleration * z)), method="nearest")
    return float(low), float(high)


def intervals(population: Population, questions: int, simulations: int, draws: int) -> Iterator[tuple[float, dict[str, Interval]]]:
    """The truth and each method's interval in each sample."""
    generator = np.random.default_rng(questions)
    samples = [population.sample(questions, generator) for _ in range(simulations)]
    keys = list(samples[0][0])
    by_group = np.stack([columns[key] for columns, _ in samples for key in keys], axis=1)
    plain = by_sample(drawn_sums(by_group, draws), keys)
    padded = plain
    if population.has_imagined:
        imagined = np.stack([IMAGINED[key] * columns["count"].mean() for columns, _ in samples for key in keys], axis=1)
        padded = by_sample(drawn_sums(np.concatenate([by_group, imagined]), draws), keys)
    left_out = by_sample(by_group.sum(0) - by_group, keys)
    for (columns, truth), bare, with_imagined, without in zip(samples, plain, padded, left_out, strict=True):
        closed = population.closed(columns)
        value = population.statistic({key: column.sum() for key, column in columns.items()})
        yield (
            truth,
            {
                "closed": (closed.low, closed.high),
                "percentile": percentiles(population.statistic(bare)),
                "bca": bca(population.statistic(bare), population.statistic(without), float(value)),
                "imagined": percentiles(population.statistic(with_imagined)) if population.has_imagined else NOTHING,
            },
        )


def by_sample(sums: Array, keys: Sequence[str]) -> list[Columns]:
    return [{key: sums[:, start + index] for index, key in enumerate(keys)} for start in range(0, sums.shape[1], len(keys))]


def mean_over_sets(population: Population, simulations: int, draws: int) -> Iterator[tuple[float, dict[str, Interval]]]:
    """The mean of three sets: intervals joined by MOVER, and figures averaged draw by draw."""
    generator = np.random.default_rng(0)
    for _ in range(simulations):
        samples = [population.sample(questions, generator) for questions in QUESTIONS]
        drawn, found, closed = [], [], []
        for number, (columns, _) in enumerate(samples):
            by_group = np.stack([np.append(column, IMAGINED[key] * columns["count"].mean()) for key, column in columns.items()], axis=1)
            drawn.append(population.statistic(by_sample(drawn_sums(by_group, draws, number), list(columns))[0]))
            value = float(population.statistic({key: column.sum() for key, column in columns.items()}))
            found.append(Estimate(value, *percentiles(drawn[-1])))
            closed.append(population.closed(columns))
        mover, plain = average(found), average(closed)
        truth = float(np.mean([truth for _, truth in samples]))
        yield (
            truth,
            {"closed": (plain.low, plain.high), "mover": (mover.low, mover.high), "drawn": percentiles(np.asarray(np.mean(drawn, axis=0)))},
        )


def held(found: Sequence[tuple[float, dict[str, Interval]]], method: str) -> str:
    """Share of the intervals that hold the truth, in percent, and their median width."""
    truth, pairs = np.array([truth for truth, _ in found]), np.array([by_method[method] for _, by_method in found])
    if np.isnan(pairs).all():
        return "–"
    # Where there is no interval at all, nothing is held.
    share = ((pairs[:, 0] - 1e-12 <= truth) & (truth <= pairs[:, 1] + 1e-12)).mean()
    finite = np.isfinite(pairs).all(1)
    return f"{100 * share:.1f} ({np.median(pairs[finite, 1] - pairs[finite, 0]):.3f})"


def cost() -> None:
    """What the figures of the largest published story set take, with three comparisons of T→T, S→T and a reference."""
    draw = np.random.default_rng(0)
    ids = tuple(map(str, range(3742)))
    tables = [LossTable(ids, ids, np.zeros(3742, dtype=np.int64), draw.gamma(4, 3, (3742, 2)), np.full((3742, 2), 9)) for _ in range(3)]
    for name in ("first probe", "later probes"):
        began = time.perf_counter()
        for table in tables[:2]:
            condition_figures(table, "lose")
        for first, second in ((0, 1), (2, 1), (0, 2)):
            accuracy_difference(tables[first], tables[second], "lose")
        ability_lost(tables[0], tables[1], "lose")
        print(f"{name}: all intervals of 3,742 questions in two conditions, {DRAWS:,} draws: {time.perf_counter() - began:.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--only", default="", help="populations whose name holds this")
    chosen = parser.parse_args()
    cluster_counts.cache_clear()
    cost()
    populations = [each for each in POPULATIONS if chosen.only in each.name]
    print(f"\n% of {chosen.simulations:,} intervals that hold the truth (median width)\n")
    print(f"| population | questions | {' | '.join(METHODS)} |\n" + "|---" * (2 + len(METHODS)) + "|")
    for population in tqdm(populations, desc="populations"):
        for questions in QUESTIONS:
            found = list(intervals(population, questions, chosen.simulations, chosen.draws))
            print(f"| {population.name} | {questions} | {' | '.join(held(found, method) for method in METHODS)} |", flush=True)
    print("\n| mean over three sets | closed, MOVER | imagined, MOVER | imagined, averaged draw by draw |\n|---|---|---|---|")
    for population in tqdm([each for each in populations if each.has_imagined], desc="means"):
        found = list(mean_over_sets(population, chosen.simulations, chosen.draws))
        print(f"| {population.name} | {' | '.join(held(found, method) for method in ('closed', 'mover', 'drawn'))} |", flush=True)


if __name__ == "__main__":
    main()
