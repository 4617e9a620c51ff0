"""Rows through an adapter to a table of losses, one entry a question and candidate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from s2sbench_callback.adapters.protocol import Adapter, Row
from s2sbench_callback.items import Audio, Benchmark
from s2sbench_callback.live_model import LiveModel
from s2sbench_callback.packing import EncodedCandidate, PackedRow, Unit, build_row, pack
from s2sbench_callback.prompts import CANDIDATES, Condition, prompt
from s2sbench_callback.ranks import Failure, Ranks, end_the_job

# How far a candidate's loss in a packed row may be from its loss alone, in nats per token, before packing counts as misread. Held
# with autocast off, so fp32 is what most runs are checked in.
PACKING_TOLERANCE_NATS = {torch.float32: 1e-3, torch.float16: 5e-3, torch.bfloat16: 2e-2}
_ALONE = Ranks()


@dataclass(frozen=True)
class LossTable:
    """What the model said: the sufficient statistics of every figure.

    Attributes:
        item_ids: Names of the questions.
        groups: Cluster of each question.
        answers: ``[Q]`` index of the right candidate.
        nats: ``[Q, C]`` summed negative log-likelihood of each candidate; NaN where a question has fewer candidates.
        tokens: ``[Q, C]`` text tokens of each candidate; 0 where there is none.
    """

    item_ids: tuple[str, ...]
    groups: tuple[str, ...]
    answers: npt.NDArray[np.int64]
    nats: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.int64]

    @property
    def losses(self) -> npt.NDArray[np.float64]:
        """``[Q, C]`` nats per token; NaN where there is no candidate."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.tokens > 0, self.nats / self.tokens, np.nan)


@dataclass(frozen=True)
class Questions:
    """This rank's share of one benchmark in one condition, tokenised, independent of the model's weights.

    Attributes:
        benchmark: Where the questions come from.
        condition: How their contexts are given.
        units: The work of this rank.
        idle: What to run where other ranks have more rows; of the same kind, so that the same modules are entered.
    """

    benchmark: Benchmark
    condition: Condition
    units: tuple[Unit, ...]
    idle: Unit

    @property
    def candidates(self) -> int:
        """Candidates to score on this rank."""
        return sum(len(unit.candidates) for unit in self.units)


def encode(
    benchmark: Benchmark,
    condition: Condition,
    adapter: Adapter,
    audio_tokens: Callable[[Audio], Tensor],
    indices: Sequence[int] | None = None,
) -> Questions:
    """Tokenises questions for one condition.

    Candidates whose contexts read the same share one unit.

    Args:
        benchmark: The questions.
        condition: How contexts are given.
        adapter: How the model is fed.
        audio_tokens: Codes of a recording, on the CPU.
        indices: Which questions; all by default.

    Raises:
        ValueError: If a candidate has no tokens; the message names the item.
    """
    chosen = range(len(benchmark.items)) if indices is None else indices
    units = [unit for question in chosen for unit in _units(benchmark, condition, adapter, audio_tokens, question)]
    # A rank without a question runs the first.
    idle = units[0] if units else next(_units(benchmark, condition, adapter, audio_tokens, 0))
    return Questions(benchmark, condition, tuple(units), next(idle.alone()))


def _units(benchmark: Benchmark, condition: Condition, adapter: Adapter, audio_tokens: Callable[[Audio], Tensor], question: int) -> Iterator[Unit]:
    """One question's candidates by context."""
    item = benchmark.items[question]
    where = f"item {item.id!r} of {benchmark.name!r}"
    instruction = adapter.instruction(condition, benchmark.language)

    def piece(part: str | Audio) -> list[int] | Tensor:
        return audio_tokens(part) if isinstance(part, Audio) else adapter.encode_text(part)

    shared: dict[tuple[str | Audio, ...], list[EncodedCandidate]] = {}
    for index in range(len(item.candidates)):
        laid_out = prompt(condition, benchmark.language, item, index, instruction)
        streams, targets = adapter.candidate_positions(piece(laid_out.candidate))
        if not (targets >= 0).any():
            raise ValueError(f"{where}: the tokenizer makes no token of candidate {index} ({item.candidates[index]!r})")
        shared.setdefault(laid_out.context, []).append(EncodedCandidate(question, index, streams, targets))
    for parts, candidates in shared.items():
        pieces = [piece(part) for part in parts]
        context = adapter.context_streams(pieces, CANDIDATES[condition])
        heard = [each for each in pieces if isinstance(each, Tensor) and each.is_floating_point()]
        features = torch.cat(heard) if len(heard) > 1 else next(iter(heard), None)
        if len(context):
            yield Unit(context, tuple(candidates), features)
        elif parts:
            raise ValueError(f"{where}: its context has no token, so nothing can predict a candidate's first one")
        else:
            # A whole story without anything before it: its first token is given.
            for whole in candidates:
                if not (whole.targets[1:] >= 0).any():
                    raise ValueError(f"{where}: the story of candidate {whole.candidate} is a single token, so nothing in it can be predicted")
                yield Unit(whole.streams[:1], (replace(whole, streams=whole.streams[1:], targets=whole.targets[1:]),), features)


