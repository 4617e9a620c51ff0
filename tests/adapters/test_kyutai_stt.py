"""Kyutai's speech-to-text model: what the adapter reads against the model's own forward and its own start of generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from contract import System, check_all, losses, spoken_set
from test_moshi import MIMI
from torch import Tensor, nn
from transformers import KyutaiSpeechToTextConfig, KyutaiSpeechToTextForConditionalGeneration

from s2sbench_callback.adapters.kyutai_stt import KyutaiSTT
from s2sbench_callback.adapters.protocol import Row, Rows
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer
from s2sbench_callback.packing import EncodedCandidate, Unit, build_row

K, PAD, CODES = 3, 3, 17
VOCABULARY = len(build_text_tokenizer())
# The last of the text ids opens a sequence; the last of each codebook's does for audio; one more id is no audio.
START, AUDIO_START, NO_AUDIO = VOCABULARY, CODES - 1, VOCABULARY + 1 + K * CODES


def tiny_model() -> KyutaiSpeechToTextForConditionalGeneration:
    torch.manual_seed(0)
    config = KyutaiSpeechToTextConfig(
        vocab_size=VOCABULARY + 1,
        codebook_vocab_size=CODES,
        num_codebooks=K,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        head_dim=8,
        ffn_dim=64,
        sliding_window=128,
        bos_token_id=START,
        audio_bos_token_id=AUDIO_START,
        audio_pad_token_id=NO_AUDIO,
        pad_token_id=PAD,
        codec_config=MIMI | {"num_quantizers": K},
        initializer_range=0.3,
    )
    model = KyutaiSpeechToTextForConditionalGeneration(config).eval()
    for name, buffer in model.codec_model.named_buffers():
        if name.endswith("embed_sum"):
            buffer.normal_()
    return model


def tiny_system(**arguments: Any) -> System:
    return System(tiny_model(), KyutaiSTT(build_text_tokenizer(), codebooks=K, **arguments), ("s2t", "t2t"))


def some_codes(frames: int) -> Tensor:
    return torch.randint(0, 16, (frames, K), generator=torch.Generator().manual_seed(1))


def row_of(adapter: KyutaiSTT, parts: list[list[int] | Tensor], candidate: list[int]) -> Row:
    streams, targets = adapter.candidate_positions(candidate)
    return build_row((Unit(adapter.context_streams(parts), (EncodedCandidate(0, 0, streams, targets),)),)).row


@pytest.mark.parametrize("choices", [{}, {"quiet": "silence", "flush_frames": 6}])
def test_kyutai_stt_keeps_the_contract(choices: dict[str, Any], tmp_path: Path) -> None:
    check_all(lambda: tiny_system(**choices), tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("quiet", ["absent", "silence"])
def test_scored_text_has_the_logits_of_the_models_own_forward(quiet: str) -> None:
    system = tiny_system(quiet=quiet, flush_frames=2)
    codes, candidate = some_codes(5), [7, 9, 5, 11]
    still = torch.full((K,), NO_AUDIO)
    if quiet == "silence":
        still = system.model.codec_model.encode(torch.zeros(1, 1, 1920)).audio_codes[0, :, 0]
    text = torch.tensor([START, *[PAD] * 7, *candidate])
    audio = torch.cat([torch.full((1, K), AUDIO_START), codes, still.repeat(6, 1)])
    expected = system.model(input_ids=torch.cat([text[:, None], audio], dim=1)[None]).logits[0, 7:11]
    row = row_of(system.adapter, [codes], candidate)
    assert row.sources.tolist() == [7, 8, 9, 10]
    assert row.targets.tolist() == candidate
    torch.testing.assert_close(system.adapter.logits(system.model, row), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("left", [True, False])
def test_a_native_batch_with_padding_says_the_same(left: bool) -> None:
    system = tiny_system()
    codes = some_codes(5)
    text, audio = torch.tensor([START, *[PAD] * 5, 7]), torch.cat([torch.full((1, K), AUDIO_START), codes, torch.full((1, K), NO_AUDIO)])
    short, padding = torch.cat([text[:, None], audio], dim=1), (2, 0) if left else (0, 2)
    batch = torch.stack([nn.functional.pad(short, (0, 0, *padding), value=5), torch.full((9, 1 + K), 6)])
    mask = torch.stack([nn.functional.pad(torch.ones(7, dtype=torch.long), padding), torch.ones(9, dtype=torch.long)])
    logits = system.model(input_ids=batch, attention_mask=mask).logits[0]
    row = row_of(system.adapter, [codes], [7, 9])
    expected = logits[[7, 8]] if left else logits[[5, 6]]
    torch.testing.assert_close(system.adapter.logits(system.model, row), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_its_generation_begins_with_the_frames_that_the_adapter_feeds() -> None:
    system = tiny_system()
    waveform = torch.randn(1920 * 6, generator=torch.Generator().manual_seed(0)) * 0.1
    read: list[Tensor] = []
    system.model.model.embed_tokens.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    said = system.model.generate(input_values=waveform[None, None], max_new_tokens=4, do_sample=False)[0, 1:]
    own = torch.cat(read, dim=1)[0]
    read.clear()
    codes = system.adapter.encode_audio(system.model, waveform)
    assert codes.unique().numel() > 3
    system.adapter.logits(system.model, row_of(system.adapter, [codes], [7]))
    # The text is its own there, and PAD here.
    assert own[0].tolist() == [START, *[AUDIO_START] * K]
    assert torch.equal(own[:, 1:], read[0][0, : len(own), 1:])
    assert own[1:, 0].tolist() == said[:3].tolist()


def test_the_layout_by_hand() -> None:
    adapter = KyutaiSTT(build_text_tokenizer(), codebooks=2, flush_frames=1)
    start = [-3] * 3
    assert adapter.context_streams([torch.tensor([[10, 11], [12, 13]])]).tolist() == [start, [PAD, 10, 11], [PAD, 12, 13], [PAD, -1, -1]]
    assert adapter.context_streams([[7, 8]]).tolist() == [start, [7, -1, -1], [8, -1, -1]]
    streams, targets = adapter.candidate_positions([7, 8])
    assert streams.tolist() == [[7, -1, -1], [8, -1, -1]]
    assert targets.tolist() == [[7], [8]]


def test_text_and_audio_rows_of_the_one_table() -> None:
    system = tiny_system()
    table, text = "model.embed_tokens.embed_tokens.weight", VOCABULARY + 1
    roles = system.adapter.roles(system.model)
    assert roles["lm_embedding"] == (Rows(table, 0, text),)
    assert roles["audio_embedding"] == (Rows(table, text, text + K * CODES + 1),)
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(tiny_model(), peft.LoraConfig(r=2, target_modules=r".*layers\.\d+\.self_attn\.q_proj\.linear"))
    roles = system.adapter.roles(adapted)
    assert roles["lm_embedding"] == (Rows(f"base_model.model.{table}", 0, text),)
    assert all(name.startswith(roles["lm_body"]) for name, _ in adapted.named_parameters() if "lora_" in name)
    with torch.no_grad():
        row = row_of(system.adapter, [some_codes(3)], [7, 9])
        torch.testing.assert_close(system.adapter.logits(adapted, row), system.adapter.logits(system.model, row))


def test_what_the_model_cannot_read_is_an_error() -> None:
    system = tiny_system()
    with pytest.raises(ValueError, match=r"a recording.* takes 129 frames.* reaches back 128"):
        system.adapter.encode_audio(system.model, torch.zeros(1920 * 128))
    with pytest.raises(ValueError, match="pass codebooks=3"):
        KyutaiSTT(build_text_tokenizer()).encode_audio(system.model, torch.zeros(1920))
    with pytest.raises(ValueError, match="pass text_pad=3"):
        KyutaiSTT(build_text_tokenizer(), codebooks=K, text_pad=4).logits(system.model, row_of(system.adapter, [[7]], [8]))
    with pytest.raises(TypeError, match="no audio head"):
        system.adapter.candidate_positions(some_codes(2))


def test_each_choice_is_signed_and_changes_the_score(tmp_path: Path) -> None:
    benchmark = spoken_set(tmp_path)
    systems = [tiny_system(**choice) for choice in ({}, {"quiet": "silence"}, {"flush_frames": 2})]
    assert len({tuple(system.adapter.signature().items()) for system in systems}) == 3
    assert len({tuple(losses(system, benchmark, "s2t").losses.flatten().round(6)) for system in systems}) == 3
