"""Does the paper's finding show in the embedded world: is S→T better after two stages than after one of the same length?

Trains both configs with several seeds, then compares the last probes question by question. Run it with
``python benchmarks/two_stage_study.py``; finished trainings are kept in ``--folder`` and not run again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tqdm import tqdm

from s2sbench_callback.comparison import compare
from s2sbench_callback.comparison_text import text
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import ProbeReport
from s2sbench_callback.sides import read_probe

ROOT = Path(__file__).parents[1]
STRATEGIES = ("single_stage", "two_stage")


def main() -> None:
    """Runs what is missing and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each strategy")
    parser.add_argument("--steps", type=int, default=1200, help="optimizer steps of each training")
    parser.add_argument("--workers", type=int, default=2, help="trainings at the same time, one core each")
    parser.add_argument("--folder", type=Path, default=None, help="where records are kept; a temporary folder by default")
    chosen = parser.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="two_stage_study_"))
    runs = [(strategy, seed) for seed in range(1, chosen.seeds + 1) for strategy in STRATEGIES]
    with ThreadPoolExecutor(chosen.workers) as pool, tqdm(total=len(runs), desc="trainings") as bar:
        for future in [pool.submit(train, strategy, seed, chosen.steps, folder) for strategy, seed in runs]:
            future.result()
            bar.update()
    records = {(strategy, seed): RunRecord(folder / f"{strategy}_{seed}") for strategy, seed in runs}
    print(table(records))
    print()
    print(verdict(records, chosen.seeds))


def train(strategy: str, seed: int, steps: int, folder: Path) -> None:
    """One training in a process of its own, unless its record is complete."""
    record = RunRecord(folder / f"{strategy}_{seed}")
    if record.history() and record.history()[-1].step >= steps:
        return
    content: dict[str, Any] = yaml.safe_load((ROOT / "configs" / f"{strategy}_mini.yaml").read_text())
    content["seed_everything"] = seed
    content["data"]["init_args"]["seed"] = seed
    content["trainer"] |= {"max_steps": steps, "logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "accelerator": "cpu"}
    callbacks = [callback for callback in content["trainer"]["callbacks"] if not callback["class_path"].endswith("ModelCheckpoint")]
    for callback in callbacks:
        if callback["class_path"].endswith("S2SBenchCallback"):
            callback["init_args"] |= {"dirpath": str(record.dirpath), "every_n_train_steps": 40}
    content["trainer"]["callbacks"] = callbacks
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / f"{strategy}_{seed}.yaml"
    config.write_text(yaml.safe_dump(content))
    command = [sys.executable, str(ROOT / "recipes" / "two_stage.py"), "fit", "--config", str(config)]
    # A folder of its own: LightningCLI leaves its config where it runs.
    place = folder / f"{strategy}_{seed}_run"
    place.mkdir(exist_ok=True)
    with (folder / f"{strategy}_{seed}.log").open("w") as log:
        done = subprocess.run(command, cwd=place, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    if done.returncode:
        raise RuntimeError(f"{strategy}, seed {seed}, ended with {done.returncode}; its last words are in {folder / f'{strategy}_{seed}.log'}")


def table(records: dict[tuple[str, int], RunRecord]) -> str:
    """What each training ended with."""
    headings = ("strategy", "seed", "S→T accuracy", "S→T positive minus negative", "T→T accuracy", "mean S→T accuracy over the run")
    headings += ("lowest T→T accuracy", "stage 2 from step")
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for (strategy, seed), record in records.items():
        history = record.history()
        last = history[-1]
        began = next((str(report.verdict.stage_since) for report in history if report.verdict and report.verdict.stage == 2), "–")
        cells = [
            _cell(last, "s2t/accuracy"),
            _cell(last, "s2t/positive_minus_negative"),
            _cell(last, "t2t/accuracy"),
            f"{_over_the_run(history):.3f}",
            f"{min(report.figure('mini', 't2t', 'accuracy').value for report in history):.3f}",
        ]
        lines.append(f"| {strategy.replace('_', ' ')} | {seed} | {' | '.join(cells)} | {began} |")
    return "\n".join(lines)


def verdict(records: dict[tuple[str, int], RunRecord], seeds: int) -> str:
    """Two stages against one on the same questions at the last probe, pooled over seeds."""
    return text(compare(*([read_probe(records[strategy, seed]) for seed in range(1, seeds + 1)] for strategy in STRATEGIES)))


def _cell(report: ProbeReport, key: str) -> str:
    condition, figure = key.split("/")
    estimate = report.figure("mini", condition, figure)  # type: ignore[arg-type]
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _over_the_run(history: list[ProbeReport]) -> float:
    return float(np.mean([report.figure("mini", "s2t", "accuracy").value for report in history]))


if __name__ == "__main__":
    main()
