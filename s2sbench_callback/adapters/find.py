"""Finds the language model in a LightningModule, and the adapter that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

from torch import nn

from s2sbench_callback.adapters.known import LOOKED_AT, is_known, known_adapter
from s2sbench_callback.adapters.protocol import Adapter

# Where wrappers keep what they wrap: torch.compile, DDP, PEFT's model, and its tuner inside.
_WRAPPED = ("_orig_mod", "module", "base_model", "model")

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

    s2sbench_locator = "model.llm"  # where that is not found by itself

    def s2sbench_adapter(self):
        return TextOnly(self.tokenizer)

An adapter is any object with the methods of s2sbench_callback.adapters.Adapter: docs/adapters.md shows a whole one."""


def find_language_model(root: nn.Module, locator: Locator | None = None) -> nn.Module:
    """The language model inside a LightningModule.

    Args:
        root: The LightningModule.
        locator: Dotted path from ``root``, ``"."`` for ``root`` itself, or a function of it; by default the attribute ``s2sbench_locator`` of
            ``root``, or else ``root`` is looked at, then its children, then theirs.

    Raises:
        ValueError: If the locator leads nowhere; if without one nothing is found, several at the same depth, or one that is frozen above one that
            learns; or if a prompt that is learned stands before every input.
    """
    _refuse_learned_prompts(root)
    return _find(root, getattr(root, "s2sbench_locator", None) if locator is None else locator)


def _find(root: nn.Module, locator: Locator | None) -> nn.Module:
    if callable(locator):
        found = locator(root)
        if not isinstance(found, nn.Module):
            raise ValueError(f"the locator returned a {type(found).__name__} for {type(root).__name__}; it must return the language model, a module")
        return _inside_wrappers(found)
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
        return _inside_wrappers(found)
    level = [("", root)]
    while level:
        found_here = [(path, module) for path, module in level if is_known(module)]
        if len(found_here) > 1:
            paths = ", ".join(f"{path} ({type(module).__name__})" for path, module in found_here)
            raise ValueError(
                f"{type(root).__name__} has several language models: {paths}; say which one learns to hear, for example locator={found_here[-1][0]!r}"
            )
        if found_here:
            _refuse_if_another_learns(root, *found_here[0])
            return found_here[0][1]
        level = [(f"{path}.{name}".lstrip("."), child) for path, module in level for name, child in module.named_children()]
    raise ValueError(
        f"no language model was found in {type(root).__name__}: neither it nor any of its {sum(1 for _ in root.modules()) - 1} submodules is one "
        f"that is known (looked for {LOOKED_AT}); its children are {_children(root)}. Name the place, for example locator='model.llm'.\n{_WRITE_ONE}"
    )


def _inside_wrappers(module: nn.Module) -> nn.Module:
    """The known model in what ``torch.compile``, PEFT or DDP has put around it; the module itself where there is none."""
    inner: object = module
    while isinstance(inner, nn.Module) and not is_known(inner):
        inner = next((part for name in _WRAPPED if isinstance(part := inner._modules.get(name), nn.Module)), None)
    return inner if isinstance(inner, nn.Module) else module


def _refuse_if_another_learns(root: nn.Module, path: str, found: nn.Module) -> None:
    """A frozen teacher above the student must not be taken for it."""
    if any(parameter.requires_grad for parameter in found.parameters()):
        return
    inside = {id(module) for module in found.modules()}
    learning = [
        name
        for name, module in root.named_modules()
        if id(module) not in inside and is_known(module) and any(parameter.requires_grad for parameter in module.parameters())
    ]
    if learning:
        raise ValueError(
            f"{type(root).__name__} has a language model that is frozen, {path}, and one that learns, {learning[0]}; say which one is to be probed, "
            f"for example locator={learning[0]!r}"
        )


def _refuse_learned_prompts(root: nn.Module) -> None:
    for name, module in root.named_modules():
        configs = getattr(module, "peft_config", None)
        for config in configs.values() if isinstance(configs, Mapping) else ():
            if getattr(config, "is_prompt_learning", False):
                raise ValueError(
                    f"{name or type(root).__name__} is wrapped in PEFT's {type(config).__name__}, whose learned prompt stands before every input and "
                    "would be left out by the probe; probe a model with low-rank adapters, or one whose prompt is merged"
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
