"""What the stages would do to a model, without training it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from s2sbench_callback.adapters import Adapter, find_adapter, find_language_model
from s2sbench_callback.adapters.find import Locator
from s2sbench_callback.stages.selection import Parts
from s2sbench_callback.stages.stage import Stage
from s2sbench_callback.stages.table import stage_table


def dry_run(stages: Sequence[Stage], module: nn.Module, adapter: Adapter | None = None, locator: Locator | None = None) -> str:
    """A table of stage, end, parts, counts and learning rates; nothing is frozen.

    Args:
        stages: The stages.
        module: The LightningModule, or the language model itself.
        adapter: Names the roles; found from the model's class by default.
        locator: Where the language model is in the module.

    Raises:
        ValueError: If a part matches nothing; near names are listed.
    """
    model = find_language_model(module, locator)
    return stage_table(Parts(module, model, adapter or find_adapter(module, model)), stages)
