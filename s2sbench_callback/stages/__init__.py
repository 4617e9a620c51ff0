"""Stages of the training: what learns in each, when the next begins, and how the change is carried out."""

from s2sbench_callback.stages.dry_run import dry_run
from s2sbench_callback.stages.stage import Stage, single_stage, two_stage
from s2sbench_callback.stages.unfreeze import StageUnfreeze

__all__ = ["Stage", "StageUnfreeze", "dry_run", "single_stage", "two_stage"]
