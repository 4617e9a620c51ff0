"""Rows through an adapter to a table of losses, one entry a question and candidate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from s2sbench_callback.adapters.protocol import Adapter, Row
from s2sbench_callback.items import Audio, Benchmark
from s2sbench_callback.packing import EncodedCandidate, PackedRow, Unit, build_row, pack
from s2sbench_callback.prompts import Condition, prompt

# How far the packed forward may be from one row a candidate, in nats per token, before it counts as wrong: well above
# the rounding of each precision, well below what a misread mask does.
PACKING_TOLERANCE_NATS = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


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
    """One benchmark in one condition, tokenised and laid out, independent of the model's weights.

    Attributes:
        benchmark: Where the questions come from.
        condition: How their contexts are given.
        units: The work, in the order of the benchmark.
    """

    benchmark: Benchmark
    condition: Condition
    units: tuple[Unit, ...]

    def table(self, nats: npt.NDArray[np.float64]) -> LossTable:
        """The losses with what they belong to."""
        items = self.benchmark.items
        tokens = np.zeros(nats.shape, dtype=np.int64)
        for unit in self.units:
            for candidate in unit.candidates:
                tokens[candidate.question, candidate.candidate] = len(candidate.ids)
        return LossTable(
            tuple(item.id for item in items),
            tuple(item.group for item in items),
            np.array([item.answer for item in items], dtype=np.int64),
            nats,
            tokens,
        )


def encode(benchmark: Benchmark, condition: Condition, adapter: Adapter, audio_tokens: Callable[[Audio], Tensor]) -> Questions:
    """Tokenises a benchmark for one condition.

    Candidates whose contexts read the same share one unit.

    Args:
        benchmark: The questions.
        condition: How contexts are given.
        adapter: How the model is fed.
        audio_tokens: Codes of a recording, on the CPU.

    Raises:
        ValueError: If a candidate has no tokens; the message names the item.
    """
    units: list[Unit] = []
    for question, item in enumerate(benchmark.items):
        shared: dict[tuple[str | Audio, ...], list[EncodedCandidate]] = {}
        for index, (context, text) in enumerate(zip(item.contexts, item.candidates, strict=True)):
            laid_out = prompt(condition, benchmark.language, context, text)
            ids = adapter.encode_text(laid_out.candidate)
            if not ids:
                raise ValueError(f"item {item.id!r} of {benchmark.name!r}: the tokenizer makes no token of candidate {index} ({text!r})")
            encoded = EncodedCandidate(question, index, torch.tensor(ids, dtype=torch.int64), adapter.candidate_streams(ids))
            shared.setdefault(laid_out.context, []).append(encoded)
        for parts, candidates in shared.items():
            pieces = [audio_tokens(part) if isinstance(part, Audio) else adapter.encode_text(part) for part in parts]
            streams = adapter.context_streams(pieces)
            if not len(streams):
                raise ValueError(f"item {item.id!r} of {benchmark.name!r}: its context has no token, so nothing can predict a candidate's first one")
            units.append(Unit(streams, tuple(candidates)))
    return Questions(benchmark, condition, tuple(units))


class Scorer:
    """Scores questions on the live model, and watches itself.

    The first packed row of each condition is scored again one candidate at a time. Where the two disagree, or the model cannot read
    a packed row, everything is scored plainly from then on, and a warning says so once.

    Args:
        adapter: How the model is fed and read.
        max_tokens: Positions in one forward.
        packed: Whether contexts may be shared; ``False`` scores one row a candidate.
    """

    def __init__(self, adapter: Adapter, max_tokens: int, packed: bool = True) -> None:
        self.adapter = adapter
        self.max_tokens = max_tokens
        self.packed = packed
        self._checked: set[Condition] = set()

    @torch.no_grad()
    def score(self, model: nn.Module, questions: Questions, device: torch.device, advance: Callable[[int], object] = lambda _: None) -> LossTable:
        """Losses of every candidate of every question.

        Args:
            model: The live model, in evaluation mode, under the precision it trains in.
            questions: The work.
            device: Where the model is.
            advance: Told the number of candidates after each row.

        Returns:
            A table with a finite entry for each candidate, unless the model itself says NaN or infinity.
        """
        if self.packed and questions.condition not in self._checked:
            self._check(model, questions, device)
        rows = pack(questions.units, self.max_tokens) if self.packed else [(alone,) for unit in questions.units for alone in unit.alone()]
        done: list[tuple[PackedRow, Tensor]] = []
        for units in rows:
            row = build_row(units)
            # Kept on the device: one transfer at the end instead of one wait a row.
            done.append((row, self._row_nats(model, row, device)))
            advance(sum(len(unit.candidates) for unit in units))
        return questions.table(_collect(done, questions.benchmark))

    def _row_nats(self, model: nn.Module, packed: PackedRow, device: torch.device) -> Tensor:
        """``[A]`` negative log-likelihood of each target, fp32."""
        logits = self.adapter.text_logits(model, _to(packed.row, device))
        return nn.functional.cross_entropy(logits.float(), packed.targets.to(device, non_blocking=True), reduction="none")

    def _check(self, model: nn.Module, questions: Questions, device: torch.device) -> None:
        """Holds the first packed row against plain scoring of the same candidates."""
        self._checked.add(questions.condition)
        units = pack(questions.units, self.max_tokens)[0]
        plain = [build_row((alone,)) for unit in units for alone in unit.alone()]
        expected = torch.cat([self._row_nats(model, row, device) for row in plain])
        try:
            row = build_row(units)
            logits = self.adapter.text_logits(model, _to(row.row, device))
        except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self._fall_back(f"the model cannot read a packed row ({type(error).__name__}: {error})")
            return
        found = nn.functional.cross_entropy(logits.float(), row.targets.to(device), reduction="none")
        if not torch.equal(found.isfinite(), expected.isfinite()):
            self._fall_back("packed and plain scoring disagree on which losses are finite")
            return
        difference = float((found - expected)[found.isfinite()].abs().max()) if found.isfinite().any() else 0.0
        tolerance = PACKING_TOLERANCE_NATS.get(logits.dtype, PACKING_TOLERANCE_NATS[torch.float32])
        if difference > tolerance:
            self._fall_back(f"packed and plain scoring differ by {difference:.2g} nats per token, above {tolerance:g} for {logits.dtype}")

    def _fall_back(self, reason: str) -> None:
        self.packed = False
        warnings.warn(f"the probe scores one row a candidate from now on, which is slower: {reason}", stacklevel=4)


def _to(row: Row, device: torch.device) -> Row:
    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, non_blocking=True)

    return Row(move(row.streams), move(row.positions), None if row.mask is None else move(row.mask), move(row.sources))


def _collect(done: Sequence[tuple[PackedRow, Tensor]], benchmark: Benchmark) -> npt.NDArray[np.float64]:
    """``[Q, C]`` sums of nats, added up in double precision in an order that does not depend on the rows."""
    shape = (len(benchmark.items), max(len(item.candidates) for item in benchmark.items))
    sums = np.full(shape, np.nan)
    for question, item in enumerate(benchmark.items):
        sums[question, : len(item.candidates)] = 0.0
    nats = torch.cat([values for _, values in done]).double().cpu().numpy()
    places = torch.cat([row.questions * shape[1] + row.candidates for row, _ in done]).numpy()
    np.add.at(sums.reshape(-1), places, nats)
    return sums
