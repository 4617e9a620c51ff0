"""GLM-4-Voice's speech tokenizer, loaded from a folder under the published names and held against a slow computation on its very weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import WhisperFeatureExtractor

from s2sbench_callback.native.whisper_vq import WhisperVQ, WhisperVQConfig, load_whisper_vq

WIDTH, HEADS, INNER, MELS, CODES, SECONDS, RATE = 16, 2, 24, 12, 60, 2, 16_000
LAYERS, CUT = 4, 3
# As published, but for the sizes: average pooling where the codes are, blocks of several codes.
PUBLISHED: dict[str, Any] = {
    "activation_function": "gelu",
    "architectures": ["WhisperVQEncoder"],
    "d_model": WIDTH,
    "decoder_layers": 2,
    "dropout": 0.5,
    "encoder_attention_heads": HEADS,
    "encoder_causal_attention": False,
    "encoder_causal_convolution": True,
    "encoder_ffn_dim": INNER,
    "encoder_layers": LAYERS,
    "forced_decoder_ids": [[1, 5], [2, 6]],
    "is_encoder_decoder": True,
    "max_length": 448,
    "max_source_positions": 100,
    "median_filter_width": 7,
    "model_type": "whisper",
    "num_mel_bins": MELS,
    "pooling_kernel_size": 4,
    "pooling_position": CUT,
    "pooling_type": "avg",
    "quantize_causal_block_size": 20,
    "quantize_causal_encoder": False,
    "quantize_commit_coefficient": 0.25,
    "quantize_ema_decay": 0.99,
    "quantize_encoder_only": True,
    "quantize_loss_scale": 10.0,
    "quantize_position": CUT,
    "quantize_vocab_size": CODES,
    "torch_dtype": "float32",
}
PLAIN = {"encoder_causal_convolution": False, "quantize_causal_block_size": None}
VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "pooled earlier": {"pooling_position": 2, "pooling_type": "max"},
    "full attention": {**PLAIN, "pooling_position": 1},
    "causal attention": {"encoder_causal_attention": True, "quantize_causal_block_size": None, "pooling_position": 2},
    # Causal layers ignore blocks.
    "causal encoder": {"encoder_causal_convolution": False, "quantize_causal_encoder": True, "pooling_type": "max"},
    "no pooling": {"pooling_kernel_size": None, "pooling_position": None},
    "pairs": {"pooling_kernel_size": 2, "quantize_causal_block_size": 7},
}


def shapes(of: dict[str, Any], layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every weight that the published encoder registers with so many layers."""
    yield from (("conv1.weight", (WIDTH, MELS, 3)), ("conv1.bias", (WIDTH,)), ("conv2.weight", (WIDTH, WIDTH, 3)), ("conv2.bias", (WIDTH,)))
    yield from (("embed_positions.weight", (of["max_source_positions"], WIDTH)), ("codebook.weight", (CODES, WIDTH)))
    for layer in range(layers):
        at = f"layers.{layer}."
        yield from ((f"{at}self_attn.{name}_proj.weight", (WIDTH, WIDTH)) for name in ("k", "v", "q", "out"))
        yield from ((f"{at}self_attn.{name}_proj.bias", (WIDTH,)) for name in ("v", "q", "out"))
        yield from ((f"{at}{name}.{kind}", (WIDTH,)) for name in ("self_attn_layer_norm", "final_layer_norm") for kind in ("weight", "bias"))
        yield from (
            (f"{at}fc1.weight", (INNER, WIDTH)),
            (f"{at}fc1.bias", (INNER,)),
            (f"{at}fc2.weight", (WIDTH, INNER)),
            (f"{at}fc2.bias", (WIDTH,)),
        )


def published_state(of: dict[str, Any], layers: int = CUT) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    state = {}
    for name, shape in shapes(of, layers):
        values = torch.randn(shape, generator=draw)
        if "layer_norm.weight" in name:
            values = 1 + 0.2 * values
        elif len(shape) == 1:
            values = 0.3 * values
        elif name != "embed_positions.weight":
            values = values / values[0].numel() ** 0.5
        state[name] = values
    # Near what is heard, so that codes differ from frame to frame.
    heard = slow_vectors(state, of, recording(2 * RATE, seed=9))
    places = torch.randint(len(heard), (CODES,), generator=draw)
    state["codebook.weight"] = (heard[places] + 0.3 * torch.randn(CODES, WIDTH, generator=draw)).float()
    return state


