"""Recordings to waveforms at a model's rate, and audio tokens that are computed once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import soundfile
import torch
import torchaudio
from torch import Tensor, nn

from s2sbench_callback.items import Audio


def load_waveform(audio: Audio, sample_rate: int) -> Tensor:
    """Reads a recording as the model wants to hear it.

    Args:
        audio: A wav or flac file with any number of channels, which are averaged.
        sample_rate: Rate of the result in Hz.

    Returns:
        Mono samples in [-1, 1], float32 ``[N]``.

    Raises:
        ValueError: If the file cannot be read any more, or holds no samples.
    """
    try:
        samples, rate = soundfile.read(audio.path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise ValueError(f"{audio.path}: this recording was readable at setup and cannot be read now: {error}") from error
    if not len(samples):
        raise ValueError(f"{audio.path}: this recording had samples at setup and has none now")
    waveform: Tensor = torchaudio.functional.resample(torch.from_numpy(samples.mean(axis=1)), rate, sample_rate)
    return waveform


def module_fingerprint(module: nn.Module) -> str:
    """Hash of a module's parameters and buffers: a front-end that was trained or replaced has another one."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted({**dict(module.named_parameters()), **dict(module.named_buffers())}.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class AudioTokenCache:
    """Audio tokens by recording and tokenizer, in memory, so that every probe after the first opens no file.

    Codes are small: 12.5 Hz and 8 codebooks of a 30 s recording are 24 kB.
    """

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], Tensor] = {}

    def get(self, audio: Audio, tokenizer_fingerprint: str, encode: Callable[[], Tensor]) -> Tensor:
        """The codes of a recording, computed by ``encode`` the first time.

        Args:
            audio: The recording; equal digests share codes.
            tokenizer_fingerprint: What the codes depend on besides the recording. A changed speech tokenizer has another one.
            encode: Computes the codes.

        Returns:
            Codes on the CPU, as ``encode`` shapes them.
        """
        key = (audio.digest, tokenizer_fingerprint)
        if key not in self._codes:
            self._codes[key] = encode().to("cpu", torch.int64)
        return self._codes[key]
