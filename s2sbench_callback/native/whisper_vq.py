"""GLM-4-Voice's speech tokenizer: a Whisper encoder cut at a layer whose pooled states are quantised."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import WhisperConfig, WhisperFeatureExtractor
from transformers.models.whisper.modeling_whisper import WhisperEncoderLayer

from s2sbench_callback.native.weights import safetensors_files

_RATE = 16_000
# The encoder alone is published without a prefix, the whole recogniser that it was learnt in with one.
_PREFIX = re.compile(r"^(model\.)?encoder\.")
# What comes after the codes, and the moving averages with which they are learnt.
_IGNORED = re.compile(r"^((model\.)?decoder|proj_out|layer_norm|embed_positions2)\.|^ema_(count|weight)$")
_LAYER = re.compile(r"^layers\.(\d+)\.")


class WhisperVQConfig(WhisperConfig):
    """The published ``config.json``: Whisper's fields and those below, with the published class's defaults.

    Further fields are kept and not used. Nothing is trained here, so every dropout is 0.
    """

    encoder_causal_attention: bool = False
    encoder_causal_convolution: bool = False
    pooling_kernel_size: int | None = None
    pooling_position: int | None = 0
    pooling_type: str = "max"
    quantize_causal_block_size: int | None = None
    quantize_causal_encoder: bool = False
    quantize_position: int = 16
    quantize_vocab_size: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Chooses the attention that the published code chooses."""
        kwargs.setdefault("attn_implementation", "sdpa")
        self.dropout = self.attention_dropout = self.activation_dropout = 0.0
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    @property
    def pool(self) -> int:
        """How many states become one."""
        return self.pooling_kernel_size or 1

    @property
    def causal(self) -> bool:
        """Whether no layer up to the codes looks at what comes later; padding is then not masked either, as published."""
        return self.encoder_causal_attention or self.quantize_causal_encoder


