"""Leaves the training exactly as found, also when the probe raises."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn


@contextmanager
def isolated(root: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, then everything back as it was.

    Put back are the train or eval flag of every single submodule (a frozen encoder in eval mode stays there) and the
    random generators of Python, numpy, torch and CUDA. Compiled modules run eagerly meanwhile, so that the
    probe's shapes cost no recompilation, and FlashAttention, which cannot read the mask of a packed row, gives way to ``sdpa``.

    Args:
        root: The module whose parts are put back, usually the LightningModule.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices), torch.no_grad(), torch.compiler.set_stance("force_eager"), _readable_attention(root):
        try:
            with evaluating(root):
                yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def evaluating(module: object) -> Iterator[None]:
    """Evaluation mode for every submodule, then each one's own mode again.

    Args:
        module: The module; anything else, such as a function that stands for one, is left alone.
    """
    modes = [(part, part.training) for part in module.modules()] if isinstance(module, nn.Module) else []
    try:
        for part, _ in modes:
            # Not eval(): some modules override train() and rewrite their weights in it.
            part.training = False
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def _readable_attention(root: nn.Module) -> Iterator[None]:
    """Switches models of ``transformers`` from FlashAttention to ``sdpa``, and back."""
    switched: list[tuple[Any, str]] = []
    for module in root.modules():
        implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if implementation is not None and "flash" in str(implementation) and hasattr(module, "set_attn_implementation"):
            switched.append((module, implementation))
    try:
        for module, _ in switched:
            module.set_attn_implementation("sdpa")
        yield
    finally:
        for module, implementation in switched:
            module.set_attn_implementation(implementation)
