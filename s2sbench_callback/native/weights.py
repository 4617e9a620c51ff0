"""Weights of published remote code under the names of the classes of ``transformers`` that compute the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GlmConfig

_SHOWN = 5
_CHATGLM_OUTSIDE = {
    "transformer.embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "transformer.encoder.final_layernorm.weight": "model.norm.weight",
    "transformer.output_layer.weight": "lm_head.weight",
}
_CHATGLM_LAYER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.dense.weight": "self_attn.o_proj.weight",
    "post_attention_layernorm.weight": "post_attention_layernorm.weight",
    # Gate, then up, in both.
    "mlp.dense_h_to_4h.weight": "mlp.gate_up_proj.weight",
    "mlp.dense_4h_to_h.weight": "mlp.down_proj.weight",
}
_CHATGLM_PACKED = "self_attention.query_key_value"
# Computed, not learnt; checkpoints may or may not carry it.
_CHATGLM_IGNORED = ("transformer.rotary_pos_emb.inv_freq",)
# What GlmForCausalLM computes, and what the remote class has where a configuration does not say; add_bias_linear would put biases where Glm has none.
_CHATGLM_WANTED = {
    "rmsnorm": (True, True),
    "post_layer_norm": (True, True),
    "multi_query_attention": (True, False),
    "add_bias_linear": (False, False),
    "apply_residual_connection_post_layernorm": (False, False),
    "fp32_residual_connection": (False, False),
}

_BAICHUAN_OUTSIDE = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
_BAICHUAN_LAYER = (
    "input_layernorm.weight",
    "self_attn.o_proj.weight",
    "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
)
_BAICHUAN_PACKED = "self_attn.W_pack"
_BAICHUAN_UNTOUCHED = ("model.audio_embed_layers.", "audio_head.", "audio_tokenizer.")
_BAICHUAN_WANTED = {"attention_qkv_pack": (True, True), "use_norm_head": (False, False), "position_embedding_type": ("rope", "rope")}


def safetensors_files(folder: Path) -> list[Path]:
    """Files of weights in a folder in Hugging Face's layout, in the order of their names.

    Raises:
        FileNotFoundError: If there are none.
    """
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} has no weights: no file model*.safetensors")
    return files


def glm_from_chatglm(state_dict: Mapping[str, Tensor], config: Any) -> tuple[dict[str, Tensor], GlmConfig]:
    """GLM-4-Voice's language model for ``GlmForCausalLM``.

    Both rotate neighbouring pairs in the first half of each head, so queries and keys are only split. Tensors are views of the given ones.

    Args:
        state_dict: Weights of the remote ``ChatGLMForConditionalGeneration``.
        config: Its configuration: an object with the fields of ``ChatGLMConfig``, or ``config.json`` as a mapping.

    Returns:
        Weights and configuration, for ``GlmForCausalLM(config).load_state_dict(weights)``.

    Raises:
        ValueError: If keys are missing, unexpected or of another shape, which are named, or the configuration asks for what Glm does not compute.
    """
    fields = _Fields(config)
    _refuse_variants(fields, _CHATGLM_WANTED, "GlmForCausalLM")
    heads, groups, head_dim, layers = (fields[name] for name in ("num_attention_heads", "multi_query_group_num", "kv_channels", "num_layers"))
    bias = bool(fields.get("add_qkv_bias", False))
    suffixes = ("weight", "bias") if bias else ("weight",)
    names = dict(_CHATGLM_OUTSIDE)
    for layer in range(layers):
        names.update({f"transformer.encoder.layers.{layer}.{old}": f"model.layers.{layer}.{new}" for old, new in _CHATGLM_LAYER.items()})
    packed = {
        f"transformer.encoder.layers.{layer}.{_CHATGLM_PACKED}.{suffix}": f"model.layers.{layer}.self_attn.{{}}_proj.{suffix}"
        for layer in range(layers)
        for suffix in suffixes
    }
    _check(state_dict, [*names, *packed], [name for name in state_dict if name not in _CHATGLM_IGNORED], "ChatGLM's")
    native = {new: state_dict[old] for old, new in names.items()}
    for old, new in packed.items():
        native.update(_split(old, state_dict[old], new, heads, groups, head_dim))
    return native, GlmConfig(
        vocab_size=fields["padded_vocab_size"],
        hidden_size=fields["hidden_size"],
        intermediate_size=fields["ffn_hidden_size"],
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=head_dim,
        attention_dropout=fields.get("attention_dropout", 0.0),
        attention_bias=bias,
        max_position_embeddings=fields["seq_length"],
        rms_norm_eps=fields["layernorm_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0 * fields.get("rope_ratio", 1), "partial_rotary_factor": 0.5},
        pad_token_id=fields.get("pad_token_id", None),
        eos_token_id=fields.get("eos_token_id", None),
        tie_word_embeddings=False,
    )


def qwen2_from_baichuan(state_dict: Mapping[str, Tensor], config: Any, one_of_several_files: bool = False) -> dict[str, Tensor]:
    """The language model of Baichuan-Audio and Baichuan-Omni-1.5 under the names of ``Qwen2ForCausalLM``.

    ``model.layers.N.self_attn.W_pack`` is split into queries, keys and values, which both classes rotate alike; all other names stay, as do
    ``model.audio_embed_layers.*``, ``audio_head.*`` and ``audio_tokenizer.*``. Tensors are views of the given ones.

    Args:
        state_dict: Weights of the remote ``OmniForCausalLM``.
        config: Its configuration: an object with its fields, or ``config.json`` as a mapping.
        one_of_several_files: Whether the weights are part of a checkpoint, so that what is not there is in another file.

    Returns:
        Weights by name.

    Raises:
        ValueError: If keys are missing, unexpected or of another shape, which are named, or the configuration asks for what Qwen2 does not compute.
    """
    fields = _Fields(config)
    _refuse_variants(fields, _BAICHUAN_WANTED, "Qwen2ForCausalLM")
    if fields.get("sparse_attention_layers", None):
        raise ValueError(
            f"the configuration has sparse_attention_layers = {fields['sparse_attention_layers']}, which Qwen2ForCausalLM does not compute"
        )
    heads, layers = fields["num_attention_heads"], fields["num_hidden_layers"]
    kv_heads = fields.get("num_key_value_heads", None) or heads
    head_dim = fields.get("head_dim", None) or fields["hidden_size"] // heads
    kept = [*_BAICHUAN_OUTSIDE, *(f"model.layers.{layer}.{name}" for layer in range(layers) for name in _BAICHUAN_LAYER)]
    packed = [f"model.layers.{layer}.{_BAICHUAN_PACKED}.{suffix}" for layer in range(layers) for suffix in ("weight", "bias")]
    given = [name for name in state_dict if not name.startswith(_BAICHUAN_UNTOUCHED)]
    _check(state_dict, [name for name in (*kept, *packed) if not one_of_several_files or name in state_dict], given, "Baichuan's")
    native: dict[str, Tensor] = {}
    for name, tensor in state_dict.items():
        if name in packed:
            native.update(_split(name, tensor, name.replace("W_pack", "{}_proj"), heads, kv_heads, head_dim))
        else:
            native[name] = tensor
    return native


class _Fields:
    """Fields of a configuration that is an object or a mapping."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def get(self, name: str, default: Any) -> Any:
        return self._config.get(name, default) if isinstance(self._config, Mapping) else getattr(self._config, name, default)

    def __getitem__(self, name: str) -> Any:
        value = self.get(name, None)
        if value is None:
            raise ValueError(f"the configuration has no {name}; pass the one that the checkpoint was saved with")
        return value