class Scorer:
    """Scores questions on the live model, and watches itself.

    The first packed row of each condition is scored again one candidate at a time. Where the two disagree on any rank, or the model cannot
    read a packed row, everything is scored plainly from then on, and a warning says so once. (A model sharded over several ranks that cannot
    read one ends the job instead, as after any exception inside a sharded forward: pass ``packed=False``.)

    Every rank runs the same number of forwards: one that has fewer rows, or none, runs a row that counts for nothing.

    Args:
        adapter: How the model is fed and read.
        max_tokens: Positions in one forward; halved where memory does not suffice, and kept so.
        packed: Whether contexts may be shared; ``False`` scores one row a candidate.
    """

    def __init__(self, adapter: Adapter, max_tokens: int, packed: bool = True) -> None:
        self.adapter = adapter
        self.max_tokens = max_tokens
        self.packed = packed
        self.forwards = 0
        self._checked: set[Condition] = set()
        self._precision = torch.float32

    @torch.no_grad()
    def score(self, live: LiveModel, questions: Questions, ranks: Ranks = _ALONE, advance: Callable[[int], object] = lambda _: None) -> LossTable:
        """Losses of every candidate of every question; called by all ranks together.

        Args:
            live: The live model, in evaluation mode, under the precision it trains in.
            questions: This rank's work.
            ranks: Who else scores.
            advance: Told the number of candidates after each row.

        Returns:
            The whole table on every rank, with a finite entry for each candidate unless the model itself says NaN or infinity.

        Raises:
            ProbeError: On all ranks, if one of several failed.
            RuntimeError: If a candidate was not scored exactly once.
        """
        while True:
            shortage, counted = None, 0

            def count(candidates: int) -> None:
                nonlocal counted
                counted += candidates
                advance(candidates)

            try:
                if self.packed and questions.condition not in self._checked:
                    self._check(live, questions, ranks)
                rows = ranks.together(lambda: self._rows(questions), "while laying out rows")
                nats = self._run(live, rows, questions, ranks, count)
            except torch.OutOfMemoryError as error:
                longest = ranks.maximum(max((unit.tokens for unit in questions.units), default=0))
                if not self.packed or self.max_tokens <= longest:
                    raise
                shortage = str(error)
                advance(-counted)
                self.max_tokens = max(longest, self.max_tokens // 2)
            if shortage is None:
                return _table(rows, nats, questions.benchmark, ranks)
            warnings.warn(f"the probe goes on with max_tokens={self.max_tokens}, since memory did not suffice: {shortage}", stacklevel=2)
            if live.device.type == "cuda":
                torch.cuda.empty_cache()

    def _rows(self, questions: Questions) -> list[PackedRow]:
        if self.packed:
            return [build_row(units) for units in pack(questions.units, self.max_tokens)]
        return [build_row((alone,)) for unit in questions.units for alone in unit.alone()]

    def _run(
        self, live: LiveModel, rows: Sequence[PackedRow], questions: Questions, ranks: Ranks, advance: Callable[[int], object] = lambda _: None
    ) -> list[Tensor]:
        """``[A]`` negative log-likelihoods of each row's targets, in as many forwards as any rank needs."""
        failure, cause = None, None
        nats: list[Tensor] = []
        for number in range(ranks.maximum(len(rows))):
            row = rows[number] if number < len(rows) else None
            try:
                # Kept on the device: one transfer at the end instead of one wait a row.
                found = self._row_nats(live, row or build_row((questions.idle,)))
                if row:
                    nats.append(found)
                    advance(len(row.lengths))
            except Exception as error:
                where = f"while scoring {_names(row, questions.benchmark)}" if row else "in a row that counts for nothing"
                if ranks.size == 1:
                    error.add_note(where)
                    raise
                message = f"rank {ranks.rank}, {where}: {type(error).__name__}: {error}"
                if live.is_sharded:
                    end_the_job(message, live.end_others)
                failure, cause = Failure(ranks.rank, message, isinstance(error, torch.OutOfMemoryError)), error
                break
        ranks.raise_together(failure, cause)
        return nats

    def _row_nats(self, live: LiveModel, packed: PackedRow) -> Tensor:
        """``[A]`` negative log-likelihood of each target, fp32."""
        self.forwards += 1
        row = _to(packed.row, live.device)

        def read() -> Tensor:
            logits = self.adapter.logits(live.model, row)
            # Before a wrapper casts them.
            self._precision = logits.dtype
            return logits

        logits = live.enter(read)
        if isinstance(logits, DTensor):
            raise TypeError("the logits are split over ranks (tensor or context parallel), which the probe cannot read")
        return nn.functional.cross_entropy(logits.float(), row.targets, reduction="none")

    def _check(self, live: LiveModel, questions: Questions, ranks: Ranks) -> None:
        """Holds the first packed row against plain scoring of the same candidates."""
        # In full precision where the weights allow it; weights of several kinds need autocast to go together.
        kinds = {parameter.dtype for parameter in live.model.parameters() if parameter.is_floating_point()}
        with torch.autocast(live.device.type, enabled=False) if len(kinds) == 1 else nullcontext():
            reason = self._what_is_wrong(live, questions, ranks)
        self._checked.add(questions.condition)
        reasons = ranks.words(reason)
        if reasons:
            self.packed = False
            warnings.warn(f"the probe scores one row a candidate from now on, which is slower: {reasons[0]}", stacklevel=3)

    def _what_is_wrong(self, live: LiveModel, questions: Questions, ranks: Ranks) -> str | None:

        def first_row() -> tuple[list[PackedRow], list[PackedRow]]:
            rows = pack(questions.units, self.max_tokens)
            # A row of one sequence reads alike either way, so the first that holds several.
            units = next((row for row in rows if len(row) > 1 or len(row[0].candidates) > 1), next(iter(rows), ()))
            return [build_row((alone,)) for unit in units for alone in unit.alone()], [build_row(units)] if units else []

        plain, packed = ranks.together(first_row, "while laying out rows")
        expected = self._run(live, plain, questions, ranks)
        try:
            found = self._run(live, packed, questions, ranks)
        except torch.OutOfMemoryError:
            raise
        except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
            return f"the model cannot read a packed row ({type(error).__name__}: {error})"
        return ranks.together(lambda: _disagreement(packed, found, plain, expected, self._precision) if packed else None, "while comparing rows")


def _means(rows: Sequence[PackedRow], nats: Sequence[Tensor]) -> Tensor:
    """Nats per token of each candidate, in the order of the rows."""
    runs = [run for row, losses in zip(rows, nats, strict=True) for run in losses.split(row.lengths)]
    return torch.stack([run.mean() for run in runs])


def _disagreement(
    packed: Sequence[PackedRow], packed_nats: Sequence[Tensor], plain: Sequence[PackedRow], plain_nats: Sequence[Tensor], precision: torch.dtype
) -> str | None:
    found, expected = _means(packed, packed_nats), _means(plain, plain_nats)
    if not torch.equal(found.isfinite(), expected.isfinite()):
        return "packed and plain scoring disagree on which losses are finite"
    difference = float((found - expected)[found.isfinite()].abs().max()) if found.isfinite().any() else 0.0
    tolerance = PACKING_TOLERANCE_NATS.get(precision, PACKING_TOLERANCE_NATS[torch.float32])
    return (
        f"packed and plain scoring differ by {difference:.2g} nats per token, above {tolerance:g} for {precision}" if difference > tolerance else None
    )


def _to(row: Row, device: torch.device) -> Row:
    def move(tensor: Tensor) -> Tensor:
        # Out of pinned memory the copy does not wait for the forward before it.
        return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)

    moved: dict[str, Any] = {field.name: move(part) for field in fields(row) if isinstance(part := getattr(row, field.name), Tensor)}
    return replace(row, **moved)


