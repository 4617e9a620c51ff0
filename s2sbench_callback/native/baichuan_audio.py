"""Baichuan-Audio on the installed ``transformers``: a Qwen2 with summed codebook embeddings, an audio head and a speech tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm, Qwen2RotaryEmbedding

from s2sbench_callback.native.baichuan_speech_tokenizer import BaichuanSpeechConfig, BaichuanSpeechTokenizer
from s2sbench_callback.native.weights import qwen2_from_baichuan

# Seeing, and turning codes into sound, which no score needs; the moving averages with which codebooks are learnt.
_IGNORED = re.compile(
    r"model\.visual_model\.|model\.visual_bridge_model\."
    r"|audio_tokenizer\.audio_decoder\.|audio_tokenizer\.audio_flow_matching_decoder\.|audio_tokenizer\.audio_bridge_model\.proj_decoder\."
    r"|audio_tokenizer\.audio_bridge_model\.vq_list\.\d+\.codebook\.(cluster_size|embed_avg)$"
)
# Parts of config.json about what is left out, or about running the published code.
_IGNORED_FIELDS = ("auto_map", "architectures", "visual_config", "video_config", "vocoder_config", "flow_matching_config")
_HEAD_DIM = 128
_SHOWN = 8


class BaichuanAudioConfig(Qwen2Config):
    """The published configuration: Qwen2's fields, ``audio_config``, and how the published code varies Qwen2.

    Variants that the published code can build, but that no published checkpoint uses, are refused.
    """

    model_type = "omni"
    sub_configs = {"audio_config": BaichuanSpeechConfig}  # noqa: RUF012
    audio_config: dict[str, Any] | BaichuanSpeechConfig | None = None
    head_dim: int | None = None
    attention_qkv_bias: bool = True
    position_embedding_type: str = "rope"
    sparse_attention_layers: list[int] | None = None
    use_norm_head: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        """Reads the nested part.

        Raises:
            ValueError: If the configuration asks for a variant of the language model that is not Qwen2's.
        """
        if not isinstance(self.audio_config, BaichuanSpeechConfig):
            self.audio_config = BaichuanSpeechConfig(**(self.audio_config or {}))
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if "rotary_emb_base" in kwargs:
            kwargs["rope_theta"] = kwargs.pop("rotary_emb_base")
        wanted = {"attention_qkv_bias": True, "position_embedding_type": "rope", "sparse_attention_layers": None, "use_norm_head": False}
        for field, value in wanted.items():
            given = getattr(self, field)
            if given != value and not (field == "sparse_attention_layers" and not given):
                raise ValueError(f"config.json has {field} = {given!r}, but only models with {value!r} are built here, which is Qwen2's way")
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    @property
    def speech(self) -> BaichuanSpeechConfig:
        """``audio_config``, read."""
        assert isinstance(self.audio_config, BaichuanSpeechConfig)
        return self.audio_config


class _DepthLayer(nn.Module):
    """A transformer layer over the codebooks of a frame, with feed-forward weights of its own for each codebook.

    The published layer, to the letter: the second norm's output is what is added to, and the biases of the two linear layers are not used.
    """

    def __init__(self, size: int, depth: int) -> None:
        super().__init__()
        if size % _HEAD_DIM:
            raise ValueError(f"hidden_size is {size}, but the audio head needs a multiple of {_HEAD_DIM}, the size of one of its attention heads")
        self.self_attention = nn.MultiheadAttention(size, size // _HEAD_DIM, batch_first=True)
        self.layernorm1 = Qwen2RMSNorm(size)
        self.layernorm2 = Qwen2RMSNorm(size)
        self.linear1 = nn.Linear(size * depth, 2 * size)
        self.linear2 = nn.Linear(2 * size * depth, size)

    def forward(self, states: Tensor) -> Tensor:
        """``[A, K, H]`` to the same."""
        depth, size = states.shape[1:]
        normed = self.layernorm1(states)
        later = torch.ones(depth, depth, dtype=torch.bool, device=states.device).triu(1)
        mixed, _ = self.self_attention(normed, normed, normed, attn_mask=later, need_weights=False)
        residual: Tensor = self.layernorm2(states + mixed)
        inner = torch.einsum("akh,ikh->aki", residual, self.linear1.weight.view(2 * size, depth, size))
        inner = nn.functional.gelu(inner)
        return residual + torch.einsum("aki,hki->akh", inner, self.linear2.weight.view(size, depth, 2 * size))


class BaichuanAudioHead(nn.Module):
    """Predicts the codes of a frame one after another.

    Args:
        config: The model's.
    """

    def __init__(self, config: BaichuanAudioConfig) -> None:
        super().__init__()
        sizes = config.speech.codebook_sizes
        self.transformer_layers = nn.ModuleList(
            _DepthLayer(config.hidden_size, len(sizes)) for _ in range(config.speech.audio_head_transformer_layers)
        )
        self.headnorm = Qwen2RMSNorm(config.hidden_size)
        self.heads = nn.ModuleList(nn.Linear(config.hidden_size, size + 1) for size in sizes)

    def forward(self, hidden: Tensor, codes: Tensor, tables: nn.ModuleList) -> list[Tensor]:
        """Logits of every codebook, each given the codebooks before it.

        Args:
            hidden: ``[A, H]`` states of the language model at the positions before the frames.
            codes: ``[A, K]`` the frames; the last codebook is not looked at.
            tables: ``model.audio_embed_layers``.

        Returns:
            ``[A, C_k + 1]`` for each codebook; the last code is the end of speech.
        """
        given = torch.stack([table(codes[:, k]) for k, table in enumerate(tables)][:-1], dim=1).cumsum(1)
        states = torch.cat([hidden.unsqueeze(1), given], dim=1)
        for layer in self.transformer_layers:
            states = layer(states)
        states = self.headnorm(states)
        return [head(states[:, k]) for k, head in enumerate(self.heads)]


class BaichuanAudio(Qwen2ForCausalLM):
    """Baichuan-Audio under its published module names, for :class:`~s2sbench_callback.adapters.SummedCodebooks`.

    ``model`` and ``lm_head`` are Qwen2's, with queries, keys and values apart, which are published in one matrix. ``model.audio_embed_layers`` has
    one table a codebook, a row more than the codebook has codes. ``audio_head(hidden [A, H], codes [A, K], model.audio_embed_layers)`` gives a list
    of logits ``[A, C_k + 1]``. ``audio_tokenizer(waveform [N] at 16 kHz)`` gives codes ``[F, K]``, and is frozen.

    Unverified against Baichuan-Audio's own model files (verified against Baichuan-Omni-1.5's published code with random weights).

    Args:
        config: The published configuration.

    Attributes:
        tokenizer: The text tokenizer, where :func:`load_baichuan_audio` built the model.
    """

    config_class = BaichuanAudioConfig
    tokenizer: Any = None

    def __init__(self, config: BaichuanAudioConfig) -> None:
        super().__init__(config)
        speech = config.speech
        self.model.audio_embed_layers = nn.ModuleList(nn.Embedding(size + 1, config.hidden_size) for size in speech.codebook_sizes)
        self.audio_head = BaichuanAudioHead(config)
        self.audio_tokenizer = BaichuanSpeechTokenizer(speech).requires_grad_(False)
        self.post_init()  # type: ignore[no-untyped-call]


def load_baichuan_audio(folder: str | Path, dtype: torch.dtype = torch.bfloat16) -> BaichuanAudio:
    """Loads a published checkpoint.

    Each file is cast and let go before the next is read, and no weight is made only to be replaced: at its peak this takes the size of the model in
    ``dtype`` and that of one file.

    Left out by name: what sees (``model.visual_model``, ``model.visual_bridge_model``), what turns codes into sound
    (``audio_tokenizer.audio_decoder``, ``audio_tokenizer.audio_flow_matching_decoder``, ``audio_tokenizer.audio_bridge_model.proj_decoder``), and the
    codebooks' moving averages (``cluster_size``, ``embed_avg``).

    Args:
        folder: A local folder in Hugging Face's layout: ``config.json``, weights in ``.safetensors`` or ``.bin``, in one file or in several with an
            index, and the text tokenizer.
        dtype: Precision of the weights, codebooks included; bfloat16 as in the published demos.

    Returns:
        The model on the CPU in evaluation mode, its text tokenizer as ``tokenizer``.

    Raises:
        FileNotFoundError: If the folder lacks ``config.json`` or weights.
        ValueError: If weights are missing, unexpected or of another shape; the message names them.
    """
    folder = Path(folder)
    config = _read_config(folder)
    with torch.device("meta"):
        model = BaichuanAudio(config)
    state: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        state.update(_native(_read(path), config, dtype))
    _check(model, state, folder)
    model.load_state_dict(state, strict=True, assign=True)
    # Computed, not loaded.
    model.model.rotary_emb = Qwen2RotaryEmbedding(config)
    # Given the configuration, it asks for none of the published code.
    model.tokenizer = AutoTokenizer.from_pretrained(folder, config=config)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def _read_config(folder: Path) -> BaichuanAudioConfig:
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give the folder that holds the checkpoint's config.json, weights and tokenizer")
    published = json.loads(path.read_text(encoding="utf-8"))
    return BaichuanAudioConfig(**{field: value for field, value in published.items() if field not in _IGNORED_FIELDS})


def _weight_files(folder: Path) -> list[Path]:
    """Every file of weights, in the order of the names."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        if index.is_file():
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            missing = [shard for shard in shards if not (folder / shard).is_file()]
            if missing:
                raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}, which {index.name} names; the download is not complete")
            return [folder / shard for shard in shards]
        if (folder / name).is_file():
            return [folder / name]
    raise FileNotFoundError(f"{folder} has no weights: neither model.safetensors nor pytorch_model.bin, nor an index of either")


