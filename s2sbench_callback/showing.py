"""What there is to show of a probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from s2sbench_callback.flips import Flip
from s2sbench_callback.report import ProbeReport


@dataclass(frozen=True)
class Showing:
    """A probe, ready for the loggers.

    Attributes:
        history: The reports of the run so far, this one last.
        picture: The panels so far, ``[H, W, 3]``.
        flips: Questions that changed sides since the probe before, by set and condition.
        alarms: What calls for a person.
        first: Whether this is the first probe sent by this process, when dashboards are laid out.
    """

    history: Sequence[ProbeReport]
    picture: npt.NDArray[np.uint8]
    flips: Sequence[Sequence[Flip]]
    alarms: Sequence[str]
    first: bool

    @property
    def report(self) -> ProbeReport:
        """The probe itself."""
        return self.history[-1]
