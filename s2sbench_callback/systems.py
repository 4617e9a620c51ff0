"""Whole systems from their weights: a model and the adapter that reads it, for scoring outside training.

Each loader takes a local Hugging Face folder, or the name of a repository on the hub where ``transformers`` itself loads from there. None was ever
run with the published weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoProcessor,
    AutoTokenizer,
    MoshiForConditionalGeneration,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2AudioForConditionalGeneration,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    VoxtralForConditionalGeneration,
)

from s2sbench_callback.adapters import Adapter, SummedCodebooks, TextOnly
from s2sbench_callback.adapters.audio_llms import Qwen2Audio, Qwen3OmniThinker, Qwen25OmniThinker, Voxtral
from s2sbench_callback.adapters.moshi import Moshi
from s2sbench_callback.adapters.vocabulary_models import TWIST, GLM4Voice
from s2sbench_callback.native.baichuan_audio import load_baichuan_audio
from s2sbench_callback.native.glm_4_voice import load_glm_4_voice
from s2sbench_callback.native.whisper_vq import load_whisper_vq

Precision = Literal["float32", "bfloat16", "float16"]

_QWEN_AUDIO: dict[str, tuple[Any, Any]] = {
    "qwen2_audio": (Qwen2AudioForConditionalGeneration, Qwen2Audio),
    "qwen2_5_omni": (Qwen2_5OmniThinkerForConditionalGeneration, Qwen25OmniThinker),
    "qwen3_omni_moe": (Qwen3OmniMoeThinkerForConditionalGeneration, Qwen3OmniThinker),
}


class System:
    """A model and how it is read.

    Args:
        model: The model.
        adapter: Its adapter.
        beside: Modules that are no part of the model and go where it goes: a speech tokenizer of its own.
        root: The module around the model, which it is entered through; the model itself by default.
    """

    # No dataclass: of those jsonargparse takes fields alone, not the functions below.
    def __init__(self, model: nn.Module, adapter: Adapter, beside: Sequence[nn.Module] = (), root: nn.Module | None = None) -> None:
        self.model = model
        self.root = model if root is None else root
        self.adapter = adapter
        self.beside = tuple(beside)


def causal_lm(folder: str, dtype: Precision = "bfloat16", gguf_file: str | None = None, bos: bool | None = None) -> System:
    """Any text-only causal LM of ``transformers``: Qwen2.5, the ceiling of the paper's Table 1, for example.

    Args:
        folder: Folder, or name on the hub.
        dtype: Precision of the weights.
        gguf_file: Name of a GGUF file in it, to be dequantised (needs the package ``gguf``).
        bos: Whether sequences start with the BOS token; by default as the tokenizer does by itself.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), gguf_file=gguf_file)
    return System(model, TextOnly(tokenizer, bos))


def baichuan_audio(folder: str, dtype: Precision = "bfloat16", scored: Literal["semantic", "all"] = "semantic") -> System:
    """Baichuan-Audio, base, chat or a checkpoint of either strategy, from its published files.

    Args:
        folder: Local folder.
        dtype: Precision of the weights.
        scored: Which codebooks of a spoken candidate count.
    """
    model = load_baichuan_audio(folder, dtype=getattr(torch, dtype))
    return System(model, SummedCodebooks(model.tokenizer, scored=scored))


def glm_4_voice(
    folder: str,
    speech_tokenizer_folder: str,
    dtype: Precision = "bfloat16",
    layout: Literal["base", "chat"] = "base",
    instruction: bool = False,
    trust_remote_code: bool = False,
) -> System:
    """GLM-4-Voice and its speech tokenizer, from their published files.

    Args:
        folder: Local folder of ``glm-4-voice-9b``.
        speech_tokenizer_folder: Local folder of ``glm-4-voice-tokenizer``.
        dtype: Precision of the language model's weights.
        layout: ``base`` for a continuation, ``chat`` for what the chat-tuned checkpoint was tuned on.
        instruction: Whether the paper's instruction stands before a spoken context.
        trust_remote_code: Allows the text tokenizer's own code, without which it cannot be loaded, to run.
    """
    model: Any = load_glm_4_voice(folder, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code)
    speech_tokenizer = load_whisper_vq(speech_tokenizer_folder)
    return System(model, GLM4Voice(model.tokenizer, speech_tokenizer, layout=layout, instruction=instruction), [speech_tokenizer])