def _read(path: Path) -> Iterator[tuple[str, Tensor]]:
    tensors: Mapping[str, Tensor] = (
        load_file(path) if path.suffix == ".safetensors" else torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    )
    yield from ((name, tensor) for name, tensor in tensors.items() if not _IGNORED.match(name))


def _native(tensors: Iterator[tuple[str, Tensor]], config: BaichuanAudioConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """One file's weights under the names of the modules here, in a precision."""
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors}
    packed = {name: cast.pop(name) for name in [*cast] if ".W_pack." in name}
    return cast | qwen2_from_baichuan(packed, config, one_of_several_files=True) if packed else cast


def _check(model: nn.Module, state: Mapping[str, Tensor], folder: Path) -> None:
    """Every weight once, and no other, in the shapes of the configuration."""
    expected = model.state_dict()
    problems = {
        "lacks": [name for name in expected if name not in state],
        "has what the model does not": [name for name in state if name not in expected],
        "has in another shape than config.json says": [
            f"{name} {tuple(state[name].shape)} for {tuple(tensor.shape)}"
            for name, tensor in expected.items()
            if name in state and state[name].shape != tensor.shape
        ],
    }
    told = [
        f"{what} {', '.join(names[:_SHOWN])}" + f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
        for what, names in problems.items()
        if names
    ]
    if told:
        raise ValueError(f"the checkpoint in {folder} {'; it '.join(told)}; is it one of Baichuan-Audio, complete, with its own config.json?")
