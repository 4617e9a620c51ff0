"""GLM-4-Voice's remote class in small: its module names, packed queries, keys and values, its masks and its rotation.

Written from the published shapes, names and conventions, for what must not be copied into a test: the code itself.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn


def configuration(vocabulary: int, **changes: object) -> SimpleNamespace:
    """Fields as ``config.json`` has them."""
    fields = {
        "num_layers": 2,
        "padded_vocab_size": vocabulary,
        "hidden_size": 32,
        "ffn_hidden_size": 64,
        "kv_channels": 8,
        "num_attention_heads": 4,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "seq_length": 512,
        "layernorm_epsilon": 1e-5,
        "rmsnorm": True,
        "post_layer_norm": True,
        "add_bias_linear": False,
        "add_qkv_bias": True,
        "rope_ratio": 3,
        "apply_residual_connection_post_layernorm": False,
        "_attn_implementation": "sdpa",
    }
    return SimpleNamespace(**{**fields, **changes})


class _Norm(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(config.hidden_size) + 0.5)
        self.epsilon = config.layernorm_epsilon

    def forward(self, states: Tensor) -> Tensor:
        return self.weight * states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.epsilon)


class _Rotary(nn.Module):
    """Angles for half of each head; the table ends at ``seq_length``, and its frequencies are a buffer that checkpoints carry."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.size, self.base, self.length = config.kv_channels // 2, 1e4 * config.rope_ratio, config.seq_length
        self.register_buffer("inv_freq", 1e4 ** -(torch.arange(0, self.size, 2) / self.size))

    def forward(self) -> Tensor:
        angles = torch.outer(torch.arange(self.length).float(), self.base ** -(torch.arange(0, self.size, 2) / self.size))
        return torch.polar(torch.ones_like(angles), angles)


def _turned(heads: Tensor, turns: Tensor) -> Tensor:
    """Neighbouring numbers as one complex number, turned; the second half of each head stays."""
    size = 2 * turns.shape[-1]
    first, rest = heads[..., :size], heads[..., size:]
    turned = torch.view_as_complex(first.reshape(*first.shape[:-1], -1, 2)) * turns[:, None]
    return torch.cat([torch.view_as_real(turned).flatten(-2), rest], dim=-1)


class _Attention(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.heads, self.groups, self.size = config.num_attention_heads, config.multi_query_group_num, config.kv_channels
        rows = (self.heads + 2 * self.groups) * self.size
        self.query_key_value = nn.Linear(config.hidden_size, rows, bias=config.add_qkv_bias)
        self.dense = nn.Linear(self.heads * self.size, config.hidden_size, bias=False)

    def forward(self, states: Tensor, hidden: Tensor, turns: Tensor) -> Tensor:
        packed = self.query_key_value(states).unflatten(-1, (-1, self.size)).transpose(1, 2)
        queries, keys, values = packed.split([self.heads, self.groups, self.groups], dim=1)
        keys, values = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (_turned(keys, turns), values))
        scores = _turned(queries, turns) @ keys.transpose(-1, -2) / self.size**0.5
        mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values
        return self.dense(mixed.transpose(1, 2).flatten(2))


class _MLP(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(config.hidden_size, 2 * config.ffn_hidden_size, bias=False)
        self.dense_4h_to_h = nn.Linear(config.ffn_hidden_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        gate, up = self.dense_h_to_4h(states).chunk(2, dim=-1)
        return self.dense_4h_to_h(nn.functional.silu(gate) * up)


class _Layer(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = _Norm(config), _Norm(config)
        self.self_attention, self.mlp = _Attention(config), _MLP(config)

    def forward(self, states: Tensor, hidden: Tensor, turns: Tensor) -> Tensor:
        states = states + self.self_attention(self.input_layernorm(states), hidden, turns)
        return states + self.mlp(self.post_attention_layernorm(states))


class _Encoder(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_layers))
        self.final_layernorm = _Norm(config)


class _Embedding(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.padded_vocab_size, config.hidden_size)


class _Transformer(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.embedding, self.rotary_pos_emb = _Embedding(config), _Rotary(config)
        self.encoder = _Encoder(config)
        self.output_layer = nn.Linear(config.hidden_size, config.padded_vocab_size, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        full_attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> SimpleNamespace:
        length = input_ids.shape[1]
        if full_attention_mask is None:
            full_attention_mask = ~torch.ones(length, length, dtype=torch.bool).tril()[None, None]
            if attention_mask is not None:
                # A pad looks at itself, or its softmax would be over nothing.
                full_attention_mask = (full_attention_mask | ~attention_mask.bool()[:, None, None]) & ~torch.eye(length, dtype=torch.bool)
        turns = self.rotary_pos_emb()[torch.arange(length)[None] if position_ids is None else position_ids]
        states = self.embedding.word_embeddings(input_ids)
        for layer in self.encoder.layers:
            states = layer(states, full_attention_mask, turns)
        return SimpleNamespace(last_hidden_state=self.encoder.final_layernorm(states))


class ChatGLMStandIn(nn.Module):
    """``ChatGLMForConditionalGeneration``: everything is under ``transformer``, the head too."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        self.transformer = _Transformer(config)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, attention_mask: Tensor | None = None) -> SimpleNamespace:
        states = self.transformer(input_ids, position_ids, attention_mask).last_hidden_state
        return SimpleNamespace(logits=self.transformer.output_layer(states))
