"""How often the plateau rule ends a stage too early, and how many probes it takes when the stage is flat.

The histories resample the losses of a real training, the embedded study's by default: its questions with replacement, each with its own
level, its own smooth trend and its own fluctuations about it. What the questions have in common is replaced by a trend that is known, and by
noise of a known size: autoregressive of first order, in units of the error bar (standard error over the questions) of the figure at one
probe. The rule asks for the study's own mean improvement from probe to probe. Run it with ``python benchmarks/plateau.py``.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

# Read before numpy starts its threads: each worker is to keep to one core. The training reads only the first, and is not.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
import yaml
from tqdm import tqdm

from s2sbench_callback import improvement
from s2sbench_callback.cache import cache_folder, made_once
from s2sbench_callback.decisions import QuestionSeries, StageHistory, question_values
from s2sbench_callback.improvement import MIN_PROBES
from s2sbench_callback.metrics import compare
from s2sbench_callback.plateau import Plateau
from s2sbench_callback.record import RunRecord
from s2sbench_callback.significance import proportion

Array = npt.NDArray[np.float64]

ROOT = Path(__file__).parents[1]
PROBES = 60
EARLY_PROBES = 40
BEND = 15
LIMIT = 0.05
QUESTIONS = (200, 1871, 4743)
NOISES = (0, 1, 2, 3)
CORRELATIONS = (0.0, 0.5, 0.8)
IMPROVING = ("at the threshold", "in stairs of 3 probes", "slowing down to it")
FLATTENING = ("flat from the start", f"flat after {BEND} fast probes")
NEVER = PROBES + 1


@dataclass(frozen=True)
class Study:
    """A real training, taken apart.

    Attributes:
        levels: ``[Q]`` mean of the figure over the training.
        trends: ``[60, Q]`` smooth course of each question about its level, less what all have in common.
        fluctuations: ``[T, Q]`` remainder about that course at each real probe, less what all have in common.
        weights: ``[Q]`` comparisons.
        members: Questions of each cluster.
        spread: Standard deviation over questions of the figure at one probe.
        gain: Mean improvement from one probe to the next.
        noise: Standard deviation and neighbouring probes' correlation of the real remainder that all questions share.
    """

    levels: Array
    trends: Array
    fluctuations: Array
    weights: Array
    members: tuple[npt.NDArray[np.intp], ...]
    spread: float
    gain: float
    noise: tuple[float, float]


@dataclass(frozen=True)
class Cell:
    """One kind of history.

    Attributes:
        scenario: Course of the figure.
        questions: About as many.
        noise: Common noise, in standard errors of the figure at one probe.
        correlation: Of that noise, from one probe to the next.
        questions_only: Whether the rule's interval is to ignore common noise.
    """

    scenario: str
    questions: int
    noise: int
    correlation: float
    questions_only: bool = False


def train(folder: Path) -> None:
    """The embedded study's single stage with a probe every 20 steps."""
    config = yaml.safe_load((ROOT / "configs/single_stage_mini.yaml").read_text(encoding="utf-8"))
    callbacks = {callback["class_path"].rpartition(".")[2]: callback for callback in config["trainer"]["callbacks"]}
    probe = callbacks["S2SBenchCallback"]
    probe["init_args"] |= {"every_n_train_steps": 20, "dirpath": str(folder)}
    # One stage from start to end: nothing to freeze, and no checkpoint to keep.
    config["trainer"] |= {"callbacks": [probe], "logger": False, "enable_checkpointing": False}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "config.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        command = [sys.executable, str(ROOT / "recipes/two_stage.py"), "fit", "--config", str(path)]
        subprocess.run(command, check=True, cwd=scratch, env=dict(os.environ))


def take_apart(record: RunRecord) -> Study:
    """Levels, trends and fluctuations of the record's first set in S→T."""
    steps = [report.step for report in record.history()]
    name = next(iter(record.losses(steps[0])))
    tables = [record.losses(step)[name]["s2t"] for step in steps]
    values = np.stack([question_values(table, "lose", "positive_minus_negative") for table in tables])
    finite = np.isfinite(values).all(0)
    values = values[:, finite]
    moments = np.linspace(-1, 1, len(values))
    course = np.polynomial.legendre.legfit(moments, values, 5)
    smooth = np.polynomial.legendre.legval(np.linspace(-1, 1, PROBES), course).T
    remainder = values - np.polynomial.legendre.legval(moments, course).T
    common = remainder.mean(1)
    _, groups = np.unique(np.asarray(tables[0].groups)[finite], return_inverse=True)
    return Study(
        levels=values.mean(0),
        trends=(smooth - smooth.mean(0)) - (smooth - smooth.mean(0)).mean(1, keepdims=True),
        fluctuations=remainder - common[:, None],
        weights=compare(tables[0], "lose").count[finite].astype(np.float64),
        members=tuple(np.flatnonzero(groups == group) for group in range(groups.max() + 1)),
        spread=math.sqrt(values.var(1).mean()),
        gain=float(values[0].mean() - values[-1].mean()) / (len(values) - 1),
        noise=(float(common.std()), float(np.corrcoef(common[1:], common[:-1])[0, 1])),
    )


