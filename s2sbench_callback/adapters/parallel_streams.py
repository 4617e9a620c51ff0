"""What Moshi and its kin share: time in frames, each with a text token and the codebooks of one or two speakers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from s2sbench_callback.adapters.protocol import Candidate, Row
from s2sbench_callback.adapters.text_ids import TextIds, column
from s2sbench_callback.items import Language
from s2sbench_callback.prompts import Condition, Modality

Quiet = Literal["absent", "silence"]

_LAYOUT = "this project's: the benchmark defines none for Moshi, and one token a frame without PAD is off its training distribution"
_SPEAKERS = ("moshi", "user")

# Marks in the streams, resolved where the model is at hand.
_ABSENT, _SILENCE, _START = -1, -2, -3


class ParallelStreams:
    """Layout of models that read, at each frame, the sum of a text embedding and codebook embeddings; the adapters of this family extend it.

    A position is a frame: the text stream, then the codebooks of each speaker, ``S = 1 + speakers * K`` streams. A sequence starts with one
    frame of initial tokens in every stream. While a recording plays the text is PAD, then come ``flush_frames`` frames of PAD without it;
    text, context or candidate, takes one frame a token. A channel on which nobody speaks is quiet: ``absent`` (its embedding is zero) or
    ``silence`` (the codes of the first frame of encoded silence, which is what ``transformers`` feeds while Moshi answers).

    Streams hold codes at the frame in which they sound. Delays are applied where the model reads them, so that a code that is due after a
    border (context to flush, context to candidate) is heard across it, in packed rows too.

    Args:
        tokenizer: A ``transformers`` tokenizer or a SentencePiece processor.
        delays: By how many frames each codebook of a speaker comes later, none less than the one before it; the text is not delayed.
        speakers: Number of speakers.
        heard_on: Speaker, from 0, whose channel plays spoken contexts; speaker 0 is the model's own voice.
        quiet: What is fed on channels on which nobody speaks.
        flush_frames: Frames of PAD after each recording of a context; by default the largest delay.
        text_pad: Id of the PAD token of the text stream.
        sample_rate: Rate in Hz that the speech tokenizer expects.
        scored: Which codes of a spoken candidate count: the ``semantic`` (first) codebook, or ``all`` of them.

    Raises:
        ValueError: If ``flush_frames`` is negative, or a codebook is delayed less than the one before it.
    """

    def __init__(
        self,
        tokenizer: Any,
        delays: Sequence[int],
        speakers: int,
        heard_on: int,
        quiet: Quiet,
        flush_frames: int | None,
        text_pad: int,
        sample_rate: int,
        scored: Literal["semantic", "all"] = "semantic",
    ) -> None:
        if flush_frames is not None and flush_frames < 0:
            raise ValueError(f"flush_frames counts frames after a recording and cannot be {flush_frames}; pass 0 for none")
        if list(delays) != sorted(delays):
            raise ValueError(f"delays={list(delays)} fall from one codebook to the next; the depth decoder would then follow codes of two frames")
        self.tokenizer = tokenizer
        self._text = TextIds(tokenizer)
        self._delays = tuple(delays)
        self._speakers = speakers
        self._heard_on = heard_on
        self._quiet = quiet
        self._flush = max(self._delays) if flush_frames is None else flush_frames
        self._pad = text_pad
        self._sample_rate = sample_rate
        self._scored = scored

    @property
    def sample_rate(self) -> int:
        """Rate in Hz that the speech tokenizer expects."""
        return self._sample_rate

    def instruction(self, condition: Condition, language: Language) -> str:
        """None: these models listen and speak, they are not instructed."""
        return ""

    def encode_text(self, text: str) -> list[int]:
        """Ids without special tokens."""
        return self._text.encode(text)

    def context_streams(self, parts: Sequence[list[int] | Tensor], candidate: Modality = "text") -> Tensor:
        """``[L, S]``: the initial frame, then each part, a recording followed by its flush frames."""
        pieces = [torch.full((1, 1 + self._speakers * len(self._delays)), _START)]
        for part in parts:
            if isinstance(part, Tensor):
                pieces.extend((self._speech(part, self._heard_on), self._frames([self._pad] * self._flush)))
            else:
                pieces.append(self._frames(part))
        return torch.cat(pieces)

    def candidate_positions(self, piece: list[int] | Tensor) -> Candidate:
        """Text, one token a frame ``[n, S]``, or speech on the model's own channel, whose targets ``[n, 1 + K]`` are the codes as delayed.

        A code that is due in a later frame than the candidate's last is not scored; where no code is due yet the target is -1.
        """
        if not isinstance(piece, Tensor):
            return Candidate(self._frames(piece), column(piece))
        frames = len(piece)
        due = piece.new_full((frames, 1 + len(self._delays)), -1)
        for codebook, delay in enumerate(self._delays):
            due[delay:, 1 + codebook] = piece[: max(frames - delay, 0), codebook]
        return Candidate(self._speech(piece, 0), due if self._scored == "all" else due[:, :2])

    def signature(self) -> Mapping[str, str]:
        """Tokenizer, rate, and the choices of the layout."""
        return {
            **self._text.signature(),
            "sample_rate": str(self._sample_rate),
            "delays": ",".join(map(str, self._delays)),
            "bos": "one frame of initial tokens",
            "text_pad": str(self._pad),
            "flush_frames": str(self._flush),
            "quiet": self._quiet,
        }

    def _frames(self, text: Sequence[int]) -> Tensor:
        """``[n, S]``: text while nobody speaks."""
        frames = torch.full((len(text), 1 + self._speakers * len(self._delays)), _ABSENT if self._quiet == "absent" else _SILENCE)
        frames[:, :1] = column(list(text))
        return frames

    def _speech(self, codes: Tensor, speaker: int) -> Tensor:
        """``[F, S]``: one speaker's codes ``[F, K]`` over PAD."""
        codebooks = len(self._delays)
        if codes.shape[1] != codebooks:
            raise ValueError(f"{type(self).__name__} reads {codebooks} codebooks a speaker, and the speech tokenizer gave {codes.shape[1]}")
        frames = self._frames([self._pad] * len(codes))
        frames[:, 1 + speaker * codebooks : 1 + (speaker + 1) * codebooks] = codes
        return frames

    def _ids(self, row: Row, text_start: int, audio_start: int, silence: Callable[[], Tensor]) -> list[Tensor]:
        """For each stream the ids ``[T]`` that the model reads: delayed, with its initial tokens, -1 where nothing is fed.

        Args:
            row: The row.
            text_start: Initial token of the text stream.
            audio_start: Initial token of every codebook.
            silence: Gives the codes ``[K]`` of a silent frame; called only if they are needed.
        """
        columns = list(row.streams.unbind(1))
        for delay in set(self._delays) - {0}:
            places = earlier(row, delay)
            for stream in range(1, len(columns)):
                if self._delays[(stream - 1) % len(self._delays)] == delay:
                    columns[stream] = columns[stream][places]
        if self._quiet == "silence":
            still = silence().repeat(self._speakers)
            columns[1:] = [torch.where(ids == _SILENCE, code, ids) for ids, code in zip(columns[1:], still, strict=True)]
        return [ids.masked_fill(ids == _START, audio_start if stream else text_start) for stream, ids in enumerate(columns)]

    def _spoken_before(self, row: Row) -> Tensor:
        """``[A, n]``: the codes of each target's frame that the depth decoder is given, of all codebooks but the last, or none where only the
        first is asked.
        """
        codebooks = len(self._delays)
        if self._scored == "semantic":
            return row.targets.new_zeros(len(row.targets), 0)
        # Targets come by candidate, frame and head; delays do not fall, so that a frame lacks codes after its last target alone.
        frame = nn.functional.pad((row.heads[1:] <= row.heads[:-1]).cumsum(0), (1, 0))
        codes = row.targets.new_zeros(len(row.targets), codebooks)
        codes[frame, row.heads - 1] = row.targets
        return codes[frame, :-1]

    def _check_length(self, frames: int, window: int | None, what: str) -> None:
        if window is not None and frames > window:
            raise ValueError(f"{what} takes {frames} frames, and the model's attention reaches back {window}; use shorter recordings or texts")

    def _check_recording(self, codes: Tensor, window: int | None) -> None:
        self._check_length(1 + len(codes) + self._flush, window, "a recording, with the initial frame and its flush frames,")

    def _check_row(self, row: Row, window: int | None) -> None:
        """Of one sequence alone: the lengths of those in a packed row are known to the device only."""
        if row.segments is None:
            self._check_length(len(row.streams), window, "a context with its candidate")


