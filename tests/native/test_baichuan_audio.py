"""Baichuan-Audio, loaded from a folder under the published names and held against slow computations on the very weights of that folder.

The stand-in's names and shapes are those of Baichuan-Omni-1.5's published code, which does not run on the installed ``transformers``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from contract import System, check_all, text_logits
from safetensors.torch import save_file
from torch import Tensor
from transformers import WhisperFeatureExtractor

from s2sbench_callback.adapters import SummedCodebooks
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer
from s2sbench_callback.native.baichuan_audio import BaichuanAudio, BaichuanAudioConfig, load_baichuan_audio
from s2sbench_callback.native.baichuan_speech_tokenizer import BaichuanSpeechConfig, log_mel

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER = 256, 4, 2, 32, 96
CODEBOOKS = (24, 12, 6)
MELS, WIDTH, SPEECH_HEADS, POOL, RATE, SECONDS = 16, 16, 2, 4, 16_000, 2
START, END, PAD = "<audio_start_baichuan>", "<audio_end_baichuan>", "<audio_pad_baichuan>"
IGNORED = (
    "model.visual_model.blocks.0.weight",
    "model.visual_bridge_model.proj.weight",
    "audio_tokenizer.audio_decoder.layer_norm.weight",
    "audio_tokenizer.audio_flow_matching_decoder.prenet.out_proj.weight",
    "audio_tokenizer.audio_bridge_model.proj_decoder.weight",
    "audio_tokenizer.audio_bridge_model.vq_list.0.codebook.cluster_size",
    "audio_tokenizer.audio_bridge_model.vq_list.2.codebook.embed_avg",
)


def tokenizer() -> Any:
    """The embedded one with Baichuan's tokens."""
    made = copy.deepcopy(build_text_tokenizer())
    made.add_special_tokens({"additional_special_tokens": [START, END, PAD]})
    return made


VOCABULARY = len(tokenizer())


def published_config() -> dict[str, Any]:
    return {
        "architectures": ["OmniForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_omni.OmniConfig", "AutoModelForCausalLM": "modeling_omni.OmniForCausalLM"},
        "attention_qkv_bias": True,
        "attention_qkv_pack": True,
        "audio_config": {
            "audio_head_transformer_layers": 2,
            "audio_start_token_id": VOCABULARY - 3,
            "avg_pooler": POOL,
            "d_model": WIDTH,
            "encoder_attention_heads": SPEECH_HEADS,
            "encoder_ffn_dim": 24,
            "encoder_layers": 2,
            "hop_length": 160,
            "kernel_size": 3,
            "max_audio_seconds": SECONDS,
            "n_fft": 400,
            "num_mel_bins": MELS,
            "sampling_rate": RATE,
            "stride_size": 2,
            "split_overlap": 0.0,
            "vq_config": {"enable": True, "codebook_sizes": list(CODEBOOKS)},
        },
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "max_position_embeddings": 8192,
        "model_type": "omni",
        "num_attention_heads": HEADS,
        "num_hidden_layers": 2,
        "num_key_value_heads": KV_HEADS,
        "pad_token_id": 0,
        "position_embedding_type": "rope",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "sparse_attention_heads": None,
        "sparse_attention_layers": [],
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_norm_head": False,
        "use_sliding_window": False,
        "visual_config": {"enable": True, "hidden_size": 3584},
        "vocab_size": VOCABULARY,
        "vocoder_config": {"enable": True, "channels": [256]},
    }


