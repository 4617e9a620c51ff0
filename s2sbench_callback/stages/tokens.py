"""How many tokens a batch holds, where the batch says so itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def count_tokens(batch: Any) -> int:
    """Positions that count in the batch of a model of ``transformers``: those of the ``attention_mask``, else all ``input_ids``.

    Args:
        batch: A mapping with one of the two.

    Raises:
        TypeError: If it has neither.
    """
    if isinstance(batch, Mapping):
        if isinstance(batch.get("attention_mask"), Tensor):
            return int(batch["attention_mask"].sum())
        if isinstance(batch.get("input_ids"), Tensor):
            return int(batch["input_ids"].numel())
    what = f"keys {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else f"type {type(batch).__name__}"
    raise TypeError(
        f"a stage ends by tokens, and a batch with {what} does not say how many it holds; hand StageUnfreeze a function of the batch, "
        "count_tokens=lambda batch: int(batch['lengths'].sum())"
    )
