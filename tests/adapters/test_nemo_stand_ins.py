"""NeMo's speech LMs by stand-ins with its module names and signatures; tests/own_environment/test_nemo.py checks the same on its classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from contract import System, check_all, losses, spoken_set
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from s2sbench_callback.adapters.nemo_duplex import NeMoDuplex
from s2sbench_callback.adapters.nemo_salm import NeMoSALM
from s2sbench_callback.adapters.protocol import Row
from s2sbench_callback.mini_world.text_tokenizer import AUDIO_END, AUDIO_START, PAD, build_text_tokenizer
from s2sbench_callback.packing import EncodedCandidate, Unit, build_row

HIDDEN, CODES, TAG = 32, 16, "<|audio|>"
LLM = LlamaConfig(
    vocab_size=len(build_text_tokenizer()) + 8,
    hidden_size=HIDDEN,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=64,
    initializer_range=0.3,
    architectures=["LlamaForCausalLM"],
)
BEFORE, ANSWER = "Below ", "He was wet."


def text_tokenizer() -> PreTrainedTokenizerFast:
    """With padding, BOS and EOS."""
    tokens = {"pad_token": PAD, "bos_token": AUDIO_START, "eos_token": AUDIO_END}
    return PreTrainedTokenizerFast(tokenizer_object=build_text_tokenizer()._tokenizer, **tokens)


class WrappedTokenizer:
    """NeMo's ``AutoTokenizer``: no callable, the tokenizer of ``transformers`` inside."""

    def __init__(self, **special: str) -> None:
        self.tokenizer = text_tokenizer()
        self.tokenizer.add_special_tokens(special)
        self.pad = self.tokenizer.pad_token_id
        self.bos_id, self.eos_id = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id

    def text_to_ids(self, text: str) -> list[int]:
        return list(self.tokenizer.convert_tokens_to_ids(self.tokenizer.tokenize(text)))


class Featurizer(nn.Module):
    sample_rate, hop_length = 16_000, 640

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", torch.randn(8, 640, generator=torch.Generator().manual_seed(3)) * 0.3)

    def get_seq_len(self, samples: Tensor) -> Tensor:
        return samples.div(self.hop_length, rounding_mode="floor").long()


class Preprocessor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.featurizer = Featurizer()

    def forward(self, input_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        # Frames up to a multiple of eight, like pad_to.
        padded = nn.functional.pad(input_signal, (0, -input_signal.shape[1] % (8 * 640)))
        lengths = self.featurizer.get_seq_len(length)
        spectrum = padded.unfold(1, 640, 640) @ self.featurizer.bank.T + 0.5
        return (spectrum * (torch.arange(spectrum.shape[1]) < lengths[:, None])[..., None]).transpose(1, 2), lengths


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(8, 12, 4, stride=2)

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(nn.functional.pad(audio_signal, (2, 0))).tanh(), length // 2


class Connector(nn.Module):
    """A modality adapter: nothing, or one that projects by itself."""

    def __init__(self, projects: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1)) if projects else None
        if projects:
            self.proj = nn.Linear(12, HIDDEN)

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        if self.scale is None:
            return audio_signal, length
        return self.proj(audio_signal.transpose(1, 2) * self.scale).transpose(1, 2), length


class Perception(nn.Module):
    def __init__(self, projection: Literal["own", "adapter", "none"] = "own") -> None:
        super().__init__()
        self.preprocessor, self.encoder, self.modality_adapter = Preprocessor(), Encoder(), Connector(projection == "adapter")
        self.proj = nn.Linear(12, HIDDEN) if projection == "own" else nn.Identity()
        if projection == "none":
            self.encoder.layer = nn.Conv1d(8, HIDDEN, 4, stride=2)

    def forward(self, input_signal: Tensor, input_signal_length: Tensor, return_encoder_emb: bool = False) -> tuple[Tensor, ...]:
        hidden, length = self.encoder(*self.preprocessor(input_signal=input_signal, length=input_signal_length))
        encoded, length = self.modality_adapter(audio_signal=hidden, length=length)
        encoded = self.proj(encoded.transpose(1, 2))
        return (encoded, length, hidden.transpose(1, 2)) if return_encoder_emb else (encoded, length)


