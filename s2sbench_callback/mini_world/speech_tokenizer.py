"""Waveform to discrete audio tokens: log-mel frames and a residual vector quantiser at 12.5 Hz."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

import torch
import torchaudio
from torch import Tensor, nn

SAMPLE_RATE = 16_000
FRAME_RATE_HZ = 12.5
_MELS = 40
_HOP_SAMPLES = 160
_MELS_PER_FRAME = 8  # 8 hops of 10 ms make one token of 80 ms.
_COMPONENTS = 48


class SpeechTokenizer(nn.Module):
    """Residual vector quantiser over stacked log-mel frames, without gradients.

    Args:
        codebook_sizes: Entries of each residual codebook.
    """

    mean: Tensor
    projection: Tensor

    def __init__(self, codebook_sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.codebook_sizes = codebook_sizes
        self.log_mel = torchaudio.transforms.MelSpectrogram(
            SAMPLE_RATE, n_fft=400, hop_length=_HOP_SAMPLES, n_mels=_MELS, f_min=40.0, norm="slaney", mel_scale="slaney"
        )
        self.register_buffer("mean", torch.zeros(_MELS * _MELS_PER_FRAME))
        self.register_buffer("projection", torch.zeros(_MELS * _MELS_PER_FRAME, _COMPONENTS))
        for level, size in enumerate(codebook_sizes):
            self.register_buffer(f"codebook_{level}", torch.zeros(size, _COMPONENTS))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves the buffers where ``fn`` moves them, and leaves them in fp32: a rounded codebook gives other codes."""
        super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)  # type: ignore[no-untyped-call]
        return self

    def _codebook(self, level: int) -> Tensor:
        return self.get_buffer(f"codebook_{level}")

    def frames(self, waveform: Tensor) -> Tensor:
        """Stacked log-mel frames.

        Args:
            waveform: Mono samples at 16 kHz, ``[N]``.

        Returns:
            ``[F, mels * 8]`` with ``F = ceil(N / 1280)``, the loudest mel bin of the utterance at 0.
        """
        per_frame = _HOP_SAMPLES * _MELS_PER_FRAME
        padded = nn.functional.pad(waveform.float(), (0, -len(waveform) % per_frame))
        mel = self.log_mel(padded)[:, : len(padded) // _HOP_SAMPLES]
        log_mel = mel.clamp_min(1e-7).log()
        log_mel = (log_mel - log_mel.max()).clamp_min(-10.0)
        stacked: Tensor = log_mel.T.reshape(-1, _MELS * _MELS_PER_FRAME)
        return stacked

    @torch.no_grad()
    def forward(self, waveform: Tensor) -> Tensor:
        """Audio tokens of one utterance.

        Args:
            waveform: Mono samples at 16 kHz, ``[N]``.

        Returns:
            Codes ``[F, K]`` at 12.5 Hz, int64.
        """
        # Codes must not depend on the precision that the language model happens to train in.
        with torch.autocast(waveform.device.type, enabled=False):
            residual = (self.frames(waveform) - self.mean) @ self.projection
            codes = []
            for level in range(len(self.codebook_sizes)):
                nearest = _nearest(residual, self._codebook(level))
                residual = residual - self._codebook(level)[nearest]
                codes.append(nearest)
            return torch.stack(codes, dim=1)

    @torch.no_grad()
    def fit(self, waveforms: Iterable[Tensor], seed: int = 0) -> None:
        """Learns projection and codebooks: principal components, then k-means on what each level leaves over.

        Args:
            waveforms: Mono utterances at 16 kHz, each ``[N]``.
            seed: Decides the first centroids.

        Raises:
            ValueError: If the speech has fewer frames than the largest codebook has entries.
        """
        frames = torch.cat([self.frames(waveform) for waveform in waveforms])
        if len(frames) < max(self.codebook_sizes):
            raise ValueError(f"a codebook of {max(self.codebook_sizes)} entries cannot be learned from {len(frames)} frames of speech")
        self.mean.copy_(frames.mean(0))
        variance, basis = torch.linalg.eigh(torch.cov((frames - self.mean).T))
        # Half-way whitening: fine spectral detail counts, noise in the last components does not take over.
        scale = variance[-_COMPONENTS:].clamp_min(1e-6) ** -0.25
        self.projection.copy_(basis[:, -_COMPONENTS:] * scale)
        residual = (frames - self.mean) @ self.projection
        generator = torch.Generator().manual_seed(seed)
        for level, size in enumerate(self.codebook_sizes):
            codebook = _k_means(residual, size, generator)
            self._codebook(level).copy_(codebook)
            residual = residual - codebook[_nearest(residual, codebook)]


def _nearest(points: Tensor, centroids: Tensor) -> Tensor:
    return (
        torch.cat([torch.cdist(chunk, centroids).argmin(1) for chunk in points.split(16_384)])
        if len(points)
        else points.new_zeros(0, dtype=torch.long)
    )


def _k_means(points: Tensor, size: int, generator: torch.Generator, iterations: int = 12) -> Tensor:
    centroids = points[torch.randperm(len(points), generator=generator)[:size]].clone()
    for _ in range(iterations):
        nearest = _nearest(points, centroids)
        counts = torch.bincount(nearest, minlength=size)
        sums = torch.zeros_like(centroids).index_add_(0, nearest, points)
        centroids = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], centroids)
    return centroids
