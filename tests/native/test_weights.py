"""Published remote names to native classes: the same logits, and no weight lost on the way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from baichuan_stand_in import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, BaichuanStandIn
from chatglm_stand_in import ChatGLMStandIn, configuration
from torch import Tensor
from transformers import GlmForCausalLM, Qwen2Config, Qwen2ForCausalLM

from s2sbench_callback.native.weights import glm_from_chatglm, qwen2_from_baichuan

VOCABULARY = 96
IDS = torch.randint(0, VOCABULARY, (1, 40), generator=torch.Generator().manual_seed(3))
BAICHUAN: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "num_hidden_layers": 2,
    "attention_qkv_pack": True,
    "use_norm_head": False,
    "position_embedding_type": "rope",
    "sparse_attention_layers": [],
}


def chatglm(**changes: object) -> ChatGLMStandIn:
    torch.manual_seed(0)
    return ChatGLMStandIn(configuration(VOCABULARY, **changes)).eval()


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_glm_computes_what_chatglm_does(bias: bool, as_json: bool) -> None:
    model = chatglm(add_qkv_bias=bias)
    weights, config = glm_from_chatglm(model.state_dict(), vars(model.config) if as_json else model.config)
    native = GlmForCausalLM(config).eval()
    native.load_state_dict(weights)
    expected = model(input_ids=IDS).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(native(input_ids=IDS).logits, expected, atol=1e-5, rtol=1e-5)


def test_glm_weights_of_another_name_or_shape() -> None:
    model = chatglm()
    state = model.state_dict()
    given = {name: tensor for name, tensor in state.items() if "layers.1.mlp.dense_h_to_4h" not in name}
    given["transformer.prefix_encoder.weight"] = torch.zeros(1)
    with pytest.raises(
        ValueError,
        match=r"ChatGLM's weights: missing transformer.encoder.layers.1.mlp.dense_h_to_4h.weight; unexpected transformer.prefix_encoder.weight",
    ):
        glm_from_chatglm(given, model.config)
    with pytest.raises(ValueError, match=r"unexpected transformer.encoder.layers.0.self_attention.query_key_value.bias$"):
        glm_from_chatglm(state, configuration(VOCABULARY, add_qkv_bias=False))
    with pytest.raises(ValueError, match=r"query_key_value.weight has 64 rows, and 4 heads of 8 with 1 groups of keys and values make 48"):
        glm_from_chatglm(state, configuration(VOCABULARY, multi_query_group_num=1))
    # Checkpoints may leave out what is computed.
    assert glm_from_chatglm({name: tensor for name, tensor in state.items() if "inv_freq" not in name}, model.config)


@pytest.mark.parametrize(
    ("field", "value"), [("multi_query_attention", False), ("add_bias_linear", True), ("post_layer_norm", False), ("rmsnorm", False)]
)
def test_variants_that_glm_does_not_compute(field: str, value: bool) -> None:
    with pytest.raises(ValueError, match=f"the configuration has {field} = {value}, and GlmForCausalLM computes {not value} alone"):
        glm_from_chatglm(chatglm().state_dict(), configuration(VOCABULARY, **{field: value}))


def test_a_field_that_the_configuration_lacks() -> None:
    with pytest.raises(ValueError, match="the configuration has no kv_channels"):
        glm_from_chatglm(chatglm().state_dict(), configuration(VOCABULARY, kv_channels=None))


def baichuan() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return BaichuanStandIn(VOCABULARY).state_dict()


@pytest.mark.parametrize("as_json", [False, True])
@torch.no_grad()
def test_qwen2_computes_what_baichuan_does(as_json: bool) -> None:
    model = BaichuanStandIn(VOCABULARY)
    weights = qwen2_from_baichuan(model.state_dict(), BAICHUAN if as_json else SimpleNamespace(**BAICHUAN))
    config = Qwen2Config(vocab_size=VOCABULARY, intermediate_size=64, rope_parameters={"rope_type": "default", "rope_theta": 1e4}, **BAICHUAN)
    native = Qwen2ForCausalLM(config).eval()
    outside = native.load_state_dict(weights, strict=False)
    assert not outside.missing_keys
    assert sorted(outside.unexpected_keys) == sorted(
        name for name in model.state_dict() if name.startswith(("model.audio_embed_layers.", "audio_head.", "audio_tokenizer."))
    )
    expected = model.lm_head(model.model(model.model.embed_tokens(IDS)).last_hidden_state)
    assert expected.std() > 0.1
    torch.testing.assert_close(native(input_ids=IDS).logits, expected, atol=1e-5, rtol=1e-5)


def test_one_file_of_several() -> None:
    state = baichuan()
    parts = [{name: state[name] for name in [*state][start::2]} for start in (0, 1)]
    with pytest.raises(ValueError, match=r"Baichuan's weights: missing model\.\S+"):
        qwen2_from_baichuan(parts[0], BAICHUAN)
    together: dict[str, Tensor] = {}
    for part in parts:
        together.update(qwen2_from_baichuan(part, BAICHUAN, one_of_several_files=True))
    whole = qwen2_from_baichuan(state, BAICHUAN)
    assert together.keys() == whole.keys()
    assert all(torch.equal(together[name], whole[name]) for name in whole)


def test_baichuan_weights_of_another_name_or_shape() -> None:
    state = baichuan()
    for layer in range(2):
        state[f"model.layers.{layer}.self_attn.q_proj.weight"] = state.pop(f"model.layers.{layer}.self_attn.W_pack.weight")
    with pytest.raises(ValueError, match=r"missing model.layers.0.self_attn.W_pack.weight; unexpected model.layers.0.self_attn.q_proj.weight$"):
        qwen2_from_baichuan(state, BAICHUAN)
    with pytest.raises(ValueError, match=r"W_pack.weight has 64 rows, and 4 heads of 8 with 4 groups of keys and values make 96"):
        qwen2_from_baichuan(baichuan(), {**BAICHUAN, "num_key_value_heads": None})
    for changed, words in (
        ({"use_norm_head": True}, "use_norm_head = True, and Qwen2ForCausalLM computes False alone"),
        ({"sparse_attention_layers": [1]}, r"sparse_attention_layers = \[1\], which"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type = 'alibi'"),
    ):
        with pytest.raises(ValueError, match=words):
            qwen2_from_baichuan(baichuan(), {**BAICHUAN, **changed})
