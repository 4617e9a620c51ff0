"""What the probe asks of a model: one protocol for every family of speech LMs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from s2sbench_callback.items import Language
from s2sbench_callback.prompts import Condition, Modality

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


class Candidate(NamedTuple):
    """A candidate as positions.

    Attributes:
        streams: ``[n, S]`` int64: what is fed at each of its positions.
        targets: ``[n, J]`` int64: what each head is to predict there, -1 where nothing is scored. Text has the one head 0.
    """

    streams: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Row:
    """Several sequences side by side in one forward.

    Attributes:
        streams: ``[T, S]`` int64: at each position one id per stream of the adapter, -1 where a stream is silent.
        positions: ``[T]`` int64: place of each position in its own sequence, from 0.
        segments: ``[2, T]`` int64: which context each position belongs to, and which of its candidates, -1 for the context itself;
            ``None`` where the row is one sequence under a plain causal mask.
        sources: ``[A]`` int64: positions whose logits are wanted, one for each token to score. The logits at a position speak about
            the token that follows it in its own sequence; an adapter of a model with another alignment hides that here.
        heads: ``[A]`` int64: which head is asked, the column of :attr:`Candidate.targets`.
        targets: ``[A]`` int64: the tokens to score, by candidate, then position, then head. A model that predicts the
            codebooks of a frame one after another is fed with them.
        features: ``[F, D]`` what the front-end heard in the row's recordings; the last stream then holds rows of it, -1 where there is no speech.
        asks_other_heads: Whether any head but the first is asked, known without waiting for a device.
    """

    streams: Tensor
    positions: Tensor
    segments: Tensor | None
    sources: Tensor
    heads: Tensor
    targets: Tensor
    features: Tensor | None = None
    asks_other_heads: bool = False

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

    def instruction(self, condition: Condition, language: Language) -> str:
        """What the model reads before the context; empty for none."""
        ...

    def encode_text(self, text: str) -> list[int]:
        """Text ids of one piece of prompt, without special tokens."""
        ...

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """What the model's front-end makes of a recording; called without gradients, kept while the front-end stays the same.

        Args:
            model: The live model.
            waveform: Mono samples ``[N]`` at :attr:`sample_rate`, on the model's device.

        Returns:
            Audio tokens ``[F, K]`` int64, or features ``[F, D]`` of a floating type, one row for each position that they will take.
        """
        ...

    def audio_fingerprint(self, model: nn.Module) -> str:
        """Hash of everything besides the recording that decides :meth:`encode_audio`."""
        ...

    def context_streams(self, parts: Sequence[list[int] | Tensor], candidate: Modality = "text") -> Tensor:
        """A context as a sequence of positions, with whatever opens a candidate after it.

        Args:
            parts: Text ids and what :meth:`encode_audio` gave, in reading order.
            candidate: What will follow.

        Returns:
            ``[L, S]`` int64. The first token of a candidate is read off the last position. Where parts are features, the last stream holds
            rows of them, counted through all parts.
        """
        ...

    def candidate_positions(self, piece: list[int] | Tensor) -> Candidate:
        """A candidate, text ids or what :meth:`encode_audio` gave, as positions and targets."""
        ...

    def logits(self, model: nn.Module, row: Row) -> Tensor:
        """Logits ``[A, V]`` of the row's heads at its sources, in one forward, in the model's own precision.

        Where heads have vocabularies of different sizes, ``V`` is the largest and the rest of the shorter ones is minus infinity.
        """
        ...

    def roles(self, model: nn.Module) -> Mapping[Role, tuple[str | Rows, ...]]:
        """Prefixes of parameter names, or rows of a parameter, by role; together they cover every parameter of the model exactly once."""
        ...

    def signature(self) -> Mapping[str, str]:
        """Every choice of the adapter that can change a figure."""
        ...
