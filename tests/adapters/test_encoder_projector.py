"""Encoders, projectors and LLMs put together by hand, as SpeechLLM does; and Freeze-Omni under its published names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchaudio
from contract import System, check_all, heard, spoken_set, text_logits
from torch import Tensor, nn
from transformers import (
    HubertConfig,
    HubertModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Wav2Vec2FeatureExtractor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperModel,
)

from s2sbench_callback.adapters.encoder_projector import EncoderProjectorLLM
from s2sbench_callback.adapters.freeze_omni import FreezeOmni
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer
from s2sbench_callback.prompts import Condition
from s2sbench_callback.speech import load_waveform

HEARS: tuple[Condition, ...] = ("s2t", "t2t")
WIDTH, HIDDEN = 16, 32


def shaken(model: nn.Module) -> Any:
    """Weights large enough that everything that is fed matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def llm(**more: Any) -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(build_text_tokenizer()),
            hidden_size=HIDDEN,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            **more,
        )
    )


class TensorEncoder(nn.Module):
    """As SpeechLLM wraps its encoders: a tensor comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = HubertModel(
            HubertConfig(
                hidden_size=WIDTH,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=32,
                conv_dim=(8, 8),
                conv_kernel=(10, 32),
                conv_stride=(10, 32),
                num_conv_pos_embeddings=4,
                num_conv_pos_embedding_groups=2,
            )
        )

    def forward(self, samples: Tensor) -> Tensor:
        states: Tensor = self.encoder(samples).last_hidden_state
        return states


class Pooled(nn.Module):
    """SpeechLLM's ``linear-pool``."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.pool = nn.AvgPool1d(k, k)

    def forward(self, frames: Tensor) -> Tensor:
        pooled: Tensor = self.second(self.pool(self.first(frames).relu().transpose(1, 2)).transpose(1, 2))
        return pooled


