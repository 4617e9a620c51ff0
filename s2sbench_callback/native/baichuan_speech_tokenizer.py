"""Baichuan-Audio's speech tokenizer: a Whisper-like encoder, pooling, and residual vector quantisation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.audio_utils import mel_filter_bank


class BaichuanSpeechConfig(PreTrainedConfig):
    """The published ``audio_config``; the defaults are the published values.

    Besides these fields it keeps what else the published one holds, such as the ids of the special tokens.
    """

    model_type = "baichuan_speech"
    activation_function: str = "gelu"
    audio_head_transformer_layers: int = 3
    avg_pooler: int = 4
    d_model: int = 1280
    encoder_attention_heads: int = 20
    encoder_ffn_dim: int = 5120
    encoder_layers: int = 32
    hop_length: int = 160
    kernel_size: int = 3
    max_audio_seconds: int = 30
    n_fft: int = 400
    num_mel_bins: int = 128
    sampling_rate: int = 16_000
    split_overlap: float | int = 0.0
    stride_size: int = 2
    vq_config: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Fills in the codebooks.

        Raises:
            ValueError: If long recordings cannot be cut into pieces (a negative ``split_overlap`` drops their end in the published code), or if
                the kernel is not the 3 that the published lengths are right for.
        """
        if self.vq_config is None:
            self.vq_config = {"codebook_sizes": [8192, 4096, 2048, 1024, 1024, 1024, 1024, 1024]}
        if not 0 <= self.split_overlap < self.max_audio_seconds:
            raise ValueError(
                f"split_overlap of audio_config is {self.split_overlap} s, so recordings longer than {self.max_audio_seconds} s cannot be cut into "
                "pieces; the published value is 0"
            )
        if self.kernel_size != 3:
            raise ValueError(f"kernel_size is {self.kernel_size}, but the published encoder pads for a kernel of 3 alone")
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        """Number of codes of each codebook, without the one more that the LM has for the end of speech."""
        assert self.vq_config is not None
        return tuple(self.vq_config["codebook_sizes"])


