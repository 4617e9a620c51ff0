"""A row as ``transformers`` models take it."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

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


def causal_lm_logits(model: nn.Module, row: Row) -> Tensor:
    """Logits ``[A, V]`` at the row's sources by a causal LM's own forward over the ids of the first stream, computed there alone.

    Args:
        model: A causal LM of ``transformers``.
        row: The row.
    """
    language_model = cast(PreTrainedModel, model)
    arguments = attention_arguments(row, language_model.dtype)
    output = language_model(input_ids=row.streams[:, 0].unsqueeze(0), logits_to_keep=row.sources, use_cache=False, **arguments)
    logits: Tensor = output.logits[0]
    return logits
