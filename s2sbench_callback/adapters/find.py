"""Finds the language model in a LightningModule, and the adapter that reads it."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from s2sbench_callback.adapters.protocol import Adapter
from s2sbench_callback.adapters.summed_codebooks import SummedCodebooks
from s2sbench_callback.adapters.text_only import TextOnly

Locator = str | Callable[[nn.Module], nn.Module]

_CAUSAL_LMS = frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())

_WRITE_ONE = """\
Tell the callback how your model is read:

    S2SBenchCallback(locator="llm", adapter=SummedCodebooks(tokenizer))

or let the LightningModule say it:

    def s2sbench_adapter(self):
        return TextOnly(self.tokenizer)

An adapter is any object with the methods of s2sbench_callback.adapters.Adapter."""


def find_language_model(root: nn.Module, locator: Locator | None = None) -> nn.Module:
    """The language model inside a LightningModule.

    Args:
        root: The LightningModule.
        locator: Dotted path from ``root``, ``"."`` for ``root`` itself, or a function of it; by default ``root`` is looked at, then its children,
            then theirs.

    Raises:
        ValueError: If the locator leads nowhere; or if without one nothing is found, or several at the same depth.
    """
    if callable(locator):
        found = locator(root)
        if not isinstance(found, nn.Module):
            raise ValueError(f"the locator returned a {type(found).__name__} for {type(root).__name__}; it must return the language model, a module")
        return found
    if locator == ".":
        return root
    if locator:
        try:
            found = reduce(getattr, locator.split("."), root)
        except AttributeError as error:
            raise ValueError(
                f"locator={locator!r} leads nowhere in {type(root).__name__}: {error}; its children are {_children(root)}. A model that is "
                "built late must be built in configure_model or setup"
            ) from error
        if not isinstance(found, nn.Module):
            raise ValueError(f"locator={locator!r} leads to a {type(found).__name__} in {type(root).__name__}, which is no module")
        return found
    level = [("", root)]
    while level:
        found_here = [(path, module) for path, module in level if _is_summed_codebooks(module) or _is_causal_lm(module)]
        if len(found_here) > 1:
            paths = ", ".join(f"{path} ({type(module).__name__})" for path, module in found_here)
            raise ValueError(
                f"{type(root).__name__} has several language models: {paths}; say which one learns to hear, for example locator={found_here[-1][0]!r}"
            )
        if found_here:
            return found_here[0][1]
        level = [(f"{path}.{name}".lstrip("."), child) for path, module in level for name, child in module.named_children()]
    raise ValueError(
        f"no language model was found in {type(root).__name__}: neither it nor any of its {sum(1 for _ in root.modules()) - 1} submodules has "
        f"Baichuan-Audio's module names or is a causal LM of transformers; its children are {_children(root)}. Name the place, for "
        "example locator='model.llm'"
    )


def find_adapter(root: nn.Module, model: nn.Module) -> Adapter:
    """The adapter for a model whose class is known.

    A LightningModule with a method ``s2sbench_adapter`` is asked first. Otherwise the model's own shape decides, and the tokenizer is
    looked for in the attribute ``tokenizer`` of the model and of the LightningModule.

    Args:
        root: The LightningModule.
        model: The language model in it.

    Raises:
        ValueError: If the class is not known or no tokenizer is found; the message says what was looked at and how to name an adapter.
    """
    own = getattr(root, "s2sbench_adapter", None)
    if callable(own):
        adapter = own()
        if not isinstance(adapter, Adapter):
            raise ValueError(f"{type(root).__name__}.s2sbench_adapter() returned a {type(adapter).__name__}, which lacks methods of an adapter")
        return adapter
    tokenizer: Any = getattr(model, "tokenizer", None) or getattr(root, "tokenizer", None)
    known = SummedCodebooks if _is_summed_codebooks(model) else TextOnly if _is_causal_lm(model) else None
    if known is None:
        raise ValueError(f"no adapter is known for {type(model).__name__} (looked at Baichuan-Audio's names and causal LMs).\n{_WRITE_ONE}")
    if tokenizer is None:
        raise ValueError(
            f"{type(model).__name__} is read by {known.__name__}, which needs its text tokenizer, and neither the model nor "
            f"{type(root).__name__} has an attribute 'tokenizer'.\n{_WRITE_ONE}"
        )
    return known(tokenizer)


def _is_summed_codebooks(module: nn.Module) -> bool:
    return all(hasattr(module, name) for name in ("audio_head", "lm_head")) and hasattr(getattr(module, "model", None), "audio_embed_layers")


def _is_causal_lm(module: nn.Module) -> bool:
    if not isinstance(module, PreTrainedModel) or getattr(module.config, "is_encoder_decoder", False):
        return False
    return any(kind.__name__ in _CAUSAL_LMS or kind.__name__.endswith("ForCausalLM") for kind in type(module).__mro__)


def _children(root: nn.Module) -> str:
    return ", ".join(f"{name} ({type(child).__name__})" for name, child in root.named_children()) or "none"
