"""Which adapter reads which class of model, and where what it needs besides is looked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from s2sbench_callback.adapters.audio_llms import Qwen2Audio, Qwen3OmniThinker, Qwen25OmniThinker, Voxtral
from s2sbench_callback.adapters.freeze_omni import FreezeOmni
from s2sbench_callback.adapters.kyutai_stt import KyutaiSTT
from s2sbench_callback.adapters.moshi import KyutaiMoshi, Moshi
from s2sbench_callback.adapters.nemo_duplex import NeMoDuplex
from s2sbench_callback.adapters.nemo_salm import NeMoSALM
from s2sbench_callback.adapters.protocol import Adapter
from s2sbench_callback.adapters.summed_codebooks import SummedCodebooks
from s2sbench_callback.adapters.text_only import TextOnly
from s2sbench_callback.adapters.vocabulary_models import TWIST, GLM4Voice, SpiritLM, UnitLM

_CAUSAL_LMS = frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())


class Beside:
    """What stands beside a model: attributes of the model itself and of the LightningModule around it.

    Args:
        model: The language model.
        root: The LightningModule.
    """

    def __init__(self, model: nn.Module, root: nn.Module) -> None:
        self.model: Any = model
        self._owners = (model, root)

    def find(self, *names: str) -> Any:
        """The first attribute that is there under one of some names, or ``None``."""
        found = (getattr(owner, name, None) for name in names for owner in self._owners)
        return next((value for value in found if value is not None), None)

    def need(self, what: str, *names: str) -> Any:
        """The same, which must be there.

        Args:
            what: How to name it in an error.
            *names: Attributes to look for.

        Raises:
            ValueError: If none is there.
        """
        value = self.find(*names)
        if value is None:
            model, root = (type(owner).__name__ for owner in self._owners)
            attributes = " or ".join(repr(name) for name in names)
            lacking = f"it has no attribute {attributes}" if model == root else f"neither {model} nor {root} has an attribute {attributes}"
            raise ValueError(f"{model} can be read only with {what}, and {lacking}")
        return value

    @property
    def tokenizer(self) -> Any:
        """The text tokenizer, which must be there."""
        return self.need("its text tokenizer", "tokenizer")

    @property
    def speech(self) -> tuple[Any, str | None]:
        """The speech tokenizer, which must be there, and its name."""
        return self.need("its speech tokenizer (a module or function from waveform to units)", "speech_tokenizer"), self.find("speech_tokenizer_name")

    @property
    def processor(self) -> tuple[Any, Any]:
        """Processor or tokenizer, which must be there, and a feature extractor."""
        return self.need("its processor (or tokenizer and feature_extractor)", "processor", "tokenizer"), self.find("feature_extractor")


def _kyutai_moshi(beside: Beside) -> Adapter:
    model = beside.model
    mimi = beside.find("speech_tokenizer", "mimi")
    name = beside.find("speech_tokenizer_name")
    tokenizer = beside.need("its text tokenizer", "tokenizer", "text_tokenizer")
    return KyutaiMoshi(tokenizer, mimi, name, delays=tuple(model.delays[1 : 1 + model.dep_q]), text_pad=model.text_padding_token_id)


def _kyutai_stt(beside: Beside) -> Adapter:
    config, processor = beside.model.config, beside.find("processor")
    tokenizer = getattr(processor, "tokenizer", None) or beside.tokenizer
    # By as many frames the text follows the speech.
    delay = round(12.5 * getattr(getattr(processor, "feature_extractor", None), "audio_delay_seconds", 0.0))
    return KyutaiSTT(tokenizer, config.num_codebooks, delay, text_pad=config.pad_token_id)


def _freeze_omni(beside: Beside) -> Adapter:
    model = beside.model
    prompts = model.prompt_num if getattr(model, "prompt_finetune", False) and getattr(model, "add_prompt_before", False) else 0
    stack = 1 if type(getattr(model, "adpter", None)).__name__ in ("CNNAdapter", "LinearAdapter") else 2
    return FreezeOmni(beside.tokenizer, prompts=prompts, stack=stack)


def _nemo_duplex(beside: Beside) -> Adapter:
    return NeMoDuplex(beside.tokenizer, turn=getattr(beside.tokenizer, "bos_id", None) is not None)


def _unit_lm(beside: Beside) -> Adapter:
    tokenizer = beside.find("tokenizer") or getattr(beside.find("tokeniser"), "text_tokeniser", None)
    return UnitLM(tokenizer, *beside.speech)


# By the name of the class, so that none of their packages is imported for it.
_BY_CLASS: dict[str, Callable[[Beside], Adapter]] = {
    "Qwen2AudioForConditionalGeneration": lambda beside: Qwen2Audio(*beside.processor),
    "Qwen2_5OmniThinkerForConditionalGeneration": lambda beside: Qwen25OmniThinker(*beside.processor),
    "Qwen3OmniMoeThinkerForConditionalGeneration": lambda beside: Qwen3OmniThinker(*beside.processor),
    "VoxtralForConditionalGeneration": lambda beside: Voxtral(*beside.processor),
    "MoshiForConditionalGeneration": lambda beside: Moshi(beside.tokenizer, beside.model.config.num_codebooks),
    "KyutaiSpeechToTextForConditionalGeneration": _kyutai_stt,
    "LMModel": _kyutai_moshi,
    "ChatGLMForConditionalGeneration": lambda beside: GLM4Voice(beside.tokenizer, *beside.speech),
    "UnitLM": _unit_lm,
    "AudioLLM": _freeze_omni,
    "SALM": lambda beside: NeMoSALM(beside.tokenizer),
    "DuplexS2SModel": _nemo_duplex,
    "DuplexS2SSpeechDecoderModel": _nemo_duplex,
    "DuplexSTTModel": _nemo_duplex,
}

# Names that a user's own class may well have: these must have the published parts too.
_PARTS: dict[str, tuple[str, ...]] = {
    "LMModel": ("text_emb", "text_linear", "transformer"),
    "UnitLM": ("lm",),
    "AudioLLM": ("encoder", "adpter", "llm_decoder"),
    "SALM": ("llm", "perception"),
    "DuplexS2SModel": ("llm", "perception"),
    "DuplexS2SSpeechDecoderModel": ("llm", "perception"),
    "DuplexSTTModel": ("llm", "perception"),
}

# Causal LMs that hear, by a token that their tokenizers alone have.
_BY_TOKEN: dict[str, Callable[[Beside], Adapter]] = {
    "<|audio_0|>": lambda beside: GLM4Voice(beside.tokenizer, *beside.speech),
    "[Hu0]": lambda beside: SpiritLM(beside.tokenizer, *beside.speech),
    "<Un0>": lambda beside: UnitLM(beside.tokenizer, *beside.speech),
}

LOOKED_AT = f"Baichuan-Audio's module names, causal LMs of transformers, {', '.join(_BY_CLASS)}"


def is_known(module: nn.Module) -> bool:
    """Whether some adapter reads modules of this class or shape."""
    return _is_summed_codebooks(module) or _by_class(module) is not None or _is_causal_lm(module)


def known_adapter(model: nn.Module, root: nn.Module) -> Adapter | None:
    """The adapter that reads a model, or ``None`` if its class is not known.

    Args:
        model: The language model.
        root: The LightningModule around it.

    Raises:
        ValueError: If something that the adapter needs is missing; the message names it.
    """
    beside = Beside(model, root)
    if _is_summed_codebooks(model):
        return SummedCodebooks(beside.tokenizer)
    build = _by_class(model)
    if build:
        return build(beside)
    if not _is_causal_lm(model):
        return None
    tokenizer = beside.find("tokenizer")
    if tokenizer is None and hasattr(beside.model.config, "offset") and beside.find("speech_tokenizer") is not None:
        return TWIST(*beside.speech)
    vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    build = next((build for token, build in _BY_TOKEN.items() if token in vocabulary), None)
    return build(beside) if build else TextOnly(beside.tokenizer)


def _by_class(module: nn.Module) -> Callable[[Beside], Adapter] | None:
    # Sharding puts a class of its own before the model's.
    name = next((kind.__name__ for kind in type(module).__mro__ if kind.__name__ in _BY_CLASS), None)
    return _BY_CLASS[name] if name and all(hasattr(module, part) for part in _PARTS.get(name, ())) else None


def _is_summed_codebooks(module: nn.Module) -> bool:
    return all(hasattr(module, name) for name in ("audio_head", "lm_head")) and hasattr(getattr(module, "model", None), "audio_embed_layers")


def _is_causal_lm(module: nn.Module) -> bool:
    if not isinstance(module, PreTrainedModel) or getattr(module.config, "is_encoder_decoder", False):
        return False
    return any(kind.__name__ in _CAUSAL_LMS or kind.__name__.endswith("ForCausalLM") for kind in type(module).__mro__)
