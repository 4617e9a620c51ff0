"""Stories read aloud by a small offline synthesiser.

Speed and noise seed differ from rendering to rendering, so that no waveform can be memorised.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from hibari import Hibari

SAMPLE_RATE = 24_000
SLOWEST, FASTEST = 1.15, 1.55


class Voice:
    """The English voice of ``hibari-tts``, loaded once.

    Raises:
        ModuleNotFoundError: If the synthesiser is not installed.
    """

    def __init__(self) -> None:
        try:
            from hibari import Hibari
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "the embedded benchmark speaks with hibari-tts, which is not installed: pip install 's2sbench_callback[demo]'",
                name="hibari",
            ) from error
        self._synthesiser: Hibari = Hibari(threads=1)

    def speak(self, text: str, speed: float, seed: int) -> npt.NDArray[np.float32]:
        """Reads a text aloud.

        Args:
            text: One or more sentences.
            speed: Pace, 1.0 is the voice's own.
            seed: Decides the noise; the same text, speed and seed give the same samples.

        Returns:
            Mono samples in [-1, 1] at 24 kHz, ``[N]``.
        """
        return np.asarray(self._synthesiser(text, speed=speed, seed=seed), dtype=np.float32)

    def speak_at_random_speed(self, text: str, seed: int) -> npt.NDArray[np.float32]:
        """The same, with the speed drawn from the seed too."""
        return self.speak(text, random.Random(f"speed {seed}").uniform(SLOWEST, FASTEST), seed)
