"""``s2sbench score``: asks benchmarks of saved models, outside training."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence

import torch.distributed as dist
from jsonargparse import ArgumentParser, Namespace
from safetensors import SafetensorError
from tqdm.auto import tqdm

from s2sbench_callback.checkpoints import BrokenCheckpoint, Checkpoint, find_checkpoints
from s2sbench_callback.commands.saved import Saved, add_arguments, chosen_probe, join_the_others, say, with_training
from s2sbench_callback.outcome import outcome
from s2sbench_callback.prompts import DEFAULT_CONDITIONS
from s2sbench_callback.ranks import ProbeError
from s2sbench_callback.record import RunRecord
from s2sbench_callback.report import PREFIX
from s2sbench_callback.score import score
from s2sbench_callback.systems import System

_DESCRIPTION = """\
Asks benchmarks of saved models: of the checkpoints of a run, of Hugging Face folders, or of a system of configs/table1.

examples:
  s2sbench score 'runs/mine/version_0/checkpoints/*.ckpt'               # the run's config.yaml is found beside them
  s2sbench score 'ckpt_*_*_*' --config runs/mine/config.yaml --plot true
  torchrun --nproc-per-node 8 -m s2sbench_callback score /models/Qwen2.5-7B --benchmarks sets.yaml --conditions [t2t]
  s2sbench score --config configs/table1/qwen2_5.yaml

exit status:
  0  all scored, or scored before
  1  a checkpoint was broken; the rest was scored
  2  nothing could be scored
"""


def score_parser() -> ArgumentParser:
    """The arguments of ``s2sbench score``, which ``configs/table1`` are written in."""
    parser = ArgumentParser(prog="s2sbench score", description=_DESCRIPTION)
    parser.add_argument("checkpoints", nargs="*", type=str, default=[], help="files, folders or quoted globs")
    parser.add_argument("--config", action="config", help="a YAML file with these arguments, or a run's config.yaml")
    # Made in this order, so that a fault in a set shows before gigabytes of weights are read.
    add_arguments(parser)
    parser.add_argument("--system", type=System, default=None, help="a loader of s2sbench_callback.systems and its arguments")
    parser.add_argument("--step", type=int | None, default=None, help="number of a checkpoint that does not say it")
    parser.add_argument("--again", type=bool, default=False, help="score what the record has already")
    parser.add_argument("--plot", type=bool, default=True, help="draw the panels")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--published",
        type=dict[str, float] | None,
        default=None,
        help="published accuracies in percent by <set>/<condition>, to print beside what was found",
    )
    return parser


def run(arguments: list[str]) -> int:
    """Asks, writes the record and prints what came out.

    Args:
        arguments: Checkpoints and options, or ``--config configs/table1/qwen2_5.yaml``.

    Returns:
        1 where a checkpoint was broken, else 0.

    Raises:
        ValueError: If nothing could be scored.
    """
    parser = score_parser()
    parsed = parser.parse_args(with_training(arguments))
    try:
        chosen = parser.instantiate(parsed)
    except (RuntimeError, SafetensorError) as error:
        raise ValueError(f"the system's weights cannot be loaded: {error}") from error
    if chosen.system is not None:
        if chosen.checkpoints:
            raise ValueError("give checkpoints, or a system with weights of its own, not both")
        join_the_others()
        record = _score_system(chosen)
        if int(os.environ.get("RANK", "0")) == 0:
            _show(chosen, record, {}, [chosen.step or 0])
        if dist.is_initialized():
            dist.destroy_process_group()
        return 0
    if not chosen.checkpoints:
        raise ValueError("nothing to score: name checkpoints, or a config of configs/table1")
    checkpoints = find_checkpoints(chosen.checkpoints)
    saved = chosen_probe(chosen, checkpoints[0].path)
    broken: dict[str, str] = {}
    by_step = _by_step(checkpoints, chosen.step, saved.trust, broken)
    done = _score_all(saved, by_step, chosen.again, broken)
    if chosen.plot and saved.probe.record.history():
        saved.probe.draw()
    if saved.probe.ranks.rank == 0:
        for why in broken.values():
            say(f"s2sbench score: {why}")
        if len(broken) == len(checkpoints):
            raise ValueError("none of the checkpoints could be scored")
        _show(chosen, saved.probe.record, broken, done)
    if dist.is_initialized():
        dist.destroy_process_group()
    return int(bool(broken))


def _score_system(chosen: Namespace) -> RunRecord:
    if not chosen.benchmarks or not chosen.dirpath:
        raise ValueError("a system needs benchmarks and dirpath too")
    keys = ("benchmarks", "dirpath", "device", "max_questions", "max_tokens", "packed", "cache_dir")
    arguments = {key: chosen[key] for key in keys}
    return score(chosen.system, conditions=chosen.conditions or DEFAULT_CONDITIONS, step=chosen.step or 0, **arguments)


def _by_step(checkpoints: Sequence[Checkpoint], step: int | None, trust: bool, broken: dict[str, str]) -> dict[int, Checkpoint]:
    """One checkpoint a step, in the order of steps."""
    if step is not None and len(checkpoints) > 1:
        raise ValueError(f"--step {step} is for one checkpoint, and there are {len(checkpoints)}")
    found: dict[int, Checkpoint] = {}
    for checkpoint in sorted(checkpoints, key=lambda each: (each.path.stem.startswith("last"), str(each.path))):
        try:
            number = checkpoint.step(trust) if step is None else step
        except BrokenCheckpoint as error:
            broken[str(checkpoint.path)] = str(error)
            continue
        if number in found:
            say(f"{checkpoint.path} is left out: it is of step {number}, like {found[number].path}")
        else:
            found[number] = checkpoint
    return dict(sorted(found.items()))


def _score_all(saved: Saved, by_step: dict[int, Checkpoint], again: bool, broken: dict[str, str]) -> list[int]:
    """Scores what is not yet in the record, notes what is broken, and says which steps are done."""
    probe, scored = saved.probe, []
    shows = probe.ranks.rank == 0
    with tqdm(by_step.items(), desc="checkpoints", unit="checkpoint", disable=not shows) as bar:
        for step, checkpoint in bar:
            bar.set_postfix_str(checkpoint.path.name)
            if not again and probe.ranks.broadcast(str(probe.is_done(step, checkpoint))) == "True":
                if shows:
                    bar.write(f"{checkpoint.path} is in the record already; --again true scores it anew", file=sys.stderr)
                continue
            try:
                # The default argument binds this round's checkpoint.
                system = probe.ranks.together(lambda checkpoint=checkpoint: saved.loader(checkpoint), f"while loading {checkpoint.path}")  # type: ignore[misc]
                probe.ask(system, step, checkpoint, shows)
            except (BrokenCheckpoint, FloatingPointError, ProbeError) as error:
                broken[str(checkpoint.path)] = str(error)
                continue
            scored.append(step)
    return scored


def _show(chosen: Namespace, record: RunRecord, broken: dict[str, str], scored: Sequence[int]) -> None:
    history = record.history()
    if chosen.json:
        probes = [
            {"step": each.step, "metrics": {key: value if math.isfinite(value) else None for key, value in each.metrics.items()}} for each in history
        ]
        content = {"record": str(record.dirpath), "scored": list(scored), "broken": broken, "probes": probes}
        print(json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2))
        return
    print(outcome(record))
    for key, percent in (chosen.published or {}).items():
        found = history[-1].metrics.get(f"{PREFIX}/{key}/accuracy")
        print(f"{key:<28}published {percent:.1f} %, found " + (f"{100 * found:.1f} %" if found is not None else "nothing: not asked"))
