"""Audio tokens in the vocabulary: GLM-4-Voice, SpiritLM, slamkit and TWIST."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chatglm_stand_in import ChatGLMStandIn, configuration
from contract import System, check_all, check_roles, heard, losses, plain_row, spoken_set, text_logits
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    GlmConfig,
    GlmForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from s2sbench_callback.adapters import Rows
from s2sbench_callback.adapters.vocabulary_models import TWIST, GLM4Voice, SpiritLM, UnitLM
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer
from s2sbench_callback.prompts import SPOKEN_INSTRUCTION, Condition
from s2sbench_callback.speech import load_waveform

ALL: tuple[Condition, ...] = ("s2t", "t2t", "s2s", "t2s")
UNITS = 20
PADDED = 832
TINY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


class Units(nn.Module):
    """Frames of 1,280 samples to units."""

    def __init__(self, count: int = UNITS) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(1280, count, generator=torch.Generator().manual_seed(1)))

    def forward(self, waveform: Tensor) -> Tensor:
        return (waveform[: len(waveform) // 1280 * 1280].view(-1, 1280) @ self.weight).argmax(-1)


def _byte_level(tokens: list[str], template: str | None = None) -> PreTrainedTokenizerFast:
    raw = Tokenizer.from_str(build_text_tokenizer().backend_tokenizer.to_str())
    raw.add_special_tokens(tokens)
    if template:
        names = template.replace("$A", "").split()
        raw.post_processor = processors.TemplateProcessing(template, special_tokens=[(name, raw.token_to_id(name)) for name in names])
    return PreTrainedTokenizerFast(tokenizer_object=raw)


@cache
def glm_tokenizer() -> PreTrainedTokenizerFast:
    brackets = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|begin_of_audio|>", "<|end_of_audio|>"]
    return _byte_level([*brackets, *(f"<|audio_{n}|>" for n in range(UNITS))], "[gMASK] <sop> $A")


@cache
def slamkit_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = _byte_level(["</s>", *(f"<Un{n}>" for n in range(UNITS)), "<speech>", "<text>"], "</s> $A")
    tokenizer.bos_token = tokenizer.eos_token = "</s>"
    return tokenizer


@cache
def slamkit_unit_tokenizer() -> PreTrainedTokenizerFast:
    """As slamkit's ``UnitTokeniser`` builds it."""
    raw = Tokenizer(models.WordLevel({"<PAD>": 0, "<S>": 1, **{f"<Un{n}>": n + 2 for n in range(UNITS)}}, unk_token="<UNK>"))
    raw.pre_tokenizer = pre_tokenizers.Split(">", "merged_with_previous")
    raw.post_processor = processors.TemplateProcessing("<S> $0 <S>", special_tokens=[("<S>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=raw)


@cache
def llama_tokenizer() -> PreTrainedTokenizerFast:
    """Of SentencePiece's kind: a word start before every piece of text; audio tokens in two places, as in no published checkpoint."""
    letters = [chr(code) for code in range(32, 127)]
    raw = Tokenizer(models.BPE({token: index for index, token in enumerate(["<unk>", "<s>", "</s>", "▁", *letters])}, [], unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    raw.add_special_tokens(["<s>", *(f"[Hu{n}]" for n in range(8)), "[Text]", "[Speech]", *(f"[Hu{n}]" for n in range(8, UNITS)), "[Pi0]", "[St0]"])
    raw.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


class SlamkitStandIn(nn.Module):
    """``UnitLM``: a causal LM as ``lm``, logits everywhere."""

    def __init__(self, lm: PreTrainedModel) -> None:
        super().__init__()
        self.lm = lm
        self.config = lm.config

    def get_input_embeddings(self) -> nn.Module:
        return self.lm.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm.get_output_embeddings()

    def forward(self, input_ids: Tensor) -> Any:
        return self.lm(input_ids=input_ids)


def opt(vocabulary: int) -> OPTForCausalLM:
    sizes = {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 32}
    return OPTForCausalLM(OPTConfig(vocab_size=vocabulary, max_position_embeddings=256, **sizes))


def glm_native(**choices: Any) -> System:
    torch.manual_seed(0)
    model = GlmForCausalLM(GlmConfig(vocab_size=PADDED, head_dim=8, **TINY))
    return System(model.eval(), GLM4Voice(glm_tokenizer(), Units(), **choices), ALL)


def glm_remote(**choices: Any) -> System:
    torch.manual_seed(0)
    return System(ChatGLMStandIn(configuration(PADDED)).eval(), GLM4Voice(glm_tokenizer(), Units(), **choices), ALL)


def glm_chat() -> System:
    return replace(glm_native(layout="chat", system_prompt="Answer."), conditions=("s2t", "t2t"))


def spirit(**choices: Any) -> System:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(llama_tokenizer()) + 4, **TINY))
    return System(model.eval(), SpiritLM(llama_tokenizer(), Units(), **choices), ALL)


def slamkit(tied: bool = True, **choices: Any) -> System:
    torch.manual_seed(0)
    model = SlamkitStandIn(Qwen2ForCausalLM(Qwen2Config(vocab_size=PADDED, tie_word_embeddings=tied, **TINY)))
    return System(model.eval(), UnitLM(slamkit_tokenizer(), Units(), **choices), ALL)


def slamkit_speech() -> System:
    torch.manual_seed(0)
    return System(SlamkitStandIn(opt(UNITS + 2)).eval(), UnitLM(slamkit_unit_tokenizer(), Units()), ("s2s",))


def twist_opt(**choices: Any) -> System:
    torch.manual_seed(0)
    model = opt(UNITS + 4)
    model.config.offset = 4
    return System(model.eval(), TWIST(Units(), units=UNITS, **choices), ("s2s",))


def twist_llama() -> System:
    torch.manual_seed(0)
    return System(LlamaForCausalLM(LlamaConfig(vocab_size=UNITS, **TINY)).eval(), TWIST(Units(), offset=0, units=UNITS), ("s2s",))


SYSTEMS = [glm_native, glm_remote, glm_chat, spirit, slamkit, partial(slamkit, tied=False), slamkit_speech, twist_opt, twist_llama]


def names_of(system: System, audio: Any, pattern: str) -> list[str]:
    """A recording as names of tokens, without the adapter's tables."""
    units = Units()(load_waveform(audio, 16_000)).tolist()
    kept = units if pattern.startswith("<|") else [unit for place, unit in enumerate(units) if place == 0 or units[place - 1] != unit]
    return [pattern.format(unit) for unit in kept]


@pytest.mark.parametrize("build", SYSTEMS)
def test_the_contract(build: Callable[[], System], tmp_path: Path) -> None:
    check_all(build, tmp_path)


PROMPTS: list[tuple[Callable[[], System], str, str, dict[Condition, str]]] = [
    (glm_native, "glm", "<|audio_{}|>", {"s2t": "<|begin_of_audio|>{s}<|end_of_audio|>{a}", "t2t": "{t} {a}", "t2s": "{t}<|begin_of_audio|>{b}",
                                         "s2s": "<|begin_of_audio|>{s}{b}"}),
    (glm_remote, "glm", "<|audio_{}|>", {"s2t": "<|begin_of_audio|>{s}<|end_of_audio|>{a}", "t2t": "{t} {a}"}),
    (partial(glm_native, speech_continues=False), "glm", "<|audio_{}|>", {"s2s": "<|begin_of_audio|>{s}<|end_of_audio|><|begin_of_audio|>{b}"}),
    (partial(glm_native, instruction=True), "glm", "<|audio_{}|>", {"s2t": SPOKEN_INSTRUCTION["en"] + "<|begin_of_audio|>{s}<|end_of_audio|>{a}"}),
    (glm_chat, "glm", "<|audio_{}|>", {
        "s2t": "<|system|>\nAnswer.<|user|>\n<|begin_of_audio|>{s}<|end_of_audio|><|assistant|>streaming_transcription\n{a}",
        "t2t": "<|system|>\nAnswer.<|user|>\n{t}<|assistant|>streaming_transcription\n {a}"}),
    (spirit, "llama", "[Hu{}]", {"s2t": "[Speech]{s}[Text]{a}", "s2s": "[Speech]{s}{b}", "t2s": "[Text]{t}[Speech]{b}"}),
    (slamkit, "slamkit", "<Un{}>", {"s2t": "<speech>{s}<text>{a}", "t2t": "<text>{t} {a}", "s2s": "<speech>{s}{b}", "t2s": "<text>{t}<speech>{b}"}),
    (slamkit_speech, "units", "<Un{}>", {"s2s": "{s}{b}"}),
]  # fmt: skip
TOKENIZERS = {"glm": glm_tokenizer, "llama": llama_tokenizer, "slamkit": slamkit_tokenizer, "units": slamkit_unit_tokenizer}


@pytest.mark.parametrize(("build", "tokenizer", "pattern", "prompts"), PROMPTS)
@torch.no_grad()
def test_losses_of_prompts_written_as_strings(
    build: Callable[[], System], tokenizer: str, pattern: str, prompts: dict[Condition, str], tmp_path: Path
) -> None:
    """The published way in: one string through the tokenizer, ids through the model's own forward, the candidate's own tokens scored."""
    system = build()
    benchmark = spoken_set(tmp_path, questions=2)
    read = TOKENIZERS[tokenizer]()
    for condition, written in prompts.items():
        table = losses(system, benchmark, condition)
        for question, item in enumerate(benchmark.items):
            context = item.contexts[0]
            for index, answer in enumerate(item.candidates):
                spoken = names_of(system, item.candidate_audios[index], pattern)
                values = {"s": "".join(names_of(system, context.audio, pattern)), "t": context.text, "a": answer, "b": "".join(spoken)}
                if condition in ("s2s", "t2s"):
                    scored = len(spoken)
                else:
                    scored = len(read(" " * (" {a}" in written) + answer, add_special_tokens=False)["input_ids"])
                ids = read(written.format(**values))["input_ids"]
                if tokenizer == "units":
                    # The end token that UnitTokeniser puts after a recording is not scored here.
                    ids = ids[:-1]
                logits = system.model(input_ids=torch.tensor([ids])).logits[0, -scored - 1 : -1]
                expected = nn.functional.cross_entropy(logits.double(), torch.tensor(ids[-scored:]))
                assert table.tokens[question, index] == scored
                np.testing.assert_allclose(table.losses[question, index], float(expected), atol=1e-5)


@torch.no_grad()
def test_a_written_context_of_spirit_lm() -> None:
    """Pieces apart, each with its word start: the space of the release is not put there twice."""
    system = spirit()
    read = system.adapter
    ids = llama_tokenizer()("[Text]It rained.")["input_ids"]
    assert read.context_streams([read.encode_text("It rained.")]).flatten().tolist() == ids
    assert read.encode_text(" He") == read.encode_text("He") == llama_tokenizer().convert_tokens_to_ids(["▁", "H", "e"])
    native = system.model(input_ids=torch.tensor([[*ids, *read.encode_text("He")]])).logits[0]
    torch.testing.assert_close(text_logits(system, [read.encode_text("It rained.")], read.encode_text(" He")), native)


def test_layouts_written_by_hand() -> None:
    twist = twist_opt()
    first = torch.tensor([[7], [5]])
    assert twist.adapter.context_streams([first], "speech").tolist() == [[7], [5]]
    assert twist.adapter.context_streams([], "speech").shape == (0, 1)
    assert [part.tolist() for part in twist.adapter.candidate_positions(first)] == [[[7], [5]], [[7], [5]]]
    glm = glm_native().adapter
    named = glm_tokenizer().convert_tokens_to_ids
    assert glm.context_streams([], "speech").flatten().tolist() == named(["[gMASK]", "<sop>", "<|begin_of_audio|>"])
    assert spirit().adapter.context_streams([], "speech").flatten().tolist() == llama_tokenizer().convert_tokens_to_ids(["<s>", "[Speech]"])
    assert UnitLM(None, Units(), units=UNITS).context_streams([], "speech").tolist() == [[1]]
    assert UnitLM(None, Units(), units=UNITS, bos=False).context_streams([], "speech").shape == (0, 1)
    assert UnitLM(None, Units(), units=UNITS).encode_audio(nn.Module(), torch.ones(2560)).tolist() == [[2 + int(Units()(torch.ones(1280)))]]


@torch.no_grad()
def test_whole_stories_of_twist(tmp_path: Path) -> None:
    """No context: the first unit is given, every other one is scored."""
    system = twist_opt()
    whole = spoken_set(tmp_path)
    benchmark = replace(whole, items=tuple(replace(item, candidate_audios=()) for item in whole.items))
    table = losses(system, benchmark, "s2s")
    for question, item in enumerate(benchmark.items):
        for index, audio in enumerate(item.story_audios):
            ids = heard(system)(audio)[:, 0]
            expected = nn.functional.cross_entropy(system.model(input_ids=ids[None]).logits[0, :-1], ids[1:])
            assert table.tokens[question, index] == len(ids) - 1
            np.testing.assert_allclose(table.losses[question, index], float(expected), atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("build", [glm_native, glm_remote, spirit, slamkit, twist_opt, twist_llama])
@torch.no_grad()
def test_padding_changes_nothing(build: Callable[[], System], side: str) -> None:
    """A native batch with padding against the adapter's single rows."""
    system = build()
    model = system.model.lm if isinstance(system.model, SlamkitStandIn) else system.model
    rows = [torch.randint(4, UNITS, (length, 1), generator=torch.Generator().manual_seed(length)) for length in (9, 5)]
    ids, mask = torch.zeros(2, 9, dtype=torch.long), torch.zeros(2, 9, dtype=torch.long)
    for number, row in enumerate(rows):
        where = slice(9 - len(row), 9) if side == "left" else slice(0, len(row))
        ids[number, where], mask[number, where] = row[:, 0], 1
    native = model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp_min(0)).logits
    for number, row in enumerate(rows):
        torch.testing.assert_close(system.adapter.logits(system.model, plain_row(row)), native[number][mask[number].bool()], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("build", [glm_native, glm_remote, spirit, slamkit, twist_opt])
@torch.no_grad()
def test_scored_over_one_modality(build: Callable[..., System], tmp_path: Path) -> None:
    """Spoken candidates against audio tokens alone, written ones against the others: the loss falls by what the banned tokens held."""
    system, over = build(), build(scored_over="modality")
    benchmark = spoken_set(tmp_path, questions=1)
    names = re.compile(r"(<\|audio_|\[Hu|\[Pi|\[St|<Un)\d")
    tokenizer = system.adapter.tokenizer
    audio = torch.zeros(system.model.get_input_embeddings().weight.shape[0] if not isinstance(system.model, ChatGLMStandIn) else PADDED).bool()
    if tokenizer is None:
        audio[4:] = True
    else:
        audio[[index for name, index in tokenizer.get_vocab().items() if names.match(name)]] = True
    written, spoken = ~audio, audio.clone()
    if isinstance(system.adapter, SpiritLM):
        written[tokenizer.convert_tokens_to_ids(["[Text]", "[Speech]"])] = False
    if isinstance(system.adapter, UnitLM):
        spoken[tokenizer.eos_token_id] = True
    for condition in system.conditions:
        allowed = spoken if condition in ("s2s", "t2s") else written
        item = benchmark.items[0]
        parts = [heard(system)(item.contexts[0].audio) if condition[0] == "s" else system.adapter.encode_text(item.contexts[0].text)]
        piece = heard(system)(item.candidate_audios[0]) if condition[2] == "s" else system.adapter.encode_text(item.candidates[0])
        context = system.adapter.context_streams(parts, "speech" if condition[2] == "s" else "text")
        streams = system.adapter.candidate_positions(piece).streams
        sources = range(len(context) - 1, len(context) + len(streams) - 1)
        row = replace(plain_row(torch.cat([context, streams]), sources=[*sources]), targets=streams[:, 0])
        found, plain = over.adapter.logits(system.model, row), system.adapter.logits(system.model, row)
        assert torch.equal(found[:, allowed], plain[:, allowed])
        assert bool((found[:, ~allowed] == -torch.inf).all())
        assert (losses(over, benchmark, condition).losses < losses(system, benchmark, condition).losses - 1e-3).all()


def test_rows_of_shared_matrices() -> None:
    system = glm_native()
    first = glm_tokenizer().convert_tokens_to_ids("<|audio_0|>")
    assert system.adapter.roles(system.model) == {
        "audio_embedding": (Rows("model.embed_tokens.weight", first, first + UNITS),),
        "lm_embedding": (Rows("model.embed_tokens.weight", 0, first), Rows("model.embed_tokens.weight", first + UNITS, PADDED)),
        "audio_head": (Rows("lm_head.weight", first, first + UNITS),),
        "lm_head": (Rows("lm_head.weight", 0, first), Rows("lm_head.weight", first + UNITS, PADDED)),
        "lm_body": ("model.layers.", "model.norm."),
    }
    tied = slamkit()
    roles = tied.adapter.roles(tied.model)
    assert set(roles) == {"audio_embedding", "lm_embedding", "lm_body"}
    assert roles["lm_body"] == ("lm.model.layers.", "lm.model.norm.")
    apart = spirit()
    start = llama_tokenizer().convert_tokens_to_ids("[Hu0]")
    name = "lm_head.weight"
    # Units 0 to 7, two prefixes, units 8 to 19 and the two expressive ones.
    assert apart.adapter.roles(apart.model)["audio_head"] == (Rows(name, start, start + 8), Rows(name, start + 10, start + 24))
    whole = twist_llama()
    assert whole.adapter.roles(whole.model)["audio_embedding"] == ("model.embed_tokens.weight",)
    assert whole.adapter.roles(whole.model)["audio_head"] == ("lm_head.weight",)


LORAS = {
    "attention": {"target_modules": ["q_proj", "v_proj"]},
    "saved": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "everything": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
}


@pytest.mark.parametrize("lora", LORAS)
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("build", [glm_native, spirit])
@torch.no_grad()
def test_with_peft(build: Callable[[], System], wrapped: bool, lora: str, tmp_path: Path) -> None:
    system, benchmark = build(), spoken_set(tmp_path, questions=1)
    before = losses(system, benchmark, "s2t").losses
    model: Any = get_peft_model(system.model, LoraConfig(r=3, **LORAS[lora]))
    system = replace(system, model=(model if wrapped else model.base_model.model).eval())
    check_roles(system)
    np.testing.assert_allclose(losses(system, benchmark, "s2t").losses, before, atol=1e-5)
    roles = system.adapter.roles(system.model)
    matrices = {entry.parameter for entry in roles["audio_embedding"] if isinstance(entry, Rows)}
    assert len(matrices) == (2 if lora == "saved" else 1)
    assert any("lora_A" in name for name, _ in system.model.named_parameters())


def test_with_peft_on_the_remote_class(tmp_path: Path) -> None:
    system, benchmark = glm_remote(), spoken_set(tmp_path, questions=1)
    before = losses(system, benchmark, "s2t").losses
    config = LoraConfig(r=3, target_modules=["query_key_value"], modules_to_save=["word_embeddings", "output_layer"])
    adapted = replace(system, model=get_peft_model(system.model, config).base_model.model.eval())
    check_roles(adapted)
    np.testing.assert_allclose(losses(adapted, benchmark, "s2t").losses, before, atol=1e-5)
    assert len(adapted.adapter.roles(adapted.model)["audio_head"]) == 2


def test_tokens_given_by_name() -> None:
    """The published SpiritLM tokenizer's strings, with the expressive tokens in them."""
    read = SpiritLM(llama_tokenizer(), lambda _: "[St0][Hu7][Pi0][Hu7][Hu8]", "expressive")
    named = llama_tokenizer().convert_tokens_to_ids
    assert read.encode_audio(nn.Module(), torch.zeros(1)).flatten().tolist() == named(["[St0]", "[Hu7]", "[Pi0]", "[Hu7]", "[Hu8]"])
    with pytest.raises(ValueError, match=r"gave the token '\[Hu99\]', which is no audio token of spirit_lm"):
        SpiritLM(llama_tokenizer(), lambda _: "[Hu99]", "other").encode_audio(nn.Module(), torch.zeros(1))


def test_units_in_every_shape() -> None:
    def ids(given: Any, deduplicate: bool = True) -> list[int]:
        return TWIST(lambda _: given, "some", offset=4, units=5, deduplicate=deduplicate).encode_audio(nn.Module(), torch.zeros(1)).flatten().tolist()

    units = torch.tensor([1, 1, 3, 1])
    for given in (units.tolist(), units, units[:, None], units.numpy(), {"units": units}):
        assert ids(given) == [5, 7, 5]
        assert ids(given, deduplicate=False) == [5, 5, 7, 5]
    with pytest.raises(ValueError, match="gave unit 5, and twist has audio tokens for units 0 to 4"):
        ids([5])
    with pytest.raises(ValueError, match=r"codes of shape \[2, 3\]; units of one codebook"):
        ids(torch.zeros(2, 3))


def test_what_decides_the_audio_tokens() -> None:
    """Codes are kept on disk under this hash."""
    model = nn.Module()
    prints = {
        adapter.audio_fingerprint(model)
        for adapter in (
            TWIST(Units(), offset=4, units=UNITS),
            TWIST(Units(), offset=0, units=UNITS),
            TWIST(Units(), offset=4, units=UNITS, deduplicate=False),
            TWIST(Units(19), offset=4, units=UNITS),
            TWIST(lambda _: [], "a", offset=4, units=UNITS),
            TWIST(lambda _: [], "b", offset=4, units=UNITS),
        )
    }
    assert len(prints) == 6
    assert TWIST(Units(), offset=4, units=UNITS).audio_fingerprint(model) in prints


def test_errors_name_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a function, no nn.Module .* speech_tokenizer_name="):
        TWIST(lambda _: [])
    with pytest.raises(ValueError, match=r"the tokenizer \w+ has no token '\[gMASK\]'"):
        GLM4Voice(llama_tokenizer(), Units())
    with pytest.raises(ValueError, match=r"has no token '<Un0>'"):
        UnitLM(glm_tokenizer(), Units())
    with pytest.raises(ValueError, match="system_prompt belongs to layout='chat'"):
        GLM4Voice(glm_tokenizer(), Units(), system_prompt="Answer.")
    with pytest.raises(ValueError, match="scored_over must be 'vocabulary' or 'modality', got 'all'"):
        GLM4Voice(glm_tokenizer(), Units(), scored_over="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the configuration of Module has no offset"):
        TWIST(Units()).encode_audio(nn.Module(), torch.zeros(1280))
    small = GlmForCausalLM(GlmConfig(vocab_size=700, head_dim=8, **TINY))
    with pytest.raises(ValueError, match=r"audio tokens go up to id \d+, and model.embed_tokens.weight of GlmForCausalLM has 700 rows"):
        glm_native().adapter.roles(small)
    for refused in (twist_opt().adapter.encode_text, twist_opt().adapter.candidate_positions):
        with pytest.raises(TypeError, match="speech units alone has no text tokens"):
            refused("text" if refused.__name__ == "encode_text" else [1])  # type: ignore[operator]
    assert "13 tokens of it before 26 of audio" in str(glm_chat().adapter.refusal("s2s"))


def test_flash_attention_of_the_remote_class_reads_plain_rows_alone(tmp_path: Path) -> None:
    system, benchmark = glm_remote(), spoken_set(tmp_path, questions=1)
    expected = losses(system, benchmark, "s2t").losses
    system.model.config._attn_implementation = "flash_attention_2"
    np.testing.assert_allclose(losses(system, benchmark, "s2t", packed=False).losses, expected, atol=1e-5)
    with pytest.raises(UserWarning, match=r"the model cannot read a packed row .*load it with sdpa or eager"):
        losses(system, benchmark, "s2t")
