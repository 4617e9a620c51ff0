"""What can be measured on one recording."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

SILENT_DBFS = -60.0
_FRAMES_PER_SECOND = 100
# Below the loudest frame; breath and room of a studio recording lie lower.
_SPEECH_DB = -40.0
_BANDWIDTH_DB = -60.0
_WINDOW = 1024
_SHORTEST_CLIP = 3


@dataclass(frozen=True)
class Measures:
    """One recording in figures.

    Attributes:
        seconds: Its length.
        sample_rate: In Hz.
        channels: Their number; the other figures are of their average, as a model hears it.
        samples_digest: Hash of the samples, whatever the file around them.
        is_finite: Whether all samples are numbers; where not, the figures below are of the rest.
        peak_dbfs: Largest sample.
        loudness_lufs: ITU-R BS.1770-4; minus infinity where it is silent, NaN where it is shorter than the 0.4 s of a block.
        clipped_share: Share of samples in flat tops: three or more neighbours at the largest value.
        silence_before_seconds: Until the first 10 ms within 40 dB of the loudest.
        silence_after_seconds: From the last such 10 ms.
        last_db: Loudness of the last 30 ms against the loudest 10 ms; near 0, speech is cut off.
        bandwidth_hz: Highest frequency within 60 dB of the strongest in the average spectrum.
    """

    seconds: float
    sample_rate: int
    channels: int
    samples_digest: str
    is_finite: bool
    peak_dbfs: float
    loudness_lufs: float
    clipped_share: float
    silence_before_seconds: float
    silence_after_seconds: float
    last_db: float
    bandwidth_hz: float

    @property
    def speech_seconds(self) -> float:
        """Its length without the silence at its ends."""
        return self.seconds - self.silence_before_seconds - self.silence_after_seconds


def measure(path: Path) -> Measures:
    """Measures one recording.

    Args:
        path: A file with at least one sample.

    Raises:
        OSError, soundfile.SoundFileError: If it cannot be read.
    """
    channels, rate = soundfile.read(path, dtype="float32", always_2d=True)
    digest = hashlib.blake2b(channels.tobytes(), digest_size=16).hexdigest()
    samples = channels.mean(axis=1)
    finite = np.isfinite(samples)
    samples = np.where(finite, samples, 0.0).astype(np.float64)
    peak = float(np.abs(samples).max())
    frames = _frame_db(samples, rate)
    loudest = float(frames.max())
    speech = np.flatnonzero(frames > loudest + _SPEECH_DB) if peak > 0 else np.array([], dtype=int)
    seconds = len(samples) / rate
    return Measures(
        seconds=seconds,
        sample_rate=rate,
        channels=channels.shape[1],
        samples_digest=digest,
        is_finite=bool(finite.all()),
        peak_dbfs=_db(peak),
        loudness_lufs=loudness_lufs(samples, rate),
        clipped_share=_clipped_share(samples, peak),
        silence_before_seconds=float(speech[0] / _FRAMES_PER_SECOND) if len(speech) else seconds,
        silence_after_seconds=max(0.0, seconds - float(speech[-1] + 1) / _FRAMES_PER_SECOND) if len(speech) else 0.0,
        last_db=float(frames[-3:].max()) - loudest,
        bandwidth_hz=_bandwidth_hz(samples, rate) if peak > 0 else 0.0,
    )


def measured(path: Path) -> Measures | str:
    """The same, or why it cannot be read."""
    try:
        return measure(path)
    except (OSError, soundfile.SoundFileError) as error:
        return str(error)


def loudness_lufs(samples: npt.NDArray[np.floating], rate: int) -> float:
    """Loudness by ITU-R BS.1770-4.

    Args:
        samples: Mono, ``[N]``.
        rate: In Hz.

    Returns:
        LUFS; minus infinity where it is silent, NaN where it is too short for one block of 0.4 s.
    """
    import torch
    import torchaudio

    if len(samples) < 0.4 * rate:
        return math.nan
    if not np.any(samples):
        return -math.inf
    loudness = float(torchaudio.functional.loudness(torch.from_numpy(np.ascontiguousarray(samples, dtype=np.float32))[None], rate))
    # Below the gate of -70 LUFS no block is left, and the mean of none is no number.
    return loudness if math.isfinite(loudness) else -math.inf


def _db(value: float) -> float:
    return 20 * math.log10(value) if value > 0 else -math.inf


def _frame_db(samples: npt.NDArray[np.float64], rate: int) -> npt.NDArray[np.float64]:
    """Level of each 10 ms."""
    length = max(1, rate // _FRAMES_PER_SECOND)
    whole = np.pad(samples, (0, -len(samples) % length)).reshape(-1, length)
    level: npt.NDArray[np.float64] = 10 * np.log10((whole**2).mean(axis=1) + 1e-12)
    return level


def _clipped_share(samples: npt.NDArray[np.float64], peak: float) -> float:
    """Share of samples in flat tops; quiet recordings of few levels have them without having been clipped."""
    if peak < 0.05:
        return 0.0
    share = 0
    for sign in (1.0, -1.0):
        top = sign * samples >= peak * 0.999
        edges = np.flatnonzero(np.diff(np.concatenate(([False], top, [False])).astype(np.int8)))
        lengths = edges[1::2] - edges[::2]
        share += int(lengths[lengths >= _SHORTEST_CLIP].sum())
    return share / len(samples)


def _bandwidth_hz(samples: npt.NDArray[np.float64], rate: int) -> float:
    if len(samples) < _WINDOW:
        return rate / 2
    windows = np.lib.stride_tricks.sliding_window_view(samples, _WINDOW)[:: _WINDOW // 2] * np.hanning(_WINDOW)
    power = (np.abs(np.fft.rfft(windows, axis=1)) ** 2).mean(axis=0)
    strong = np.flatnonzero(power > power.max() * 10 ** (_BANDWIDTH_DB / 10))
    return float(strong[-1] * rate / _WINDOW)
