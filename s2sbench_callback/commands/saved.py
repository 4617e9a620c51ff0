"""What ``score`` and ``watch`` are told alike: which model, which questions, where to."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from jsonargparse import ArgumentParser, Namespace

from s2sbench_callback.controls import Control
from s2sbench_callback.items import Benchmark
from s2sbench_callback.probe import Probe
from s2sbench_callback.prompts import DEFAULT_CONDITIONS, Condition
from s2sbench_callback.saved_models import HuggingFace, Loader, Rebuilt, from_config, from_function, max_steps, training_config
from s2sbench_callback.score import SavedProbe
from s2sbench_callback.systems import Precision

_CONFIG = "config.yaml"


@dataclass(frozen=True)
class Saved:
    """What was chosen.

    Attributes:
        probe: Asks.
        loader: Gives the model of each checkpoint.
        trust: Whether checkpoints may hold objects besides tensors and plain data.
        max_steps: Steps after which the training ends, where its config says so.
    """

    probe: SavedProbe
    loader: Loader
    trust: bool
    max_steps: int | None


def add_arguments(parser: ArgumentParser) -> None:
    """Model, questions and places.

    Args:
        parser: Gets the arguments.
    """
    parser.add_argument("--model", type=str | None, default=None, help="dotted path of a function without arguments that makes the model")
    parser.add_argument("--training", type=str | None, default=None, help="config.yaml of the run; --config finds out by itself that it is one")
    parser.add_argument("--dtype", type=Precision, default="bfloat16", help="precision of Hugging Face weights")
    parser.add_argument("--benchmarks", type=list[Benchmark], default=[], help="the sets; by default those of the config's probe")
    parser.add_argument("--conditions", type=list[Condition] | None, default=None, help="by default those of the config's probe")
    parser.add_argument("--controls", type=list[Control] | None, default=None, help="changed sets to be asked besides")
    parser.add_argument(
        "--dirpath", type=str | None, default=None, help="folder of the record; s2sbench_scored beside config or checkpoints by default"
    )
    parser.add_argument("--reference", type=str | None, default=None, help="record whose first T→T is held against; by default this one's")
    parser.add_argument("--device", type=str, default="auto", help="for example cuda:1; by default a GPU where there is one")
    parser.add_argument("--max_questions", type=int | None, default=None, help="questions per set")
    parser.add_argument("--max_tokens", type=int | None, default=None, help="positions in one forward")
    parser.add_argument("--packed", type=bool, default=True, help="whether candidates share the computation of their context")
    parser.add_argument("--cache_dir", type=str | None, default=None, help="where audio tokens are kept")
    parser.add_argument("--trust", type=bool, default=False, help="read checkpoints that hold Python objects, which can run any code")


def with_training(arguments: list[str]) -> list[str]:
    """The same words, where ``--config`` names a run's LightningCLI config, with ``--training``.

    Args:
        arguments: As typed.
    """
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    for place, word in enumerate(words[:-1]):
        if word == "--config" and training_config(Path(words[place + 1])) is not None:
            words[place] = "--training"
    return words


def chosen_probe(chosen: Namespace, first: Path) -> Saved:
    """Puts together what the arguments say.

    Args:
        chosen: What :func:`add_arguments` gave.
        first: A checkpoint, or the folder they are in: the run's config is looked for beside it and above.

    Raises:
        ValueError: If the arguments contradict each other or do not suffice.
    """
    if chosen.model and chosen.training:
        raise ValueError("give --model or the run's config, not both")
    config = Path(chosen.training) if chosen.training else None if chosen.model else _config_near(first)
    loader: Loader
    asked, precision, steps = None, None, None
    if config:
        loader, asked = from_config(config, chosen.trust)
        content = training_config(config) or {}
        steps = max_steps(content)
        precision = str(trainer["precision"]) if isinstance(trainer := content.get("trainer"), dict) and trainer.get("precision") else None
    else:
        loader = from_function(chosen.model, chosen.trust) if chosen.model else HuggingFace(chosen.dtype)
    benchmarks = chosen.benchmarks or (list(asked.probe.benchmarks.values()) if asked else None)
    if not benchmarks:
        raise ValueError("no benchmarks: name them with --benchmarks, or give a run's config with a S2SBenchCallback")
    conditions = chosen.conditions or (asked.probe.conditions if asked else DEFAULT_CONDITIONS)
    max_questions = chosen.max_questions or (asked.max_questions if asked else None)
    max_tokens = chosen.max_tokens or (asked.probe.max_tokens if asked else None)
    place = Path(chosen.dirpath) if chosen.dirpath else (config.parent if config else first.parent) / "s2sbench_scored"
    join_the_others()
    probe = SavedProbe(
        Probe(benchmarks, conditions, max_questions, max_tokens, chosen.cache_dir, chosen.packed and (asked.probe.packed if asked else True)),
        place,
        chosen.device,
        Path(chosen.reference) if chosen.reference else None,
        chosen.controls or (),
        precision,
        max_questions,
        asked.weights if asked and isinstance(loader, Rebuilt) else "current",
    )
    return Saved(probe, loader, chosen.trust, steps)


def say(words: str) -> None:
    """Tells the person at the terminal; never what a pipe reads."""
    print(words, file=sys.stderr)


def _config_near(path: Path) -> Path | None:
    for folder in [path, *path.parents][:4]:
        config = folder / _CONFIG
        if config.is_file() and training_config(config) is not None:
            return config
    return None


def join_the_others() -> None:
    """The processes that ``torchrun`` has started, one a GPU."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