class SALMStandIn(nn.Module):
    def __init__(self, projection: Literal["own", "adapter", "none"] = "own") -> None:
        super().__init__()
        self.cfg: dict[str, Any] = {}
        self.tokenizer = WrappedTokenizer(**{"additional_special_tokens": [TAG]})  # type: ignore[arg-type]
        self.audio_locator_tag_id = self.tokenizer.tokenizer.convert_tokens_to_ids(TAG)
        self.llm = LlamaForCausalLM(LLM)
        self.embed_tokens = self.llm.model.embed_tokens
        del self.llm.model.embed_tokens
        self.perception = Perception(projection)

    def forward(self, input_embeds: Tensor, attention_mask: Tensor | None = None, cache: Any = None) -> dict[str, Tensor]:
        return {"logits": self.llm(inputs_embeds=input_embeds, attention_mask=attention_mask, use_cache=False).logits}

    def prepare_inputs(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        size = round(self.cfg.get("encoder_chunk_size_seconds", 1e6) * 16_000)
        sequences = []
        for ids, mask, audio, samples in zip(*(batch[name] for name in ("input_ids", "loss_mask", "audios", "audio_lens")), strict=True):
            encoded = [self.perception(piece[None], torch.tensor([len(piece)])) for piece in audio[:samples].split(size)]
            speech = torch.cat([hidden[0, : length[0]] for hidden, length in encoded])
            real = ids != self.tokenizer.pad
            before, after = (ids[real] == self.audio_locator_tag_id).nonzero()[0, 0] + torch.tensor([0, 1])
            targets = ids.where(mask, -100)[real]
            hidden = self.embed_tokens(ids.where(ids != self.audio_locator_tag_id, 0)[real])
            whole = torch.cat([hidden[:before], speech, hidden[after:]])
            sequences.append((whole, torch.cat([targets[:before], torch.full((len(speech),), -100), targets[after:]])))
        longest = max(len(hidden) for hidden, _ in sequences)
        return {
            "input_embeds": torch.stack([nn.functional.pad(hidden, (0, 0, longest - len(hidden), 0)) for hidden, _ in sequences])[:, :-1],
            "attention_mask": torch.stack([torch.arange(longest) >= longest - len(hidden) for hidden, _ in sequences])[:, :-1],
            "target_ids": torch.stack([nn.functional.pad(ids, (longest - len(ids), 0), value=-100) for _, ids in sequences])[:, 1:],
        }


class Codec(nn.Module):
    """80 ms to two codes."""

    sample_rate, samples_per_frame = 22_050, 1_764

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1_764, 2 * CODES)

    def encode(self, audio: Tensor, audio_len: Tensor) -> tuple[Tensor, Tensor]:
        frames = self.layer(audio.unfold(1, 1_764, 1_764)).unflatten(-1, (2, CODES)).argmax(-1)
        return frames.transpose(1, 2), audio_len // 1_764