def trained_with(of: dict[str, Any]) -> dict[str, Tensor]:
    """What is published beside the weights that codes depend on."""
    later = {"embed_positions2.weight": torch.zeros(-(-of["max_source_positions"] // 4), WIDTH)}
    return {**later, "ema_count": torch.ones(CODES), "ema_weight": torch.zeros(CODES, WIDTH)}


def write_folder(folder: Path, state: dict[str, Tensor], seconds: int = SECONDS, files: int = 1, **changed: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**PUBLISHED, **changed}))
    WhisperFeatureExtractor(feature_size=MELS, chunk_length=seconds).save_pretrained(folder)
    for place in range(files):
        name = "model.safetensors" if files == 1 else f"model-0000{place + 1}-of-0000{files}.safetensors"
        save_file({key: value for number, (key, value) in enumerate(state.items()) if number % files == place}, folder / name)
    return folder


def recording(samples: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    times = torch.arange(samples) / RATE
    loudness = 0.2 + torch.sin(9 * times + seed).square()
    return loudness * (0.1 * torch.randn(samples, generator=draw) + 0.3 * torch.sin(2_000 * times * (1 + times)))


# The published computation, slowly, in float64.


def slow_encoder(state: dict[str, Tensor], of: dict[str, Any], features: Tensor, heard: int) -> Tensor:
    """What is quantised, one vector a code that counts, of log-mel frames ``[M, T]`` whose first ``heard`` are of the recording."""
    weights = {name: value.double() for name, value in state.items()}

    def convolve(signal: Tensor, name: str, stride: int) -> Tensor:
        padded = torch.nn.functional.pad(signal, (2, 0) if of["encoder_causal_convolution"] else (1, 1))
        windows = [padded[:, start : start + 3] for start in range(0, signal.shape[1], stride)]
        out = [torch.einsum("ock,ck->o", weights[f"{name}.weight"], window) + weights[f"{name}.bias"] for window in windows]
        return torch.nn.functional.gelu(torch.stack(out, dim=1))

    def linear(states: Tensor, name: str) -> Tensor:
        return states @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(1).double())

    def layer_norm(states: Tensor, name: str) -> Tensor:
        centred = states - states.mean(1, keepdim=True)
        return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def seen(place: int, length: int, block: int | None) -> list[int]:
        if of["encoder_causal_attention"] or of["quantize_causal_encoder"]:
            return [*range(place + 1)]
        end = length if block is None else min(length, (place // block + 1) * block)
        return [other for other in range(end) if other < heard]

    states = convolve(convolve(features.double(), "conv1", 1), "conv2", 2).T
    heard = (heard + 1) // 2
    states = states + weights["embed_positions.weight"][: len(states)]
    block, pool = of["quantize_causal_block_size"], of["pooling_kernel_size"]
    for layer in range(CUT):
        at = f"layers.{layer}."
        normed = layer_norm(states, f"{at}self_attn_layer_norm")
        mixed = torch.zeros_like(states)
        projected = [linear(normed, f"{at}self_attn.{name}_proj").chunk(HEADS, dim=1) for name in ("q", "k", "v")]
        for head, (queries, keys, values) in enumerate(zip(*projected, strict=True)):
            span = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
            for place in range(len(states)):
                others = seen(place, len(states), block)
                mixed[place, span] = (keys[others] @ queries[place] / (WIDTH / HEADS) ** 0.5).softmax(0) @ values[others]
        states = states + linear(mixed, f"{at}self_attn.out_proj")
        inner = torch.nn.functional.gelu(linear(layer_norm(states, f"{at}final_layer_norm"), f"{at}fc1"))
        states = states + linear(inner, f"{at}fc2")
        if layer + 1 == of["pooling_position"]:
            groups = states.split(pool)
            states = torch.stack([group.mean(0) if of["pooling_type"] == "avg" else group.amax(0) for group in groups])
            heard, block = -(-heard // pool), block and block // pool
    return states[:heard]


def slow_vectors(state: dict[str, Tensor], of: dict[str, Any], waveform: Tensor, seconds: int = SECONDS) -> Tensor:
    """The same of a recording, piece by piece."""
    extract = WhisperFeatureExtractor(feature_size=MELS, chunk_length=seconds)
    span = 320 * (of["pooling_kernel_size"] or 1)
    pieces = waveform.split(seconds * RATE)
    longest = -(-len(pieces[0]) // span) * span
    vectors = []
    for piece in pieces:
        padded = torch.nn.functional.pad(piece, (0, longest - len(piece)))
        features = extract(padded.numpy(), sampling_rate=RATE, padding="do_not_pad", return_tensors="pt").input_features[0]
        assert features.shape == (MELS, longest // 160)
        vectors.append(slow_encoder(state, of, features, -(-len(piece) // 160)))
    return torch.cat(vectors)


def slow_codes(state: dict[str, Tensor], of: dict[str, Any], waveform: Tensor) -> Tensor:
    table = state["codebook.weight"].double()
    return torch.tensor([int((table - vector).square().sum(1).argmin()) for vector in slow_vectors(state, of, waveform)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tokenizer"), {**published_state(PUBLISHED), **trained_with(PUBLISHED)})


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> WhisperVQ:
    return load_whisper_vq(folder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_codes(variant: str, tmp_path: Path) -> None:
    """One sample; a code and one sample more; an odd end; whole pieces and the beginning of one."""
    of = {**PUBLISHED, **VARIANTS[variant]}
    state = published_state(of)
    tokenizer = load_whisper_vq(write_folder(tmp_path, {**state, **trained_with(of)}, **VARIANTS[variant]))
    span = 320 * (of["pooling_kernel_size"] or 1)
    for seed, samples in enumerate((1, 1_281, 20_000, 32_001, 2 * 32_000 + 5_200)):
        waveform = recording(samples, seed)
        codes = tokenizer(waveform)
        assert codes.dtype == torch.int64
        assert codes.shape == (-(-samples // span),)
        assert torch.equal(codes, slow_codes(state, of, waveform)), samples
    assert len(codes.unique()) > 10


def test_pieces_of_thirty_seconds(tmp_path: Path) -> None:
    of = {**PUBLISHED, "max_source_positions": 1_500, "quantize_causal_block_size": 200}
    tokenizer = load_whisper_vq(write_folder(tmp_path, published_state(of), seconds=30, **of))
    waveform = recording(65 * RATE)
    codes = tokenizer(waveform)
    assert len(codes) == 2 * 375 + 63
    # Each piece begins anew, where the 30 s before it end.
    assert torch.equal(codes[:375], tokenizer(waveform[: 30 * RATE]))
    assert torch.equal(codes[375:750], tokenizer(waveform[30 * RATE : 60 * RATE]))
    # The last is followed by silence that only its last code can hear.
    alone = tokenizer(waveform[60 * RATE :])
    assert torch.equal(codes[750:-1], alone[:-1])


def test_blocks_hear_what_follows_in_them_alone(tokenizer: WhisperVQ) -> None:
    """Blocks are of 20 states, 5 codes of 1,280 samples; few codes change for what comes later, so of several recordings."""
    later = 7 * 1_280
    differ = torch.zeros(19, dtype=torch.int64)
    for seed in range(12):
        waveform = recording(24_000, seed)
        changed = torch.cat([waveform[:later], 0.02 * recording(24_000, seed + 50)[later:]])
        differ += tokenizer(waveform) != tokenizer(changed)
    assert not differ[:5].any()
    assert differ[5:7].any()


def test_the_whole_recogniser_in_several_files(folder: Path, tokenizer: WhisperVQ, tmp_path: Path) -> None:
    """Its names have a prefix; its decoder, later layers and last norm are not read."""
    own = {**published_state(PUBLISHED), **trained_with(PUBLISHED)}
    later = {name: torch.full(shape, torch.nan) for name, shape in shapes(PUBLISHED, LAYERS) if name.startswith(f"layers.{CUT}.")}
    encoder = {**own, **later, "layer_norm.weight": torch.ones(WIDTH), "layer_norm.bias": torch.zeros(WIDTH)}
    decoder = {
        "model.decoder.layer_norm.weight": torch.ones(WIDTH),
        "model.decoder.layers.0.fc1.weight": torch.ones(3),
        "proj_out.weight": torch.ones(3),
    }
    whole = write_folder(tmp_path, {**{f"model.encoder.{name}": value for name, value in encoder.items()}, **decoder}, files=3)
    waveform = recording(40_000)
    assert torch.equal(load_whisper_vq(whole)(waveform), tokenizer(waveform))


def test_names_are_the_published_ones(tokenizer: WhisperVQ) -> None:
    assert {name: tuple(value.shape) for name, value in tokenizer.state_dict().items()} == dict(shapes(PUBLISHED, CUT))
    assert not any(parameter.requires_grad for parameter in tokenizer.parameters())


def test_codes_depend_on_recording_and_weights_alone(folder: Path) -> None:
    """Not on training mode, whatever dropout was trained with, nor on autocast."""
    tokenizer = load_whisper_vq(folder)
    waveform = recording(40_000)
    expected = tokenizer(waveform)
    tokenizer.train()
    with torch.autocast("cpu", torch.bfloat16):
        given = tokenizer(waveform.clone().requires_grad_())
    assert torch.equal(given, expected)
    assert not given.requires_grad
    assert torch.equal(tokenizer.double()(waveform), expected)
    # In another precision they may be others.
    assert (tokenizer.to(torch.bfloat16)(waveform) == expected).float().mean() > 0.5


def test_stored_in_half_precision(tmp_path: Path) -> None:
    state = {name: value.half() for name, value in published_state(PUBLISHED).items()}
    tokenizer = load_whisper_vq(write_folder(tmp_path, state))
    assert {parameter.dtype for parameter in tokenizer.parameters()} == {torch.float32}
    waveform = recording(20_000)
    assert torch.equal(tokenizer(waveform), slow_codes(state, PUBLISHED, waveform))


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    state = published_state(PUBLISHED)
    wrong = {**state, "layers.1.fc1.weight": torch.zeros(3, 3), "layers.1.extra": torch.zeros(3)}
    del wrong["conv2.bias"]
    with pytest.raises(ValueError, match="not those of a speech tokenizer") as told:
        load_whisper_vq(write_folder(tmp_path, wrong))
    assert all(name in str(told.value) for name in ("conv2.bias", "layers.1.fc1.weight", "layers.1.extra", str(tmp_path)))


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "model.safetensors"])
def test_files_that_lack_are_named(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path, published_state(PUBLISHED))
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name.replace("model.s", r"model\*.s")):
        load_whisper_vq(tmp_path)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"quantize_vocab_size": None}, "quantize_vocab_size is None"),
        ({"quantize_position": 0}, "quantize_position 0"),
        ({"pooling_position": 0}, "pooling_position 0"),
        ({"pooling_position": CUT + 1}, f"pooling_position {CUT + 1}"),
        ({"pooling_type": "mean"}, "'mean'"),
        ({"quantize_causal_block_size": 3}, "quantize_causal_block_size is 3"),
        ({"num_mel_bins": MELS + 1}, f"{MELS} mel bins"),
        ({"max_source_positions": 99}, "100 positions"),
    ],
)
def test_configurations_without_codes_are_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        WhisperVQ(WhisperVQConfig(**{**PUBLISHED, **changed}), WhisperFeatureExtractor(feature_size=MELS, chunk_length=SECONDS))


@pytest.mark.parametrize("shape", [(0,), (1, 16_000)])
def test_what_is_no_mono_recording_is_refused(shape: tuple[int, ...], tokenizer: WhisperVQ) -> None:
    with pytest.raises(ValueError, match="mono samples"):
        tokenizer(torch.zeros(shape))
