"""The probe that stages are decided from."""

from __future__ import annotations

from collections.abc import Sequence

import lightning.pytorch as pl
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from s2sbench_callback.callback import S2SBenchCallback
from s2sbench_callback.guard import Guard
from s2sbench_callback.lightning_run import callbacks_of
from s2sbench_callback.plateau import Plateau
from s2sbench_callback.stages.stage import Stage


def probe_to_follow(trainer: pl.Trainer, stages: Sequence[Stage], guard: Guard | None) -> S2SBenchCallback | None:
    """The trainer's first probe; ``None`` where there is none and nothing is decided from it.

    Args:
        trainer: Holds the callbacks.
        stages: Their rules look at the probe.
        guard: So does it.

    Raises:
        MisconfigurationException: If a rule or the guard looks at what is not probed.
    """
    probes = callbacks_of(trainer, S2SBenchCallback)
    rules = [(stage.name, stage.until) for stage in stages if isinstance(stage.until, Plateau)]
    if not probes:
        needs = f"stage {rules[0][0]!r} ends by a Plateau" if rules else "a guard watches T→T" if guard else None
        if needs:
            raise MisconfigurationException(f"{needs}, so the trainer needs an S2SBenchCallback to decide from")
        return None
    probe = probes[0].probe
    for name, rule in rules:
        if rule.condition not in probe.conditions:
            raise MisconfigurationException(f"stage {name!r} decides from {rule.condition}, which the probe does not ask; add it to its conditions")
        unknown = [each for each in rule.sets or () if each not in probe.benchmarks]
        if unknown:
            raise MisconfigurationException(f"stage {name!r} decides from the set {unknown[0]!r}, and the probe asks {', '.join(probe.benchmarks)}")
    if guard and "t2t" not in probe.conditions:
        raise MisconfigurationException("the guard watches T→T, which the probe does not ask; add 't2t' to its conditions")
    return probes[0]