def log_mel(waveform: Tensor, config: BaichuanSpeechConfig) -> Tensor:
    """Log-mel features of one piece of a recording, as Baichuan's processor makes them.

    Like Whisper's: padded with silence to the longest piece, no lower than 8 decades (80 dB) below the loudest bin; the silence is cut off after.
    It is computed on the CPU in float32, so that it is the same whatever the model runs on.

    Args:
        waveform: ``[N]`` at ``config.sampling_rate``, between ``n_fft`` samples and ``max_audio_seconds``.
        config: The published ``audio_config``.

    Returns:
        ``[M, T]`` float32 on the CPU, where ``T`` is ``N // hop_length + 1``, or one less for the longest piece.
    """
    longest = config.max_audio_seconds * config.sampling_rate
    samples = waveform.to("cpu", torch.float32)
    padded = nn.functional.pad(samples, (0, longest - len(samples)))
    spectrum = torch.stft(padded, config.n_fft, config.hop_length, window=torch.hann_window(config.n_fft), return_complex=True)
    rate = config.sampling_rate
    filters = mel_filter_bank(1 + config.n_fft // 2, config.num_mel_bins, 0.0, rate / 2, rate, norm="slaney", mel_scale="slaney")
    power = torch.from_numpy(filters).to(torch.float32).T @ spectrum[:, :-1].abs().square()
    decades = power.clamp_min(1e-10).log10()
    features: Tensor = (torch.maximum(decades, decades.max() - 8.0) + 4.0) / 4.0
    return features[:, : min(longest // config.hop_length, len(samples) // config.hop_length + 1)]


def _sinusoids(length: int, size: int) -> Tensor:
    """``[length, size]``: sines in the first half, cosines in the second."""
    frequencies = torch.exp(torch.arange(size // 2) * (-math.log(10_000) / (size // 2 - 1)))
    angles = torch.arange(length)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class _Attention(nn.Module):
    """Whisper's, over one sequence ``[L, D]`` without a mask."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.k_proj = nn.Linear(size, size, bias=False)
        self.v_proj = nn.Linear(size, size)
        self.q_proj = nn.Linear(size, size)
        self.out_proj = nn.Linear(size, size)

    def forward(self, states: Tensor) -> Tensor:
        queries, keys, values = (
            project(states).unflatten(1, (self.heads, -1)).transpose(0, 1).unsqueeze(0) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values)
        out: Tensor = self.out_proj(mixed[0].transpose(0, 1).flatten(1))
        return out


class _EncoderLayer(nn.Module):
    def __init__(self, config: BaichuanSpeechConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config.d_model, config.encoder_attention_heads)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.activation = ACT2FN[config.activation_function]
        self.fc1 = nn.Linear(config.d_model, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def forward(self, states: Tensor) -> Tensor:
        states = states + self.self_attn(self.self_attn_layer_norm(states))
        states = states + self.fc2(self.activation(self.fc1(self.final_layer_norm(states))))
        if states.dtype in (torch.float16, torch.bfloat16):
            limit = torch.finfo(states.dtype).max - 1000
            states = states.clamp(-limit, limit)
        return states


class _Encoder(nn.Module):
    """``audio_model``: log-mel frames to states at half their rate."""

    positional_embedding: Tensor

    def __init__(self, config: BaichuanSpeechConfig) -> None:
        super().__init__()
        positions = config.max_audio_seconds * config.sampling_rate // config.hop_length // config.stride_size
        self.stride = config.stride_size
        self.conv1 = nn.Conv1d(config.num_mel_bins, config.d_model, config.kernel_size, padding=1)
        self.conv2 = nn.Conv1d(config.d_model, config.d_model, config.kernel_size, stride=config.stride_size, padding=1)
        self.register_buffer("positional_embedding", _sinusoids(positions, config.d_model))
        self.layers = nn.ModuleList(_EncoderLayer(config) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(config.d_model)

    def forward(self, features: Tensor, frames: int) -> Tensor:
        """States of a piece.

        Args:
            features: ``[M, T]``, zeros from frame ``frames`` on.
            frames: How many of them count.

        Returns:
            ``[L, D]``, where ``L`` is half of ``frames``, rounded up.
        """
        states = nn.functional.gelu(self.conv1(features.to(self.conv1.weight.dtype).unsqueeze(0)))
        states = nn.functional.gelu(self.conv2(states))[0].T
        states = states[: (frames - 1) // self.stride + 1]
        states = (states.float() + self.positional_embedding[: len(states)]).to(states.dtype)
        for layer in self.layers:
            states = layer(states)
        normed: Tensor = self.layer_norm(states)
        return normed


class _Codebook(nn.Module):
    """``embed`` of a codebook; the moving averages that it was learnt with are not kept."""

    embed: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("embed", torch.randn(size, width))


class _Quantizer(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.codebook = _Codebook(size, width)

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Nearest entries ``[F, W]`` in float32 to vectors ``[F, W]``, and their codes ``[F]``."""
        table, vectors = self.codebook.embed.float(), vectors.float()
        # Expanded and rooted as published, so that near ties are broken alike.
        squares = vectors.square().sum(1, keepdim=True) + table.square().sum(1)
        codes = (squares - 2 * (vectors @ table.T)).clamp_min(0).sqrt().argmin(1)
        return table[codes], codes


class _Bridge(nn.Module):
    """``audio_bridge_model``: encoder states, pooled, to codes."""

    def __init__(self, config: BaichuanSpeechConfig) -> None:
        super().__init__()
        self.pool = config.avg_pooler
        width = config.d_model * self.pool
        self.gate_proj = nn.Conv1d(config.d_model, width, self.pool, self.pool, bias=False)
        self.up_proj = nn.Conv1d(config.d_model, width, self.pool, self.pool, bias=False)
        self.down_proj = nn.Linear(width, width, bias=False)
        self.layer_norm = nn.LayerNorm(width)
        self.vq_list = nn.ModuleList(_Quantizer(size, width) for size in config.codebook_sizes)

    def forward(self, states: Tensor) -> Tensor:
        """Codes ``[F, K]`` of states ``[L, D]``; what is left after the last whole pool is dropped, as published."""
        frames = len(states) // self.pool
        states = states[: frames * self.pool]
        channels = states.T.unsqueeze(0)
        gate, up = self.gate_proj(channels)[0].T, self.up_proj(channels)[0].T
        pooled = self.down_proj(nn.functional.silu(gate) * up) + states.reshape(frames, -1)
        residual: Tensor = self.layer_norm(pooled)
        codes = []
        for quantizer in self.vq_list:
            entries, chosen = quantizer(residual)
            # Between codebooks it is kept in the model's precision, as published.
            residual = (residual.float() - entries).to(residual.dtype)
            codes.append(chosen)
        return torch.stack(codes, dim=1)


class BaichuanSpeechTokenizer(nn.Module):
    """Recordings to Baichuan-Audio's audio tokens, 12.5 frames a second.

    Parameters and buffers carry the published names (``audio_model.*``, ``audio_bridge_model.*``). Left out is what only turns codes into sound
    again: ``audio_decoder``, ``audio_flow_matching_decoder`` and ``audio_bridge_model.proj_decoder``, and the moving averages of the codebooks.

    A recording longer than ``max_audio_seconds`` is cut into pieces that are read one by one, as in the published processor; a last piece shorter
    than ``n_fft`` samples, or too short for a frame, is dropped as there.

    Unverified against Baichuan-Audio's own model files (verified against Baichuan-Omni-1.5's published code with random weights).

    Args:
        config: The published ``audio_config``.
    """

    def __init__(self, config: BaichuanSpeechConfig) -> None:
        super().__init__()
        self.config = config
        self.audio_model = _Encoder(config)
        self.audio_bridge_model = _Bridge(config)

    @torch.no_grad()
    def forward(self, waveform: Tensor) -> Tensor:
        """Codes of one recording.

        Runs in the precision of its own weights, outside of autocast, so that codes depend on the recording and the weights alone.

        Args:
            waveform: Mono samples ``[N]`` at 16 kHz.

        Returns:
            ``[F, K]`` int64 on the device of the weights, where ``F`` is about ``12.5 N / 16000``.

        Raises:
            ValueError: If the recording is too short for a single frame.
        """
        weight = self.audio_model.conv1.weight
        with torch.autocast(weight.device.type, enabled=False):
            pieces = [log_mel(piece, self.config) for piece in self._pieces(waveform)]
            codes = []
            for features in pieces:
                frames = features.shape[1]
                # The pieces of a recording are one batch in the published code: the last of them is followed by zeros, not by its end.
                padded = nn.functional.pad(features, (0, pieces[0].shape[1] - frames)).to(weight.device)
                states = self.audio_model(padded, frames)
                if len(states) >= self.config.avg_pooler:
                    codes.append(self.audio_bridge_model(states))
        if not codes:
            rate = self.config.sampling_rate
            raise ValueError(
                f"a recording of {len(waveform)} samples at {rate} Hz is too short for one frame of audio tokens; leave it out of the set"
            )
        return torch.cat(codes)

    def _pieces(self, waveform: Tensor) -> Iterator[Tensor]:
        """Pieces of at most ``max_audio_seconds`` that have at least one window of the spectrum."""
        longest = self.config.max_audio_seconds * self.config.sampling_rate
        overlap = int(self.config.sampling_rate * self.config.split_overlap)
        start = end = 0
        while end < len(waveform):
            end = min(start + longest, len(waveform))
            if end - start >= self.config.n_fft:
                yield waveform[start:end]
            start = end - overlap
