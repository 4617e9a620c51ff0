"""Frozen modules in eval mode, and back when they learn again."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn


class FrozenModes:
    """Puts modules that do not learn into eval mode, and remembers which of them it was that did."""

    def __init__(self) -> None:
        self._put: set[nn.Module] = set()

    def apply(self, root: nn.Module, frozen: Collection[int]) -> None:
        """Brings every module's flag to what the stage wants; costs a walk over the modules.

        Args:
            root: The LightningModule.
            frozen: Identities of the parameters that stages govern and that do not learn now.
        """
        frozen_modules = _without_learners(root, frozen)
        for module in self._put - frozen_modules:
            module.training = True
        self._put &= frozen_modules
        for module in frozen_modules:
            if module.training:
                # Not eval(): some modules override train() and rewrite their weights in it.
                module.training = False
                self._put.add(module)

    def put_back(self) -> None:
        """Brings the modules that it put into eval mode back, so that another run finds them as this one did."""
        for module in self._put:
            module.training = True
        self._put = set()


def _without_learners(root: nn.Module, frozen: Collection[int]) -> set[nn.Module]:
    """Modules with parameters of which none learns, and all that is inside them."""
    found: set[nn.Module] = set()

    def visit(module: nn.Module) -> None:
        parameters = list(module.parameters())
        if parameters and all(id(parameter) in frozen for parameter in parameters):
            found.update(module.modules())
            return
        for child in module.children():
            visit(child)

    visit(root)
    return found
