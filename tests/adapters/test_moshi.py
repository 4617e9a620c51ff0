"""Moshi of transformers: what the adapter reads against the model's own forward, delays and depth decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from contract import System, check_all, losses, spoken_set
from torch import Tensor, nn
from transformers import MoshiConfig, MoshiForConditionalGeneration

from s2sbench_callback.adapters.moshi import Moshi
from s2sbench_callback.adapters.protocol import Row
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer
from s2sbench_callback.packing import EncodedCandidate, Unit, build_row

K, PAD = 4, 3
# No recording of the tests below sounds like this; its embeddings are zero, so that the model's own forward can be fed with nothing.
NOTHING = 15
MIMI = {
    "model_type": "mimi",
    "upsampling_ratios": [8, 6, 5, 4],
    "num_quantizers": 5,
    "codebook_size": 16,
    "codebook_dim": 8,
    "vector_quantization_hidden_dimension": 8,
    "hidden_size": 16,
    "num_filters": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 16,
    "upsample_groups": 16,
}


def tiny_moshi(**changes: Any) -> MoshiForConditionalGeneration:
    torch.manual_seed(0)
    config = MoshiConfig(
        vocab_size=len(build_text_tokenizer()),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        head_dim=8,
        ffn_dim=64,
        num_codebooks=K,
        sliding_window=256,
        audio_vocab_size=16,
        audio_encoder_config=MIMI,
        depth_decoder_config={"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32, "max_position_embeddings": 5},
        initializer_range=0.3,
        **changes,
    )
    model = MoshiForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, buffer in model.audio_encoder.named_buffers():
            if name.endswith("embed_sum"):
                buffer.normal_()
        for table in model.embed_tokens:
            table.weight[NOTHING] = 0
        # Its weights for each codebook start at a scale that makes losses of hundreds of nats.
        for parameter in model.depth_decoder.parameters():
            if parameter.dim() == 3:
                parameter.mul_(0.2)
    return model


def tiny_system(**arguments: Any) -> System:
    return System(tiny_moshi(), Moshi(build_text_tokenizer(), codebooks=K, **arguments), ("s2t", "t2t", "s2s", "t2s"))


def some_codes(frames: int, seed: int = 1) -> Tensor:
    return torch.randint(0, NOTHING, (frames, K), generator=torch.Generator().manual_seed(seed))


def own_inputs(model: MoshiForConditionalGeneration, text: list[int], user: Tensor, moshi: Tensor) -> dict[str, Tensor]:
    """What the model's own generation would have read: its unconditional frame, then these, delayed by its own pattern."""
    start = model.get_unconditional_inputs()

    def delayed(codes: Tensor, first: Tensor) -> Tensor:
        whole = torch.cat([first, codes.T[None]], dim=2)
        return model.build_delay_pattern_mask(whole, model.config.audio_vocab_size, model.config.audio_vocab_size, whole.shape[-1] + 1)[0]

    ids = torch.cat([start.input_ids, torch.tensor([text])], dim=1)
    return {
        "input_ids": ids,
        "user_audio_codes": delayed(user, start.user_audio_codes),
        "moshi_audio_codes": delayed(moshi, start.moshi_audio_codes),
    }


def row_of(adapter: Moshi, parts: list[list[int] | Tensor], candidate: list[int] | Tensor) -> Row:
    streams, targets = adapter.candidate_positions(candidate)
    context = adapter.context_streams(parts, "speech" if isinstance(candidate, Tensor) else "text")
    return build_row((Unit(context, (EncodedCandidate(0, 0, streams, targets),)),)).row


