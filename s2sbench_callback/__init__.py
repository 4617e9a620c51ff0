"""Watches, while a speech LM trains, how much of its text intelligence it loses by hearing instead of reading."""

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
