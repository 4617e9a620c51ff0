"""What would give figures that look right and are not is refused, or read as the model's own code reads it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import peft
import pytest
import torch
from test_encoder_projector import Pooled, SpeechLLM, TensorEncoder, llm
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2ForCausalLM

from s2sbench_callback import adapters
from s2sbench_callback.adapters import EncoderProjectorLLM, TextOnly, find_adapter, find_language_model
from s2sbench_callback.adapters.projected_features import check_projection
from s2sbench_callback.adapters.speech_units import SpeechUnits
from s2sbench_callback.adapters.text_ids import TextIds
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer

ROOT = Path(__file__).parents[2]
TINY = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 16}


def tiny() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**TINY))


class Across(nn.Module):
    """Looks at the neighbours of each position, where one recording stands beside another."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(24, 16, 3, padding=1)

    def forward(self, stacks: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.mix(stacks.transpose(1, 2)).transpose(1, 2)
        return mixed


@torch.no_grad()
def test_a_projector_that_looks_across_stacks_is_refused() -> None:
    torch.manual_seed(0)
    read = EncoderProjectorLLM(build_text_tokenizer(), stack=3, projector_input="stacks")
    model = SpeechLLM(TensorEncoder(), Pooled(3), llm())
    width = read._frames(model, torch.randn(16_000)).shape[1]  # the encoder's own
    model.connector = nn.Sequential(nn.Linear(3 * width, 24), Across(), nn.Linear(16, model.llm_model.config.hidden_size))
    with pytest.raises(ValueError, match="it looks at other frames"):
        read.encode_audio(model, torch.randn(16_000))
    model.connector = nn.Sequential(nn.Linear(3 * width, model.llm_model.config.hidden_size))
    assert read.encode_audio(model, torch.randn(16_000)).shape[1] == 3 * width


def test_in_full_precision_a_percent_is_too_much() -> None:
    whole = torch.ones(4, 8)
    with pytest.raises(ValueError, match="it looks at other frames"):
        check_projection(whole, whole * 1.01, "stack=3")
    check_projection(whole, whole * 1.0001, "stack=3")
    check_projection(whole.bfloat16(), whole.bfloat16() * 1.01, "stack=3")


class Prefixed:
    """Puts two tokens before a text and one behind it, as GLM's tokenizer does with its own."""

    bos_token_id = None

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [ord(letter) % 50 for letter in text]
        return {"input_ids": [60, 61, *ids, 62] if add_special_tokens else ids}

    def get_vocab(self) -> dict[str, int]:
        return {}


def test_what_a_tokenizer_puts_before_a_text_is_fed_and_what_it_puts_behind_is_not() -> None:
    adapter = TextOnly(Prefixed())
    assert adapter.context_streams([adapter.encode_text("ab")])[:, 0].tolist() == [60, 61, ord("a") % 50, ord("b") % 50]
    assert TextOnly(Prefixed(), bos=False).context_streams([[3]])[:, 0].tolist() == [3]
    assert TextIds(build_text_tokenizer()).bos(None) == []
    with pytest.raises(ValueError, match=r"tokenizer='Qwen/Qwen2.5-7B' is a text; pass the tokenizer itself"):
        TextOnly("Qwen/Qwen2.5-7B")


def root(**attributes: Any) -> pl.LightningModule:
    holder = pl.LightningModule()
    for name, value in attributes.items():
        setattr(holder, name, value)
    return holder


@pytest.mark.parametrize(
    "config",
    [
        peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
        peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
        peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=8),
    ],
    ids=lambda config: type(config).__name__,
)
def test_prompts_that_are_learned_are_refused_by_name(config: Any, tiny_qwen2: Qwen2ForCausalLM) -> None:
    holder = root(model=peft.get_peft_model(tiny_qwen2, config), tokenizer=build_text_tokenizer())
    for locator in (None, "model"):
        with pytest.raises(ValueError, match=f"model is wrapped in PEFT's {type(config).__name__}, whose learned prompt stands before every input"):
            find_language_model(holder, locator)


def test_a_frozen_teacher_above_the_student_is_not_taken_for_it() -> None:
    holder = root(teacher=tiny().requires_grad_(False), student=nn.ModuleDict({"llm": tiny()}))
    with pytest.raises(ValueError, match=r"is frozen, teacher, and one that learns, student\.llm; say which .* locator='student\.llm'"):
        find_language_model(holder)
    assert find_language_model(holder, "student.llm") is holder.student["llm"]
    # Frozen as a whole, as in a first stage, it is the only one.
    alone = root(llm=tiny().requires_grad_(False), projector=nn.Linear(2, 2))
    assert find_language_model(alone) is alone.llm


@pytest.mark.parametrize("wrapped", [torch.compile, lambda model: peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))])
def test_a_locator_may_lead_to_a_wrapper(wrapped: Any) -> None:
    model = tiny()
    holder = root(inner=wrapped(model), tokenizer=build_text_tokenizer())
    found = find_language_model(holder, "inner")
    assert isinstance(found, LlamaForCausalLM)
    assert isinstance(find_adapter(holder, found), TextOnly)


def test_a_module_may_say_where_its_language_model_is() -> None:
    class Own(pl.LightningModule):
        s2sbench_locator = "."

        def s2sbench_adapter(self) -> object:
            return EncoderProjectorLLM(build_text_tokenizer(), "encoder", "projector", "brain")

    holder = Own()
    assert find_language_model(holder) is holder
    assert isinstance(find_adapter(holder, holder), EncoderProjectorLLM)


@pytest.mark.parametrize("name", ["SALM", "AudioLLM", "UnitLM", "LMModel", "DuplexSTTModel"])
def test_a_class_of_ones_own_with_a_published_name_is_not_taken_for_it(name: str) -> None:
    own = type(name, (nn.Module,), {})()
    own.brain = tiny()
    assert find_language_model(root(model=own)) is own.brain


class Hears(nn.Module):
    """Weights alone do not say how it hears."""

    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(2))


class HearsOtherwise(Hears):
    pass


def test_kept_units_are_those_of_the_same_class_and_settings() -> None:
    prints = [SpeechUnits(tokenizer, "n", True).fingerprint() for tokenizer in (Hears({"hop": 1}), Hears({"hop": 2}), HearsOtherwise({"hop": 1}))]
    assert len(set(prints)) == 3
    assert SpeechUnits(Hears({"hop": 1}), "n", True).fingerprint() == prints[0]


def test_every_adapter_of_the_readme_can_be_imported_from_one_place() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("### How it finds your model")[1].split("### All four directions")[0]
    cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")]
    named = {name for cell in cells for name in re.findall(r"`([A-Z][A-Za-z0-9]+)", cell)}
    assert len(named) > 15
    assert named <= set(adapters.__all__)
