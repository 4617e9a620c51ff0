"""Parameter names as the model's author wrote them, whatever has been wrapped around its modules since."""

from __future__ import annotations

from torch import nn

_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


def plain_name(name: str) -> str:
    """The name without what FSDP1, activation checkpointing and ``torch.compile`` put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by plain name; a tied matrix stands under each of its names."""
    return {plain_name(name): parameter for name, parameter in module.named_parameters(remove_duplicate=False)}
