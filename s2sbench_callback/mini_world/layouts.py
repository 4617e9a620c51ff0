"""What the small speech LM is trained to read: the layouts of speech and text in one sequence."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s2sbench_callback.adapters import SummedCodebooks
from s2sbench_callback.mini_world.stories import Story
from s2sbench_callback.prompts import SPOKEN_INSTRUCTION

# The ending is a tenth of the text and all of the question.
_ENDING_WEIGHT = 4.0


@dataclass(frozen=True)
class Sequenced:
    """One training sequence.

    Attributes:
        streams: ``[L, 1 + K]``: a text id or -1, then the codes of one frame or -1.
        weights: ``[L]`` weight of the loss on predicting each position.
    """

    streams: Tensor
    weights: Tensor


class Layouts:
    """Puts stories and their audio tokens into sequences, exactly as the adapter feeds them at a probe.

    Args:
        adapter: Knows the special tokens and the streams.
        codebooks: Number of audio streams.
    """

    def __init__(self, adapter: SummedCodebooks, codebooks: int) -> None:
        self.adapter = adapter
        self.codebooks = codebooks
        self._ids: dict[str, list[int]] = {}

    def written(self, story: Story) -> Sequenced:
        """Text alone: context and ending."""
        return self._sequence([(story.context, 1.0), (f" {story.right}", 1.0)])

    def spoken_then_ending(self, story: Story, codes: Sequence[Tensor]) -> Sequenced:
        """Instruction, spoken context, written ending: what S→T asks."""
        return self._sequence([(SPOKEN_INSTRUCTION["en"], 0.0), (torch.cat(list(codes)), 1.0), (story.right, _ENDING_WEIGHT)])

    def spoken_then_transcript(self, story: Story, codes: Sequence[Tensor]) -> Sequenced:
        """Spoken context, then the same in writing."""
        return self._sequence([(torch.cat(list(codes)), 1.0), (story.context, 1.0)])

    def interleaved(self, story: Story, codes: Sequence[Tensor], draw: random.Random) -> Sequenced:
        """Instruction, then sentences spoken and written in turn, then the ending."""
        parts: list[tuple[str | Tensor, float]] = [(SPOKEN_INSTRUCTION["en"], 0.0)]
        spoken = draw.random() < 0.5
        for sentence, frames in zip(story.sentences, codes, strict=True):
            parts.append((frames, 1.0) if spoken else (sentence, 1.0))
            spoken = not spoken
        return self._sequence([*parts, (story.right, _ENDING_WEIGHT)])

    def _sequence(self, parts: Sequence[tuple[str | Tensor, float]]) -> Sequenced:
        streams, weights = [], []
        for part, weight in parts:
            piece = self.adapter.context_streams([self._text(part) if isinstance(part, str) else part])
            streams.append(torch.nn.functional.pad(piece, (0, 1 + self.codebooks - piece.shape[1]), value=-1))
            weights.append(torch.full((len(piece),), weight))
        return Sequenced(torch.cat(streams), torch.cat(weights))

    def _text(self, text: str) -> list[int]:
        if text not in self._ids:
            self._ids[text] = self.adapter.encode_text(text)
        return self._ids[text]


def collate(sequences: Sequence[Sequenced]) -> dict[str, Tensor]:
    """A batch, padded on the right with silent positions of weight 0.

    Returns:
        ``streams`` ``[B, L, 1 + K]`` and ``weights`` ``[B, L]``.
    """
    return {
        "streams": torch.nn.utils.rnn.pad_sequence([s.streams for s in sequences], batch_first=True, padding_value=-1),
        "weights": torch.nn.utils.rnn.pad_sequence([s.weights for s in sequences], batch_first=True),
    }
