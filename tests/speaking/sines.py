"""A callable voice for tests: a tone whose length follows the text and whose pitch follows the seed."""

from __future__ import annotations

import numpy as np

calls: list[str] = []


def speak(text: str, language: str, seed: int) -> tuple[np.ndarray, int]:
    calls.append(text)
    if "unspeakable" in text:
        raise RuntimeError("the engine gave up")
    if "silence" in text:
        return np.zeros(16_000, dtype=np.float32), 16_000
    seconds = np.arange(800 * len(text)) / 16_000
    return (0.02 * np.sin(2 * np.pi * (200 + seed % 400) * seconds)).astype(np.float32), 16_000
