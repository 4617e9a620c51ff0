"""Recordings to waveforms at a model's rate, and audio tokens that are computed once."""

from __future__ import annotations

import hashlib
import io
import uuid
import warnings
from pathlib import Path

import numpy as np
import soundfile
import torch
import torchaudio
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from s2sbench_callback.items import Audio, recording_digest


def load_waveform(audio: Audio, sample_rate: int) -> Tensor:
    """Reads a recording as the model wants to hear it.

    Args:
        audio: A wav or flac file with any number of channels, which are averaged.
        sample_rate: Rate of the result in Hz.

    Returns:
        Mono samples in [-1, 1], float32 ``[N]``.

    Raises:
        ValueError: If the file is not the one that was checked at setup any more, or has samples that are no numbers.
    """
    try:
        content = audio.path.read_bytes()
    except OSError as error:
        raise ValueError(f"{audio.path}: this recording was readable at setup and cannot be read now: {error}") from error
    if recording_digest(content) != audio.digest:
        raise ValueError(f"{audio.path}: this recording has changed since setup; start the run again, so that the set is checked as a whole")
    samples, rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    if not np.isfinite(samples).all():
        raise ValueError(f"{audio.path}: this recording has samples that are NaN or infinite")
    waveform: Tensor = torchaudio.functional.resample(torch.from_numpy(samples.mean(axis=1)), rate, sample_rate)
    return waveform


def module_fingerprint(module: nn.Module) -> str:
    """Hash of a module's parameters and buffers: a front-end that was trained or replaced has another one.

    Hashed anew each time: writes through ``.data``, as codebooks with moving averages do, leave no other trace. Of a sharded module, call it
    on all ranks together.
    """
    tensors = sorted({**dict(module.named_parameters()), **dict(module.named_buffers())}.items())
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in tensors:
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        digest.update(f"{name} {whole.dtype} {tuple(whole.shape)}".encode())
        digest.update(whole.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class AudioTokenCache:
    """Audio tokens by recording and speech tokenizer, in memory and on disk: every probe after the first opens no recording.

    Codes are small: 12.5 Hz and 8 codebooks of a 30 s recording are 24 kB. Features are not: 25 Hz of 1,280 numbers in bf16 are 64 kB a second.

    Args:
        folder: Where codes are kept, one file a recording in one folder a speech tokenizer; several runs and ranks may share it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._on_disk = False
        self._fingerprint = ""
        self._codes: dict[str, Tensor] = {}

    def use(self, fingerprint: str, on_disk: bool) -> None:
        """Turns to the codes of one speech tokenizer, and forgets those of another.

        Args:
            fingerprint: What the codes depend on besides the recording.
            on_disk: Whether they are worth keeping on disk: not if the speech tokenizer is being trained.
        """
        if fingerprint != self._fingerprint:
            self._codes.clear()
        self._fingerprint, self._on_disk = fingerprint, on_disk

    def __contains__(self, audio: Audio) -> bool:
        if audio.digest not in self._codes and self._on_disk and self._path(audio).is_file():
            try:
                self._codes[audio.digest] = load_file(self._path(audio))["codes"]
            except (SafetensorError, KeyError, OSError):
                # A file that a crash has damaged is one to make again.
                return False
        return audio.digest in self._codes

    def get(self, audio: Audio) -> Tensor:
        """Codes (int64) or features of a recording that the cache contains, on the CPU."""
        return self._codes[audio.digest]

    def put(self, audio: Audio, codes: Tensor) -> None:
        """Keeps the codes of a recording; a disk that is full or read-only costs the next run time, not this one its probe."""
        kept = codes.to("cpu", codes.dtype if codes.is_floating_point() else torch.int64).contiguous()
        self._codes[audio.digest] = kept
        if not self._on_disk:
            return
        path = self._path(audio)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({"codes": kept}, temporary)
            temporary.replace(path)
        except (OSError, SafetensorError) as error:
            self._on_disk = False
            warnings.warn(f"audio tokens are kept in memory alone, since {path.parent} cannot be written to: {error}", stacklevel=2)

    def _path(self, audio: Audio) -> Path:
        return self._folder / self._fingerprint / f"{audio.digest}.safetensors"
