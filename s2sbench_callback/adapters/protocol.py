"""What the probe asks of a model: one protocol for every family of speech LMs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from s2sbench_callback.prompts import Condition

Role = Literal["audio_embedding", "audio_head", "lm_embedding", "lm_head", "lm_body", "frontend"]


@dataclass(frozen=True)
class Rows:
    """Some rows of a matrix that text and audio share.

    Attributes:
        parameter: Name of the matrix among the parameters.
        start: First row.
        stop: Row after the last.
    """

    parameter: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.parameter}[{self.start}:{self.stop}]"


@dataclass(frozen=True)
class Row:
    """Several sequences side by side in one forward.

    Attributes:
        streams: ``[T, S]`` int64: at each position one id per stream of the adapter, -1 where a stream is silent.
        positions: ``[T]`` int64: place of each position in its own sequence, from 0.
        segments: ``[2, T]`` int64: which context each position belongs to, and which of its candidates, -1 for the context itself;
            ``None`` where the row is one sequence under a plain causal mask.
        sources: ``[A]`` int64: positions whose text logits are wanted. The logits at a position speak about the token that
            follows it in its own sequence; an adapter of a model with another alignment hides that here.
    """

    streams: Tensor
    positions: Tensor
    segments: Tensor | None
    sources: Tensor

    @property
    def mask(self) -> Tensor | None:
        """``[T, T]`` bool, true where the row's position may look at the column's; made where the row is, since it is large.

        A position sees earlier positions of its own context that belong to the context itself or to its own candidate.
        """
        if self.segments is None:
            return None
        contexts, candidates = self.segments
        same_context = contexts[:, None] == contexts[None, :]
        same_candidate = (candidates[None, :] == -1) | (candidates[:, None] == candidates[None, :])
        visible: Tensor = (same_context & same_candidate).tril_()
        return visible


@runtime_checkable
class Adapter(Protocol):
    """How one family of models is fed and read.

    An adapter holds no model: each call is handed the live one, so that a model which is wrapped, moved or built late is
    always the one that is trained.
    """

    @property
    def sample_rate(self) -> int:
        """Rate in Hz at which recordings are handed to :meth:`encode_audio`."""
        ...

    def refusal(self, condition: Condition) -> str | None:
        """Why a condition cannot be asked of this model, or ``None`` if it can."""
        ...

    def encode_text(self, text: str) -> list[int]:
        """Text ids of one piece of prompt, without special tokens."""
        ...

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """Audio tokens of a recording; called without gradients.

        Args:
            model: The live model.
            waveform: Mono samples ``[N]`` at :attr:`sample_rate`, on the model's device.

        Returns:
            Codes ``[F, K]``.
        """
        ...

    def audio_fingerprint(self, model: nn.Module) -> str:
        """Hash of everything besides the recording that decides :meth:`encode_audio`."""
        ...

    def context_streams(self, parts: Sequence[list[int] | Tensor]) -> Tensor:
        """A context as a sequence of positions.

        Args:
            parts: Text ids and audio codes ``[F, K]`` in reading order.

        Returns:
            ``[L, S]`` int64; at least one position, since the first token of a candidate is read off the last of them.
        """
        ...

    def candidate_streams(self, ids: list[int]) -> Tensor:
        """Candidate tokens as positions ``[n, S]``."""
        ...

    def text_logits(self, model: nn.Module, row: Row) -> Tensor:
        """Text logits ``[A, V]`` at ``row.sources``, in one forward, in the model's own precision."""
        ...

    def roles(self, model: nn.Module) -> Mapping[Role, tuple[str | Rows, ...]]:
        """Prefixes of parameter names, or rows of a parameter, by role; together they cover every parameter of the model exactly once."""
        ...

    def signature(self) -> Mapping[str, str]:
        """Every choice of the adapter that can change a figure."""
        ...
