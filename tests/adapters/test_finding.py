from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, Qwen2ForCausalLM, T5Config, T5ForConditionalGeneration

from s2sbench_callback.adapters import Adapter, Row, SummedCodebooks, TextOnly, find_adapter, find_language_model
from s2sbench_callback.mini_world.model import MiniSpeechLM
from s2sbench_callback.mini_world.pretraining import mini_adapter
from s2sbench_callback.mini_world.text_tokenizer import AUDIO_END, AUDIO_START, build_text_tokenizer


def plain_row(streams: torch.Tensor) -> Row:
    places = torch.arange(len(streams))
    return Row(streams, places, None, places, torch.zeros_like(places), torch.zeros_like(places))


@torch.no_grad()
def test_text_only_gives_the_native_logits(tiny_qwen2: Qwen2ForCausalLM) -> None:
    adapter = TextOnly(build_text_tokenizer())
    streams = adapter.context_streams([adapter.encode_text("It rained all day.")])
    expected = tiny_qwen2(input_ids=streams.T).logits[0]
    torch.testing.assert_close(adapter.logits(tiny_qwen2, plain_row(streams)), expected, atol=0, rtol=0)
    some = replace(plain_row(streams), sources=torch.tensor([2, 0, 2]))
    torch.testing.assert_close(adapter.logits(tiny_qwen2, some), expected[[2, 0, 2]])


@torch.no_grad()
def test_summed_codebooks_give_the_native_logits(tiny_speech_lm: MiniSpeechLM) -> None:
    adapter = mini_adapter()
    codes = torch.randint(0, 8, (7, 3), generator=torch.Generator().manual_seed(0))
    streams = adapter.context_streams([adapter.encode_text("Below"), codes, adapter.encode_text(" rain")])
    expected = tiny_speech_lm(streams.unsqueeze(0)).text_logits[0]
    torch.testing.assert_close(adapter.logits(tiny_speech_lm, plain_row(streams)), expected)


def test_summed_codebooks_layout() -> None:
    tokenizer = build_text_tokenizer()
    start, end = tokenizer.convert_tokens_to_ids([AUDIO_START, AUDIO_END])
    adapter = mini_adapter()
    assert adapter.context_streams([[5, 6], torch.tensor([[1, 2], [3, 4]])]).tolist() == [
        [5, -1, -1],
        [6, -1, -1],
        [start, -1, -1],
        [-1, 1, 2],
        [-1, 3, 4],
        [end, -1, -1],
    ]
    assert adapter.context_streams([[5]]).tolist() == [[5]]
    assert [part.tolist() for part in adapter.candidate_positions([7, 8])] == [[[7], [8]]] * 2


def test_a_missing_bracket_is_named() -> None:
    with pytest.raises(ValueError, match=r"has no token '<audio_start_baichuan>'; name the model's own in audio_start="):
        SummedCodebooks(build_text_tokenizer())


def test_text_only_refuses_speech_by_name() -> None:
    adapter = TextOnly(build_text_tokenizer())
    assert adapter.refusal("t2t") is None
    assert adapter.refusal("s2t") == "a text-only model has no way to read speech"
    with pytest.raises(TypeError, match="no way to read speech"):
        adapter.context_streams([torch.zeros(2, 3, dtype=torch.long)])


def test_bos_is_a_choice_and_part_of_the_signature() -> None:
    tokenizer = build_text_tokenizer()
    with pytest.raises(ValueError, match=r"bos=True, but the tokenizer .* has no BOS token"):
        TextOnly(tokenizer, bos=True)

    class WithBos:
        bos_token_id = 1

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [1, 9] if add_special_tokens else [9]}

    for adapter in (TextOnly(WithBos(), bos=True), TextOnly(WithBos())):
        assert adapter.context_streams([[4, 5]]).tolist() == [[1], [4], [5]]
        assert adapter.signature()["bos"] == "true"
    assert TextOnly(WithBos(), bos=False).context_streams([[4, 5]]).tolist() == [[4], [5]]


@pytest.mark.parametrize("adapter", [TextOnly(build_text_tokenizer()), mini_adapter()])
def test_adapters_fulfil_the_protocol(adapter: object) -> None:
    assert isinstance(adapter, Adapter)


def test_roles_cover_every_parameter_once(tiny_speech_lm: MiniSpeechLM, tiny_qwen2: Qwen2ForCausalLM) -> None:
    for adapter, model in ((mini_adapter(), tiny_speech_lm), (TextOnly(build_text_tokenizer()), tiny_qwen2)):
        roles = adapter.roles(model)
        for name, _ in model.named_parameters():
            assert sum(name.startswith(prefixes) for prefixes in roles.values()) == 1, name


