"""What there is to show of a probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from s2sbench_callback.flips import Flip
from s2sbench_callback.report import PREFIX, ProbeReport


@dataclass(frozen=True)
class Showing:
    """A probe, ready for the loggers.

    Attributes:
        history: The reports of the run so far, this one last.
        picture: The panels so far, ``[H, W, 3]``.
        flips: Questions that changed sides since the probe before, by set and condition.
        alarms: Sets that call for a person, each with a sentence.
        first: Whether this is the first probe sent by this process, when dashboards are laid out.
        resumed_at: Step that this process went on from, in a resumed run.
        place: Number from 0 of the callback that probed, among those of its trainer.
    """

    history: Sequence[ProbeReport]
    picture: npt.NDArray[np.uint8]
    flips: Sequence[Sequence[Flip]]
    alarms: Mapping[str, str]
    first: bool
    resumed_at: int | None = None
    place: int = 0

    @property
    def report(self) -> ProbeReport:
        """The probe itself."""
        return self.history[-1]

    def key(self, name: str) -> str:
        """Where something goes that every callback of a trainer has one of; figures are told apart by their sets."""
        return f"{PREFIX}/{name}_probe{self.place + 1}" if self.place else f"{PREFIX}/{name}"
