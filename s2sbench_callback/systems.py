"""Whole systems from their weights: a model and the adapter that reads it, for scoring outside training.

Each loader takes a local Hugging Face folder, or the name of a repository on the hub where ``transformers`` itself loads from there.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from s2sbench_callback.adapters import Adapter, TextOnly

Precision = Literal["float32", "bfloat16", "float16"]


class System:
    """A model and how it is read.

    Args:
        model: The model.
        adapter: Its adapter.
    """

    # No dataclass: of those jsonargparse takes fields alone, not the functions below.
    def __init__(self, model: nn.Module, adapter: Adapter) -> None:
        self.model = model
        self.adapter = adapter


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
