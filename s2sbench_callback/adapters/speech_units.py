"""Speech tokenizers of one codebook that are no part of the model, whatever form they give their units in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from s2sbench_callback.isolation import evaluating
from s2sbench_callback.speech import module_fingerprint

_TOKENS = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")


class SpeechUnits:
    """A speech tokenizer that is no part of the model.

    Args:
        tokenizer: Called with a waveform ``[N]``. It gives units ``[F]`` or ``[F, 1]`` as a tensor, an array or a list, a mapping that has
            them under ``units``, or the names of audio tokens as one string or a list.
        name: What sets it apart from others; needed unless it is an ``nn.Module``, whose weights do.
        deduplicate: Whether a unit that repeats counts once. Names are left as they are.

    Raises:
        ValueError: If it is no module and has no name.
    """

    def __init__(self, tokenizer: Any, name: str | None, deduplicate: bool) -> None:
        if name is None and not isinstance(tokenizer, nn.Module):
            raise ValueError(
                f"the speech tokenizer is a {type(tokenizer).__name__}, no nn.Module whose weights tell it from others; name it and its "
                "version in speech_tokenizer_name="
            )
        self._tokenizer = tokenizer
        self._name = name
        self._deduplicate = deduplicate

    def __call__(self, waveform: Tensor) -> Tensor | list[str]:
        """Units ``[F]`` or names of tokens."""
        with evaluating(self._tokenizer):
            heard = self._tokenizer(waveform)
        if isinstance(heard, Mapping):
            heard = heard["units"]
        if isinstance(heard, str):
            return _TOKENS.findall(heard)
        if isinstance(heard, list | tuple) and heard and isinstance(heard[0], str):
            return list(heard)
        units = torch.as_tensor(heard).to(torch.int64)
        if units.dim() == 2 and units.shape[1] == 1:
            units = units[:, 0]
        if units.dim() != 1:
            raise ValueError(f"the speech tokenizer gave codes of shape {list(units.shape)}; units of one codebook, [F] or [F, 1], can be read")
        return torch.unique_consecutive(units) if self._deduplicate else units

    def fingerprint(self) -> str:
        """What tells its units from those of another."""
        kind = type(self._tokenizer)
        weights = module_fingerprint(self._tokenizer) if isinstance(self._tokenizer, nn.Module) else ""
        settings = getattr(self._tokenizer, "config", "")
        settings = settings.to_dict() if hasattr(settings, "to_dict") else settings if isinstance(settings, Mapping | str) else ""
        return f"{self._name or ''} {kind.__module__}.{kind.__qualname__} {settings} {weights} {self._deduplicate}"

    def signature(self) -> dict[str, str]:
        """What of it can change a figure."""
        return {"speech_tokenizer": self._name or type(self._tokenizer).__name__, "deduplicate": str(self._deduplicate).lower()}
