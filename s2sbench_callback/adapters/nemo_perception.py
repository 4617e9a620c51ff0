"""How NeMo's speech LMs hear: perception as far as its projection, and the projection."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from s2sbench_callback.adapters.protocol import Role
from s2sbench_callback.adapters.role_prefixes import around, prefixes
from s2sbench_callback.speech import module_fingerprint


def projection_of(perception: Any) -> tuple[str, nn.Module | None]:
    """What projects each position into the LLM's width, by its path in perception; none where nothing with parameters does so at the end."""
    for path, owner in (("proj", perception), ("modality_adapter.proj", perception.modality_adapter)):
        found = getattr(owner, "proj", None)
        if isinstance(found, nn.Module) and any(True for _ in found.parameters()):
            return path, found
    return "", None


def entering_projection(perception: Any, waveform: Tensor) -> tuple[Tensor, Tensor]:
    """``[F', D]`` what enters the projection for a recording ``[N]``, padding included, and ``[]`` how much of it is the recording."""
    _, projection = projection_of(perception)
    entered: list[Tensor] = []
    hook = projection.register_forward_pre_hook(lambda _, given: entered.append(given[0])) if projection is not None else None
    try:
        length = torch.full((1,), len(waveform), device=waveform.device)
        encoded, lengths = perception(input_signal=waveform.unsqueeze(0), input_signal_length=length)
    finally:
        if hook is not None:
            hook.remove()
    features: Tensor = (entered[-1] if entered else encoded)[0]
    return features, lengths[0]


def heard(perception: Any, waveform: Tensor, sample_rate: int, chunk_seconds: float | None = None) -> Tensor:
    """``[F, D]`` what enters the projection for a recording ``[N]``, in chunks where it is longer than one."""
    featurizer = perception.preprocessor.featurizer
    if featurizer.sample_rate != sample_rate:
        raise ValueError(
            f"perception hears at {featurizer.sample_rate} Hz, and the adapter at {sample_rate}; pass sample_rate={featurizer.sample_rate}"
        )
    chunks = [waveform]
    if chunk_seconds is not None:
        # Two frames of the spectrogram at least, since one alone cannot be normalised.
        smallest = next(
            n for n in range(featurizer.hop_length, 2**31, featurizer.hop_length) if int(featurizer.get_seq_len(torch.tensor(float(n)))) > 1
        )
        chunks = list(waveform.split(max(round(chunk_seconds * sample_rate), smallest)))
        if len(chunks) > 1 and len(chunks[-1]) < smallest:
            chunks[-2:] = [torch.cat(chunks[-2:])]
    heard = [entering_projection(perception, chunk) for chunk in chunks]
    return torch.cat([features[: int(length)] for features, length in heard])


def placed(perception: Any, features: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """``[T, H]``: projected features by rows ``[T]``, zero where the row is -1."""
    _, projection = projection_of(perception)
    if projection is not None:
        features = projection(features.to(next(projection.parameters()).dtype))
    return features.to(dtype)[rows.clamp_min(0)] * (rows >= 0).unsqueeze(1)


def fingerprint(perception: nn.Module) -> str:
    """Hash of perception without its projection."""
    path, _ = projection_of(perception)
    return module_fingerprint(_without(perception, path.split("."))) if path else module_fingerprint(perception)


def _without(module: nn.Module, path: Sequence[str]) -> nn.Module:
    """A view of a module that lacks the part at a path."""
    name, rest = path[0], path[1:]
    view = copy.copy(module)
    part = module._modules[name]
    view._modules = {**module._modules, name: _without(part, rest) if rest and part is not None else None}
    return view


def perception_roles(model: nn.Module, perception: nn.Module) -> dict[Role, tuple[str, ...]]:
    """Prefixes of the projection (``audio_embedding``) and of the rest of perception (``frontend``)."""
    _, projection = projection_of(perception)
    return {"audio_embedding": prefixes(model, [projection]), "frontend": around(model, perception, projection)}
