"""The plan of the stages as a table, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from s2sbench_callback.stages.selection import Learner, Parts, Selection
from s2sbench_callback.stages.stage import Stage

_HEADINGS = ("stage", "ends", "part", "tensors", "numbers", "learning rate")


def stage_table(parts: Parts, stages: Sequence[Stage], rate_of: Callable[[Learner], float | None] = lambda learner: learner.lr) -> str:
    """Stage, end, parts, counts and learning rates.

    Args:
        parts: The parts of the model.
        stages: The stages.
        rate_of: Learning rate of a parameter; by default the stage's own alone.

    Raises:
        ValueError: If a part matches nothing.
    """
    governed = parts.governed(stages)
    total = sum(parameter.numel() for parameter in governed.values())
    lines: list[tuple[str, ...]] = [_HEADINGS]
    for number, selection in enumerate(parts.select(stages), start=1):
        stage = selection.stage
        label, end = f"{number} {stage.name}", stage.end
        for part, learners in _by_part(parts, selection):
            lines.append((label, end, part, f"{len(learners):,}", f"{sum(map(_size, learners)):,}", _rates(learners, rate_of)))
            label = end = ""
        learning = sum(map(_size, selection.learners.values()))
        frozen = len(governed) - sum(learner.rows is None for learner in selection.learners.values())
        lines.append(("", "", "(frozen)", f"{frozen:,}", f"{total - learning:,}", ""))
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    table = [
        "  ".join(cell.rjust(width) if column in (3, 4) else cell.ljust(width) for column, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]
    ids = {id(parameter) for parameter in governed.values()}
    others = {id(parameter): parameter for parameter in parts.named.values() if id(parameter) not in ids}
    if others:
        numbers = sum(parameter.numel() for parameter in others.values())
        table.append(f"Left as they are: {len(others):,} tensors ({numbers:,} numbers) outside the language model that no stage names.")
    return "\n".join(line.rstrip() for line in table)


def _by_part(parts: Parts, selection: Selection) -> list[tuple[str, list[Learner]]]:
    """Each parameter under the first part that names it."""
    left = dict(selection.learners)
    found = []
    for part in selection.stage.train:
        names = [name for name in parts.match(part, f"stage {selection.stage.name!r}") if name in left]
        found.append((str(part), [left.pop(name) for name in names]))
    return found


def _size(learner: Learner) -> int:
    return learner.size


def _rates(learners: Sequence[Learner], rate_of: Callable[[Learner], float | None]) -> str:
    rates = dict.fromkeys(rate_of(learner) for learner in learners)
    return ", ".join("the optimizer's" if rate is None else f"{rate:g}" for rate in rates)