class DuplexStandIn(nn.Module):
    """``DuplexS2SModel`` where it speaks, ``DuplexSTTModel`` where it does not."""

    speech_bos_id, speech_delay_id = CODES, CODES + 2

    def __init__(self, speaks: bool, transcribes: bool = False) -> None:
        super().__init__()
        self.cfg: dict[str, Any] = {"duplex_user_channel_weight": 0.7}
        if not speaks:
            self.cfg |= {"duplex_text_channel_weight": 1.3, "duplex_asr_text_weight": 0.5}
        self.tokenizer = WrappedTokenizer()
        self.text_pad_id, self.text_bos_id, self.text_eos_id = self.tokenizer.pad, self.tokenizer.bos_id, self.tokenizer.eos_id
        llm = LlamaForCausalLM(LLM)
        self.llm, self.lm_head, self.embed_tokens = llm.model, llm.lm_head, llm.model.embed_tokens
        del self.llm.embed_tokens
        self.perception = Perception()
        self.predict_user_text = transcribes
        if transcribes:
            self.asr_head, self.embed_asr_tokens = nn.Linear(HIDDEN, LLM.vocab_size), nn.Embedding(LLM.vocab_size, HIDDEN)
        if speaks:
            self.audio_codec = Codec()
            self.embed_audio_tokens = nn.ModuleList(nn.Embedding(CODES + 3, HIDDEN) for _ in range(2))
            self.audio_head = nn.Linear(HIDDEN, 2 * (CODES + 3))

    def forward(self, input_embeds: Tensor, cache: Any = None) -> dict[str, Tensor]:
        logits = self.lm_head(self.llm(inputs_embeds=input_embeds, use_cache=False).last_hidden_state)
        for name in ("pad", "bos", "eos"):
            if not self.training and self.cfg.get(f"inference_{name}_boost"):
                logits[:, :, getattr(self, f"text_{name}_id")] += self.cfg[f"inference_{name}_boost"]
        return {"text_logits": logits}

    def prepare_inputs(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        source = self.perception(input_signal=batch["source_audio"], input_signal_length=batch["source_audio_lens"])[0]
        tokens = batch["target_tokens"]
        hidden = self.embed_tokens(tokens)
        if hasattr(self, "audio_codec"):
            codes = self.audio_codec.encode(audio=batch["target_audio"], audio_len=batch["target_audio_lens"])[0].transpose(1, 2)
            codes = torch.where(tokens[..., None] == self.text_bos_id, self.speech_bos_id, codes)
            codes = torch.cat([torch.full_like(codes[:, :1], self.speech_delay_id), codes[:, :-1]], dim=1)
            hidden = hidden + sum(table(codes[..., k]) for k, table in enumerate(self.embed_audio_tokens))
        else:
            hidden = hidden * self.cfg["duplex_text_channel_weight"]
        hidden = hidden + source * self.cfg["duplex_user_channel_weight"]
        if self.predict_user_text:
            hidden = hidden + self.embed_asr_tokens(batch["source_tokens"]) * self.cfg["duplex_asr_text_weight"]
        return {"input_embeds": hidden[:, :-1], "text_labels": tokens[:, 1:]}


@dataclass(frozen=True)
class Builders:
    """How the tiny models are made; the same weights each time.

    Attributes:
        salm: Of what projects: perception itself, its adapter, or nothing.
        duplex: Of whether it speaks, and whether it transcribes.
    """

    salm: Callable[..., Any]
    duplex: Callable[..., Any]


def stand_in(kind: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def build(*arguments: Any) -> nn.Module:
        torch.manual_seed(0)
        return kind(*arguments).eval()

    return build


STAND_INS = Builders(stand_in(SALMStandIn), stand_in(DuplexStandIn))


@pytest.fixture
def builders() -> Builders:
    return STAND_INS


def salm_system(builders: Builders, *arguments: Any) -> System:
    model = builders.salm(*arguments)
    return System(model, NeMoSALM(model.tokenizer), ("s2t", "t2t"))


def duplex_system(builders: Builders, speaks: bool, transcribes: bool = False, **choices: Any) -> System:
    model = builders.duplex(speaks, transcribes)
    return System(model, NeMoDuplex(model.tokenizer, **choices), ("s2t", "t2t"))


def recording(seconds: float, seed: int = 1) -> Tensor:
    return torch.randn(int(16_000 * seconds), generator=torch.Generator().manual_seed(seed)) * 0.1


def row_of(system: System, parts: list[list[int] | Tensor], answer: list[int]) -> Row:
    features = [part for part in parts if isinstance(part, Tensor)]
    streams, targets = system.adapter.candidate_positions(answer)
    candidates = (EncodedCandidate(0, 0, streams, targets),)
    return build_row((Unit(system.adapter.context_streams(parts), candidates, torch.cat(features) if features else None),)).row


def spoken_row(system: System, waveform: Tensor, *before: list[int]) -> Row:
    return row_of(system, [*before, system.adapter.encode_audio(system.model, waveform)], system.adapter.encode_text(ANSWER))


def salm_batch(model: Any, system: System, waveforms: list[Tensor]) -> dict[str, Tensor]:
    """As its data set collates: one placeholder a recording, padding on the left."""
    before, answer = system.adapter.encode_text(BEFORE), system.adapter.encode_text(ANSWER)
    ids = [torch.tensor([*before * (1 + number), model.audio_locator_tag_id, *answer]) for number in range(len(waveforms))]
    longest = max(map(len, ids))
    padded = torch.stack([nn.functional.pad(each, (longest - len(each), 0), value=model.tokenizer.pad) for each in ids])
    return {
        "audios": nn.utils.rnn.pad_sequence(waveforms, batch_first=True),
        "audio_lens": torch.tensor([len(waveform) for waveform in waveforms]),
        "input_ids": padded,
        "loss_mask": (torch.arange(longest) >= longest - len(answer)).expand_as(padded),
    }


@torch.no_grad()
def check_salm_natively(
    system: System, seconds: tuple[float, float] = (0.9, 1.7), tolerance: float = 1e-5, batches: Sequence[Sequence[int]] = ((0,), (0, 1))
) -> None:
    """Its ``prepare_inputs`` and ``forward`` on recordings alone and in a batch, padded in samples and in positions."""
    model: Any = system.model
    waveforms = [recording(length, seed) for seed, length in enumerate(seconds)]
    for chosen in batches:
        inputs = model.prepare_inputs(salm_batch(model, system, [waveforms[number] for number in chosen]))
        logits = model(inputs["input_embeds"], attention_mask=inputs["attention_mask"])["logits"]
        for place, number in enumerate(chosen):
            scored = inputs["target_ids"][place] != -100
            row = spoken_row(system, waveforms[number], system.adapter.encode_text(BEFORE) * (1 + place))
            assert row.targets.tolist() == inputs["target_ids"][place][scored].tolist() == system.adapter.encode_text(ANSWER)
            torch.testing.assert_close(system.adapter.logits(model, row), logits[place][scored], atol=tolerance, rtol=tolerance)


@torch.no_grad()
def check_salm_written_context(system: System) -> None:
    model: Any = system.model
    context, answer = system.adapter.encode_text("It rained."), system.adapter.encode_text(" " + ANSWER)
    expected = model(model.embed_tokens(torch.tensor([context + answer])))["logits"][0, len(context) - 1 : -1]
    row = row_of(system, [context], answer)
    assert row.targets.tolist() == answer
    torch.testing.assert_close(system.adapter.logits(model, row), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def check_what_the_front_end_is(system: System, trained: str, heard: str) -> None:
    """Training what is projected live moves scores and no features; training the rest of perception moves the fingerprint."""
    model: Any = system.model
    parameters = dict(model.named_parameters())
    waveform = recording(1.0)
    features, print_before = system.adapter.encode_audio(model, waveform), system.adapter.audio_fingerprint(model)
    row = row_of(system, [features], [7, 8])
    before = system.adapter.logits(model, row)
    if trained:
        parameters[trained].mul_(1.5)
        assert torch.equal(system.adapter.encode_audio(model, waveform), features)
        assert system.adapter.audio_fingerprint(model) == print_before
        assert not torch.allclose(system.adapter.logits(model, row), before, atol=1e-3)
    parameters[heard].mul_(1.5)
    assert not torch.allclose(system.adapter.encode_audio(model, waveform), features, atol=1e-3)
    assert system.adapter.audio_fingerprint(model) != print_before
    roles = system.adapter.roles(model)
    assert not trained or trained.startswith(roles["audio_embedding"])
    assert heard.startswith(roles["frontend"])


@torch.no_grad()
def check_lora(system: System, adapted: Any) -> None:
    """Of a model into whose LLM LoRA was put by its owner, ``r=2`` on ``q_proj``."""
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.normal_(std=0.3)
    row = row_of(system, [[8, 9, 10]], [7, 9, 5])
    expected = adapted(adapted.embed_tokens(torch.tensor([[8, 9, 10, 7, 9, 5]])))["logits"][0, 2:-1]
    torch.testing.assert_close(system.adapter.logits(adapted, row), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(system.adapter.logits(system.model, row), expected, atol=1e-3)
    roles = system.adapter.roles(adapted)
    injected = [name for name, _ in adapted.named_parameters() if "lora_" in name]
    assert injected
    assert all(name.startswith(roles["lm_body"]) for name in injected)
    assert roles["lm_head"] == ("llm.base_model.model.lm_head.",)


class Continued(nn.Module):
    """A model's perception whose recordings go on with the frames that the adapter says it feeds while the user is quiet."""

    def __init__(self, perception: Any, frames: int, quiet: str) -> None:
        super().__init__()
        self.inner, self.frames, self.quiet = perception, frames, quiet

    def forward(self, input_signal: Tensor, input_signal_length: Tensor, **arguments: Any) -> tuple[Tensor, ...]:
        encoded, lengths, *more = self.inner(input_signal=input_signal, input_signal_length=input_signal_length, **arguments)
        second = self.inner(input_signal=torch.zeros(1, 16_000), input_signal_length=torch.tensor([16_000]))[0][0]
        still = second[len(second) // 2] * (self.quiet == "silence")
        rows = [torch.cat([row[:length], still.repeat(self.frames - int(length), 1)]) for row, length in zip(encoded, lengths, strict=True)]
        return torch.stack(rows), torch.full_like(lengths, self.frames), *more


@torch.no_grad()
def check_duplex_natively(system: System, quiet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own ``prepare_inputs`` and ``forward`` on two recordings under text that is written by hand."""
    model: Any = system.model
    answer, context = system.adapter.encode_text(ANSWER), system.adapter.encode_text("It rained.")
    waveforms = [recording(0.9, 0), recording(1.7, 1), None]
    rows = [row_of(system, [context], answer) if each is None else spoken_row(system, each) for each in waveforms]
    features = [0 if each is None else len(system.adapter.encode_audio(model, each)) for each in waveforms]
    said = [[*[model.text_pad_id] * each, model.text_bos_id, *(() if each else context), *answer] for each in features]
    frames = max(map(len, said)) + 1
    tokens = torch.stack([nn.functional.pad(torch.tensor(each), (0, frames - len(each)), value=model.text_pad_id) for each in said])
    lengths = torch.full((3,), frames)
    batch = {"target_tokens": tokens, "target_token_lens": lengths}
    if getattr(model, "predict_user_text", False):
        batch |= {"source_tokens": torch.full_like(tokens, model.text_pad_id), "source_token_lens": lengths}
    if hasattr(model, "audio_codec"):
        codec = model.audio_codec
        codes = codec.encode(audio=torch.zeros(1, codec.sample_rate), audio_len=torch.tensor([codec.sample_rate]))[0]
        still = codes[:, :, codes.shape[2] // 2, None].expand(-1, -1, frames)
        samples = frames * codec.samples_per_frame
        batch |= {"target_audio": torch.zeros(3, samples), "target_audio_lens": torch.full((3,), samples)}
        monkeypatch.setattr(codec, "encode", lambda audio, audio_len: (still, lengths[:1]))
    expected = []
    original = model.perception
    for number, waveform in enumerate(waveforms):
        # With nothing heard, the silence of the user fills everything.
        source = torch.zeros(16_000) if waveform is None else waveform
        model.perception = Continued(original, frames, quiet)
        if waveform is None:
            monkeypatch.setattr(Continued, "forward", _quiet_throughout(Continued.forward))
        one = {name: each[number : number + 1] for name, each in batch.items()}
        inputs = model.prepare_inputs(one | {"source_audio": source[None], "source_audio_lens": torch.tensor([len(source)])})
        expected.append(model(inputs["input_embeds"])["text_logits"][0])
        model.perception = original
        start = len(said[number]) - len(answer)
        assert inputs["text_labels"][0, start - 1 : start - 1 + len(answer)].tolist() == rows[number].targets.tolist() == answer
    if hasattr(model, "audio_codec"):
        monkeypatch.undo()
    for row, logits, each in zip(rows, expected, said, strict=True):
        torch.testing.assert_close(system.adapter.logits(model, row), logits[len(each) - len(answer) - 1 : len(each) - 1], atol=1e-5, rtol=1e-5)


def _quiet_throughout(forward: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    def quiet(self: Continued, input_signal: Tensor, input_signal_length: Tensor, **arguments: Any) -> tuple[Tensor, ...]:
        encoded, lengths, *more = forward(self, input_signal, input_signal_length, **arguments)
        return encoded[:, -1:].expand_as(encoded), lengths, *more

    return quiet


@torch.no_grad()
def check_boosts_are_left_out(system: System) -> None:
    """They are in the model's own forward in evaluation, and nowhere in training; the model has none but of the text."""
    model: Any = system.model
    row = row_of(system, [[8, 9, 10]], [7, 9, 5])
    before = system.adapter.logits(model, row)
    ids = torch.tensor([[model.text_bos_id, 8, 9, 10, 7, 9, 5]])
    embeds = model.embed_tokens(ids) * model.cfg.get("duplex_text_channel_weight", 1.0)
    plain = model(embeds)["text_logits"][0, 3:-1]
    torch.testing.assert_close(before, plain, atol=1e-5, rtol=1e-5)
    for name in ("pad", "bos", "eos"):
        model.cfg[f"inference_{name}_boost"] = 2.0
    assert not torch.allclose(model(embeds)["text_logits"][0, 3:-1], plain, atol=1e-2)
    assert torch.equal(system.adapter.logits(model, row), before)


SPEAKS = [pytest.param(True, id="DuplexS2SModel"), pytest.param(False, id="DuplexSTTModel")]
QUIET = ["silence", "absent"]


@pytest.mark.parametrize("projection", ["own", "adapter", "none"])
def test_salm_keeps_the_contract(projection: str, builders: Builders, tmp_path: Path) -> None:
    check_all(lambda: salm_system(builders, projection), tmp_path)


@pytest.mark.parametrize("projection", ["own", "adapter", "none"])
def test_salm_has_the_logits_of_its_own_forward(projection: str, builders: Builders) -> None:
    check_salm_natively(salm_system(builders, projection))


def test_salm_after_a_written_context(builders: Builders) -> None:
    check_salm_written_context(salm_system(builders))


def test_salm_hears_long_recordings_in_chunks(builders: Builders) -> None:
    system = salm_system(builders)
    whole = system.adapter.encode_audio(system.model, recording(2.31)), system.adapter.audio_fingerprint(system.model)
    system.model.cfg["encoder_chunk_size_seconds"] = 0.5
    check_salm_natively(system, (1.3, 2.2))
    assert system.adapter.audio_fingerprint(system.model) != whole[1]
    # A rest of one frame of the spectrogram joins the chunk before it.
    rested = recording(33_000 / 16_000)
    expected = [system.adapter.encode_audio(system.model, piece) for piece in rested[:24_000].split(8_000)]
    system.model.cfg.clear()
    expected.append(system.adapter.encode_audio(system.model, rested[24_000:]))
    system.model.cfg["encoder_chunk_size_seconds"] = 0.5
    torch.testing.assert_close(system.adapter.encode_audio(system.model, rested), torch.cat(expected))
    assert len(expected[-1]) == 1 + len(expected[0])


@pytest.mark.parametrize(
    ("projection", "trained", "heard"),
    [
        ("own", "perception.proj.weight", "perception.encoder.layer.weight"),
        ("adapter", "perception.modality_adapter.proj.weight", "perception.modality_adapter.scale"),
        ("none", "", "perception.encoder.layer.weight"),
    ],
)
def test_salms_projection_runs_live(projection: str, trained: str, heard: str, builders: Builders) -> None:
    check_what_the_front_end_is(salm_system(builders, projection), trained, heard)


def test_salm_with_lora(builders: Builders) -> None:
    peft = pytest.importorskip("peft")
    system, adapted = salm_system(builders), builders.salm()
    adapted.llm.model.embed_tokens = adapted.embed_tokens
    adapted.llm = peft.get_peft_model(adapted.llm, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    del adapted.llm.base_model.model.model.embed_tokens
    check_lora(system, adapted.eval())


def test_salms_layout_by_hand() -> None:
    adapter = NeMoSALM(WrappedTokenizer())
    speech = torch.zeros(2, 5)
    assert adapter.context_streams([[5, 6], speech, [7], speech]).tolist() == [[5, -1], [6, -1], [-1, 0], [-1, 1], [7, -1], [-1, 2], [-1, 3]]
    assert adapter.context_streams([[5]]).tolist() == [[5]]
    assert [part.tolist() for part in adapter.candidate_positions([7, 8])] == [[[7], [8]], [[7], [8]]]
    bos = text_tokenizer().bos_token_id
    assert NeMoSALM(WrappedTokenizer(), bos=True).context_streams([[5]]).tolist() == [[bos], [5]]
    assert adapter.encode_text(ANSWER) == WrappedTokenizer().text_to_ids(ANSWER)


def test_salms_roles_by_hand() -> None:
    system = salm_system(STAND_INS)
    assert system.adapter.roles(system.model) == {
        "audio_embedding": ("perception.proj.",),
        "frontend": ("perception.encoder.",),
        "lm_embedding": ("embed_tokens.",),
        "lm_head": ("llm.lm_head.",),
        "lm_body": ("llm.model.",),
    }


def test_what_salm_cannot_do_is_an_error() -> None:
    system = salm_system(STAND_INS)
    with pytest.raises(ValueError, match="pass sample_rate=16000"):
        NeMoSALM(system.model.tokenizer, sample_rate=24_000).encode_audio(system.model, recording(1.0))
    with pytest.raises(TypeError, match="no audio head"):
        system.adapter.candidate_positions(torch.zeros(2, 5))
    system.model.perception.transcribe_encoded = lambda: None
    with pytest.raises(ValueError, match="a transcript follows each recording"):
        system.adapter.encode_audio(system.model, recording(1.0))


@pytest.mark.parametrize("quiet", QUIET)
@pytest.mark.parametrize("speaks", SPEAKS)
def test_duplex_models_keep_the_contract(speaks: bool, quiet: str, builders: Builders, tmp_path: Path) -> None:
    check_all(lambda: duplex_system(builders, speaks, quiet=quiet), tmp_path)


def test_a_duplex_model_that_transcribes_keeps_the_contract(builders: Builders, tmp_path: Path) -> None:
    check_all(lambda: duplex_system(builders, False, True, turn=False, flush_seconds=0.3), tmp_path)


@pytest.mark.parametrize(
    ("speaks", "transcribes", "quiet"), [(True, False, "silence"), (False, False, "silence"), (False, False, "absent"), (False, True, "silence")]
)
def test_duplex_models_have_the_logits_of_their_own_forward(
    speaks: bool, transcribes: bool, quiet: str, builders: Builders, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_duplex_natively(duplex_system(builders, speaks, transcribes, quiet=quiet), quiet, monkeypatch)


def test_boosts_of_logits_are_left_out(builders: Builders) -> None:
    check_boosts_are_left_out(duplex_system(builders, False, quiet="absent"))


def test_flush_seconds_are_heard(builders: Builders) -> None:
    system, flushed = (duplex_system(builders, True, flush_seconds=seconds) for seconds in (0.0, 0.4))
    waveform = recording(1.0)
    silence = torch.zeros(6_400)
    expected = system.adapter.encode_audio(system.model, torch.cat([waveform, silence]))
    assert torch.equal(flushed.adapter.encode_audio(flushed.model, waveform), expected)
    assert len({each.adapter.audio_fingerprint(each.model) for each in (system, flushed)}) == 2


def test_the_duplex_layout_by_hand() -> None:
    pad, bos = text_tokenizer().pad_token_id, text_tokenizer().bos_token_id
    adapter, speech = NeMoDuplex(WrappedTokenizer()), torch.zeros(2, 5)
    assert adapter.context_streams([speech]).tolist() == [[pad, 0], [pad, 1], [bos, -1]]
    assert adapter.context_streams([[5, 6]]).tolist() == [[bos], [5], [6]]
    assert adapter.context_streams([[5], speech, speech]).tolist() == [[bos, -1], [5, -1], [pad, 0], [pad, 1], [pad, 2], [pad, 3], [bos, -1]]
    assert NeMoDuplex(WrappedTokenizer(), turn=False).context_streams([speech]).tolist() == [[pad, 0], [pad, 1]]
    assert [part.tolist() for part in adapter.candidate_positions([7, 8])] == [[[7], [8]], [[7], [8]]]


def test_duplex_roles_by_hand() -> None:
    system = duplex_system(STAND_INS, True)
    assert system.adapter.roles(system.model) == {
        "audio_embedding": ("perception.proj.", "embed_audio_tokens."),
        "audio_head": ("audio_head.",),
        "lm_embedding": ("embed_tokens.",),
        "lm_head": ("lm_head.",),
        "lm_body": ("llm.",),
        "frontend": ("perception.encoder.", "audio_codec."),
    }
    system = duplex_system(STAND_INS, False, True)
    roles = system.adapter.roles(system.model)
    assert roles["lm_embedding"] == ("embed_tokens.", "embed_asr_tokens.")
    assert roles["lm_head"] == ("lm_head.", "asr_head.")
    assert roles["audio_head"] == ()


def test_each_choice_of_the_layout_is_signed_and_changes_the_score(tmp_path: Path) -> None:
    benchmark = spoken_set(tmp_path)
    choices: list[dict[str, Any]] = [{}, {"quiet": "absent"}, {"turn": False}, {"flush_seconds": 0.4}]
    systems = [duplex_system(STAND_INS, True, **choice) for choice in choices]
    assert len({tuple(system.adapter.signature().items()) for system in systems}) == 4
    assert len({tuple(losses(system, benchmark, "s2t").losses.flatten().round(6)) for system in systems}) == 4


def test_what_a_duplex_model_cannot_do_is_an_error() -> None:
    system = duplex_system(STAND_INS, True)
    with pytest.raises(ValueError, match="pass text_pad=0"):
        NeMoDuplex(WrappedTokenizer(), text_pad=5).logits(system.model, row_of(system, [[7]], [8]))
    with pytest.raises(ValueError, match="no BOS token to open a turn with; pass turn=False"):
        NeMoDuplex(build_text_tokenizer())
    with pytest.raises(ValueError, match="cannot be -1"):
        NeMoDuplex(WrappedTokenizer(), flush_seconds=-1)
    with pytest.raises(TypeError, match="perception alone"):
        system.adapter.candidate_positions(torch.zeros(2, 5))
    system.model.text_bos_id = 9
    with pytest.raises(ValueError, match="or turn=False"):
        system.adapter.logits(system.model, row_of(system, [[7]], [8]))