class WhisperVQ(nn.Module):
    """Recordings to GLM-4-Voice's audio tokens, 12.5 a second with the published configuration.

    Computes what the published ``WhisperVQEncoder`` computes in evaluation, under its parameter names, up to the codes. Left out are what follows
    them in training (``embed_positions2``, later layers, the decoder) and the codebook's moving averages.

    Recordings are read as by the published ``extract_speech_token``: in pieces of 30 s (``chunk_length`` of the feature extractor), all padded with
    silence to the longest, a multiple of what one code spans; a code counts if the recording still sounds where its span begins. A last piece
    beside whole ones is thus padded to 30 s, whose silence its last code may hear.

    Verified with random weights against a public copy of the published code (GLM-4-Voice-SFT's) on transformers 4.45, in float32 on the CPU, for
    recordings of 1 sample to 65 s: causal and plain convolutions; causal, block-causal and full attention; average, maximum and no pooling. All
    codes were equal, and what is quantised differed by at most 5e-6 where the largest value is 16. **Unverified with the published weights.**

    Args:
        config: The published configuration.
        feature_extractor: The published ``preprocessor_config.json``, read.

    Raises:
        ValueError: If the configuration gives no codes, or does not fit the feature extractor.
    """

    def __init__(self, config: WhisperVQConfig, feature_extractor: WhisperFeatureExtractor) -> None:
        super().__init__()
        self.config, self.feature_extractor = config, feature_extractor
        _check(config, feature_extractor)
        size, padding = config.d_model, 0 if config.encoder_causal_convolution else 1
        self.conv1 = nn.Conv1d(config.num_mel_bins, size, 3, padding=padding)
        self.conv2 = nn.Conv1d(size, size, 3, stride=2, padding=padding)
        self.embed_positions = nn.Embedding(config.max_source_positions, size)
        self.layers = nn.ModuleList(WhisperEncoderLayer(config) for _ in range(config.quantize_position))
        self.codebook = nn.Embedding(config.quantize_vocab_size or 0, size)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, waveform: Tensor) -> Tensor:
        """Codes of one recording.

        Runs in the precision of its own weights, outside of autocast, so that codes depend on the recording and the weights alone. Features are
        computed on the CPU.

        Args:
            waveform: Mono samples ``[N]`` at 16 kHz.

        Returns:
            ``[F]`` int64 on the device of the weights, where ``F`` is ``N / 1280``, rounded up, with the published configuration.

        Raises:
            ValueError: If the recording is empty or not mono.
        """
        if waveform.dim() != 1 or not len(waveform):
            raise ValueError(f"a recording of shape {list(waveform.shape)} has no audio tokens; mono samples [N] at {_RATE} Hz are needed")
        pieces = [piece.numpy() for piece in waveform.detach().to("cpu", torch.float32).split(self.feature_extractor.n_samples)]
        weight = self.conv1.weight
        with torch.autocast(weight.device.type, enabled=False):
            heard = self.feature_extractor(
                pieces,
                sampling_rate=_RATE,
                padding="longest",
                pad_to_multiple_of=_samples_a_code(self.config, self.feature_extractor),
                return_attention_mask=True,
                return_tensors="pt",
            )
            codes = [
                self._codes(features.to(weight.device, weight.dtype), counts.to(weight.device).bool())
                for features, counts in zip(heard.input_features, heard.attention_mask, strict=True)
            ]
        return torch.cat(codes)

    def _codes(self, features: Tensor, counts: Tensor) -> Tensor:
        """Codes of a piece, ``[F]``.

        Args:
            features: Log-mel frames ``[M, T]``.
            counts: ``[T]`` bool, which of them are of the recording.
        """
        states = nn.functional.gelu(self.conv1(self._before(features.unsqueeze(0))))
        states = nn.functional.gelu(self.conv2(self._before(states))).transpose(1, 2)
        states = states + self.embed_positions.weight[: states.shape[1]]
        counts, block, pool = counts[::2], self.config.quantize_causal_block_size, self.config.pool
        mask = self._mask(counts, block, states.dtype)
        for number, layer in enumerate(self.layers, start=1):
            states = layer(states, mask)
            if pool > 1 and number == self.config.pooling_position:
                pooled = nn.functional.max_pool1d if self.config.pooling_type == "max" else nn.functional.avg_pool1d
                states = pooled(states.transpose(1, 2), pool).transpose(1, 2)
                counts = counts[::pool]
                mask = self._mask(counts, block and block // pool, states.dtype)
        vectors, table = states[0, counts].float(), self.codebook.weight.float()
        # Expanded as published, so that near ties are broken alike.
        squares = table.square().sum(1) + vectors.square().sum(1, keepdim=True)
        return torch.addmm(squares, vectors, table.T, alpha=-2).argmin(1)

    def _before(self, states: Tensor) -> Tensor:
        """What a causal convolution sees before the first frame, ``[1, D, T]`` to the same with two frames more."""
        return nn.functional.pad(states, (2, 0)) if self.config.encoder_causal_convolution else states

    def _mask(self, counts: Tensor, block: int | None, dtype: torch.dtype) -> Tensor:
        """What is added to attention scores, ``[1, 1, L, L]``."""
        places = torch.arange(len(counts), device=counts.device)
        if self.config.causal:
            visible = places[:, None] >= places
        elif block:
            visible = (places[:, None] // block >= places // block) & counts
        else:
            visible = counts.expand(len(counts), -1)
        return torch.zeros(visible.shape, dtype=dtype, device=counts.device).masked_fill_(~visible, torch.finfo(dtype).min)[None, None]


def load_whisper_vq(folder: str | Path) -> WhisperVQ:
    """Loads a published speech tokenizer.

    Weights may be those of the encoder alone or of the whole recogniser, whose decoder and later layers are then not read. Left out by name, too:
    ``layer_norm``, ``embed_positions2``, ``ema_count``, ``ema_weight``.

    Args:
        folder: A local folder in Hugging Face's layout: ``config.json``, ``preprocessor_config.json``, weights in one or several
            ``model*.safetensors``.

    Returns:
        The tokenizer in float32, as the published code has it, on the CPU in evaluation mode.

    Raises:
        FileNotFoundError: If the folder lacks one of these files.
        ValueError: If weights are missing, unexpected or of another shape; the message names them.
    """
    folder = Path(folder)
    for name in ("config.json", "preprocessor_config.json"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} does not exist; give the local folder that holds all files of glm-4-voice-tokenizer")
    files = safetensors_files(folder)
    config = WhisperVQConfig.from_pretrained(folder)
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    with torch.device("meta"):
        model = WhisperVQ(config, extractor)
    state: dict[str, Tensor] = {}
    for path in files:
        with safe_open(path, framework="pt") as opened:
            for published in opened.keys():  # noqa: SIM118, it is no mapping
                name = _PREFIX.sub("", published)
                layer = _LAYER.match(name)
                if not _IGNORED.match(name) and not (layer and int(layer[1]) >= config.quantize_position):
                    state[name] = opened.get_tensor(published).float()
    try:
        model.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ValueError(f"the weights in {folder} are not those of a speech tokenizer with this config.json: {error}") from error
    return model.requires_grad_(False).eval()


def _samples_a_code(config: WhisperVQConfig, extractor: WhisperFeatureExtractor) -> int:
    return int(extractor.hop_length) * 2 * config.pool


def _check(config: WhisperVQConfig, extractor: WhisperFeatureExtractor) -> None:
    if config.quantize_vocab_size is None or config.quantize_position < 1:
        raise ValueError(
            f"quantize_vocab_size is {config.quantize_vocab_size} and quantize_position {config.quantize_position}, so no layer gives codes; "
            "is this the config.json of glm-4-voice-tokenizer?"
        )
    if config.pool > 1 and not 1 <= (config.pooling_position or 0) <= config.quantize_position:
        raise ValueError(
            f"pooling_kernel_size is {config.pool}, but pooling_position {config.pooling_position} is none of the layers 1 to "
            f"{config.quantize_position} before the codes"
        )
    if config.pool > 1 and config.pooling_type not in ("avg", "max"):
        raise ValueError(f"pooling_type must be 'avg' or 'max', got {config.pooling_type!r}")
    if config.quantize_causal_block_size is not None and config.quantize_causal_block_size < config.pool:
        raise ValueError(f"quantize_causal_block_size is {config.quantize_causal_block_size}, less than the {config.pool} states that are pooled")
    if extractor.sampling_rate != _RATE or extractor.feature_size != config.num_mel_bins:
        raise ValueError(
            f"the feature extractor makes {extractor.feature_size} mel bins at {extractor.sampling_rate} Hz, and the encoder hears "
            f"{config.num_mel_bins} at {_RATE} Hz; read both from one folder"
        )
    positions = -(-extractor.n_samples // _samples_a_code(config, extractor)) * config.pool
    if positions > config.max_source_positions:
        raise ValueError(
            f"a piece of {extractor.chunk_length} s has {positions} positions, more than max_source_positions, {config.max_source_positions}; "
            "use the preprocessor_config.json of the same folder"
        )
