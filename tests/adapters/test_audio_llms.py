"""Qwen2-Audio, the Qwen-Omni thinkers and Voxtral against their own forwards on placeholders and log-mel frames."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from contract import System, check_all, heard, plain_row, spoken_set, text_logits
from torch import Tensor
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen3OmniMoeThinkerConfig,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    VoxtralConfig,
    VoxtralForConditionalGeneration,
    WhisperFeatureExtractor,
)

from s2sbench_callback.adapters.audio_llms import Qwen2Audio, Qwen3OmniThinker, Qwen25OmniThinker, Voxtral
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer
from s2sbench_callback.prompts import SPOKEN_INSTRUCTION, Condition
from s2sbench_callback.speech import load_waveform

HEARS: tuple[Condition, ...] = ("s2t", "t2t")
PLACEHOLDER = "<|AUDIO|>"


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    made = copy.deepcopy(build_text_tokenizer())
    names = [PLACEHOLDER, "<|audio_bos|>", "<|audio_eos|>", "<|audio_start|>", "<|audio_end|>", "[BEGIN_AUDIO]", "[INST]", "[/INST]", "<s>"]
    made.add_special_tokens({"additional_special_tokens": names})
    made.add_special_tokens({"bos_token": "<s>"})
    return made


def token(name: str) -> int:
    return int(tokenizer().convert_tokens_to_ids(name))


def extractor(seconds: int) -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(feature_size=8, chunk_length=seconds)


def text(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer()),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        **more,
    }


def encoder(**more: Any) -> dict[str, Any]:
    return {"num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 16, **more}


def shaken(model: Any) -> Any:
    """Weights large enough that everything that is fed matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def qwen2_audio() -> System:
    torch.manual_seed(0)
    config = Qwen2AudioConfig(
        audio_config={"model_type": "qwen2_audio_encoder", **encoder(max_source_positions=100)},
        text_config={"model_type": "qwen2", **text()},
        audio_token_id=token(PLACEHOLDER),
    )
    return System(shaken(Qwen2AudioForConditionalGeneration(config)), Qwen2Audio(tokenizer(), extractor(2)), HEARS)


VISION: dict[str, Any] = {"depth": 1, "hidden_size": 32, "num_heads": 4, "intermediate_size": 64, "out_hidden_size": 32}


def qwen25_omni() -> System:
    torch.manual_seed(0)
    config = Qwen2_5OmniThinkerConfig(
        audio_config=encoder(max_source_positions=100, n_window=10, output_dim=32),
        vision_config=VISION,
        text_config=text(rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}),
        audio_token_id=token(PLACEHOLDER),
        vision_start_token_id=1,
    )
    return System(shaken(Qwen2_5OmniThinkerForConditionalGeneration(config)), Qwen25OmniThinker(tokenizer(), extractor(2)), HEARS)


def qwen3_omni() -> System:
    torch.manual_seed(0)
    config = Qwen3OmniMoeThinkerConfig(
        audio_config=encoder(max_source_positions=1500, n_window=50, n_window_infer=100, output_dim=32, downsample_hidden_size=8),
        vision_config={**VISION, "deepstack_visual_indexes": [0]},
        text_config=text(
            head_dim=8,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
        ),
        audio_token_id=token(PLACEHOLDER),
        vision_start_token_id=1,
    )
    return System(shaken(Qwen3OmniMoeThinkerForConditionalGeneration(config)), Qwen3OmniThinker(tokenizer(), extractor(2)), HEARS)


def voxtral(**choices: Any) -> System:
    torch.manual_seed(0)
    config = VoxtralConfig(
        audio_config={
            "model_type": "voxtral_encoder",
            "num_mel_bins": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "hidden_size": 16,
            "intermediate_size": 64,
            "max_source_positions": 40,
        },
        text_config={"model_type": "llama", **text(head_dim=8)},
        audio_token_id=token(PLACEHOLDER),
    )
    # 0.8 s, so that recordings are of several chunks.
    features = extractor(1)
    features.n_samples, features.nb_max_frames = 12_800, 80
    return System(shaken(VoxtralForConditionalGeneration(config)), Voxtral(tokenizer(), features, **choices), HEARS)


BUILDERS: list[Callable[[], System]] = [qwen2_audio, qwen25_omni, qwen3_omni, voxtral]