class Convolved(nn.Module):
    """SpeechLLM's ``cnn``, or the same with padding."""

    def __init__(self, k: int, padding: int = 0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv1d(WIDTH, HIDDEN // 2, 5, padding=padding),
            nn.ReLU(),
            nn.Conv1d(HIDDEN // 2, HIDDEN, 5, stride=k, padding=padding),
            nn.ReLU(),
            nn.Conv1d(HIDDEN, HIDDEN, 5, padding=padding),
        )

    def forward(self, frames: Tensor) -> Tensor:
        convolved: Tensor = self.layers(frames.transpose(1, 2)).transpose(1, 2)
        return convolved


class Concatenated(nn.Module):
    """``k`` frames side by side, the last of them filled up with zeros, as Ultravox stacks them."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k, self.linear = k, nn.Linear(k * WIDTH, HIDDEN)

    def forward(self, frames: Tensor) -> Tensor:
        filled = nn.functional.pad(frames, (0, 0, 0, -frames.shape[1] % self.k))
        mapped: Tensor = self.linear(filled.reshape(len(frames), -1, self.k * WIDTH))
        return mapped


class Filled(Convolved):
    """``cnn`` behind zeros that make the last window whole."""

    def forward(self, frames: Tensor) -> Tensor:
        return super().forward(nn.functional.pad(frames, (0, 0, 0, max(17 - frames.shape[1], (17 - frames.shape[1]) % 2))))


class SpeechLLM(nn.Module):
    """The three parts under SpeechLLM's names, and a head that no score needs."""

    def __init__(self, encoder: nn.Module, connector: nn.Module, llm_model: nn.Module) -> None:
        super().__init__()
        self.audio_encoder, self.connector, self.llm_model = encoder, connector, llm_model
        self.ctc = nn.Linear(WIDTH, 4)


def pooled(**choices: Any) -> System:
    torch.manual_seed(0)
    read = EncoderProjectorLLM(build_text_tokenizer(), before="Input: ", after=" Output: ", stack=3, **choices)
    return System(shaken(SpeechLLM(TensorEncoder(), Pooled(3), llm())), read, HEARS)


def convolved(**choices: Any) -> System:
    torch.manual_seed(0)
    read = EncoderProjectorLLM(build_text_tokenizer(), stack=2, **{"window": 17, **choices})
    return System(shaken(SpeechLLM(TensorEncoder(), Convolved(2), llm())), read, HEARS)


def filled() -> System:
    system = convolved(remainder="pad")
    system.model.connector = shaken(Filled(2))
    return system


def concatenated() -> System:
    torch.manual_seed(0)
    extractor = Wav2Vec2FeatureExtractor(do_normalize=True)
    read = EncoderProjectorLLM(build_text_tokenizer(), after="\n", stack=4, remainder="pad", feature_extractor=extractor)
    return System(shaken(SpeechLLM(TensorEncoder(), Concatenated(4), llm(tie_word_embeddings=True))), read, HEARS)


class Whispering(nn.Module):
    """A user's own names."""

    def __init__(self) -> None:
        super().__init__()
        config = WhisperConfig(
            num_mel_bins=8,
            encoder_layers=1,
            encoder_attention_heads=2,
            encoder_ffn_dim=32,
            d_model=WIDTH,
            max_source_positions=100,
            decoder_layers=1,
            decoder_attention_heads=2,
        )
        self.speech = nn.ModuleDict({"tower": WhisperModel(config).encoder, "bridge": nn.Linear(2 * WIDTH, HIDDEN)})
        self.brain = llm()


def whispering() -> System:
    torch.manual_seed(0)
    read = EncoderProjectorLLM(
        build_text_tokenizer(),
        "speech.tower",
        "speech.bridge",
        "brain",
        stack=2,
        projector_input="stacks",
        prepare="log_mel",
        feature_extractor=WhisperFeatureExtractor(feature_size=8, chunk_length=2),
    )
    return System(shaken(Whispering()), read, HEARS)


BUILDERS: list[Callable[[], System]] = [pooled, convolved, concatenated, whispering]


def projected_whole(system: System, waveform: Tensor) -> Tensor:
    """What each system's own ``encode`` would hand its LLM, ``[P, H]``."""
    model = system.model
    if isinstance(model, Whispering):
        mel = WhisperFeatureExtractor(feature_size=8, chunk_length=2)(waveform.numpy(), sampling_rate=16_000, return_tensors="pt").input_features
        # One frame for 20 ms, of the padding none.
        frames = model.speech["tower"](mel).last_hidden_state[:, : -(-(len(waveform) // 160) // 2)]
        return model.speech["bridge"](frames[:, : frames.shape[1] // 2 * 2].reshape(1, -1, 2 * WIDTH))[0]
    assert isinstance(model, SpeechLLM)
    if isinstance(model.connector, Concatenated):
        waveform = (waveform - waveform.mean()) / torch.sqrt(waveform.var(correction=0) + 1e-7)
    return model.connector(model.audio_encoder(waveform[None]))[0]


def text_around(system: System) -> tuple[str, str]:
    return {"Pooled": ("Input: ", " Output: "), "Concatenated": ("", "\n")}.get(type(getattr(system.model, "connector", None)).__name__, ("", ""))


def language_model(system: System) -> Any:
    return system.model.brain if isinstance(system.model, Whispering) else system.model.llm_model


def ids(text: str) -> list[int]:
    return list(build_text_tokenizer()(text)["input_ids"]) if text else []


@pytest.mark.parametrize("build", BUILDERS)
def test_the_contract(build: Callable[[], System], tmp_path: Path) -> None:
    check_all(build, tmp_path)


@pytest.mark.parametrize("build", BUILDERS)
@torch.no_grad()
def test_the_native_way_alone_and_in_a_padded_batch(build: Callable[[], System], tmp_path: Path) -> None:
    """Embeddings side by side, as SpeechLLM's ``encode`` makes them of whole recordings."""
    system = build()
    model = language_model(system)
    before, after = text_around(system)
    sequences, found = [], []
    for item, answer in zip(spoken_set(tmp_path).items, ["He was wet.", "It flew to the moon, and nobody saw it again.", "He ate."], strict=True):
        assert item.contexts[0].audio is not None
        waveform = load_waveform(item.contexts[0].audio, 16_000)
        embed = model.get_input_embeddings()
        opening, closing, told = (embed(torch.tensor(piece, dtype=torch.int64)) for piece in (ids("Below " + before), ids(after), ids(answer)))
        if before:
            opening = torch.cat([embed(torch.tensor(ids(piece))) for piece in ("Below ", before)])
        sequences.append(torch.cat([opening, projected_whole(system, waveform), closing, told]))
        parts = [system.adapter.encode_text("Below "), system.adapter.encode_audio(system.model, waveform)]
        logits = text_logits(system, parts, ids(answer))
        torch.testing.assert_close(logits, model(inputs_embeds=sequences[-1][None]).logits[0], atol=1e-5, rtol=1e-5)
        found.append(logits)
    longest = max(map(len, sequences))
    for side in ("left", "right"):
        pad = [(0, 0, longest - len(each), 0) if side == "left" else (0, 0, 0, longest - len(each)) for each in sequences]
        batch = torch.stack([nn.functional.pad(each, by) for each, by in zip(sequences, pad, strict=True)])
        mask = torch.stack([nn.functional.pad(torch.ones(len(each), 1), by)[:, 0] for each, by in zip(sequences, pad, strict=True)])
        logits = model(inputs_embeds=batch, attention_mask=mask.long()).logits
        for number, expected in enumerate(found):
            torch.testing.assert_close(logits[number][mask[number].bool()], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("build", [pooled, convolved, filled, concatenated])
@torch.no_grad()
def test_positions_for_every_remainder(build: Callable[[], System]) -> None:
    """As many as the connector makes, and the frames that are kept are those it looks at."""
    system = build()
    torch.manual_seed(1)
    for extra in (-10, -9, 0, 1, 2, 3) if build in (filled, concatenated) else range(4):
        waveform = torch.randn(320 * (24 + extra)) * 0.1
        rows = system.adapter.encode_audio(system.model, waveform)
        stream = system.adapter.context_streams([rows])[:, -1]
        whole = projected_whole(system, waveform)
        assert int((stream >= 0).sum()) == len(whole)
        torch.testing.assert_close(system.adapter._project(system.model, rows)[stream[stream >= 0]], whole, atol=1e-5, rtol=1e-5)  # type: ignore[attr-defined]


def test_a_layout_written_by_hand() -> None:
    read = pooled().adapter
    around = [[[index, -1] for index in ids(text)] for text in ("Input: ", " Output: ")]
    assert read.context_streams([[5], torch.zeros(2, 48), [6]]).tolist() == [[5, -1], *around[0], [-1, 0], [-1, 1], *around[1], [6, -1]]
    assert read.context_streams([[5, 6]]).tolist() == [[5], [6]]
    # 17 frames a position and 2 from one to the next: behind the rows of the positions stand 8 that their windows reach into.
    rows = convolved().adapter.context_streams([torch.zeros(11, 32), [7], torch.zeros(10, 32)])
    assert rows.tolist() == [[-1, 0], [-1, 1], [-1, 2], [7, -1], [-1, 11], [-1, 12]]


def test_roles_by_name() -> None:
    roles = pooled().adapter.roles(pooled().model)
    assert roles == {
        "frontend": ("audio_encoder.", "ctc."),
        "audio_embedding": ("connector.",),
        "lm_embedding": ("llm_model.model.embed_tokens.",),
        "lm_body": ("llm_model.model.layers.", "llm_model.model.norm."),
        "lm_head": ("llm_model.lm_head.",),
    }


@torch.no_grad()
def test_low_rank_adapters_around_the_llm(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    @torch.no_grad()  # the contract's training check builds where gradients are on
    def build() -> System:
        system = pooled()
        system.model.llm_model = peft.get_peft_model(system.model.llm_model, peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
        for name, parameter in system.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1, generator=torch.Generator().manual_seed(len(name)))
        system.model.eval()
        return system

    system = build()
    roles = system.adapter.roles(system.model)
    assert roles["lm_embedding"] == ("llm_model.base_model.model.model.embed_tokens.",)
    assert roles["lm_head"] == ("llm_model.base_model.model.lm_head.",)
    features = system.adapter.encode_audio(system.model, torch.randn(16_000) * 0.1)
    embed = system.model.llm_model.model.model.embed_tokens
    whole = [embed(torch.tensor(ids("Input: "))), system.adapter._project(system.model, features), embed(torch.tensor([*ids(" Output: "), 5]))]  # type: ignore[attr-defined]
    expected = system.model.llm_model(inputs_embeds=torch.cat(whole)[None]).logits[0]
    torch.testing.assert_close(text_logits(system, [features], [5]), expected, atol=1e-5, rtol=1e-5)
    check_all(build, tmp_path)


@torch.no_grad()
def test_a_projector_that_the_arguments_do_not_describe() -> None:
    waveform = torch.randn(320 * 50) * 0.1
    system = convolved()
    for read, words in [
        (convolved(window=16).adapter, "Calculated padded input size|positions"),
        (convolved(window=19).adapter, "makes 2 positions of 19 frames instead of 1"),
        (pooled(remainder="pad").adapter, "the projector makes 16 positions of a recording, and stack=3, window=3, remainder='pad' makes 17"),
    ]:
        model = pooled().model if "pad'" in words else system.model
        with pytest.raises((ValueError, RuntimeError), match=words):
            read.encode_audio(model, waveform)
    system.model.connector = shaken(Convolved(1, padding=2))
    read = EncoderProjectorLLM(build_text_tokenizer())
    with pytest.raises(ValueError, match="something else of a whole recording than of the frames that stack=1, window=1"):
        read.encode_audio(system.model, waveform)


def test_arguments_that_do_not_fit() -> None:
    tokenizer = build_text_tokenizer()
    with pytest.raises(ValueError, match="window at least stack"):
        EncoderProjectorLLM(tokenizer, stack=4, window=2)
    with pytest.raises(ValueError, match="needs the encoder's feature extractor"):
        EncoderProjectorLLM(tokenizer, prepare="log_mel")
    with pytest.raises(ValueError, match="must be left out"):
        EncoderProjectorLLM(tokenizer, window=3, projector_input="stacks")
    with pytest.raises(ValueError, match="takes 16000 Hz; pass sample_rate=16000"):
        EncoderProjectorLLM(tokenizer, feature_extractor=Wav2Vec2FeatureExtractor(), sample_rate=24_000)
    with pytest.raises(
        ValueError, match="projector='bridge' leads nowhere in SpeechLLM, whose children are audio_encoder, connector, llm_model, ctc"
    ):
        EncoderProjectorLLM(tokenizer, projector="bridge").roles(pooled().model)
    system = whispering()
    with pytest.raises(ValueError, match=r"of 2\.5 s is longer than the 2 s that WhisperEncoder can hear"):
        system.adapter.encode_audio(system.model, torch.zeros(40_000))
    with pytest.raises(ValueError, match=r"longer than the 0\.5 s"):
        pooled(max_seconds=0.5).adapter.encode_audio(pooled().model, torch.zeros(16_000))
    with pytest.raises(ValueError, match="too short"):
        pooled().adapter.encode_audio(pooled().model, torch.zeros(700))


class ChunkEncoder(nn.Module):
    """A structural stand-in for Freeze-Omni's encoder: chunks of 19 frames to 4, with a cache of what was before."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.ModuleList([nn.Conv1d(80, WIDTH, 7, stride=4), nn.Linear(WIDTH, WIDTH)])
        self.enc[1].num_blocks = 1

    def infer(self, chunk: Tensor, cache: list[Any], index: int, out: Any, place: Any) -> tuple[Any, ...]:
        assert chunk.shape[1:] == (19, 80)
        states = torch.tanh(self.enc[0](chunk.transpose(1, 2) / 20).transpose(1, 2))
        # Every chunk adds what was heard before and where it stands.
        earlier = torch.zeros(1, WIDTH) if cache[0] is None else cache[0]
        states = self.enc[1](states + earlier) + 0.01 * place
        return states, [0.5 * earlier + states.mean(1)], index, out, place + 4


class CausalAdapter(nn.Module):
    """Under the names of Freeze-Omni's ``CNNSubsampling``, with one convolution or two."""

    def __init__(self, convolutions: int, kernel: int = 5, causal: bool = True) -> None:
        super().__init__()
        middle = WIDTH if convolutions == 1 else 2 * WIDTH
        self.left = nn.ConstantPad1d((kernel - 1, 0) if causal else (kernel // 2, kernel // 2), 0.0)
        if convolutions == 2:
            self.conv1d1, self.bn1 = nn.Conv1d(WIDTH, middle, kernel), nn.BatchNorm1d(middle)
        self.conv1d2, self.bn2 = nn.Conv1d(middle, 2 * WIDTH, kernel, stride=2), nn.BatchNorm1d(2 * WIDTH)
        self.project = nn.Linear(2 * WIDTH, HIDDEN)

    def forward(self, frames: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        states = frames.transpose(1, 2)
        states.masked_fill_(~mask, 0.0)
        if hasattr(self, "conv1d1"):
            states = self.bn1(self.conv1d1(self.left(states))).relu()
        states = self.bn2(self.conv1d2(self.left(states))).relu()
        return self.project(states.transpose(1, 2)), mask[:, :, ::2]


class FreezeOmniStandIn(nn.Module):
    """``AudioLLM``'s module names and flags."""

    def __init__(self, convolutions: int, prompts: int, causal: bool = True) -> None:
        super().__init__()
        self.encoder, self.adpter, self.llm_decoder = ChunkEncoder(), CausalAdapter(convolutions, causal=causal), llm()
        # As the repository does for its own code.
        self.llm_decoder.transformer = self.llm_decoder.model
        self.llm_decoder.transformer.wte = self.llm_decoder.transformer.embed_tokens
        self.task_embeddings, self.predictor_head = nn.Embedding(10, HIDDEN), nn.Linear(HIDDEN, 4)
        self.prompt_num, self.prompt_finetune, self.add_prompt_before = prompts, bool(prompts), bool(prompts)
        if prompts:
            self.prompt_embeddings = nn.Embedding(prompts, HIDDEN)


def freeze_omni(convolutions: int, prompts: int, causal: bool = True) -> System:
    torch.manual_seed(0)
    read = FreezeOmni(build_text_tokenizer(), before="Hear: ", after=" Go on: ", prompts=prompts)
    return System(shaken(FreezeOmniStandIn(convolutions, prompts, causal)), read, HEARS)


@pytest.mark.parametrize(("convolutions", "prompts"), [(1, 0), (2, 3)])
def test_freeze_omni_keeps_the_contract(convolutions: int, prompts: int, tmp_path: Path) -> None:
    check_all(functools.partial(freeze_omni, convolutions, prompts), tmp_path)


@pytest.mark.parametrize(("convolutions", "prompts"), [(1, 0), (2, 3)])
@pytest.mark.parametrize("samples", [100, 2560, 20_000])
@torch.no_grad()
def test_freeze_omni_as_its_inference_reads(convolutions: int, prompts: int, samples: int) -> None:
    """Chunk by chunk with buffers of samples and frames, then everything side by side."""
    system = freeze_omni(convolutions, prompts)
    model: Any = system.model
    waveform = torch.randn(samples) * 0.1
    padded = nn.functional.pad(waveform, (0, -samples % 2560)) * 32768
    last_samples, last_frames = torch.zeros(240), torch.zeros(3, 80)
    cache, place, frames = [None], 0, []
    for chunk in padded.split(2560):
        bank = torchaudio.compliance.kaldi.fbank(torch.cat([last_samples, chunk])[None], dither=0, num_mel_bins=80)
        output, cache, _, _, place = model.encoder.infer(torch.cat([last_frames, bank])[None], cache, 0, None, place)
        frames.append(output)
        last_samples, last_frames = chunk[-240:], bank[-3:]
    together = torch.cat(frames, 1)
    speech = model.adpter(together, torch.ones(1, 1, together.shape[1], dtype=torch.bool))[0][0]
    embed = model.llm_decoder.model.embed_tokens
    answer = ids("He was wet.")
    prompted = model.prompt_embeddings.weight if prompts else torch.zeros(0, HIDDEN)
    pieces = [embed(torch.tensor(ids("Hear: "))), prompted, speech, embed(torch.tensor([*ids(" Go on: "), *answer]))]
    expected = model.llm_decoder(inputs_embeds=torch.cat(pieces)[None]).logits[0]
    features = system.adapter.encode_audio(model, waveform)
    assert len(features) == 2 * -(-samples // 2560)
    torch.testing.assert_close(text_logits(system, [features], answer), expected, atol=1e-4, rtol=1e-4)


def test_freeze_omni_in_a_layout_written_by_hand() -> None:
    read = freeze_omni(1, 2).adapter
    before, after = ([[index, -1, -1] for index in ids(text)] for text in ("Hear: ", " Go on: "))
    prompts = [[-1, 0, -1], [-1, 1, -1]]
    assert read.context_streams([[5], torch.zeros(2, 32), torch.zeros(1, 32)]).tolist() == [
        [5, -1, -1],
        *before,
        *prompts,
        [-1, 0, 0],
        [-1, 1, 1],
        *after,
        *before,
        *prompts,
        [-1, 0, 2],
        *after,
    ]
    assert read.context_streams([[5]]).tolist() == [[5]]


@torch.no_grad()
def test_freeze_omni_two_recordings_in_one_context() -> None:
    """The adapter begins anew with the second."""
    system = freeze_omni(2, 3)
    one, other = (system.adapter.encode_audio(system.model, torch.randn(length) * 0.1) for length in (8000, 12_000))
    streams = system.adapter.context_streams([one, other])
    heard_both = system.adapter._heard(system.model, torch.cat([one, other]), streams)[streams[:, -1] >= 0]  # type: ignore[attr-defined]
    alone = []
    for rows in (one, other):
        frames = rows.reshape(1, -1, WIDTH).clone()
        alone.append(system.model.adpter(frames, torch.ones(1, 1, frames.shape[1], dtype=torch.bool))[0][0])  # type: ignore[operator]
    torch.testing.assert_close(heard_both, torch.cat(alone), atol=1e-5, rtol=1e-5)


def test_freeze_omni_of_another_shape() -> None:
    wave = torch.randn(16_000) * 0.1
    system = freeze_omni(1, 3)
    with pytest.raises(ValueError, match=r"puts 3 prompt embeddings before a recording, and FreezeOmni\(prompts=0\)"):
        FreezeOmni(build_text_tokenizer()).encode_audio(system.model, wave)
    with pytest.raises(ValueError, match="makes a position of 2 frames; pass stack=2"):
        FreezeOmni(build_text_tokenizer(), prompts=3, stack=1).encode_audio(system.model, wave)
    looks_ahead = freeze_omni(1, 0, causal=False)
    with pytest.raises(ValueError, match="something else of a whole recording"):
        looks_ahead.adapter.encode_audio(looks_ahead.model, wave)
    assert system.adapter.roles(system.model)["audio_embedding"] == ("adpter.", "prompt_embeddings.")


@pytest.mark.parametrize("build", [pooled, functools.partial(freeze_omni, 1, 0)])
def test_spoken_candidates_are_refused(build: Callable[[], System], tmp_path: Path) -> None:
    system = build()
    audio = spoken_set(tmp_path).items[0].contexts[0].audio
    assert audio is not None
    with pytest.raises(TypeError, match="no audio vocabulary"):
        system.adapter.candidate_positions(heard(system)(audio))
