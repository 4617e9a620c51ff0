"""Which parameters, and which of their rows, learn in a stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn

from s2sbench_callback.adapters import Adapter, Rows
from s2sbench_callback.parameter_names import named_parameters, plain_name
from s2sbench_callback.stages.stage import ROLES, Part, Stage

_Mask = npt.NDArray[np.bool_]
_TIED_TO = {"audio_head": "audio_embedding", "lm_head": "lm_embedding"}


@dataclass(frozen=True)
class Learner:
    """A parameter that learns in a stage.

    Attributes:
        name: In the LightningModule.
        parameter: The parameter itself; a shard where it is sharded.
        rows: ``[R]`` which of its rows learn; ``None`` for all of it.
        lr: Its learning rate; ``None`` for the optimizer's own.
    """

    name: str
    parameter: nn.Parameter
    rows: _Mask | None
    lr: float | None

    @property
    def size(self) -> int:
        """How many numbers learn."""
        whole = self.parameter.numel()
        return whole if self.rows is None else whole // len(self.rows) * int(self.rows.sum())


@dataclass(frozen=True)
class Selection:
    """What learns in one stage.

    Attributes:
        stage: The stage.
        learners: By the name of the parameter; a tied matrix stands here once.
    """

    stage: Stage
    learners: Mapping[str, Learner]


class Parts:
    """The parts of a LightningModule that stages can name.

    Args:
        root: The LightningModule.
        model: The language model in it.
        adapter: Names its roles.
    """

    def __init__(self, root: nn.Module, model: nn.Module, adapter: Adapter) -> None:
        self._model_class = type(model).__name__
        place = next(name for name, module in root.named_modules() if module is model)
        self._prefix = plain_name(f"{place}.") if place else ""
        self.named = named_parameters(root)
        self._roles = adapter.roles(model)

    def select(self, stages: Sequence[Stage]) -> list[Selection]:
        """What learns in each stage.

        Raises:
            ValueError: If a part matches nothing, a matrix would learn under one of its names and not under another, or a parameter cannot learn.
        """
        return [Selection(stage, self._learners(stage)) for stage in stages]

    def governed(self, stages: Sequence[Stage]) -> dict[str, nn.Parameter]:
        """Parameters that the stages freeze or train: the language model's, and all that a part of any stage reaches; each once."""
        named = {part for stage in stages for part in (*stage.train, *stage.freeze)}
        reached = {name for part in named for name in self.match(part, "a stage")}
        found = {name: parameter for name, parameter in self.named.items() if name.startswith(self._prefix) or name in reached}
        unique = {id(parameter): name for name, parameter in reversed(found.items())}
        return {name: parameter for name, parameter in found.items() if unique[id(parameter)] == name}

    def _learners(self, stage: Stage) -> dict[str, Learner]:
        where = f"stage {stage.name!r}"
        learns = self._union(stage.train, where)
        for name, mask in self._union(stage.freeze, where).items():
            learns[name] = _tidy(np.logical_and(learns.get(name, False), np.logical_not(mask)))
        learns = {name: mask for name, mask in learns.items() if mask is not False}
        if not learns:
            raise ValueError(f"{where}: freeze takes away all that train names, so nothing would learn")
        rates = self._rates(stage, learns, where)
        learners: dict[str, Learner] = {}
        seen: dict[int, str] = {}
        for name, parameter in self.named.items():
            first = seen.setdefault(id(parameter), name)
            if not np.array_equal(learns.get(first, False), learns.get(name, False)):
                raise ValueError(f"{where}: {first} and {name} are one tied matrix; a stage must train both or neither")
            if name not in learns or name != first:
                continue
            if not parameter.is_floating_point():
                raise ValueError(f"{where} trains {name}, which is {parameter.dtype} and cannot learn; put it into freeze")
            mask = learns[name]
            learners[name] = Learner(name, parameter, None if mask is True else np.asarray(mask), rates.get(name))
        return learners

    def _rates(self, stage: Stage, learns: Mapping[str, object], where: str) -> dict[str, float]:
        if not isinstance(stage.lr, Mapping):
            return {} if stage.lr is None else dict.fromkeys(learns, stage.lr)
        rates: dict[str, float] = {}
        for part, rate in stage.lr.items():
            named = [name for name in self.match(part, f"{where}, lr") if name in learns]
            if not named and not part.endswith("?"):
                raise ValueError(f"{where}: lr names {part!r}, of which nothing learns in this stage")
            for name in named:
                if self._is_shared(name) and rates.get(name, rate) != rate:
                    raise ValueError(
                        f"{where}: {name} is shared by several roles, and one matrix can only have one learning rate, not {rates[name]} and {rate}"
                    )
                rates[name] = rate
        return rates

    def _is_shared(self, name: str) -> bool:
        return any(isinstance(entry, Rows) and self._prefix + entry.parameter == name for entries in self._roles.values() for entry in entries)

    def _union(self, parts: Iterable[Part], where: str) -> dict[str, _Mask | bool]:
        union: dict[str, _Mask | bool] = {}
        for part in parts:
            for name, mask in self.match(part, where).items():
                union[name] = _tidy(np.logical_or(union.get(name, False), mask))
        return union

    def match(self, part: Part, where: str) -> dict[str, _Mask | bool]:
        """Parameters that a part names, with the rows it means.

        Args:
            part: A role, a pattern or rows.
            where: Who asks, for the message.

        Raises:
            ValueError: If it matches nothing.
        """
        if isinstance(part, Rows):
            return self._match_rows(part, where)
        role, optional = (part[:-1], True) if part.endswith("?") and part[:-1] in ROLES else (part, False)
        if role not in ROLES:
            found = [name for name in self.named if fnmatchcase(name, part) or fnmatchcase(self._inside(name), part)]
            if not found:
                raise ValueError(f"{where}: no parameter matches {part!r}; {self._near(part)}")
            return dict.fromkeys(found, True)
        matched = self._match_role(role, where)
        if not matched and role in _TIED_TO:
            # Of a head that is the embedding itself, only the embedding's role is stated.
            matched = {name: mask for name, mask in self._match_role(_TIED_TO[role], where).items() if self._aliases_without_role(name)}
        if not matched and not optional:
            raise ValueError(
                f"{where}: the role {role!r} has no parameters in {self._model_class}; write {role + '?'!r} where that is as it should be"
            )
        for name, mask in list(matched.items()):
            matched.update(dict.fromkeys(self._aliases_without_role(name), mask))
        return matched

    def _match_role(self, role: str, where: str) -> dict[str, _Mask | bool]:
        matched: dict[str, _Mask | bool] = {}
        for entry in self._entries(role):
            whole = [] if isinstance(entry, Rows) else [name for name in self.named if name.startswith(self._prefix + entry)]
            for name, mask in (self._match_rows(entry, where) if isinstance(entry, Rows) else dict.fromkeys(whole, True)).items():
                matched[name] = _tidy(np.logical_or(matched.get(name, False), mask))
        return matched

    def _entries(self, role: str) -> tuple[str | Rows, ...]:
        return next((entries for each, entries in self._roles.items() if each == role), ())

    def _aliases_without_role(self, name: str) -> list[str]:
        """Other names of a tied matrix that no role is stated for: what holds for one name holds for them."""
        stated = [entry for entries in self._roles.values() for entry in entries]

        def has_role(alias: str) -> bool:
            inside = self._inside(alias)
            return any(inside == entry.parameter if isinstance(entry, Rows) else inside.startswith(entry) for entry in stated)

        aliases = [alias for alias, parameter in self.named.items() if parameter is self.named[name] and alias != name]
        return [alias for alias in aliases if not has_role(alias)]

    def _match_rows(self, rows: Rows, where: str) -> dict[str, _Mask | bool]:
        name = rows.parameter if rows.parameter in self.named else self._prefix + rows.parameter
        if name not in self.named:
            raise ValueError(f"{where}: there is no parameter {rows.parameter!r}; {self._near(rows.parameter)}")
        count = self.named[name].shape[0]
        if not 0 <= rows.start < rows.stop <= count:
            raise ValueError(f"{where}: {rows} is no range of rows of {name}, which has {count}")
        mask = np.zeros(count, dtype=np.bool_)
        mask[rows.start : rows.stop] = True
        return {name: _tidy(mask)}

    def _inside(self, name: str) -> str:
        return name[len(self._prefix) :] if name.startswith(self._prefix) else name

    def _near(self, wanted: str) -> str:
        names = [self._inside(name) for name in self.named]
        near = get_close_matches(wanted.replace("*", ""), [*names, *ROLES], n=4, cutoff=0.3)
        return f"near names are {', '.join(near or names[:4])}, and the roles are {', '.join(ROLES)}"


def warn_of_base_layers(parts: Parts, selections: Iterable[Selection]) -> None:
    """Warns where a role unfreezes the weights that PEFT has put its adapters beside."""
    for selection in selections:
        for part in selection.stage.train:
            by_role = isinstance(part, str) and part.removesuffix("?") in ROLES
            matched = parts.match(part, "a stage") if by_role else {}
            base = [name for name in matched if ".base_layer." in name and name in selection.learners]
            if base:
                rank_zero_warn(
                    f"stage {selection.stage.name!r} trains {base[0]} and {len(base) - 1} more of the weights that PEFT keeps frozen, because the "
                    f"role {part!r} holds them; to train the adapters alone write '*lora_*' in its place, or put '*.base_layer.*' into freeze"
                )


def _tidy(mask: _Mask | np.bool_ | bool) -> _Mask | bool:
    """All or nothing as a plain bool."""
    array = np.asarray(mask)
    return True if array.all() else array if array.any() else False
