"""What learns in which stretch of the training, and what ends it: plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from s2sbench_callback.adapters import Role, Rows
from s2sbench_callback.plateau import Plateau

Part = str | Rows

ROLES: tuple[str, ...] = get_args(Role)


@dataclass(frozen=True)
class Stage:
    """A stretch of training in which some parts of the model learn and all others are frozen.

    A part is a role of the adapter (``audio_embedding``, ``audio_head``, ``lm_embedding``, ``lm_head``, ``lm_body``, ``frontend``), a pattern of
    parameter names in the LightningModule or in the language model (``*.layers.2?.*``), or :class:`Rows` of a matrix. A role with a ``?`` behind
    it may have no parameters: models that only write have no ``audio_head``. Parameters outside the language model are left as they are, unless
    a pattern of any stage reaches them.

    A stage ends at the first of ``steps``, ``tokens`` and ``until`` that comes true, or by hand; the last one never does.

    Attributes:
        name: For prints and reports.
        train: Parts that learn.
        freeze: Parts among them that do not.
        lr: Learning rate of all that learns, or by part, where a later one overrides an earlier one; schedulers follow the same curve, scaled.
            The optimizer's own by default.
        steps: Optimizer steps that the stage lasts.
        tokens: Tokens, over all ranks, that the stage lasts.
        until: The rule that decides from the probes, or ``hand`` where only an operator does.
        warm_up_steps: Optimizer steps over which the rate of what newly learns rises from near 0.
        schedulers: Whether the learning rate schedulers ``continue`` or ``restart`` when the stage begins.
        frozen_in_eval: Whether modules that do not learn go to eval mode: no dropout, fixed norm statistics.

    Raises:
        ValueError: If a setting is out of range.
    """

    name: str
    train: Sequence[Part]
    freeze: Sequence[Part] = ()
    lr: float | Mapping[str, float] | None = None
    steps: int | None = None
    tokens: int | None = None
    until: Plateau | Literal["hand"] | None = None
    warm_up_steps: int = 0
    schedulers: Literal["continue", "restart"] = "continue"
    frozen_in_eval: bool = False

    def __post_init__(self) -> None:
        for setting in ("train", "freeze"):
            value = getattr(self, setting)
            if isinstance(value, str):
                raise ValueError(f"stage {self.name!r}: {setting} is a list of parts; write {setting}=[{value!r}]")
        if not self.train:
            raise ValueError(f"stage {self.name!r}: train is empty, so nothing would learn; name roles or patterns of parameter names")
        for part in (*self.train, *self.freeze):
            if isinstance(part, str) and part not in ROLES and not set(part) & set(".*?["):
                raise ValueError(
                    f"stage {self.name!r}: unknown role {part!r}; the roles are {', '.join(ROLES)}, and patterns of parameter names have a '.' or '*'"
                )
        if isinstance(self.lr, Mapping):
            unknown = [part for part in self.lr if part not in ROLES and not set(part) & set(".*?[")]
            if unknown:
                raise ValueError(
                    f"stage {self.name!r}: lr names {unknown[0]!r}, which is no role ({', '.join(ROLES)}) and no pattern of parameter names"
                )
        rates = list(self.lr.values()) if isinstance(self.lr, Mapping) else [] if self.lr is None else [self.lr]
        # Written so that NaN is refused as well.
        bad = [rate for rate in rates if not 0 < rate < math.inf]
        if bad:
            raise ValueError(f"stage {self.name!r}: a learning rate must be above 0 and finite, got {bad[0]}; what must not learn belongs in freeze")
        for setting in ("steps", "tokens"):
            value = getattr(self, setting)
            if value is not None and value < 1:
                raise ValueError(f"stage {self.name!r}: {setting} must be at least 1, got {value}")
        if self.warm_up_steps < 0:
            raise ValueError(f"stage {self.name!r}: warm_up_steps must be at least 0, got {self.warm_up_steps}")
        if self.schedulers not in ("continue", "restart"):
            raise ValueError(f"stage {self.name!r}: schedulers must be 'continue' or 'restart', got {self.schedulers!r}")
        if isinstance(self.until, str) and self.until != "hand":
            raise ValueError(f"stage {self.name!r}: until must be a Plateau or 'hand', got {self.until!r}")

    @property
    def has_an_end(self) -> bool:
        """Whether anything is named that ends the stage."""
        return any(end is not None for end in (self.steps, self.tokens, self.until))

    @property
    def end(self) -> str:
        """What ends the stage, in words."""
        ends = [f"{self.steps:,} steps"] if self.steps else []
        ends += [f"{self.tokens:,} tokens"] if self.tokens else []
        if isinstance(self.until, Plateau):
            limit = f", at most {self.until.max_steps:,} steps" if self.until.max_steps else ""
            ends.append(f"plateau of {self.until.condition} {self.until.figure}, min_gain {self.until.min_gain:g}{limit}")
        ends += ["by hand"] if self.until == "hand" else []
        return " or ".join(ends) or "with the training"


def refuse_plan(stages: Sequence[Stage]) -> None:
    """Sees to it that something ends each stage but the last.

    Raises:
        ValueError: If there is no stage, or one has no end or an end that nothing comes after.
    """
    if not stages:
        raise ValueError("StageUnfreeze needs at least one stage, for example two_stage(first_steps=2000)")
    for stage in stages[:-1]:
        if not stage.has_an_end:
            raise ValueError(f"stage {stage.name!r} is not the last, so something must end it: steps, tokens, until=Plateau(), or until='hand'")
    if stages[-1].has_an_end:
        raise ValueError(f"stage {stages[-1].name!r} is the last, so nothing comes after its {stages[-1].end}; leave its end to the trainer")


def two_stage(
    first_steps: int | None = None,
    until: Plateau | None = None,
    lr: float | None = None,
    lm_lr: float | None = None,
    warm_up_steps: int = 0,
) -> list[Stage]:
    """The paper's two stages: audio embedding and head alone, then all but the LM's text embedding and head.

    Of a model that hears through a projector and only writes, the projector alone learns in the first.

    Args:
        first_steps: Optimizer steps of the first stage; by default the probe decides.
        until: The rule by which it decides.
        lr: Learning rate of audio embedding and audio head in both stages; the optimizer's own by default.
        lm_lr: Learning rate of the language model in the second.
        warm_up_steps: Steps over which the language model's rate rises once it learns.
    """
    audio = ("audio_embedding", "audio_head?")
    rates: dict[str, float] = {**({} if lr is None else dict.fromkeys(audio, lr)), **({} if lm_lr is None else {"lm_body": lm_lr})}
    return [
        Stage("audio parts", audio, lr=lr, steps=first_steps, until=until or (Plateau() if first_steps is None else None)),
        Stage("language model too", (*audio, "lm_body"), lr=rates or None, warm_up_steps=warm_up_steps),
    ]


def single_stage(lr: float | None = None) -> list[Stage]:
    """The paper's other strategy: everything but the speech tokenizer from the start.

    Args:
        lr: Learning rate of everything; the optimizer's own by default.
    """
    return [Stage("everything", ("audio_embedding?", "audio_head?", "lm_embedding?", "lm_head?", "lm_body"), lr=lr)]
