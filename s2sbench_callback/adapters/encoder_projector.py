"""A speech encoder, a projector and a text LLM put together by hand, as in many LightningModules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor, nn

from s2sbench_callback.adapters.projected_features import (
    Parts,
    ProjectedFeatures,
    check_length,
    check_projection,
    log_mel,
    not_empty,
    precision,
    unwrapped,
)


class EncoderProjectorLLM(ProjectedFeatures):
    r"""Reads any module that holds a speech encoder, a projector and a causal LM of ``transformers``, also inside PEFT.

    Layout: BOS as the tokenizer by itself puts one; text, then for each recording the text ``before``, one position for ``stack`` frames of the
    encoder, the text ``after``, then the candidate; no end token; the spacing is the release's. A written context stands alone.

    The projector is trained, so it runs in every probe, and what is kept of a recording is the encoder's frames. Each position is what the
    projector makes of ``window`` frames, every ``stack`` frames one. That is exact for projectors that look at the frames of one position alone:
    linear layers, concatenation or pooling of ``stack`` frames, convolutions without padding and with a stride of ``stack`` in all, where ``window``
    is how many frames one output looks at. Each recording that is encoded is also projected at once, and anything else is an error then.

    SpeechLLM of skit-ai, for example, is ``encoder="audio_encoder", projector="connector", llm="llm_model"`` from the LightningModule
    (``locator="."``), with ``stack=k``, and ``window=9 + 4 * k`` for its ``cnn`` connector; its prompts are ``before="Input:\n<speech>"`` and
    ``after="</speech>\n\nOutput:\n<s>"``, since it puts the tokenizer's BOS before the answer.

    Verified: logits equal the LLM's own forward on embeddings that the parts made of a whole recording, with tiny random weights and SpeechLLM's
    connectors rebuilt in the tests; unverified against published weights.

    Args:
        tokenizer: The LLM's ``transformers`` tokenizer.
        encoder: Dotted path of the encoder in the model.
        projector: Dotted path of the projector.
        llm: Dotted path of the LLM.
        before: Text before each recording; special tokens in it are read as such.
        after: Text after each recording.
        stack: Frames of the encoder from one position to the next.
        window: Frames that one position looks at; by default ``stack``.
        remainder: What becomes of frames that do not fill the last window: ``drop``, or ``pad`` it with zeros.
        projector_input: Whether the projector takes frames ``[B, N, D]``, or ``stack`` frames side by side, ``[B, P, stack * D]``.
        prepare: Whether the encoder takes samples ``[1, N]``, or log-mel frames ``[1, M, N]`` of a feature extractor that pads to its window, as
            Whisper's does; then the frames of the padding are left out.
        feature_extractor: A feature extractor of ``transformers``; needed for ``log_mel``, and used for ``waveform`` where it is given, for encoders
            whose samples are normalised.
        max_seconds: Longest recording that the encoder can hear; by default the feature extractor's window for ``log_mel``, else no limit.
        sample_rate: Rate in Hz that the encoder hears.
        bos: Whether to start each sequence with the tokenizer's BOS token; by default as the tokenizer does by itself.
        instruction: Whether the paper's instruction is read before a spoken context.

    Raises:
        ValueError: If the arguments do not fit each other.
    """

    def __init__(
        self,
        tokenizer: Any,
        encoder: str = "audio_encoder",
        projector: str = "connector",
        llm: str = "llm_model",
        before: str = "",
        after: str = "",
        stack: int = 1,
        window: int | None = None,
        remainder: Literal["drop", "pad"] = "drop",
        projector_input: Literal["frames", "stacks"] = "frames",
        prepare: Literal["waveform", "log_mel"] = "waveform",
        feature_extractor: Any = None,
        max_seconds: float | None = None,
        sample_rate: int = 16_000,
        bos: bool | None = None,
        instruction: bool = True,
    ) -> None:
        super().__init__(tokenizer, bos, instruction, sample_rate)
        self._window = stack if window is None else window
        if not 1 <= stack <= self._window:
            raise ValueError(f"stack={stack} and window={self._window} do not fit: stack must be at least 1 and window at least stack")
        if projector_input == "stacks" and self._window != stack:
            raise ValueError(f'projector_input="stacks" hands the projector {stack} frames a position, so window={window} must be left out')
        if prepare == "log_mel" and feature_extractor is None:
            raise ValueError('prepare="log_mel" needs the encoder\'s feature extractor; pass feature_extractor=')
        if feature_extractor is not None and int(feature_extractor.sampling_rate) != sample_rate:
            raise ValueError(f"the feature extractor takes {feature_extractor.sampling_rate} Hz; pass sample_rate={feature_extractor.sampling_rate}")
        self._paths = {"encoder": encoder, "projector": projector, "llm": llm}
        self._words = (before, after)
        self._ids = (self._text.encode(before) if before else [], self._text.encode(after) if after else [])
        self._stack, self._remainder, self._input = stack, remainder, projector_input
        self._prepare, self.feature_extractor, self._max_seconds = prepare, feature_extractor, max_seconds

    def _around(self) -> tuple[list[int], list[int]]:
        return self._ids

    def _part(self, model: nn.Module, argument: str) -> Any:
        path = self._paths[argument]
        try:
            return reduce(getattr, path.split("."), model)
        except AttributeError as error:
            children = ", ".join(name for name, _ in model.named_children())
            raise ValueError(
                f"{argument}={path!r} leads nowhere in {type(model).__name__}, whose children are {children}; name its path in {argument}="
            ) from error

    def _parts(self, model: nn.Module) -> Parts:
        llm = self._part(model, "llm")
        inner = unwrapped(llm)
        encoder, projector = self._part(model, "encoder"), self._part(model, "projector")
        return Parts((encoder,), (projector,), inner.get_input_embeddings(), inner.get_output_embeddings(), (llm,), (model,))

    def _read(self, model: nn.Module, arguments: dict[str, Any], sources: Tensor) -> Tensor:
        logits: Tensor = unwrapped(self._part(model, "llm"))(**arguments, logits_to_keep=sources).logits[0]
        return logits

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """``[F, stack * D]`` frames of the encoder, one row a position, and behind them as many rows as the last window still looks at.

        Raises:
            ValueError: If the recording is too long or too short, or if the projector looks at other frames than ``stack`` and ``window`` say.
        """
        frames = self._frames(model, waveform)
        missing = self._missing(len(frames))
        padded = nn.functional.pad(frames, (0, 0, 0, missing)) if self._remainder == "pad" else frames
        positions = max(0, (len(padded) - self._window) // self._stack + 1)
        not_empty(padded[:positions], waveform, self._sample_rate)
        whole_windows = padded[: (positions - 1) * self._stack + self._window]
        rows = nn.functional.pad(whole_windows, (0, 0, 0, -len(whole_windows) % self._stack)).reshape(-1, self._stack * frames.shape[1])
        projector = self._part(model, "projector")
        kind = precision((projector,), frames.dtype)
        given = frames if self._input == "frames" else rows
        whole, apart = projector(given[None].to(kind))[0], self._project(model, rows.to(kind))[:positions]
        check_projection(whole, apart, f"stack={self._stack}, window={self._window}, remainder={self._remainder!r}")
        return rows

    def _speech(self, features: Tensor, first_row: int) -> Tensor:
        """Streams ``[P, 2]``; the last rows are no positions of their own."""
        return super()._speech(features[: len(features) + 1 - self._rows()], first_row)

    def _rows(self) -> int:
        """Rows that a window reaches into."""
        return -(-self._window // self._stack)

    def _missing(self, frames: int) -> int:
        """Frames to the next whole window."""
        return max(self._window - frames, (self._window - frames) % self._stack)

    def _frames(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """``[N, D]`` of the encoder."""
        encoder, whole = self._part(model, "encoder"), self.feature_extractor
        limit = self._max_seconds
        if limit is None and self._prepare == "log_mel":
            limit = whole.n_samples / self._sample_rate
        if limit is not None:
            check_length(waveform, round(limit * self._sample_rate), self._sample_rate, type(encoder).__name__)
        real = None
        if self._prepare == "log_mel":
            given, mask = log_mel(whole, waveform, padding="max_length")
            real = mask.float().mean()
        elif whole is not None:
            given = whole(waveform.float().cpu().numpy(), sampling_rate=self._sample_rate, return_tensors="pt").input_values.to(waveform.device)
        else:
            given = waveform[None]
        output = encoder(given.to(next((each.dtype for each in encoder.parameters()), given.dtype)))
        frames: Tensor = (output if isinstance(output, Tensor) else output.last_hidden_state)[0]
        # The mask's share of the window, since encoders shorten it by a whole factor; rounded up, as their convolutions do.
        return frames if real is None else frames[: int(torch.ceil(real * len(frames) - 1e-3))]

    def _project(self, model: nn.Module, features: Tensor) -> Tensor:
        projector = self._part(model, "projector")
        if self._input == "stacks":
            # Each position on its own: in a packed row recordings stand beside each other.
            stacked: Tensor = projector(features[:, None])[:, 0]
            return stacked
        rows = self._rows()
        ahead = nn.functional.pad(features, (0, 0, 0, rows - 1))
        beside = torch.cat([ahead[each : each + len(features)] for each in range(rows)], dim=1)
        windows = beside.unflatten(1, (rows * self._stack, -1))[:, : self._window]
        projected: Tensor = projector(windows)
        if projected.shape[1] != 1:
            raise ValueError(
                f"the projector makes {projected.shape[1]} positions of {self._window} frames instead of 1: stack={self._stack} and "
                f"window={self._window} are not what it looks at"
            )
        return projected[:, 0]

    def _hears_with(self) -> Any:
        how = None if self.feature_extractor is None else self.feature_extractor.to_dict()
        return self._prepare, how, self._stack, self._window, self._remainder

    def signature(self) -> Mapping[str, str]:
        """Adapter, parts and every choice of the layout."""
        return {
            "adapter": "encoder_projector_llm",
            **super().signature(),
            **self._paths,
            "before": self._words[0],
            "after": self._words[1],
            "frames": f"stack {self._stack}, window {self._window}, remainder {self._remainder}, as {self._input}",
            "prepare": self._prepare + (f" by {type(self.feature_extractor).__name__}" if self.feature_extractor is not None else ""),
            "verified": "unverified against published weights",
        }
