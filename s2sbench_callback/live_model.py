"""The language model as its strategy holds it, and the one right way into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

Redirection = Callable[[Callable[[], Tensor]], Tensor]

_ENTRY = "_s2sbench_enter"
_CPU_TOKENS = 512


class LiveModel:
    """A language model inside a LightningModule, entered at the outermost module that shards it.

    With FSDP2, parts of a model must not be called around the sharded module that contains them: its parameters would be sharded still, or
    its own first forward would find them already set up. So whatever is computed runs inside one call of that module.

    Args:
        root: The LightningModule.
        model: The language model in it.
        device: Where it is.
        redirection: For strategies that wrap the LightningModule and shard it (FSDP1, DeepSpeed): runs a function inside
            the wrapper's forward.
        end_others: Ends the processes that this one has launched, when it must end itself.

    Raises:
        ValueError: If parts of the language model are sharded and neither it nor anything around it is.
    """

    def __init__(
        self,
        root: nn.Module,
        model: nn.Module,
        device: torch.device,
        redirection: Redirection | None = None,
        end_others: Callable[[], object] = lambda: None,
    ) -> None:
        self.model = model
        self.device = device
        self.end_others = end_others
        self._redirection = redirection
        self._sharded_parts = [module for module in root.modules() if isinstance(module, FSDPModule)]
        self._outermost = _outermost_sharded(root, model)
        if self._outermost is None and any(isinstance(part, FSDPModule) for part in model.modules()):
            raise ValueError(
                f"parts of {type(model).__name__} are sharded with fully_shard and the model itself is not, so there is no one way into it; "
                "call fully_shard on the language model, or on a module around it, after its layers"
            )
        if self._outermost is not None:
            # The function that the wrapper runs is handed to it, so one registration serves every call.
            object.__setattr__(self._outermost, _ENTRY, lambda function: function())
            register_fsdp_forward_method(self._outermost, _ENTRY)

    def token_budget(self) -> int:
        """Positions in one forward that this device should bear, by a rough account of what a forward without gradients holds.

        On a CPU short rows are fastest: the mask makes attention quadratic in the row.
        """
        if self.device.type != "cuda":
            return _CPU_TOKENS
        free, _ = torch.cuda.mem_get_info(self.device)
        config: Any = getattr(self.model, "config", None)
        return accelerator_tokens(free, getattr(config, "hidden_size", 4096), getattr(config, "vocab_size", 152_064))

    @property
    def is_sharded(self) -> bool:
        """Whether a forward waits for other ranks, so that none may leave it early."""
        return bool(self._sharded_parts) or self._redirection is not None

    def enter(self, function: Callable[[], Tensor]) -> Tensor:
        """Runs a function of the model's parts where all of them can be used.

        Args:
            function: Calls the model; a sharded model needs it called by all ranks together.
        """
        if self._redirection is not None:
            return self._redirection(function)
        if self._outermost is not None:
            entry: Any = getattr(self._outermost, _ENTRY)
            result: Tensor = entry(function)
            return result
        return function()

    def leave(self) -> None:
        """Shards everything again, also after an error: a forward without gradients leaves the outermost parameters whole."""
        for part in self._sharded_parts:
            part.reshard()
        if self._outermost is not None and _ENTRY in self._outermost.__dict__:
            object.__delattr__(self._outermost, _ENTRY)


def accelerator_tokens(free_bytes: int, hidden_size: int, vocabulary: int) -> int:
    """Positions in one forward that take at most a quarter of the free memory: a power of two from 256 to 4,096.

    Args:
        free_bytes: Memory that nothing holds.
        hidden_size: Width of the model.
        vocabulary: Text tokens; logits are thought of at every fourth position, twice, in fp32.
    """
    per_position = 4 * 32 * hidden_size + 2 * 4 * vocabulary // 4
    tokens = 4_096
    # The mask, as bool and in fp32, grows with the square.
    while tokens > 256 and tokens * per_position + 5 * tokens**2 > free_bytes // 4:
        tokens //= 2
    return tokens


def _outermost_sharded(root: nn.Module, model: nn.Module) -> nn.Module | None:
    """The first sharded module on the way from the LightningModule down to the language model, itself included."""
    for module in root.modules():
        if isinstance(module, FSDPModule) and any(part is model for part in module.modules()):
            return module
    return None