def test_another_speech_tokenizer_has_another_fingerprint(tiny_speech_lm: MiniSpeechLM) -> None:
    adapter = mini_adapter()
    before = adapter.audio_fingerprint(tiny_speech_lm)
    assert adapter.audio_fingerprint(tiny_speech_lm) == before
    with torch.no_grad():
        tiny_speech_lm.lm_head.weight.add_(1)
    assert adapter.audio_fingerprint(tiny_speech_lm) == before
    tiny_speech_lm.audio_tokenizer.codebook_1[0, 0] += 1e-3
    assert adapter.audio_fingerprint(tiny_speech_lm) != before


class Wrapper(nn.Module):
    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


def test_the_language_model_is_found_where_it_is(tiny_speech_lm: MiniSpeechLM, tiny_qwen2: Qwen2ForCausalLM) -> None:
    nested = Wrapper(encoder=nn.Linear(1, 1), inner=Wrapper(llm=tiny_qwen2))
    assert find_language_model(nested) is tiny_qwen2
    assert find_language_model(nested, "inner.llm") is tiny_qwen2
    assert find_language_model(nested, lambda root: root.inner.llm) is tiny_qwen2
    assert find_language_model(tiny_speech_lm) is tiny_speech_lm


@pytest.mark.parametrize(
    ("locator", "message"),
    [
        (None, r"no language model was found in Wrapper: neither it nor any of its 1 submodules(.|\n)* its children are encoder \(Linear\)"),
        ("encoder.llm", r"locator='encoder.llm' leads nowhere in Wrapper"),
        ("training", r"locator='training' leads to a bool"),
        (lambda root: None, r"the locator returned a NoneType"),
    ],
)
def test_no_language_model(locator: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_language_model(Wrapper(encoder=nn.Linear(1, 1)), locator)  # type: ignore[arg-type]


def test_adapters_are_found_from_the_class() -> None:
    tokenizer = build_text_tokenizer()
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16))
    root = Wrapper(llm=llama)
    with pytest.raises(
        ValueError, match=r"LlamaForCausalLM can be read only with its text tokenizer, and neither Llama.* nor Wrapper has .* 'tokenizer'"
    ):
        find_adapter(root, llama)
    root.tokenizer = tokenizer  # type: ignore[assignment]
    found = find_adapter(root, llama)
    assert isinstance(found, TextOnly)
    assert found.tokenizer is tokenizer
    with pytest.raises(ValueError, match=r"no adapter is known for Linear \(looked for Baichuan-Audio's(.|\n)*def s2sbench_adapter"):
        find_adapter(root, nn.Linear(1, 1))


def test_a_module_may_name_its_own_adapter(tiny_qwen2: Qwen2ForCausalLM) -> None:
    class Own(Wrapper):
        def s2sbench_adapter(self) -> object:
            return self.own

    root = Own(llm=tiny_qwen2)
    root.own = TextOnly(build_text_tokenizer())  # type: ignore[assignment]
    assert find_adapter(root, tiny_qwen2) is root.own
    root.own = "no adapter"  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"Own\.s2sbench_adapter\(\) returned a str"):
        find_adapter(root, tiny_qwen2)


def test_several_language_models_are_named_not_guessed(tiny_qwen2: Qwen2ForCausalLM) -> None:
    twin = Qwen2ForCausalLM(tiny_qwen2.config)
    with pytest.raises(ValueError, match=r"several language models: teacher \(Qwen2ForCausalLM\), llm \(Qwen2ForCausalLM\); .*locator='llm'"):
        find_language_model(Wrapper(teacher=twin, llm=tiny_qwen2))
    # One that stands higher is the one that is meant.
    assert find_language_model(Wrapper(llm=tiny_qwen2, helper=Wrapper(teacher=twin))) is tiny_qwen2


def test_encoder_decoders_and_masked_models_are_no_language_models(tiny_qwen2: Qwen2ForCausalLM) -> None:
    sizes = {"vocab_size": 32, "num_layers": 1}
    recogniser = T5ForConditionalGeneration(T5Config(**sizes, d_model=8, d_kv=4, d_ff=8, num_heads=2))
    masked = BertForMaskedLM(BertConfig(vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
    assert find_language_model(Wrapper(asr=recogniser, masked=masked, llm=tiny_qwen2)) is tiny_qwen2
