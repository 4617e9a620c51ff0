"""Parts of a live model as prefixes of its parameters' names, whatever is wrapped around them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from s2sbench_callback.parameter_names import plain_name


def prefixes(model: nn.Module, modules: Iterable[nn.Module | None]) -> tuple[str, ...]:
    """Names of a model's modules as prefixes of parameter names.

    Args:
        model: The model.
        modules: Parts of it; those that are missing or have no parameters are left out.
    """
    names = {id(module): plain_name(f"{name}.") for name, module in model.named_modules()}
    return tuple(names[id(module)] for module in modules if module is not None and any(True for _ in module.parameters()))


def around(model: nn.Module, whole: nn.Module, left_out: nn.Module | None) -> tuple[str, ...]:
    """Prefixes of the names of a part's parameters, but for those of a part of it.

    Args:
        model: The model.
        whole: The part.
        left_out: What of it has another role.
    """
    if whole is left_out:
        return ()
    if left_out is None or all(module is not left_out for module in whole.modules()):
        return prefixes(model, [whole])
    name = next(name for name, module in model.named_modules() if module is whole)
    own = tuple(plain_name(f"{name}.{each}") for each, _ in whole.named_parameters(recurse=False))
    return own + tuple(prefix for child in whole.children() for prefix in around(model, child, left_out))
