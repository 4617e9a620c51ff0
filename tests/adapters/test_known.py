"""Each known class gives its adapter by itself, wherever it stands and whatever is wrapped around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import peft
import pytest
import torch
from torch import nn
from transformers import GlmConfig, GlmForCausalLM, LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM, Qwen2ForCausalLM

from s2sbench_callback.adapters import TextOnly, find_adapter, find_language_model
from s2sbench_callback.adapters.freeze_omni import FreezeOmni
from s2sbench_callback.adapters.kyutai_stt import KyutaiSTT
from s2sbench_callback.adapters.moshi import KyutaiMoshi, Moshi
from s2sbench_callback.adapters.nemo_duplex import NeMoDuplex
from s2sbench_callback.adapters.nemo_salm import NeMoSALM
from s2sbench_callback.adapters.vocabulary_models import TWIST, GLM4Voice, SpiritLM, UnitLM
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer

TINY = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 16}


class Tokens:
    """A tokenizer of single letters that knows some special tokens."""

    bos_token_id = 1
    eos_token_id = 2

    def __init__(self, *special: str) -> None:
        letters = [*special, *"abcdefghijklmnopqrstuvwxyz \n_"]
        self.vocabulary = {token: index for index, token in enumerate(letters)}

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [self.vocabulary.get(letter, 5) for letter in text]}

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary

    def convert_ids_to_tokens(self, index: int) -> str:
        return next(token for token, each in self.vocabulary.items() if each == index)


class Units(nn.Module):
    def forward(self, waveform: torch.Tensor) -> torch.Tensor:
        return waveform.long()


def module(**attributes: Any) -> pl.LightningModule:
    """A LightningModule that holds a model, and what the user has put on it."""
    holder = pl.LightningModule()
    for name, value in attributes.items():
        setattr(holder, name, value)
    return holder


def named(name: str, **attributes: Any) -> nn.Module:
    """A module whose class has a published name, with a causal LM inside that must not be taken for it."""
    model = type(name, (nn.Module,), {})()
    model.llm = LlamaForCausalLM(LlamaConfig(**TINY))
    for key, value in attributes.items():
        setattr(model, key, value)
    return model


@pytest.mark.parametrize(
    ("model", "special", "adapter"),
    [
        (named("MoshiForConditionalGeneration", config=SimpleNamespace(num_codebooks=4)), (), Moshi),
        (named("KyutaiSpeechToTextForConditionalGeneration", config=SimpleNamespace(num_codebooks=4, pad_token_id=3)), (), KyutaiSTT),
        (
            named("LMModel", text_emb=None, text_linear=None, transformer=None, delays=[0, 0, 1, 0, 1], dep_q=2, text_padding_token_id=3),
            (),
            KyutaiMoshi,
        ),
        (named("UnitLM", lm=None), ("<Un0>", "<speech>", "<text>"), UnitLM),
        (named("ChatGLMForConditionalGeneration"), ("[gMASK]", "<sop>", "<|begin_of_audio|>", "<|end_of_audio|>", "<|audio_0|>"), GLM4Voice),
        (named("AudioLLM", encoder=None, adpter=None, llm_decoder=None), (), FreezeOmni),
        (named("SALM", perception=None), (), NeMoSALM),
        (named("DuplexS2SModel", perception=None), (), NeMoDuplex),
        (LlamaForCausalLM(LlamaConfig(**TINY)), ("[Hu0]", "[Speech]", "[Text]"), SpiritLM),
        (LlamaForCausalLM(LlamaConfig(**TINY)), ("<Un0>", "<speech>", "<text>"), UnitLM),
        (
            GlmForCausalLM(GlmConfig(**TINY, head_dim=8, pad_token_id=0)),
            ("[gMASK]", "<sop>", "<|begin_of_audio|>", "<|end_of_audio|>", "<|audio_0|>"),
            GLM4Voice,
        ),
        (LlamaForCausalLM(LlamaConfig(**TINY)), (), TextOnly),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_known_class_gives_its_adapter(model: nn.Module, special: tuple[str, ...], adapter: type) -> None:
    root = module(inner=module(model=model), tokenizer=Tokens(*special), speech_tokenizer=Units())
    found = find_language_model(root)
    assert found is model
    assert type(find_adapter(root, found)) is adapter


def test_a_model_of_units_has_no_text_tokenizer() -> None:
    model = OPTForCausalLM(OPTConfig(vocab_size=504, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16, word_embed_proj_dim=16))
    model.config.offset = 4
    root = module(model=model, speech_tokenizer=lambda waveform: waveform, speech_tokenizer_name="mhubert-25hz-500")
    assert isinstance(find_adapter(root, find_language_model(root)), TWIST)


def test_what_is_missing_is_named() -> None:
    root = module(model=named("Qwen2AudioForConditionalGeneration"))
    with pytest.raises(
        ValueError, match=r"can be read only with its processor \(or tokenizer and feature_extractor\), and neither Qwen2Audio.*'processor'"
    ):
        find_adapter(root, find_language_model(root))
    root = module(model=LlamaForCausalLM(LlamaConfig(**TINY)), tokenizer=Tokens("[Hu0]", "[Speech]", "[Text]"))
    with pytest.raises(ValueError, match=r"can be read only with its speech tokenizer .* has an attribute 'speech_tokenizer'"):
        find_adapter(root, find_language_model(root))


def wrapped_in_peft(model: nn.Module) -> nn.Module:
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], r=2))  # type: ignore[arg-type]


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model)  # type: ignore[return-value]


def distributed(model: nn.Module) -> nn.Module:
    wrapper = nn.Module()
    wrapper.module = model
    return wrapper


def sharded(model: nn.Module) -> nn.Module:
    """As FSDP2 does it: the same object with a class of its own before the model's."""
    model.__class__ = type(f"FSDP{type(model).__name__}", (type("FSDPModule", (), {}), type(model)), {})
    return model


@pytest.mark.parametrize("wrap", [wrapped_in_peft, compiled, distributed, sharded])
def test_models_are_found_through_wrappers(wrap: Any, tiny_qwen2: Qwen2ForCausalLM) -> None:
    root = module(net=wrap(tiny_qwen2), tokenizer=build_text_tokenizer())
    assert find_language_model(root) is tiny_qwen2
    adapter = find_adapter(root, tiny_qwen2)
    assert isinstance(adapter, TextOnly)
    # LoRA's own weights too have a role.
    covered = [entry for entries in adapter.roles(tiny_qwen2).values() for entry in entries]
    for name, _ in tiny_qwen2.named_parameters():
        assert sum(name.startswith(str(entry)) for entry in covered) == 1, name
    assert ("lora" in str([name for name, _ in tiny_qwen2.named_parameters()])) is (wrap is wrapped_in_peft)


def test_a_module_itself_can_be_the_model() -> None:
    root = module(encoder=nn.Linear(1, 1))
    assert find_language_model(root, ".") is root