def _names(row: PackedRow, benchmark: Benchmark) -> str:
    names = [benchmark.items[question].id for question in dict.fromkeys(row.questions.tolist())]
    return f"item{'s' * (len(names) > 1)} {', '.join(map(repr, names[:5]))}{', ...' * (len(names) > 5)} of {benchmark.name!r}"


def _table(rows: Sequence[PackedRow], nats: Sequence[Tensor], benchmark: Benchmark, ranks: Ranks) -> LossTable:
    """Every rank's entries put together by question, each there exactly once."""
    items = benchmark.items
    shape = (len(items), max(len(item.candidates) for item in items))
    sums = ranks.total(ranks.together(lambda: _sums(rows, nats, shape), "while collecting losses"))
    exists = np.array([[candidate < len(item.candidates) for candidate in range(shape[1])] for item in items])
    wrong = np.argwhere(sums[2] != exists)
    if len(wrong):
        question, candidate = (int(place) for place in wrong[0])
        times = int(sums[2][question, candidate])
        raise RuntimeError(f"candidate {candidate} of item {items[question].id!r} of {benchmark.name!r} was scored {times} times; this is a bug")
    return LossTable(
        tuple(item.id for item in items),
        tuple(item.group for item in items),
        np.array([item.answer for item in items], dtype=np.int64),
        np.where(exists, sums[0], np.nan),
        sums[1].astype(np.int64),
    )


def _sums(rows: Sequence[PackedRow], nats: Sequence[Tensor], shape: tuple[int, int]) -> npt.NDArray[np.float64]:
    """``[3, Q, C]``: summed nats, tokens, and times scored, of this rank's rows."""
    sums = np.zeros((3, *shape))
    if rows:
        places = torch.cat([row.questions * shape[1] + row.candidates for row in rows]).numpy()
        np.add.at(sums[0].reshape(-1), places, torch.cat(list(nats)).double().cpu().numpy())
        np.add.at(sums[1].reshape(-1), places, 1.0)
        for row in rows:
            for place in set(zip(row.questions.tolist(), row.candidates.tolist(), strict=True)):
                sums[2][place] += 1
    return sums
