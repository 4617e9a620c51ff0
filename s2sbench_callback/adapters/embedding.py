"""Embeddings where a stream may be silent."""

from __future__ import annotations

from torch import Tensor, nn


def embedded(table: nn.Module, ids: Tensor) -> Tensor:
    """``[T, H]``: embeddings of ids ``[T]``, zero where the id is -1."""
    vectors: Tensor = table(ids.clamp_min(0))
    return vectors * (ids >= 0).unsqueeze(1)
