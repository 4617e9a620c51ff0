"""Speech LMs that hear through an encoder whose features a trained projector puts into the language model's sequence."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from s2sbench_callback.adapters.attention import attention_arguments
from s2sbench_callback.adapters.protocol import Candidate, Role, Row, Rows
from s2sbench_callback.adapters.text_ids import TextIds, column, text_candidate
from s2sbench_callback.items import Language
from s2sbench_callback.parameter_names import plain_name
from s2sbench_callback.prompts import CANDIDATES, Condition, Modality, paper_instruction
from s2sbench_callback.speech import module_fingerprint

_MUTE = "the model hears and answers in text: it has no audio vocabulary, so a spoken candidate cannot be scored"


@dataclass(frozen=True)
class Parts:
    """The live model's modules by what they do.

    Attributes:
        encoder: What a recording goes through before the projector; without the projector, where that lies inside.
        projector: What is trained to put features in place.
        embedding: The text embedding.
        head: The text head.
        body: The language model, where it is not everything else.
        idle: Modules that no score depends on, such as a vision tower; they share the front-end's role.
    """

    encoder: tuple[nn.Module, ...]
    projector: tuple[nn.Module, ...]
    embedding: nn.Module
    head: nn.Module
    body: tuple[nn.Module, ...] = ()
    idle: tuple[nn.Module, ...] = ()


class ProjectedFeatures(ABC):
    """What all readers of this family share: the layout, the projector that runs live, the roles.

    Layout: BOS as the tokenizer by itself puts one; text ids and recordings in reading order, each recording between the ids of
    :meth:`_around`; then the candidate; no end token. The first stream holds text ids, the last one rows of the features: at each position
    one of the two speaks. A written context has the text stream alone.

    Args:
        tokenizer: A ``transformers`` tokenizer.
        bos: Whether to start each sequence with the tokenizer's BOS token; by default as the tokenizer does by itself.
        instruction: Whether the paper's instruction is read before a spoken context.
        sample_rate: Rate in Hz that the encoder hears.
    """

    def __init__(self, tokenizer: Any, bos: bool | None, instruction: bool, sample_rate: int) -> None:
        self.tokenizer = tokenizer
        self._text = TextIds(tokenizer)
        self._bos = self._text.bos(bos)
        self._instructs = instruction
        self._sample_rate = sample_rate

    @property
    def sample_rate(self) -> int:
        """Rate in Hz that the encoder hears."""
        return self._sample_rate

    def refusal(self, condition: Condition) -> str | None:
        """Spoken candidates are refused."""
        return _MUTE if CANDIDATES[condition] == "speech" else None

    def instruction(self, condition: Condition, language: Language) -> str:
        """The paper's, where it is wanted."""
        return paper_instruction(condition, language) if self._instructs else ""

    def encode_text(self, text: str) -> list[int]:
        """Ids without special tokens."""
        return self._text.encode(text)

    @abstractmethod
    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """Features ``[F, D]``: what enters the projector."""

    @abstractmethod
    def _parts(self, model: nn.Module) -> Parts:
        """The live model's modules."""

    @abstractmethod
    def _around(self) -> tuple[list[int], list[int]]:
        """Text ids before and after each recording."""

    @abstractmethod
    def _read(self, model: nn.Module, arguments: dict[str, Any], sources: Tensor) -> Tensor:
        """Logits ``[A, V]`` of the language model at ``sources``, given ``inputs_embeds`` and the other arguments of its decoder."""

    @abstractmethod
    def _project(self, model: nn.Module, features: Tensor) -> Tensor:
        """What the projector makes of features ``[F, D]``, in its own precision: ``[F, H]``."""

    def _heard(self, model: nn.Module, features: Tensor, streams: Tensor) -> Tensor:
        """``[T, H]`` what is heard at each position; anything where the last stream is silent."""
        return self._project(model, features)[streams[:, -1].clamp_min(0)]

    def _speech(self, features: Tensor, first_row: int) -> Tensor:
        """The positions ``[P, S]`` of one recording, of which the first stream is silent and the last holds rows."""
        rows = torch.arange(first_row, first_row + len(features))
        return torch.stack([torch.full_like(rows, -1), rows], dim=1)

    def _hears_with(self) -> Any:
        """What besides the encoder's weights decides the features, for JSON."""
        return None

    def audio_fingerprint(self, model: nn.Module) -> str:
        """Hash of the encoder without the projector, and of how recordings are prepared for it."""
        digest = hashlib.blake2b(json.dumps(self._hears_with(), sort_keys=True, default=str).encode(), digest_size=8)
        for module in self._parts(model).encoder:
            digest.update(module_fingerprint(module).encode())
        return digest.hexdigest()

    def context_streams(self, parts: Sequence[list[int] | Tensor], candidate: Modality = "text") -> Tensor:
        """``[L, S]``; ``[L, 1]``, text alone, where there is no speech."""
        if candidate == "speech":
            raise TypeError(_MUTE)
        spoken: list[Tensor] = []
        rows = 0
        before, after = self._around()
        for part in parts:
            if isinstance(part, Tensor):
                spoken.extend((column(before), self._speech(part, rows), column(after)))
                rows += len(part)
            else:
                spoken.append(column(part))
        pieces = [column(self._bos), *spoken]
        width = max(piece.shape[1] for piece in pieces)
        return torch.cat([nn.functional.pad(piece, (0, width - piece.shape[1]), value=-1) for piece in pieces])

    def candidate_positions(self, piece: list[int] | Tensor) -> Candidate:
        """Text ids ``[n, 1]``, each of them scored."""
        if isinstance(piece, Tensor):
            raise TypeError(_MUTE)
        return text_candidate(piece)

    def logits(self, model: nn.Module, row: Row) -> Tensor:
        """Text embeddings with projected features in place, then the language model, its head at the sources alone."""
        hidden = self._hidden(model, row)
        arguments = {"inputs_embeds": hidden.unsqueeze(0), "use_cache": False, **attention_arguments(row, hidden.dtype)}
        return self._read(model, arguments, row.sources)

    def _hidden(self, model: nn.Module, row: Row) -> Tensor:
        """``[T, H]`` what the language model is given."""
        parts = self._parts(model)
        hidden: Tensor = parts.embedding(row.streams[:, 0].clamp_min(0))
        if row.features is not None:
            heard = self._heard(model, row.features.to(precision(parts.projector, hidden.dtype)), row.streams)
            hidden = torch.where((row.streams[:, -1] >= 0).unsqueeze(1), heard.to(hidden.dtype), hidden)
        return hidden

    def roles(self, model: nn.Module) -> Mapping[Role, tuple[str | Rows, ...]]:
        """Encoder, projector, embedding and head by module; everything else is the body."""
        parts = self._parts(model)
        of_module: dict[int, Role] = {id(module): "frontend" for module in (*parts.idle, *parts.encoder)}
        of_module.update({id(module): "lm_body" for module in parts.body})
        of_module.update({id(module): "audio_embedding" for module in parts.projector})
        of_module.update({id(parts.head): "lm_head", id(parts.embedding): "lm_embedding"})
        roles: dict[Role, tuple[str | Rows, ...]] = {}
        for name, role in _prefixes(model, "", "lm_body", of_module):
            roles[role] = (*roles.get(role, ()), plain_name(name))
        return roles

    def signature(self) -> Mapping[str, str]:
        """Tokenizer, BOS policy, instruction, the ids around a recording, and the rate."""
        before, after = self._around()
        return {
            **self._text.signature(),
            "bos": str(bool(self._bos)).lower(),
            "instruction": "the paper's" if self._instructs else "none",
            "around_speech": f"{','.join(map(str, before))};{','.join(map(str, after))}",
            "sample_rate": str(self._sample_rate),
        }