def _refuse_variants(fields: _Fields, wanted: Mapping[str, tuple[Any, Any]], native: str) -> None:
    for name, (value, default) in wanted.items():
        given = fields.get(name, default)
        if given != value:
            raise ValueError(f"the configuration has {name} = {given!r}, and {native} computes {value!r} alone; keep the remote class")


def _check(state_dict: Mapping[str, Tensor], wanted: Sequence[str], given: Sequence[str], whose: str) -> None:
    missing, unexpected = [name for name in wanted if name not in state_dict], sorted({*given} - {*wanted})
    problems = [f"{word} {_shown(names)}" for word, names in (("missing", missing), ("unexpected", unexpected)) if names]
    if problems:
        raise ValueError(f"these are not {whose} weights: {'; '.join(problems)}")


def _shown(names: Iterable[str]) -> str:
    """A few names, with one layer standing for all of a kind."""
    kinds: dict[str, str] = {}
    for name in names:
        kinds.setdefault(re.sub(r"\.\d+\.", ".*.", name), name)
    return ", ".join([*kinds.values()][:_SHOWN]) + f" and {len(kinds) - _SHOWN} other kinds" * (len(kinds) > _SHOWN)


def _split(name: str, packed: Tensor, pattern: str, heads: int, kv_heads: int, head_dim: int) -> dict[str, Tensor]:
    sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    if packed.shape[0] != sum(sizes):
        raise ValueError(
            f"{name} has {packed.shape[0]} rows, and {heads} heads of {head_dim} with {kv_heads} groups of keys and values make {sum(sizes)}; "
            "is this the configuration of these weights?"
        )
    return {pattern.format(part): tensor for part, tensor in zip("qkv", torch.split(packed, sizes), strict=True)}
