"""The published class of Baichuan's speech LMs in small: its module names, packed queries, keys and values, its mask, its audio head.

Written from the published shapes and names, for what its remote code does not do on the installed ``transformers``: run.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, CODEBOOKS = 32, 4, 2, 8, (12, 6, 6)


class _Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, states: Tensor) -> Tensor:
        return self.weight * states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-6)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W_pack = nn.Linear(HIDDEN, HEAD_DIM * (HEADS + 2 * KV_HEADS), bias=True)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def forward(self, states: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        length = states.shape[1]
        split = self.W_pack(states).split([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], dim=-1)
        queries, keys, values = (part.view(1, length, -1, HEAD_DIM).transpose(1, 2) for part in split)
        frequencies = 1e4 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angles = (positions.reshape(-1, 1) * frequencies).repeat(1, 2)

        def turn(x: Tensor) -> Tensor:
            first, second = x.chunk(2, dim=-1)
            return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()

        keys, values = (part.repeat_interleave(HEADS // KV_HEADS, dim=1) for part in (turn(keys), values))
        scores = turn(queries) @ keys.transpose(-1, -2) / HEAD_DIM**0.5 + mask
        mixed: Tensor = (scores.softmax(-1) @ values).transpose(1, 2).reshape(1, length, -1)
        return self.o_proj(mixed)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = _Attention()
        self.mlp = nn.ModuleDict({name: nn.Linear(*shape, bias=False) for name, shape in _MLP.items()})
        self.input_layernorm, self.post_attention_layernorm = _Norm(HIDDEN), _Norm(HIDDEN)

    def forward(self, states: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        states = states + self.self_attn(self.input_layernorm(states), mask, positions)
        inner = self.post_attention_layernorm(states)
        return states + self.mlp["down_proj"](nn.functional.silu(self.mlp["gate_proj"](inner)) * self.mlp["up_proj"](inner))


_MLP = {"gate_proj": (HIDDEN, 64), "up_proj": (HIDDEN, 64), "down_proj": (64, HIDDEN)}


class _Body(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, HIDDEN)
        self.layers = nn.ModuleList(_Layer() for _ in range(2))
        self.norm = _Norm(HIDDEN)
        # One code more than the codebook has: the end of speech.
        self.audio_embed_layers = nn.ModuleList(nn.Embedding(size + 1, HIDDEN) for size in CODEBOOKS)

    def forward(
        self, inputs_embeds: Tensor, position_ids: Tensor | None = None, attention_mask: Tensor | None = None, use_cache: bool = False
    ) -> Any:
        length = inputs_embeds.shape[1]
        positions = torch.arange(length) if position_ids is None else position_ids
        # Four dimensions: ones where a position may look; none: causal.
        visible = torch.ones(length, length).tril()[None, None] if attention_mask is None else attention_mask
        mask = (1.0 - visible).masked_fill((1.0 - visible).bool(), torch.finfo(inputs_embeds.dtype).min)
        states = inputs_embeds
        for layer in self.layers:
            states = layer(states, mask, positions)
        return SimpleNamespace(last_hidden_state=self.norm(states))


class _AudioHead(nn.Module):
    """Codebook k of a frame from the frame's state and the sum of the codes before it; a plain causal mixture instead of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer_layers = nn.ModuleList([nn.Linear(HIDDEN, HIDDEN)])
        self.headnorm = _Norm(HIDDEN)
        self.heads = nn.ModuleList(nn.Linear(HIDDEN, size + 1) for size in CODEBOOKS)

    def forward(self, states: Tensor, codes: Tensor, tables: nn.ModuleList) -> list[Tensor]:
        given = [table(codes[:, k]) for k, table in enumerate(tables)][:-1]
        steps = torch.stack([states, *given], dim=1).cumsum(1).tanh()
        steps = self.headnorm(steps + self.transformer_layers[0](steps))
        return [head(steps[:, k]) for k, head in enumerate(self.heads)]


class _SpeechTokenizer(nn.Module):
    """Frames of 1,280 samples to codes: no more than something that hears."""

    def __init__(self) -> None:
        super().__init__()
        self.audio_model = nn.Linear(1280, sum(CODEBOOKS))

    def forward(self, waveform: Tensor) -> Tensor:
        frames = waveform[: len(waveform) // 1280 * 1280].view(-1, 1280)
        return torch.stack([part.argmax(-1) for part in self.audio_model(frames).split(CODEBOOKS, dim=-1)], dim=1)


class BaichuanStandIn(nn.Module):
    """``model``, ``audio_tokenizer``, ``audio_head`` and ``lm_head``, as published."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.model = _Body(vocabulary)
        self.audio_tokenizer = _SpeechTokenizer().requires_grad_(False)
        self.audio_head = _AudioHead()
        self.lm_head = nn.Linear(HIDDEN, vocabulary, bias=False)
