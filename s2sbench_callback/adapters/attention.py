"""A row's mask and positions as ``transformers`` models take them."""

from __future__ import annotations

import torch
from torch import Tensor

from s2sbench_callback.adapters.protocol import Row


def attention_arguments(row: Row, dtype: torch.dtype) -> dict[str, Tensor]:
    """Keyword arguments for the forward of a decoder of ``transformers``.

    Args:
        row: The row.
        dtype: Precision of the additive mask: that of the model's weights.

    Returns:
        ``position_ids`` ``[1, T]`` and, for a row of several sequences, an additive ``attention_mask`` ``[1, 1, T, T]``, which both
        the ``sdpa`` and the ``eager`` implementations read.
    """
    arguments = {"position_ids": row.positions.unsqueeze(0)}
    mask = row.mask
    if mask is not None:
        additive = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        arguments["attention_mask"] = additive.masked_fill_(~mask, torch.finfo(dtype).min)[None, None]
    return arguments
