"""Watches, while a speech LM trains, how much of its text intelligence it loses by hearing instead of reading."""

from s2sbench_callback.benchmarks import mini, official
from s2sbench_callback.callback import S2SBenchCallback
from s2sbench_callback.items import Benchmark, Item
from s2sbench_callback.report import ProbeReport
from s2sbench_callback.stages import Stage, StageUnfreeze, single_stage, two_stage

__all__ = ["Benchmark", "Item", "ProbeReport", "S2SBenchCallback", "Stage", "StageUnfreeze", "mini", "official", "single_stage", "two_stage"]