def precision(modules: tuple[nn.Module, ...], otherwise: torch.dtype) -> torch.dtype:
    """That of the modules' weights."""
    return next((parameter.dtype for module in modules for parameter in module.parameters() if parameter.is_floating_point()), otherwise)


def _prefixes(module: nn.Module, prefix: str, role: Role, of_module: Mapping[int, Role]) -> list[tuple[str, Role]]:
    """The shortest prefixes below which all parameters have one role: that of the innermost module that has one."""
    role = of_module.get(id(module), role)
    entries = [(prefix + name, role) for name, _ in module.named_parameters(recurse=False, remove_duplicate=False)]
    for name, child in module.named_children():
        entries.extend(_prefixes(child, f"{prefix}{name}.", role, of_module))
    found = {each for _, each in entries}
    return [(prefix, found.pop())] if prefix and len(found) == 1 else entries


def unwrapped(model: nn.Module) -> Any:
    """The model inside PEFT's wrapper, with its adapters in place; other models as they are."""
    inner = getattr(model, "get_base_model", None)
    return inner() if callable(inner) else model


def entering(module: nn.Module, run: Callable[[], object]) -> Tensor:
    """What enters a module while something runs."""
    kept: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    try:
        run()
    finally:
        handle.remove()
    return kept[0]