def moshi(
    folder: str,
    dtype: Precision = "bfloat16",
    speech_channel: Literal["user", "moshi"] = "user",
    quiet: Literal["absent", "silence"] = "absent",
    flush_frames: int | None = None,
    scored: Literal["semantic", "all"] = "semantic",
) -> System:
    """Moshi as ``transformers`` has it.

    Args:
        folder: Folder, or name on the hub, of weights converted for ``transformers``.
        dtype: Precision of the weights.
        speech_channel: On whose channel spoken contexts play.
        quiet: What is fed where nobody speaks.
        flush_frames: Frames of PAD after a spoken context; by default the delay of its codebooks.
        scored: Which codebooks of a spoken candidate count.
    """
    model = MoshiForConditionalGeneration.from_pretrained(folder, dtype=getattr(torch, dtype))
    adapter = Moshi(AutoTokenizer.from_pretrained(folder), model.config.num_codebooks, speech_channel, quiet, flush_frames, scored)
    return System(model, adapter)


def twist(folder: str, speech_tokenizer: Any, speech_tokenizer_name: str, dtype: Precision = "bfloat16", offset: int | None = None) -> System:
    """TWIST: a causal LM over units of speech, which come from textlesslib's mHuBERT encoder or from another of the same units.

    Args:
        folder: Local folder of the unpacked weights.
        speech_tokenizer: Function or module from a waveform ``[N]`` at 16 kHz to units, or the dotted path of a function without arguments that
            makes one.
        speech_tokenizer_name: Its name and version, for the signature and the cache.
        dtype: Precision of the weights.
        offset: Id of unit 0; by default ``offset`` in the model's configuration.
    """
    made = _made(speech_tokenizer) if isinstance(speech_tokenizer, str) else speech_tokenizer
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return System(model, TWIST(made, speech_tokenizer_name, offset), [made] if isinstance(made, nn.Module) else [])


def qwen_audio(folder: str, dtype: Precision = "bfloat16", instruction: bool = True) -> System:
    """Qwen2-Audio, or the thinker of Qwen2.5-Omni or Qwen3-Omni.

    Args:
        folder: Folder, or name on the hub.
        dtype: Precision of the weights.
        instruction: Whether the paper's instruction is read before a spoken context.

    Raises:
        ValueError: If the folder holds another model.
    """
    kind = AutoConfig.from_pretrained(folder).model_type
    if kind.removesuffix("_thinker") not in _QWEN_AUDIO:
        raise ValueError(f"{folder} holds a model of type {kind!r}; qwen_audio loads {', '.join(_QWEN_AUDIO)}")
    model_class, adapter_class = _QWEN_AUDIO[kind.removesuffix("_thinker")]
    model = model_class.from_pretrained(folder, dtype=getattr(torch, dtype))
    return System(model, adapter_class(AutoProcessor.from_pretrained(folder), instruction=instruction))


def voxtral(
    folder: str, dtype: Precision = "bfloat16", layout: Literal["continuation", "instruct"] = "continuation", instruction: bool = True
) -> System:
    """Voxtral; its tokenizer needs ``mistral-common``.

    Args:
        folder: Folder, or name on the hub.
        dtype: Precision of the weights.
        layout: Whether the context is a text to be continued or a user's turn.
        instruction: Whether the paper's instruction is read before a spoken context.
    """
    model = VoxtralForConditionalGeneration.from_pretrained(folder, dtype=getattr(torch, dtype))
    return System(model, Voxtral(AutoProcessor.from_pretrained(folder), layout=layout, instruction=instruction))


def _made(path: str) -> Any:
    """What the function at a dotted path returns.

    Raises:
        ValueError: If there is no such function.
    """
    module, _, name = path.rpartition(".")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"speech_tokenizer={path!r} is no function that can be imported: {error}") from error
    return function()