class TwoSpeakers(ParallelStreams):
    """The layout with Moshi's own channel, then its user's.

    Args:
        tokenizer: As in :class:`ParallelStreams`, like all that is not named here.
        delays: As there.
        speech_channel: On whose channel spoken contexts play.
        quiet: As there.
        flush_frames: As there.
        scored: As there.
        text_pad: As there.
        sample_rate: As there.
    """

    def __init__(
        self,
        tokenizer: Any,
        delays: Sequence[int],
        speech_channel: Literal["user", "moshi"],
        quiet: Quiet,
        flush_frames: int | None,
        scored: Literal["semantic", "all"],
        text_pad: int,
        sample_rate: int,
    ) -> None:
        super().__init__(tokenizer, delays, 2, _SPEAKERS.index(speech_channel), quiet, flush_frames, text_pad, sample_rate, scored)
        self._speech_channel = speech_channel

    def refusal(self, condition: Condition) -> str | None:
        """Every condition can be asked."""
        return None

    def signature(self) -> Mapping[str, str]:
        """The layout, the channel of spoken contexts, and what of a spoken candidate is scored."""
        return {
            **super().signature(),
            "speech_channel": self._speech_channel,
            "scored": f"{self._scored} codebook" + "s" * (self._scored == "all"),
            "layout": _LAYOUT,
        }


def earlier(row: Row, frames: int) -> Tensor:
    """``[T]``: where in the row each position's own sequence was some frames before; at its start if it is not that old."""
    wanted = (row.positions - frames).clamp_min(0)
    mask = row.mask
    return wanted if mask is None else (mask & (row.positions == wanted[:, None])).byte().argmax(dim=1)


def mimi_codes(mimi: Any, waveform: Tensor, codebooks: int) -> Tensor:
    """Codes ``[F, K]`` of a recording ``[N]``, from the Mimi of ``transformers`` or of kyutai.

    Args:
        mimi: The module; moved by its owner.
        waveform: Mono samples at its rate.
        codebooks: How many of its codebooks, from the first.
    """
    weight = next(mimi.parameters())
    encoded = mimi.encode(waveform.to(weight.device, weight.dtype)[None, None])
    codes: Tensor = getattr(encoded, "audio_codes", encoded)[0, :codebooks]
    return codes.T.contiguous()