def check_length(waveform: Tensor, limit: int, sample_rate: int, whose: str) -> None:
    """A recording that is longer than can be heard would be cut silently.

    Raises:
        ValueError: If it is.
    """
    if len(waveform) > limit:
        raise ValueError(
            f"a recording of {len(waveform) / sample_rate:.1f} s is longer than the {limit / sample_rate:g} s that {whose} can hear; "
            "leave the question out, or cut the recording"
        )


def not_empty(features: Tensor, waveform: Tensor, sample_rate: int) -> Tensor:
    """Features as they are.

    Raises:
        ValueError: If there are none.
    """
    if not len(features):
        raise ValueError(f"a recording of {len(waveform) / sample_rate:.3f} s is too short for the encoder to make a single position of it")
    return features


def check_projection(whole: Tensor, apart: Tensor, explanation: str) -> None:
    """Holds what the projector makes of a recording at once against what it makes of it position by position.

    Args:
        whole: ``[P, H]``.
        apart: ``[P, H]``.
        explanation: Which arguments were supposed to describe it.

    Raises:
        ValueError: If lengths or values differ.
    """
    if len(whole) != len(apart):
        raise ValueError(f"the projector makes {len(whole)} positions of a recording, and {explanation} makes {len(apart)}")
    difference, scale = ((whole - apart).detach().float().abs().max(), whole.detach().float().abs().max())
    # In half precision two ways to the same sum differ by so much.
    if difference > (1e-3 if whole.dtype == torch.float32 else 0.05) * scale:
        raise ValueError(
            f"the projector makes something else of a whole recording than of the frames that {explanation} gives each position (difference "
            f"{float(difference):.2g}, largest value {float(scale):.2g}): it looks at other frames"
        )


def split_processor(processor: Any, feature_extractor: Any, adapter: str) -> tuple[Any, Any]:
    """Tokenizer and feature extractor of a processor, or as they are given apart.

    Raises:
        ValueError: If there is no feature extractor.
    """
    tokenizer = getattr(processor, "tokenizer", None) if hasattr(processor, "feature_extractor") else None
    extractor = feature_extractor or getattr(processor, "feature_extractor", None)
    if extractor is None:
        raise ValueError(
            f"{adapter} needs the model's feature extractor beside the tokenizer {type(processor).__name__}; pass the model's processor, or "
            f"{adapter}(tokenizer, feature_extractor=...)"
        )
    return tokenizer if tokenizer is not None else processor, extractor


def log_mel(extractor: Any, waveform: Tensor, **padding: Any) -> tuple[Tensor, Tensor]:
    """Log-mel frames ``[1, M, N]`` of a recording and the mask ``[1, N]`` of the real ones, on the waveform's device."""
    found = extractor(
        waveform.float().cpu().numpy(), sampling_rate=extractor.sampling_rate, return_attention_mask=True, return_tensors="pt", **padding
    )
    return cast(Tensor, found["input_features"]).to(waveform.device), cast(Tensor, found["attention_mask"]).to(waveform.device)
