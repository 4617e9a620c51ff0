"""Questions laid out in rows: each context once, its candidates beside each other behind it.

A candidate's tokens look at their own context and at themselves, at nothing else, and count positions from the end of the context,
so that each candidate is read exactly as if it stood alone after the context. The last token of a candidate is never
fed: it is only predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s2sbench_callback.adapters.protocol import Row


@dataclass(frozen=True)
class EncodedCandidate:
    """One candidate, tokenised.

    Attributes:
        question: Index of its question in the benchmark.
        candidate: Index among the question's candidates.
        streams: Its tokens as positions to feed, ``[n, S]`` with ``n >= 1``.
        targets: What each head of the model is to predict at each of them, ``[n, J]``, -1 where nothing is scored.
    """

    question: int
    candidate: int
    streams: Tensor
    targets: Tensor

    @classmethod
    def of_text(cls, question: int, candidate: int, ids: Tensor) -> EncodedCandidate:
        """A candidate of text ids ``[n]`` in a model of one stream."""
        return cls(question, candidate, ids[:, None], ids[:, None])


@dataclass(frozen=True)
class Unit:
    """One context with the candidates that share it: the smallest thing that can be packed.

    Attributes:
        context: ``[L, S]``.
        candidates: One or more.
        features: ``[F, D]`` what the model's front-end heard, where it hears in features; the last stream then holds rows of it.
    """

    context: Tensor
    candidates: tuple[EncodedCandidate, ...]
    features: Tensor | None = None

    @property
    def tokens(self) -> int:
        """Positions that the unit takes in a row."""
        return len(self.context) + sum(len(candidate.streams) - 1 for candidate in self.candidates)

    def alone(self) -> Iterator[Unit]:
        """The same work without sharing: one unit a candidate."""
        for candidate in self.candidates:
            yield Unit(self.context, (candidate,), self.features)


@dataclass(frozen=True)
class PackedRow:
    """A row and whose losses it gives.

    Attributes:
        row: What the adapter reads.
        questions: ``[A]`` question of each target.
        candidates: ``[A]`` candidate of each target.
        lengths: Number of targets of each candidate, in the same order.
    """

    row: Row
    questions: Tensor
    candidates: Tensor
    lengths: list[int]


def pack(units: Sequence[Unit], max_tokens: int) -> list[tuple[Unit, ...]]:
    """Decides which units share a row: first fit, longest first, ties in the given order.

    Args:
        units: The work.
        max_tokens: Positions in one row; a unit that is longer gets a row of its own.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    rows: list[list[Unit]] = []
    free: list[int] = []
    for unit in sorted(units, key=lambda unit: -unit.tokens):
        place = next((index for index, room in enumerate(free) if room >= unit.tokens), None)
        if place is None:
            rows.append([])
            free.append(max_tokens)
            place = len(rows) - 1
        rows[place].append(unit)
        free[place] -= unit.tokens
    return [tuple(row) for row in rows]


def build_row(units: Sequence[Unit]) -> PackedRow:
    """Lays out the units of one row.

    Args:
        units: What :func:`pack` put together, or a single unit.
    """
    widest = max(piece.shape[1] for unit in units for piece in (unit.context, *(candidate.streams for candidate in unit.candidates)))
    streams, positions, contexts, branches = [], [], [], []
    sources, heads, targets, questions, candidates = [], [], [], [], []
    features: list[Tensor] = []
    end = heard = 0

    def place(piece: Tensor, first_position: int, context: int, branch: int) -> None:
        nonlocal end
        streams.append(torch.nn.functional.pad(piece, (0, widest - piece.shape[1]), value=-1))
        positions.append(torch.arange(first_position, first_position + len(piece)))
        contexts.append(torch.full((len(piece),), context))
        branches.append(torch.full((len(piece),), branch))
        end += len(piece)

    for context_index, unit in enumerate(units):
        place(unit.context if unit.features is None else _moved(unit.context, heard), 0, context_index, -1)
        if unit.features is not None:
            features.append(unit.features)
            heard += len(unit.features)
        last_of_context = end - 1
        for branch, candidate in enumerate(unit.candidates):
            fed = len(candidate.streams) - 1
            before = torch.tensor([last_of_context, *range(end, end + fed)])
            place(candidate.streams[:fed], len(unit.context), context_index, branch)
            scored = candidate.targets >= 0
            at, head = scored.nonzero(as_tuple=True)
            sources.append(before[at])
            heads.append(head)
            targets.append(candidate.targets[scored])
            questions.append(torch.full_like(head, candidate.question))
            candidates.append(torch.full_like(head, candidate.candidate))

    one_sequence = len(units) == 1 and len(units[0].candidates) == 1
    row = Row(
        streams=torch.cat(streams),
        positions=torch.cat(positions),
        segments=None if one_sequence else torch.stack([torch.cat(contexts), torch.cat(branches)]),
        sources=torch.cat(sources),
        heads=torch.cat(heads),
        targets=torch.cat(targets),
        features=torch.cat(features) if features else None,
        asks_other_heads=any(bool(head.any()) for head in heads),
    )
    return PackedRow(row, torch.cat(questions), torch.cat(candidates), [len(ids) for ids in targets])


def _moved(context: Tensor, rows: int) -> Tensor:
    """The context with the rows of its last stream counted from further down."""
    last = context[:, -1:]
    return torch.cat([context[:, :-1], torch.where(last >= 0, last + rows, last)], dim=1)
