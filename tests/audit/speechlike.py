"""Recordings for tests that are like speech where the audit measures: a burst a word, whose spectrum is the word's, between two short silences."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

RATE = 16_000
Samples = npt.NDArray[np.float64]
# What each waveform says, for a recogniser that never errs.
said: dict[bytes, str] = {}


def say(text: str, reading: int = 0, pace: float = 1.0, rate: int = RATE) -> Samples:
    """A reading of a text; readings of the same text differ in their noise and a little in pace."""
    chance = np.random.default_rng(reading)
    silence = int(0.15 * rate)
    parts = [np.zeros(silence)]
    for word in text.lower().split():
        of_word = np.random.default_rng(int.from_bytes(hashlib.blake2b(word.strip(".,!?").encode(), digest_size=4).digest(), "big"))
        seconds = np.arange(int(rate * (0.2 + 0.02 * len(word)) / pace * (1 + 0.05 * chance.random()))) / rate
        tones = sum(np.sin(2 * np.pi * of_word.uniform(150, 3_800) * seconds + chance.uniform(0, 6)) * of_word.uniform(0.3, 1) for _ in range(4))
        envelope = np.sin(np.pi * np.arange(len(seconds)) / len(seconds))
        parts += [0.05 * tones * envelope, np.zeros(int(0.04 * rate))]
    parts.append(np.zeros(silence))
    samples = np.concatenate(parts)
    # Breath: wide, and far below. Whole numbers of 16 bits, so that what is written is what was said.
    counts = np.round(32_767 * (samples + 1e-3 * chance.standard_normal(len(samples)))).astype(np.int16)
    said[counts.tobytes()] = text
    return counts / 32_767


def write(path: Path, samples: Samples, rate: int = RATE, subtype: str = "PCM_16") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.round(32_767 * samples).astype(np.int16) if subtype == "PCM_16" else samples, rate, subtype=subtype)


def hear(path: Path, language: str) -> str:
    """A recogniser that knows every reading, and hears nothing in what was changed."""
    samples, _ = soundfile.read(path, dtype="int16", always_2d=True)
    return said.get(samples[:, 0].tobytes(), "")