def native_audio(system: System, waveforms: list[Tensor]) -> tuple[dict[str, Tensor], list[int]]:
    """What the model's processor makes of recordings, by hand, and the number of placeholders of each."""
    features = system.adapter.feature_extractor  # type: ignore[attr-defined]
    samples = [waveform.numpy() for waveform in waveforms]
    asked = {"sampling_rate": 16_000, "return_attention_mask": True, "return_tensors": "pt"}
    if isinstance(system.adapter, Voxtral):
        chunks = []
        for each in samples:
            mel = features(each, padding=True, truncation=False, pad_to_multiple_of=12_800, **asked)["input_features"]
            chunks.append(mel.reshape(8, -1, 80).transpose(0, 1))
        return {"input_features": torch.cat(chunks)}, [10 * len(each) for each in chunks]
    whisper = {"padding": True, "truncation": False} if isinstance(system.adapter, Qwen3OmniThinker) else {"padding": "max_length"}
    found = features(samples, **whisper, **asked)
    lengths = found["attention_mask"].sum(-1).tolist()
    if isinstance(system.adapter, Qwen3OmniThinker):

        def positions(frames: int) -> int:
            rest = (frames % 100 - 1) // 2 + 1
            return ((rest - 1) // 2 + 1 - 1) // 2 + 1 + frames // 100 * 13
    else:

        def positions(frames: int) -> int:
            return ((frames - 1) // 2 + 1 - 2) // 2 + 1

    return {"input_features": found["input_features"], "feature_attention_mask": found["attention_mask"]}, [positions(each) for each in lengths]


def brackets(system: System) -> tuple[list[str], list[str]]:
    if isinstance(system.adapter, Voxtral):
        return ["[BEGIN_AUDIO]"], []
    return (["<|audio_start|>"], ["<|audio_end|>"]) if isinstance(system.adapter, Qwen3OmniThinker) else (["<|audio_bos|>"], ["<|audio_eos|>"])


def written(system: System, before: str, placeholders: int, answer: str) -> list[int]:
    """Ids of the whole sequence as the tokenizer reads it, placeholders and all."""
    opening, closing = brackets(system)
    speech = "".join([*opening, *[PLACEHOLDER] * placeholders, *closing])
    return [index for piece in (before, speech, answer) for index in tokenizer()(piece, add_special_tokens=False)["input_ids"]]


@pytest.mark.parametrize("build", BUILDERS)
def test_the_contract(build: Callable[[], System], tmp_path: Path) -> None:
    check_all(build, tmp_path)


def test_the_contract_in_a_turn(tmp_path: Path) -> None:
    check_all(functools.partial(voxtral, layout="instruct", silence="dropped"), tmp_path)


@pytest.mark.parametrize("build", BUILDERS)
@torch.no_grad()
def test_the_native_forward_alone_and_in_a_padded_batch(build: Callable[[], System], tmp_path: Path) -> None:
    """Recordings and texts of different lengths; the batch is padded on both sides in turn."""
    system = build()
    items = spoken_set(tmp_path).items[:2]
    before = SPOKEN_INSTRUCTION["en"]
    answers = ["He was wet.", "It flew to the moon, and nobody saw it again."]
    waveforms = [load_waveform(item.contexts[0].audio, 16_000) for item in items]
    found = []
    for waveform, answer in zip(waveforms, answers, strict=True):
        audio, counts = native_audio(system, [waveform])
        ids = torch.tensor([written(system, before, counts[0], answer)])
        # Some models ask for a mask where they hear.
        expected = system.model(input_ids=ids, attention_mask=torch.ones_like(ids), **audio).logits[0]
        features = system.adapter.encode_audio(system.model, waveform)
        assert len(features) == counts[0]
        logits = text_logits(system, [system.adapter.encode_text(before), features], system.adapter.encode_text(answer))
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        found.append(logits)
    audio, counts = native_audio(system, waveforms)
    sequences = [written(system, before, count, answer) for count, answer in zip(counts, answers, strict=True)]
    longest = max(map(len, sequences))
    for side in ("left", "right"):
        padding = [[0] * (longest - len(ids)) for ids in sequences]
        pairs = list(zip(sequences, padding, strict=True))
        ids = torch.tensor([pad + ids if side == "left" else ids + pad for ids, pad in pairs])
        mask = torch.tensor([[0] * len(pad) + [1] * len(ids) if side == "left" else [1] * len(ids) + [0] * len(pad) for ids, pad in pairs])
        batch = system.model(input_ids=ids, attention_mask=mask, **audio).logits
        for number, logits in enumerate(found):
            torch.testing.assert_close(batch[number][mask[number].bool()], logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("build", BUILDERS)
@torch.no_grad()
def test_the_native_forward_of_text(build: Callable[[], System], tmp_path: Path) -> None:
    """Also after a batch of another size, which leaves positions behind in some of the models."""
    system = build()
    context, answer = system.adapter.encode_text("The cat sat on the mat."), system.adapter.encode_text(" It slept.")
    expected = system.model(input_ids=torch.tensor([context + answer])).logits[0]
    other = torch.ones(3, 5, dtype=torch.int64)
    system.model(input_ids=other, attention_mask=other)
    torch.testing.assert_close(text_logits(system, [context], answer), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("build", BUILDERS)
def test_a_layout_written_by_hand(build: Callable[[], System]) -> None:
    read = build().adapter
    one, other = torch.zeros(2, 16), torch.zeros(1, 16)
    opening, closing = ([[token(name), -1] for name in names] for names in brackets(build()))
    assert read.context_streams([[5, 6], one, [7], other]).tolist() == [
        [5, -1],
        [6, -1],
        *opening,
        [-1, 0],
        [-1, 1],
        *closing,
        [7, -1],
        *opening,
        [-1, 2],
        *closing,
    ]
    assert read.context_streams([[5]]).tolist() == [[5]]
    assert [part.tolist() for part in read.candidate_positions([7, 8])] == [[[7], [8]], [[7], [8]]]
    for spoken in (lambda: read.candidate_positions(one), lambda: read.context_streams([one], "speech")):
        with pytest.raises(TypeError, match="no audio vocabulary"):
            spoken()


def test_a_turn_written_by_hand() -> None:
    read = voxtral(layout="instruct", bos=True).adapter
    start, opening, begin, closing = (token(name) for name in ("<s>", "[INST]", "[BEGIN_AUDIO]", "[/INST]"))
    assert read.context_streams([[5], torch.zeros(1, 64)]).tolist() == [[start, -1], [opening, -1], [5, -1], [begin, -1], [-1, 0], [closing, -1]]
    assert read.context_streams([[5]]).tolist() == [[start], [opening], [5], [closing]]
    assert read.signature()["layout"] == "instruct"
    assert read.signature()["turn"] == f"{opening},{closing}"


@torch.no_grad()
def test_positions_of_silence_can_be_dropped(tmp_path: Path) -> None:
    audio = spoken_set(tmp_path).items[0].contexts[0].audio
    assert audio is not None
    kept, dropped = heard(voxtral())(audio), heard(voxtral(silence="dropped"))(audio)
    # One second of chunks of 0.8 s with 10 positions each.
    assert (len(kept), len(dropped)) == (20, 13)
    torch.testing.assert_close(kept[:13], dropped)
    assert voxtral().adapter.audio_fingerprint(voxtral().model) != voxtral(silence="dropped").adapter.audio_fingerprint(voxtral().model)


@pytest.mark.parametrize("build", BUILDERS)
@torch.no_grad()
def test_the_projector_is_live_and_the_encoder_is_hashed(build: Callable[[], System], tmp_path: Path) -> None:
    """Training the projector changes logits and leaves what is cached alone; training the encoder does not."""
    system = build()
    audio = spoken_set(tmp_path).items[0].contexts[0].audio
    assert audio is not None
    features, fingerprint = heard(system)(audio), system.adapter.audio_fingerprint(system.model)
    logits = text_logits(system, [features], [5])
    parameters = dict(system.model.named_parameters())
    roles = system.adapter.roles(system.model)

    def of(role: Any) -> Tensor:
        name = str(roles[role][0])
        return next(parameter for each, parameter in parameters.items() if each.startswith(name))

    of("audio_embedding").mul_(2)
    assert system.adapter.audio_fingerprint(system.model) == fingerprint
    torch.testing.assert_close(heard(system)(audio), features)
    assert (text_logits(system, [features], [5]) - logits).abs().max() > 1e-3
    of("frontend").mul_(2)
    assert system.adapter.audio_fingerprint(system.model) != fingerprint


def test_roles_by_name() -> None:
    expected = {
        qwen2_audio: ("model.multi_modal_projector.",),
        qwen25_omni: ("model.audio_tower.proj.",),
        qwen3_omni: ("model.audio_tower.proj1.", "model.audio_tower.proj2."),
        voxtral: ("model.multi_modal_projector.",),
    }
    for build, projector in expected.items():
        system = build()
        roles = system.adapter.roles(system.model)
        assert roles["audio_embedding"] == projector
        assert roles["lm_embedding"] == ("model.language_model.embed_tokens.",)
        assert roles["lm_head"] == ("lm_head.",)
        assert set(roles["lm_body"]) == {"model.language_model.layers.", "model.language_model.norm."}
        assert all(str(name).startswith(("model.audio_tower.", "model.visual.")) for name in roles["frontend"])


@pytest.mark.parametrize("build", [qwen2_audio, qwen25_omni])
def test_what_is_too_long_or_too_short(build: Callable[[], System]) -> None:
    system = build()
    with pytest.raises(ValueError, match=r"a recording of 2\.0 s is longer than the 2 s that Qwen2"):
        system.adapter.encode_audio(system.model, torch.zeros(32_001))
    with pytest.raises(ValueError, match="is too short for the encoder"):
        system.adapter.encode_audio(system.model, torch.zeros(150))


@torch.no_grad()
def test_a_recording_beyond_the_window_where_the_model_has_none() -> None:
    """2.5 s in the hands of a feature extractor of 2 s: 13 positions a second, and 7 for the rest of 50 frames."""
    system = qwen3_omni()
    assert len(system.adapter.encode_audio(system.model, torch.randn(40_000) * 0.1)) == 33


@torch.no_grad()
def test_half_precision_and_low_rank_adapters() -> None:
    peft = pytest.importorskip("peft")
    system = qwen2_audio()
    features = system.adapter.encode_audio(system.model, torch.randn(16_000) * 0.1)
    plain = text_logits(system, [features], [5, 6])
    model = peft.get_peft_model(copy.deepcopy(system.model), peft.LoraConfig(target_modules=["q_proj", "linear"]))
    wrapped = System(model.eval(), system.adapter, HEARS)
    torch.testing.assert_close(text_logits(wrapped, [features], [5, 6]), plain)
    roles = system.adapter.roles(model)
    assert roles["audio_embedding"] == ("base_model.model.model.multi_modal_projector.",)
    assert sum(any(name.startswith(str(entry)) for of in roles.values() for entry in of) for name, _ in model.named_parameters()) == len(
        list(model.named_parameters())
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.add_(0.1)
    assert (text_logits(wrapped, [features], [5, 6]) - plain).abs().max() > 1e-3
    half = System(copy.deepcopy(system.model).bfloat16(), system.adapter, HEARS)
    logits = text_logits(half, [half.adapter.encode_audio(half.model, torch.randn(16_000) * 0.1).float()], [5, 6])
    assert logits.dtype is torch.bfloat16


def test_a_missing_feature_extractor_or_token_is_named() -> None:
    with pytest.raises(ValueError, match=r"Voxtral needs the model's feature extractor .* Voxtral\(tokenizer, feature_extractor=\.\.\.\)"):
        Voxtral(tokenizer())
    with pytest.raises(ValueError, match=r"has no token '<\|audio_bos\|>'; name the model's own in audio_start="):
        Qwen2Audio(build_text_tokenizer(), extractor(2))


def test_a_processor_is_taken_apart() -> None:
    class Processor:
        def __init__(self) -> None:
            self.tokenizer, self.feature_extractor = tokenizer(), extractor(2)

    adapter = Qwen2Audio(Processor())
    assert adapter.tokenizer is tokenizer()
    assert adapter.signature() == Qwen2Audio(tokenizer(), extractor(2)).signature()


@torch.no_grad()
def test_logits_at_some_positions_only() -> None:
    system = qwen2_audio()
    features = system.adapter.encode_audio(system.model, torch.randn(16_000) * 0.1)
    streams = system.adapter.context_streams([features, [5, 6, 7]])
    everywhere = system.adapter.logits(system.model, plain_row(streams, features))
    torch.testing.assert_close(system.adapter.logits(system.model, plain_row(streams, features, [3, 27])), everywhere[[3, 27]])