def improvement_so_far(scenario: str, draw: np.random.Generator) -> Array:
    """``[60]`` improvement since the first probe, in gains at the threshold."""
    probes = np.arange(PROBES, dtype=np.float64)
    courses = {
        "at the threshold": probes,
        "in stairs of 3 probes": 3.0 * ((probes + draw.integers(3)) // 3),
        "slowing down to it": probes + 20 * (1 - np.exp(-probes / 5)),
        "flat from the start": 0 * probes,
        f"flat after {BEND} fast probes": 5 * np.minimum(probes, BEND - 1),
    }
    return courses[scenario]


def autoregression(correlation: float, draw: np.random.Generator) -> Array:
    """``[60]`` of variance 1."""
    noise = draw.normal(size=PROBES)
    for probe in range(1, PROBES):
        noise[probe] = correlation * noise[probe - 1] + math.sqrt(1 - correlation**2) * noise[probe]
    return noise


def simulate(study: Study, cell: Cell, draw: np.random.Generator) -> StageHistory:
    """One history, with 1,000 steps from probe to probe."""
    clusters = draw.integers(len(study.members), size=round(cell.questions * len(study.members) / len(study.levels)))
    questions = np.concatenate([study.members[cluster] for cluster in clusters])
    groups = np.repeat(np.arange(len(clusters)), [len(study.members[cluster]) for cluster in clusters])
    rows = draw.integers(len(study.fluctuations), size=PROBES)
    own = (study.levels + study.trends + study.fluctuations[rows])[:, questions]
    common = cell.noise * study.spread / math.sqrt(len(questions)) * autoregression(cell.correlation, draw)
    values = own + (common - study.gain * improvement_so_far(cell.scenario, draw))[:, None]
    series = QuestionSeries(values, study.weights[questions], tuple(map(str, groups)))
    return StageHistory(0, tuple(range(1000, 1000 * PROBES + 1, 1000)), {"resampled": series})


def ends_at(rule: Plateau, history: StageHistory, until: int) -> int:
    """Probes after which the rule ends the stage, if it does within so many.

    Looks at what decides first: of ``patience`` looks in a row that agree, the number of one can be divided by ``patience``.
    """

    @cache
    def flat(probes: int) -> bool:
        return rule.is_flat(rule.rate(history.first(probes)))

    for charged in range(MIN_PROBES - 1 + rule.patience, until + 1, rule.patience):
        for last in range(charged, min(charged + rule.patience, until + 1)) if flat(charged) else ():
            if all(flat(last - back) for back in range(rule.patience)):
                assert rule.decide(history.first(last)).advance
                return last
    return NEVER


def measure(study: Study, cell: Cell, histories: int, seed: Sequence[int]) -> list[int]:
    """When the rule ends each of so many stages."""
    draw = np.random.default_rng(seed)
    rule = Plateau(min_gain=study.gain)
    until = EARLY_PROBES if cell.scenario in IMPROVING else PROBES
    with mock.patch.object(improvement, "noise_margin", return_value=0.0) if cell.questions_only else nullcontext():
        return [ends_at(rule, simulate(study, cell, draw), until) for _ in range(histories)]


def cells() -> Iterator[Cell]:
    noises = [(0, 0.0), *((noise, correlation) for noise in NOISES[1:] for correlation in CORRELATIONS)]
    for scenario in (*IMPROVING, *FLATTENING):
        for questions in QUESTIONS:
            for noise in noises:
                yield Cell(scenario, questions, *noise)
    for noise in noises:
        yield Cell(IMPROVING[0], QUESTIONS[1], *noise, questions_only=True)


def run_all(study: Study, histories: int, workers: int) -> dict[Cell, Array]:
    """When the rule ends the stages of every cell."""
    chunk = 50
    found: dict[Cell, list[int]] = {cell: [] for cell in cells()}
    with ProcessPoolExecutor(workers) as pool:
        tasks = [
            (cell, pool.submit(measure, study, cell, min(chunk, histories - begin), (number, begin)))
            for number, cell in enumerate(found)
            for begin in range(0, histories, chunk)
        ]
        for cell, task in tqdm(tasks, unit=f"x{chunk} histories", mininterval=2):
            found[cell] += task.result()
    return {cell: np.asarray(ends, dtype=np.float64) for cell, ends in found.items()}


def early(cell: Cell, ends: Array) -> tuple[float, float, float]:
    """Share of stages that were ended too early, with its 95 % interval."""
    last = BEND if cell.scenario == FLATTENING[1] else EARLY_PROBES
    share = proportion((ends <= last).astype(np.float64), np.ones(len(ends)), [str(number) for number in range(len(ends))])
    return share.value, share.low, share.high


def percent(share: tuple[float, float, float]) -> str:
    return f"{100 * share[0]:.1f} [{100 * share[1]:.1f}, {100 * share[2]:.1f}]"


def print_table(title: str, first: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    header = [*first, *(f"{noise} SE" for noise in NOISES)]
    print(f"\n{title}\n")
    for row in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(row)} |")


def print_early(found: dict[Cell, Array]) -> list[bool]:
    """The worst correlation of each kind; and whether each cell is within the limit."""
    rows, good = [], []
    for scenario in (*IMPROVING, FLATTENING[1]):
        for questions in QUESTIONS:
            row = [scenario, f"{questions:,}"]
            for noise in NOISES:
                shares = [early(cell, ends) for cell, ends in found.items() if cell == Cell(scenario, questions, noise, cell.correlation)]
                good += [share[0] <= LIMIT for share in shares]
                row.append(percent(max(shares)))
            rows.append(row)
    print_table(
        f"Stages ended too early, % [95 % interval], by common noise; the worst of the correlations {CORRELATIONS}; "
        f"within {EARLY_PROBES} probes, or before the bend; limit {100 * LIMIT:g}",
        ("course", "questions"),
        rows,
    )
    return good


def delay(ends: Array) -> str:
    return " / ".join("never" if probes >= NEVER else f"{probes:.0f}" for probes in np.quantile(ends, (0.5, 0.9), method="higher"))


def print_delays(found: dict[Cell, Array]) -> None:
    rows = []
    for scenario in FLATTENING:
        for questions in QUESTIONS:
            for correlation in CORRELATIONS:
                row = [scenario, f"{questions:,}", f"{correlation:g}"]
                for noise in NOISES:
                    ends = found[Cell(scenario, questions, noise, correlation if noise else 0.0)]
                    since = BEND if scenario == FLATTENING[1] else 0
                    row.append(delay(np.where(ends < NEVER, ends - since, NEVER)))
                rows.append(row)
    print_table(
        f"Probes from where a stage is flat to where it is ended, median / 90 %, by common noise; never: not within {PROBES} probes",
        ("course", "questions", "correlation"),
        rows,
    )


def print_questions_only(found: dict[Cell, Array]) -> None:
    rows = []
    for correlation in CORRELATIONS:
        kinds = [Cell(IMPROVING[0], QUESTIONS[1], noise, correlation if noise else 0.0, questions_only=True) for noise in NOISES]
        rows.append([f"{correlation:g}", *(percent(early(cell, found[cell])) for cell in kinds)])
    print_table(
        f"For comparison: stages ended too early by an interval that knows only the questions; {IMPROVING[0]}, {QUESTIONS[1]:,} questions",
        ("correlation",),
        rows,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="folder with probes.jsonl and losses/; by default the embedded study is trained, once")
    parser.add_argument("--histories", type=int, default=400, help="of each kind")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    study = take_apart(RunRecord(arguments.record or made_once(cache_folder() / "plateau-record-v1", train)))
    print(f"{len(study.levels)} questions over {len(study.fluctuations)} probes; spread over questions {study.spread:.3f} nats per token")
    for questions in QUESTIONS:
        print(f"a standard error at {questions:,} questions: {study.spread / math.sqrt(questions) / study.gain:.2f} min_gain a probe")
    print(f"min_gain {study.gain:.4f} a probe, the study's mean improvement")
    own = study.noise[0] * math.sqrt(len(study.levels)) / study.spread
    print(f"the study's own common noise: {own:.2f} standard errors, correlation {study.noise[1]:.2f}")
    found = run_all(study, arguments.histories, arguments.workers)
    good = print_early(found)
    print_delays(found)
    print_questions_only(found)
    print(f"\n{sum(good)} of {len(good)} within the limit")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