def published_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every weight that the published classes register."""
    depth = len(CODEBOOKS)
    yield from (("model.embed_tokens.weight", (VOCABULARY, HIDDEN)), ("model.norm.weight", (HIDDEN,)), ("lm_head.weight", (VOCABULARY, HIDDEN)))
    packed = HEAD_DIM * (HEADS + 2 * KV_HEADS)
    for layer in range(2):
        at = f"model.layers.{layer}."
        yield from ((f"{at}self_attn.W_pack.weight", (packed, HIDDEN)), (f"{at}self_attn.W_pack.bias", (packed,)))
        yield f"{at}self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)
        yield from ((f"{at}mlp.{name}_proj.weight", (INNER, HIDDEN)) for name in ("gate", "up"))
        yield f"{at}mlp.down_proj.weight", (HIDDEN, INNER)
        yield from ((f"{at}{name}_layernorm.weight", (HIDDEN,)) for name in ("input", "post_attention"))
    for k, size in enumerate(CODEBOOKS):
        yield f"model.audio_embed_layers.{k}.weight", (size + 1, HIDDEN)
        yield from ((f"audio_head.heads.{k}.weight", (size + 1, HIDDEN)), (f"audio_head.heads.{k}.bias", (size + 1,)))
    yield "audio_head.headnorm.weight", (HIDDEN,)
    for layer in range(2):
        at = f"audio_head.transformer_layers.{layer}."
        yield from ((f"{at}self_attention.in_proj_weight", (3 * HIDDEN, HIDDEN)), (f"{at}self_attention.in_proj_bias", (3 * HIDDEN,)))
        yield from ((f"{at}self_attention.out_proj.weight", (HIDDEN, HIDDEN)), (f"{at}self_attention.out_proj.bias", (HIDDEN,)))
        yield from ((f"{at}layernorm{n}.weight", (HIDDEN,)) for n in (1, 2))
        yield from ((f"{at}linear1.weight", (2 * HIDDEN, HIDDEN * depth)), (f"{at}linear1.bias", (2 * HIDDEN,)))
        yield from ((f"{at}linear2.weight", (HIDDEN, 2 * HIDDEN * depth)), (f"{at}linear2.bias", (HIDDEN,)))
    at = "audio_tokenizer.audio_model."
    yield from ((f"{at}conv1.weight", (WIDTH, MELS, 3)), (f"{at}conv1.bias", (WIDTH,)))
    yield from ((f"{at}conv2.weight", (WIDTH, WIDTH, 3)), (f"{at}conv2.bias", (WIDTH,)))
    yield f"{at}positional_embedding", (SECONDS * 50, WIDTH)
    for layer in range(2):
        of_layer = f"{at}layers.{layer}."
        yield from ((f"{of_layer}self_attn.{name}_proj.weight", (WIDTH, WIDTH)) for name in ("q", "k", "v", "out"))
        yield from ((f"{of_layer}self_attn.{name}_proj.bias", (WIDTH,)) for name in ("q", "v", "out"))
        yield from ((f"{of_layer}{name}.{kind}", (WIDTH,)) for name in ("self_attn_layer_norm", "final_layer_norm") for kind in ("weight", "bias"))
        yield from ((f"{of_layer}fc1.weight", (24, WIDTH)), (f"{of_layer}fc1.bias", (24,)))
        yield from ((f"{of_layer}fc2.weight", (WIDTH, 24)), (f"{of_layer}fc2.bias", (WIDTH,)))
    yield from ((f"{at}layer_norm.{kind}", (WIDTH,)) for kind in ("weight", "bias"))
    at, pooled = "audio_tokenizer.audio_bridge_model.", WIDTH * POOL
    yield from ((f"{at}{name}_proj.weight", (pooled, WIDTH, POOL)) for name in ("gate", "up"))
    yield f"{at}down_proj.weight", (pooled, pooled)
    yield from ((f"{at}layer_norm.{kind}", (pooled,)) for kind in ("weight", "bias"))
    yield from ((f"{at}vq_list.{k}.codebook.embed", (size, pooled)) for k, size in enumerate(CODEBOOKS))


def published_state() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    state = {}
    for name, shape in published_shapes():
        values = torch.randn(shape, generator=draw)
        if name.endswith("norm.weight") or "layernorm" in name or "layer_norm.weight" in name:
            values = 1 + 0.2 * values
        elif len(shape) > 1 and "embed" not in name:
            values = values / values[0].numel() ** 0.5
        elif len(shape) == 1:
            values = 0.3 * values
        state[name] = values
    return state


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return published_state()


Layout = Literal["model.safetensors", "pytorch_model.bin", "sharded safetensors", "sharded bin"]


def write_folder(folder: Path, state: dict[str, Tensor], layout: Layout = "sharded safetensors", **changed: Any) -> Path:
    folder.mkdir(exist_ok=True)
    made = tokenizer()
    made.save_pretrained(folder)
    # Published with this class.
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "Qwen2Tokenizer"}))
    (folder / "config.json").write_text(json.dumps({**published_config(), **changed}))
    whole = {**state, **{name: torch.zeros(3) for name in IGNORED}}
    save: Callable[[dict[str, Tensor], Path], None] = torch.save if "bin" in layout else save_file
    if "sharded" not in layout:
        save(whole, folder / layout)
        return folder
    stem, suffix = ("pytorch_model", "bin") if "bin" in layout else ("model", "safetensors")
    weight_map = {name: f"{stem}-0000{1 + place % 3}-of-00003.{suffix}" for place, name in enumerate(whole)}
    for shard in set(weight_map.values()):
        save({name: whole[name] for name in whole if weight_map[name] == shard}, folder / shard)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


@pytest.fixture(scope="module")
def folder(state: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("checkpoint"), state)


@pytest.fixture(scope="module")
def model(folder: Path) -> BaichuanAudio:
    return load_baichuan_audio(folder, torch.float32)


def recording(samples: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    times = torch.arange(samples) / RATE
    return 0.1 * torch.randn(samples, generator=draw) + 0.3 * torch.sin(2_000 * times * (1 + times))


# The published computation, slowly, in float64 where nothing has to be compared to the bit.


def rms(states: Tensor, weight: Tensor) -> Tensor:
    return weight.double() * states / (states.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def attend(queries: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
    """One head, one position after the other: ``[L, d]`` each."""
    out = []
    for place in range(len(queries)):
        seen = slice(None, place + 1) if causal else slice(None)
        weights = (keys[seen] @ queries[place] / queries.shape[1] ** 0.5).softmax(0)
        out.append(weights @ values[seen])
    return torch.stack(out)


def slow_language_model(state: dict[str, Tensor], embedded: Tensor) -> Tensor:
    """Final states ``[L, H]`` of embeddings ``[L, H]``."""
    state = {name: value.double() for name, value in state.items()}
    states = embedded.double()
    angles = torch.arange(len(states)).double()[:, None] * 1e6 ** (-torch.arange(0, HEAD_DIM, 2).double() / HEAD_DIM)

    def turn(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=1)
        return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=1)

    for layer in range(2):
        at = f"model.layers.{layer}."
        packed = rms(states, state[f"{at}input_layernorm.weight"]) @ state[f"{at}self_attn.W_pack.weight"].T + state[f"{at}self_attn.W_pack.bias"]
        heads = packed.unflatten(1, (-1, HEAD_DIM)).unbind(1)
        mixed = []
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            mixed.append(attend(turn(heads[head]), turn(heads[HEADS + shared]), heads[HEADS + KV_HEADS + shared], causal=True))
        states = states + torch.cat(mixed, dim=1) @ state[f"{at}self_attn.o_proj.weight"].T
        inner = rms(states, state[f"{at}post_attention_layernorm.weight"])
        gate, up = (inner @ state[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        states = states + (gate * gate.sigmoid() * up) @ state[f"{at}mlp.down_proj.weight"].T
    return rms(states, state["model.norm.weight"])


def slow_head(state: dict[str, Tensor], hidden: Tensor, codes: Tensor) -> list[Tensor]:
    """Logits of one frame, ``[C_k + 1]`` for each codebook; ``hidden`` ``[H]``, ``codes`` ``[K]``."""
    state = {name: value.double() for name, value in state.items()}
    depth = len(CODEBOOKS)
    steps = [hidden.double()]
    for k in range(depth - 1):
        steps.append(sum((state[f"model.audio_embed_layers.{j}.weight"][codes[j]] for j in range(k + 1)), torch.zeros(HIDDEN).double()))
    for layer in range(2):
        at = f"audio_head.transformer_layers.{layer}."
        normed = torch.stack([rms(step, state[f"{at}layernorm1.weight"]) for step in steps])
        projected = normed @ state[f"{at}self_attention.in_proj_weight"].T + state[f"{at}self_attention.in_proj_bias"]
        queries, keys, values = (part.split(128, dim=1) for part in projected.chunk(3, dim=1))
        mixed = torch.cat([attend(*each, causal=True) for each in zip(queries, keys, values, strict=True)], dim=1)
        mixed = mixed @ state[f"{at}self_attention.out_proj.weight"].T + state[f"{at}self_attention.out_proj.bias"]
        for k in range(depth):
            residual = rms(steps[k] + mixed[k], state[f"{at}layernorm2.weight"])
            own1 = state[f"{at}linear1.weight"][:, k * HIDDEN : (k + 1) * HIDDEN]
            own2 = state[f"{at}linear2.weight"][:, k * 2 * HIDDEN : (k + 1) * 2 * HIDDEN]
            steps[k] = residual + own2 @ torch.nn.functional.gelu(own1 @ residual)
    steps = [rms(step, state["audio_head.headnorm.weight"]) for step in steps]
    return [state[f"audio_head.heads.{k}.weight"] @ steps[k] + state[f"audio_head.heads.{k}.bias"] for k in range(depth)]


def slow_codes(state: dict[str, Tensor], features: Tensor, frames: int) -> Tensor:
    """Codes ``[F, K]`` of log-mel features ``[M, T]`` of which ``frames`` count."""
    part = "audio_tokenizer.audio_model."
    of_encoder = {name.removeprefix(part): value.double() for name, value in state.items() if name.startswith(part)}

    def convolve(signal: Tensor, name: str, stride: int) -> Tensor:
        padded = torch.nn.functional.pad(signal, (1, 1))
        windows = [padded[:, start : start + 3] for start in range(0, signal.shape[1], stride)]
        out = [torch.einsum("ock,ck->o", of_encoder[f"{name}.weight"], window) + of_encoder[f"{name}.bias"] for window in windows]
        return torch.nn.functional.gelu(torch.stack(out, dim=1))

    def layer_norm(states: Tensor, of: dict[str, Tensor], name: str) -> Tensor:
        centred = states - states.mean(1, keepdim=True)
        return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * of[f"{name}.weight"] + of[f"{name}.bias"]

    states = convolve(convolve(features.double(), "conv1", 1), "conv2", 2).T[: (frames + 1) // 2]
    states = states + of_encoder["positional_embedding"][: len(states)]
    for layer in range(2):
        at = f"layers.{layer}."
        normed = layer_norm(states, of_encoder, f"{at}self_attn_layer_norm")
        queries, keys, values = (normed @ of_encoder[f"{at}self_attn.{name}_proj.weight"].T for name in ("q", "k", "v"))
        queries, values = queries + of_encoder[f"{at}self_attn.q_proj.bias"], values + of_encoder[f"{at}self_attn.v_proj.bias"]
        by_head = zip(*(each.chunk(SPEECH_HEADS, dim=1) for each in (queries, keys, values)), strict=True)
        mixed = torch.cat([attend(*each, causal=False) for each in by_head], dim=1)
        states = states + mixed @ of_encoder[f"{at}self_attn.out_proj.weight"].T + of_encoder[f"{at}self_attn.out_proj.bias"]
        inner = layer_norm(states, of_encoder, f"{at}final_layer_norm") @ of_encoder[f"{at}fc1.weight"].T + of_encoder[f"{at}fc1.bias"]
        states = states + torch.nn.functional.gelu(inner) @ of_encoder[f"{at}fc2.weight"].T + of_encoder[f"{at}fc2.bias"]
    states = layer_norm(states, of_encoder, "layer_norm")

    part = "audio_tokenizer.audio_bridge_model."
    bridge = {name.removeprefix(part): value.double() for name, value in state.items() if name.startswith(part)}
    codes = []
    for start in range(0, len(states) - POOL + 1, POOL):
        pool = states[start : start + POOL]
        gate, up = (torch.einsum("ock,kc->o", bridge[f"{name}_proj.weight"], pool) for name in ("gate", "up"))
        pooled = bridge["down_proj.weight"] @ (gate * gate.sigmoid() * up) + torch.cat(list(pool))
        residual = layer_norm(pooled[None], bridge, "layer_norm")
        of_frame = []
        for k in range(len(CODEBOOKS)):
            table = bridge[f"vq_list.{k}.codebook.embed"]
            code = int(torch.cdist(residual, table)[0].argmin())
            residual = residual - table[code]
            of_frame.append(code)
        codes.append(of_frame)
    return torch.tensor(codes, dtype=torch.int64).reshape(-1, len(CODEBOOKS))


@torch.no_grad()
def test_text_logits_over_text_and_audio(model: BaichuanAudio, state: dict[str, Tensor]) -> None:
    """Codebooks summed at the frames between the brackets; the same beside left and right padding."""
    draw = torch.Generator().manual_seed(1)
    before, after = torch.randint(3, VOCABULARY, (2, 6), generator=draw)
    codes = torch.stack([torch.randint(0, size + 1, (5,), generator=draw) for size in CODEBOOKS], dim=1)
    text = state["model.embed_tokens.weight"]
    frames = torch.stack([sum((state[f"model.audio_embed_layers.{k}.weight"][frame[k]] for k in range(3)), torch.zeros(HIDDEN)) for frame in codes])
    start, end = model.tokenizer.convert_tokens_to_ids([START, END])
    embedded = torch.cat([text[before], text[[start]], frames, text[[end]], text[after]])
    expected = slow_language_model(state, embedded) @ state["lm_head.weight"].T.double()
    assert expected.std() > 0.1

    given = text_logits(System(model, SummedCodebooks(model.tokenizer), ()), [before.tolist(), codes], after.tolist())
    torch.testing.assert_close(given.double(), expected, atol=2e-4, rtol=1e-4)

    length = len(embedded)
    for left in (0, 4):
        batch = torch.nn.functional.pad(embedded, (0, 0, left, 4 - left))
        mask = torch.zeros(1, length + 4, dtype=torch.long)
        mask[0, left : left + length] = 1
        padded = model.model(inputs_embeds=batch[None], attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp_min(0)).last_hidden_state[0]
        torch.testing.assert_close(model.lm_head(padded[left : left + length]), given, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_the_audio_head(model: BaichuanAudio, state: dict[str, Tensor]) -> None:
    draw = torch.Generator().manual_seed(2)
    hidden = torch.randn(4, HIDDEN, generator=draw)
    codes = torch.stack([torch.randint(0, size + 1, (4,), generator=draw) for size in CODEBOOKS], dim=1)
    logits = model.audio_head(hidden, codes, model.model.audio_embed_layers)
    assert [each.shape for each in logits] == [(4, size + 1) for size in CODEBOOKS]
    for row in range(4):
        for k, expected in enumerate(slow_head(state, hidden[row], codes[row])):
            torch.testing.assert_close(logits[k][row].double(), expected, atol=2e-5, rtol=1e-4)
    # The first is read off before any code, the second after the first code alone.
    other = codes.clone()
    other[:, 1:] = 0
    changed = model.audio_head(hidden, other, model.model.audio_embed_layers)
    assert torch.equal(changed[0], logits[0])
    torch.testing.assert_close(changed[1], logits[1], atol=1e-6, rtol=0)
    assert not torch.allclose(changed[2], logits[2])


@pytest.mark.parametrize("samples", [960, 7_999, 16_000, 31_999, 32_000])
def test_features_are_those_of_whisper_without_the_silence(samples: int, model: BaichuanAudio) -> None:
    speech = model.audio_tokenizer.config
    waveform = recording(samples)
    # Silence below the floor of 8 decades, and an end that only the frame after the last one hears fully: it must not set the floor.
    waveform[samples // 3 : samples // 2] = 0
    waveform[-20:] = 10
    extract = WhisperFeatureExtractor(feature_size=MELS, sampling_rate=RATE, chunk_length=SECONDS)
    padded = extract(waveform.numpy(), sampling_rate=RATE, return_tensors="pt").input_features[0]
    features = log_mel(waveform, speech)
    assert features.shape == (MELS, min(samples // 160 + 1, 200))
    torch.testing.assert_close(features, padded[:, : features.shape[1]], atol=1e-5, rtol=0)


# Odd and even numbers of frames and of states, a recording of one frame, and the longest piece.
@pytest.mark.parametrize("samples", [960, 8_000, 8_160, 20_321, 32_000])
def test_codes_of_one_piece(samples: int, model: BaichuanAudio, state: dict[str, Tensor]) -> None:
    waveform = recording(samples)
    features = log_mel(waveform, model.audio_tokenizer.config)
    codes = model.audio_tokenizer(waveform)
    expected = slow_codes(state, features, features.shape[1])
    assert codes.dtype == torch.int64
    assert len(codes) == (features.shape[1] + 1) // 2 // POOL >= 1
    assert torch.equal(codes, expected)
    assert samples < 8_000 or all(len(codes[:, k].unique()) > 1 for k in range(3))


def test_a_long_recording_is_read_in_pieces(model: BaichuanAudio, state: dict[str, Tensor]) -> None:
    """Nothing is lost but an end without a frame; a shorter last piece is followed by zeros, as in the published batch of pieces."""
    longest = SECONDS * RATE
    waveform = recording(2 * longest + 16_000)
    speech = model.audio_tokenizer.config
    pieces = [log_mel(waveform[start : start + longest], speech) for start in (0, longest, 2 * longest)]
    assert [piece.shape[1] for piece in pieces] == [200, 200, 101]
    expected = torch.cat([slow_codes(state, torch.nn.functional.pad(piece, (0, 200 - piece.shape[1])), piece.shape[1]) for piece in pieces])
    read: list[Tensor] = []
    handle = model.audio_tokenizer.audio_model.register_forward_pre_hook(lambda module, given: read.append(given[0]))
    assert torch.equal(model.audio_tokenizer(waveform), expected)
    handle.remove()
    assert [each.shape[1] for each in read] == [200, 200, 200]
    assert not read[2][:, 101:].any()
    for shorter_than_a_frame in (1, 399, 500):
        assert torch.equal(model.audio_tokenizer(waveform[: longest + shorter_than_a_frame]), model.audio_tokenizer(waveform[:longest]))


def test_a_padded_end_is_heard(model: BaichuanAudio) -> None:
    """So the zeros after the last piece matter: its last state, if frames are odd in number."""
    features = log_mel(recording(16_000), model.audio_tokenizer.config)
    alone, batched = (model.audio_tokenizer.audio_model(torch.nn.functional.pad(features, (0, more)), 101) for more in (0, 99))
    assert alone.shape == batched.shape
    assert not torch.allclose(alone, batched, atol=1e-4)


def test_overlapping_pieces(model: BaichuanAudio) -> None:
    tokenizer = copy.deepcopy(model.audio_tokenizer)
    tokenizer.config.split_overlap = 0.5

    def borders(samples: int) -> list[tuple[int, int]]:
        return [(int(piece[0]), int(piece[-1]) + 1) for piece in tokenizer._pieces(torch.arange(float(samples)))]

    assert borders(75_000) == [(0, 32_000), (24_000, 56_000), (48_000, 75_000)]
    tokenizer.config.split_overlap = 0.0
    # A piece without a whole window of the spectrum is none.
    assert borders(32_399) == [(0, 32_000)]
    assert borders(32_400) == [(0, 32_000), (32_000, 32_400)]


@pytest.mark.parametrize("samples", [0, 399, 400, 959])
def test_a_recording_without_a_frame_is_refused(samples: int, model: BaichuanAudio) -> None:
    with pytest.raises(ValueError, match=f"a recording of {samples} samples at 16000 Hz is too short for one frame"):
        model.audio_tokenizer(recording(samples))


def test_codes_do_not_depend_on_autocast(folder: Path) -> None:
    model = load_baichuan_audio(folder, torch.float32)
    waveform = recording(30_000)
    states: list[Tensor] = []
    model.audio_tokenizer.audio_model.register_forward_hook(lambda module, given, out: states.append(out))
    model.audio_tokenizer(waveform)
    with torch.autocast("cpu", torch.bfloat16):
        model.audio_tokenizer(waveform)
    assert torch.equal(*states)


@pytest.mark.parametrize("layout", ["model.safetensors", "pytorch_model.bin", "sharded safetensors", "sharded bin"])
def test_every_layout_gives_the_same_weights(layout: Layout, state: dict[str, Tensor], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = load_baichuan_audio(write_folder(tmp_path / "checkpoint", state, layout))
    assert "custom code" not in "".join(capfd.readouterr())
    assert not model.training
    loaded = model.state_dict()
    assert {value.dtype for value in loaded.values()} == {torch.bfloat16}
    for name, value in state.items():
        if ".W_pack." in name:
            sizes = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
            for part, rows in zip(sizes, value.split(list(sizes.values())), strict=True):
                assert torch.equal(loaded.pop(name.replace("W_pack", f"{part}_proj")), rows.bfloat16())
        else:
            assert torch.equal(loaded.pop(name), value.bfloat16()), name
    assert not loaded
    assert not any(buffer.is_meta for buffer in model.buffers())
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert model.tokenizer.convert_tokens_to_ids(START) == model.config.speech.audio_start_token_id == VOCABULARY - 3
    assert model.tokenizer("It rained.")["input_ids"] == tokenizer()("It rained.")["input_ids"]


def test_what_is_trained(folder: Path) -> None:
    model = load_baichuan_audio(folder, torch.float32)
    assert not any(parameter.requires_grad for parameter in model.audio_tokenizer.parameters())
    state = model.model(inputs_embeds=model.model.embed_tokens(torch.tensor([[5, 6]]))).last_hidden_state[:, -1]
    losses = [each.logsumexp(-1).sum() for each in model.audio_head(state, torch.tensor([[1, 2, 3]]), model.model.audio_embed_layers)]
    (sum(losses) + model.lm_head(state).logsumexp(-1).sum()).backward()
    without = {name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None}
    # Biases that the published layer has and does not use, and the codebook after which nothing is predicted.
    unused = {f"audio_head.transformer_layers.{layer}.linear{n}.bias" for layer in range(2) for n in (1, 2)}
    assert without == {*unused, "model.audio_embed_layers.2.weight"}


def test_saved_and_read_the_usual_way(folder: Path, tmp_path: Path) -> None:
    model = load_baichuan_audio(folder, torch.float32)
    model.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    for again in (BaichuanAudio.from_pretrained(tmp_path), load_baichuan_audio(tmp_path, torch.float32)):
        assert again.config.speech.codebook_sizes == CODEBOOKS
        assert again.state_dict().keys() == model.state_dict().keys()
        assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
        assert torch.equal(again.audio_tokenizer(recording(9_000)), model.audio_tokenizer(recording(9_000)))


def test_weights_that_do_not_fit_are_named(state: dict[str, Tensor], tmp_path: Path) -> None:
    lacking = {name: value for name, value in state.items() if name != "audio_head.headnorm.weight"}
    with pytest.raises(ValueError, match=r"lacks audio_head\.headnorm\.weight; is it one of Baichuan-Audio"):
        load_baichuan_audio(write_folder(tmp_path / "lacking", lacking))
    more = {**state, "model.somewhere.weight": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"has what the model does not model\.somewhere\.weight"):
        load_baichuan_audio(write_folder(tmp_path / "more", more, "model.safetensors"))
    other = {**state, "lm_head.weight": torch.zeros(7, HIDDEN)}
    with pytest.raises(ValueError, match=rf"in another shape than config.json says lm_head\.weight \(7, {HIDDEN}\) for \({VOCABULARY}, {HIDDEN}\)"):
        load_baichuan_audio(write_folder(tmp_path / "other", other, "pytorch_model.bin"))


def test_folders_that_are_not_complete(state: dict[str, Tensor], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist; give the folder"):
        load_baichuan_audio(tmp_path)
    folder = write_folder(tmp_path / "checkpoint", state)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks model-00002-of-00003\.safetensors, which model\.safetensors\.index\.json names"):
        load_baichuan_audio(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(FileNotFoundError, match="has no weights"):
        load_baichuan_audio(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [("use_norm_head", True), ("position_embedding_type", "alibi"), ("attention_qkv_bias", False), ("sparse_attention_layers", [1])],
)
def test_variants_of_the_language_model_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"config.json has {field} = "):
        BaichuanAudioConfig(**{**published_config(), field: value})


def test_the_published_sizes() -> None:
    """Shapes of the 7B model, without its weights."""
    config = BaichuanAudioConfig(vocab_size=152064, hidden_size=3584, num_hidden_layers=1, num_attention_heads=28, num_key_value_heads=4)
    assert config.head_dim == 128
    with torch.device("meta"):
        model = BaichuanAudio(config)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes["model.audio_embed_layers.0.weight"] == (8193, 3584)
    assert shapes["audio_head.heads.7.weight"] == (1025, 3584)
    assert shapes["audio_head.transformer_layers.2.linear1.weight"] == (7168, 28672)
    assert shapes["audio_tokenizer.audio_model.positional_embedding"] == (1500, 1280)
    assert shapes["audio_tokenizer.audio_model.layers.31.fc1.weight"] == (5120, 1280)
    assert shapes["audio_tokenizer.audio_bridge_model.gate_proj.weight"] == (5120, 1280, 4)
    assert shapes["audio_tokenizer.audio_bridge_model.vq_list.0.codebook.embed"] == (8192, 5120)


def test_settings_of_the_speech_tokenizer_that_are_refused() -> None:
    for overlap in (-1.0, 30.0):
        with pytest.raises(ValueError, match="cannot be cut into pieces"):
            BaichuanSpeechConfig(split_overlap=overlap)
    with pytest.raises(ValueError, match="kernel of 3 alone"):
        BaichuanSpeechConfig(kernel_size=5)
    with pytest.raises(ValueError, match="multiple of 128"):
        BaichuanAudio(BaichuanAudioConfig(vocab_size=8, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2))


def system(folder: Path, scored: Literal["semantic", "all"]) -> System:
    model = load_baichuan_audio(folder, torch.float32)
    return System(model, SummedCodebooks(model.tokenizer, scored=scored), ("s2t", "t2t", "s2s", "t2s"))


@pytest.mark.parametrize("scored", ["semantic", "all"])
def test_the_adapter_reads_it(scored: Literal["semantic", "all"], folder: Path, tmp_path: Path) -> None:
    check_all(partial(system, folder, scored), tmp_path)