@pytest.mark.parametrize(
    "choices", [{}, {"scored": "all", "flush_frames": 0}, {"quiet": "silence", "speech_channel": "moshi", "scored": "all", "flush_frames": 3}]
)
def test_moshi_keeps_the_contract(choices: dict[str, Any], tmp_path: Path) -> None:
    check_all(lambda: tiny_system(**choices), tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("channel", ["user", "moshi"])
@pytest.mark.parametrize("quiet", ["absent", "silence"])
def test_scored_text_has_the_logits_of_the_models_own_forward(quiet: str, channel: str) -> None:
    system = tiny_system(quiet=quiet, speech_channel=channel)
    model, codes, candidate = system.model, some_codes(6), [7, 9, 5, 11]
    blank = torch.full((K,), NOTHING)
    if quiet == "silence":
        blank = model.audio_encoder.encode(torch.zeros(1, 1, 1920), num_quantizers=K)[0][0, :, 0]
    # Six frames of speech, one to flush, then the candidate.
    heard = torch.cat([codes, blank.repeat(5, 1)])
    channels = {"user": blank.repeat(11, 1), "moshi": blank.repeat(11, 1)} | {channel: heard}
    inputs = own_inputs(model, [PAD] * 7 + candidate, channels["user"], channels["moshi"])
    # Shifted: what is said at a frame is about the next.
    expected = model(**inputs).logits[0, 7:11]
    row = row_of(system.adapter, [codes], candidate)
    assert row.sources.tolist() == [7, 8, 9, 10]
    assert row.targets.tolist() == candidate
    torch.testing.assert_close(system.adapter.logits(model, row), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_scored_text_after_a_written_context() -> None:
    system = tiny_system()
    nothing = torch.full((7, K), NOTHING)
    inputs = own_inputs(system.model, [8, 6, 12, 7, 9, 5, 11], nothing, nothing)
    row = row_of(system.adapter, [[8, 6, 12]], [7, 9, 5, 11])
    assert row.sources.tolist() == [3, 4, 5, 6]
    torch.testing.assert_close(system.adapter.logits(system.model, row), system.model(**inputs).logits[0, 3:7], atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("left", [True, False])
def test_a_native_batch_with_padding_says_the_same(left: bool) -> None:
    system = tiny_system()
    codes, candidate = some_codes(3), [7, 9]
    short = own_inputs(system.model, [PAD] * 4 + candidate, torch.cat([codes, torch.full((3, K), NOTHING)]), torch.full((6, K), NOTHING))
    long = own_inputs(system.model, [PAD] * 9, some_codes(9, seed=2), torch.full((9, K), NOTHING))
    padding = (3, 0) if left else (0, 3)
    batch = {name: torch.cat([nn.functional.pad(short[name], padding, value=1), long[name]]) for name in short}
    mask = torch.cat([nn.functional.pad(torch.ones(1, 7, dtype=torch.long), padding), torch.ones(1, 10, dtype=torch.long)])
    logits = system.model(**batch, attention_mask=mask).logits[0, 3:] if left else system.model(**batch, attention_mask=mask).logits[0]
    row = row_of(system.adapter, [codes], candidate)
    torch.testing.assert_close(system.adapter.logits(system.model, row), logits[4:6], atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("flush", [0, 1])
def test_scored_speech_has_the_logits_and_the_loss_of_the_models_own_depth_decoder(flush: int) -> None:
    system = tiny_system(scored="all", flush_frames=flush)
    model, context, said = system.model, some_codes(5), some_codes(4, seed=2)
    silent = torch.full((5 + flush, K), NOTHING)
    frames = 9 + flush
    user, moshi = torch.cat([context, torch.full((4 + flush, K), NOTHING)]), torch.cat([silent, said])
    inputs = own_inputs(model, [PAD] * frames, user, moshi)
    # At each frame the depth decoder is asked about the next, so labels start one frame later than what is read.
    read = {name: ids[..., :-1] for name, ids in inputs.items()}
    native = model(**read, text_labels=torch.full((1, frames), PAD), audio_labels=moshi.T[None])
    # [frames, K, V]: the candidate's four, the first of which has its semantic code alone.
    native_logits = native.audio_logits.view(frames, K, -1)[5 + flush :]
    expected = torch.cat([native_logits[:1, :1].flatten(0, 1), native_logits[1:].flatten(0, 1)])
    row = row_of(system.adapter, [context], said)
    due = torch.cat([said[:, :1], nn.functional.pad(said[:-1, 1:], (0, 0, 1, 0))], dim=1)
    assert row.targets.tolist() == [int(due[0, 0]), *due[1:].flatten().tolist()]
    assert row.heads.tolist() == [1, *[1, 2, 3, 4] * 3]
    assert row.sources.tolist() == [place for frame, place in enumerate(range(5 + flush, 9 + flush)) for _ in range(K if frame else 1)]
    torch.testing.assert_close(system.adapter.logits(model, row), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_whole_spoken_story_has_the_depth_loss_of_the_model() -> None:
    system = tiny_system(scored="all")
    said = some_codes(6)
    inputs = own_inputs(system.model, [PAD] * 6, torch.full((6, K), NOTHING), said)
    read = {name: ids[..., :-1] for name, ids in inputs.items()}
    native = system.model(**read, text_labels=torch.full((1, 6), PAD), audio_labels=said.T[None])
    row = row_of(system.adapter, [], said)
    found = nn.functional.cross_entropy(system.adapter.logits(system.model, row), row.targets)
    torch.testing.assert_close(found, native.depth_loss, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_semantic_codebook_alone_is_scored_as_among_all() -> None:
    every, semantic = tiny_system(scored="all"), tiny_system()
    row, first = (row_of(system.adapter, [some_codes(4)], some_codes(3, seed=2)) for system in (every, semantic))
    logits = every.adapter.logits(every.model, row)[row.heads == 1]
    torch.testing.assert_close(semantic.adapter.logits(semantic.model, first), logits, atol=1e-6, rtol=1e-6)
    assert first.targets.tolist() == some_codes(3, seed=2)[:, 0].tolist()


def test_the_layout_by_hand() -> None:
    adapter = Moshi(build_text_tokenizer(), codebooks=2)
    codes = torch.tensor([[10, 11], [12, 13]])
    start = [-3] * 5
    assert adapter.context_streams([codes]).tolist() == [start, [PAD, -1, -1, 10, 11], [PAD, -1, -1, 12, 13], [PAD, -1, -1, -1, -1]]
    assert adapter.context_streams([[7, 8]]).tolist() == [start, [7, -1, -1, -1, -1], [8, -1, -1, -1, -1]]
    assert adapter.context_streams([]).tolist() == [start]
    streams, targets = adapter.candidate_positions([7, 8])
    assert streams.tolist() == [[7, -1, -1, -1, -1], [8, -1, -1, -1, -1]]
    assert targets.tolist() == [[7], [8]]
    streams, targets = Moshi(build_text_tokenizer(), codebooks=2, scored="all").candidate_positions(codes)
    assert streams.tolist() == [[PAD, 10, 11, -1, -1], [PAD, 12, 13, -1, -1]]
    assert targets.tolist() == [[-1, 10, -1], [-1, 12, 11]]
    assert adapter.candidate_positions(codes).targets.tolist() == [[-1, 10], [-1, 12]]


@torch.no_grad()
def test_with_flush_frames_each_code_of_the_last_frame_is_heard_before_the_first_scored_token() -> None:
    flushed, at_once = tiny_system(), tiny_system(flush_frames=0)
    codes = some_codes(4)

    def scores(system: System, heard: Tensor) -> Tensor:
        return system.adapter.logits(system.model, row_of(system.adapter, [heard], [7, 9]))

    for codebook in range(K):
        changed = codes.clone()
        changed[-1, codebook] = (codes[-1, codebook] + 1) % NOTHING
        moved = [(scores(system, codes) - scores(system, changed)).abs().amax(1) > 1e-6 for system in (flushed, at_once)]
        assert moved[0].tolist() == [True, True]
        assert moved[1].tolist() == [codebook == 0, True]


@torch.no_grad()
def test_recordings_are_encoded_as_the_model_encodes_them() -> None:
    system = tiny_system()
    waveform = torch.randn(20_000, generator=torch.Generator().manual_seed(0)) * 0.1
    expected = system.model.audio_encoder.encode(waveform[None, None], num_quantizers=K)[0][0]
    assert expected.unique().numel() > 3
    assert torch.equal(system.adapter.encode_audio(system.model, waveform), expected.T)


@torch.no_grad()
def test_the_depth_decoder_does_not_look_ahead_with_eager_attention() -> None:
    system = tiny_system(scored="all")
    row = row_of(system.adapter, [some_codes(4)], some_codes(3, seed=2))
    expected = system.adapter.logits(system.model, row)
    system.model.set_attn_implementation("eager")
    assert system.model.depth_decoder.config._attn_implementation == "eager"
    torch.testing.assert_close(system.adapter.logits(system.model, row), expected, atol=1e-5, rtol=1e-5)


def test_a_head_that_is_not_asked_is_not_run() -> None:
    system = tiny_system()
    used: list[str] = []
    for name in ("decoder.lm_head", "depth_decoder"):
        system.model.get_submodule(name).register_forward_hook(lambda *_, name=name: used.append(name))
    for candidate, head in (([7, 9], "decoder.lm_head"), (some_codes(3), "depth_decoder")):
        with torch.no_grad():
            system.adapter.logits(system.model, row_of(system.adapter, [some_codes(4)], candidate))
        assert used == [head]
        used.clear()


@torch.no_grad()
def test_a_compiled_model_is_read_alike() -> None:
    system = tiny_system(scored="all")
    compiled = torch.compile(system.model, backend="eager")
    part = tiny_system().model
    part.decoder = torch.compile(part.decoder, backend="eager")
    for candidate in ([7, 9], some_codes(3, seed=2)):
        row = row_of(system.adapter, [some_codes(4)], candidate)
        for wrapped in (compiled, part):
            torch.testing.assert_close(system.adapter.logits(wrapped, row), system.adapter.logits(system.model, row), atol=1e-5, rtol=1e-5)
    assert system.adapter.roles(compiled) == system.adapter.roles(part) == system.adapter.roles(system.model)


@pytest.mark.parametrize("whole", [True, False])
def test_lora_is_heard_and_has_the_role_of_what_it_adapts(whole: bool, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    def build() -> System:
        system = tiny_system(scored="all")
        config = peft.LoraConfig(r=2, target_modules=r".*layers\.\d+\.self_attn\.[qv]_proj\.linear" if not whole else r"decoder.*[qv]_proj\.linear")
        torch.manual_seed(1)
        if whole:
            system = System(peft.get_peft_model(system.model, config), system.adapter, system.conditions)
        else:
            system.model.decoder = peft.get_peft_model(system.model.decoder, config)
        for name, parameter in system.model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter)
        return system.__class__(system.model.eval(), system.adapter, system.conditions)

    check_all(build, tmp_path)
    system, plain = build(), tiny_system(scored="all")
    roles = system.adapter.roles(system.model)
    assert all(name.startswith(roles["lm_body"]) for name, _ in system.model.named_parameters() if "lora_" in name)
    row = row_of(system.adapter, [some_codes(4)], [7, 9])
    with torch.no_grad():
        assert not torch.allclose(system.adapter.logits(system.model, row), plain.adapter.logits(plain.model, row), atol=1e-3)


def test_what_the_model_cannot_read_is_an_error() -> None:
    system = tiny_system()
    with pytest.raises(ValueError, match=r"a recording.* takes 257 frames.* reaches back 256"):
        system.adapter.encode_audio(system.model, torch.zeros(1920 * 255))
    assert len(system.adapter.encode_audio(system.model, torch.zeros(1920 * 254))) == 254
    with pytest.raises(ValueError, match=r"a context with its candidate takes 302 frames"):
        system.adapter.logits(system.model, row_of(system.adapter, [[7] * 300], [7, 9]))
    with pytest.raises(ValueError, match="pass codebooks=4"):
        Moshi(build_text_tokenizer()).encode_audio(system.model, torch.zeros(1920))
    with pytest.raises(ValueError, match="2 codebooks a speaker, and the speech tokenizer gave 4"):
        Moshi(build_text_tokenizer(), codebooks=2).context_streams([some_codes(2)])
    with pytest.raises(ValueError, match="flush_frames"):
        Moshi(build_text_tokenizer(), flush_frames=-1)


def test_each_choice_is_signed_and_changes_the_score(tmp_path: Path) -> None:
    benchmark = spoken_set(tmp_path)
    base = tiny_system()
    signatures, scores = [dict(base.adapter.signature())], [losses(base, benchmark, "s2t").losses]
    for choice in ({"speech_channel": "moshi"}, {"quiet": "silence"}, {"flush_frames": 2}, {"text_pad": 4}):
        other = tiny_system(**choice)
        signatures.append(dict(other.adapter.signature()))
        scores.append(losses(other, benchmark, "s2t").losses)
    assert len({tuple(signature.items()) for signature in signatures}) == 5
    assert len({tuple(score.flatten().round(6)) for score in scores}) == 5
    assert Moshi(build_text_tokenizer(), scored="all").signature() != Moshi(build_text_tokenizer()).signature()
