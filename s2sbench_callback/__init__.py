"""Watches, while a speech LM trains, how much of its text intelligence it loses by hearing instead of reading."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from s2sbench_callback.benchmarks import mini, official, spoken_story_cloze
    from s2sbench_callback.callback import S2SBenchCallback
    from s2sbench_callback.guard import Guard
    from s2sbench_callback.items import Benchmark, Item
    from s2sbench_callback.plateau import Plateau
    from s2sbench_callback.report import ProbeReport
    from s2sbench_callback.stages import Stage, StageUnfreeze, dry_run, single_stage, two_stage

__all__ = [
    "Benchmark",
    "Guard",
    "Item",
    "Plateau",
    "ProbeReport",
    "S2SBenchCallback",
    "Stage",
    "StageUnfreeze",
    "dry_run",
    "mini",
    "official",
    "single_stage",
    "spoken_story_cloze",
    "two_stage",
]

_HOMES = {
    "benchmarks": ("mini", "official", "spoken_story_cloze"),
    "callback": ("S2SBenchCallback",),
    "guard": ("Guard",),
    "items": ("Benchmark", "Item"),
    "plateau": ("Plateau",),
    "report": ("ProbeReport",),
    "stages": ("Stage", "StageUnfreeze", "dry_run", "single_stage", "two_stage"),
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for, since Lightning and transformers take seconds that many commands and every worker process can do without."""
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
