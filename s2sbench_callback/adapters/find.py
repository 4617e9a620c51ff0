"""Finds the language model in a LightningModule, and the adapter that reads it."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from torch import nn

from s2sbench_callback.adapters.known import LOOKED_AT, is_known, known_adapter
from s2sbench_callback.adapters.protocol import Adapter

Locator = str | Callable[[nn.Module], nn.Module]

_WRITE_ONE = """\
Tell the callback how your model is read. An encoder, a projector and an LLM:

    S2SBenchCallback(
        adapter=EncoderProjectorLLM(tokenizer, encoder="audio_encoder", projector="connector", llm="llm"),
        locator=".",  # the LightningModule itself
    )

A model of a known shape, somewhere inside:

    S2SBenchCallback(adapter=SummedCodebooks(tokenizer), locator="model.llm")

or a method of the LightningModule that says it:

    def s2sbench_adapter(self):
        return TextOnly(self.tokenizer)

An adapter is any object with the methods of s2sbench_callback.adapters.Adapter: docs/adapters.md shows a whole one."""


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
        found_here = [(path, module) for path, module in level if is_known(module)]
        if len(found_here) > 1:
            paths = ", ".join(f"{path} ({type(module).__name__})" for path, module in found_here)
            raise ValueError(
                f"{type(root).__name__} has several language models: {paths}; say which one learns to hear, for example locator={found_here[-1][0]!r}"
            )
        if found_here:
            return found_here[0][1]
        level = [(f"{path}.{name}".lstrip("."), child) for path, module in level for name, child in module.named_children()]
    raise ValueError(
        f"no language model was found in {type(root).__name__}: neither it nor any of its {sum(1 for _ in root.modules()) - 1} submodules is one "
        f"that is known (looked for {LOOKED_AT}); its children are {_children(root)}. Name the place, for example locator='model.llm'.\n{_WRITE_ONE}"
    )


def find_adapter(root: nn.Module, model: nn.Module) -> Adapter:
    """The adapter for a model whose class is known.

    A LightningModule with a method ``s2sbench_adapter`` is asked first. Otherwise the model's class decides, its shape, or the special tokens of
    its tokenizer. What the adapter needs is looked for on the model and on the LightningModule: ``tokenizer``, ``processor``,
    ``feature_extractor``, ``speech_tokenizer`` and ``speech_tokenizer_name``.

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
    try:
        known = known_adapter(model, root)
    except ValueError as error:
        raise ValueError(f"{error}.\n{_WRITE_ONE}") from error
    if known is None:
        raise ValueError(f"no adapter is known for {type(model).__name__} (looked for {LOOKED_AT}).\n{_WRITE_ONE}")
    return known


def _children(root: nn.Module) -> str:
    return ", ".join(f"{name} ({type(child).__name__})" for name, child in root.named_children()) or "none"
