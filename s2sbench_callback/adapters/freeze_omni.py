"""Freeze-Omni: a chunked speech encoder, an adapter and a frozen LLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torchaudio
from torch import Tensor, nn

from s2sbench_callback.adapters.projected_features import (
    Parts,
    ProjectedFeatures,
    check_projection,
    not_empty,
    precision,
    unwrapped,
)
from s2sbench_callback.adapters.protocol import Row

# Freeze-Omni's inference: samples of a frame's step and of its overlap with the step before, frames of a chunk and before it, filters.
_SHIFT, _HISTORY, _CHUNK, _OVERLAP, _FILTERS = 160, 240, 16, 3, 80


class FreezeOmni(ProjectedFeatures):
    """Reads ``AudioLLM`` of Freeze-Omni: ``encoder``, ``adpter``, a frozen ``llm_decoder``, and prompt embeddings where it has them.

    Layout: text, then for each recording the text ``before``, the model's ``prompts``, one position for 80 ms, the text ``after``, then the
    candidate; no end token; the spacing is the release's. By default there is no chat format: a candidate continues what was heard. The model's own
    inference puts the template of its ``train.yaml`` around a recording; its texts can be given as ``before`` and ``after``. The state predictor
    is never run.

    A recording is encoded as the repository's inference does it: padded with silence to whole chunks of 160 ms, 80 log-mel filters of Kaldi's kind on
    16-bit amplitudes, each chunk with the three frames before it, through ``encoder.infer`` with its cache. The adapter, which is causal, is run
    on whole recordings' frames in windows, as exactly as its own cache does.

    Built from the repository's source, with a structural stand-in under its module names in the tests: **unverified against the published
    weights**.

    Args:
        tokenizer: The LLM's ``transformers`` tokenizer.
        before: Text before each recording; special tokens in it are read as such.
        after: Text after each recording.
        prompts: Prompt embeddings before each recording: ``model.prompt_num`` where ``model.prompt_finetune`` and ``model.add_prompt_before`` are
            true, else 0.
        stack: Frames of the encoder from one position to the next: 2 for the adapter ``subsampling``, 1 for ``cnn`` and ``linear``.
        bos: Whether to start each sequence with the tokenizer's BOS token; by default as the tokenizer does by itself.
        instruction: Whether the paper's instruction is read before a spoken context.
    """

    def __init__(
        self,
        tokenizer: Any,
        before: str = "",
        after: str = "",
        prompts: int = 0,
        stack: int = 2,
        bos: bool | None = None,
        instruction: bool = True,
    ) -> None:
        super().__init__(tokenizer, bos, instruction, 16_000)
        self._words = (before, after)
        self._ids = (self._text.encode(before) if before else [], self._text.encode(after) if after else [])
        self._prompts = prompts
        self._stack = stack

    def _around(self) -> tuple[list[int], list[int]]:
        return self._ids

    def _parts(self, model: nn.Module) -> Parts:
        live: Any = model
        llm = unwrapped(live.llm_decoder)
        prompts = getattr(live, "prompt_embeddings", None)
        projector = (live.adpter,) if prompts is None else (live.adpter, prompts)
        return Parts((live.encoder,), projector, llm.get_input_embeddings(), llm.get_output_embeddings(), (live.llm_decoder,), (model,))

    def _read(self, model: nn.Module, arguments: dict[str, Any], sources: Tensor) -> Tensor:
        live: Any = model
        logits: Tensor = unwrapped(live.llm_decoder)(**arguments, logits_to_keep=sources).logits[0]
        return logits

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """``[F, stack * D]`` frames of the encoder, one row a position.

        Raises:
            ValueError: If the adapter is not causal, has another stride, or the model has another number of prompts.
        """
        live: Any = model
        self._check_prompts(live)
        frames = self._frames(live, not_empty(waveform, waveform, self._sample_rate))
        rows = nn.functional.pad(frames, (0, 0, 0, -len(frames) % self._stack)).reshape(-1, self._stack * frames.shape[1])
        kind = precision((live.adpter,), frames.dtype)
        # Copied, since the adapter fills what it is given.
        given = frames[None].to(kind, copy=True)
        whole: Tensor = live.adpter(given, torch.ones(1, 1, len(frames), dtype=torch.bool, device=frames.device))[0][0]
        apart = self._heard(model, rows.to(kind), self._speech(rows, 0)[self._prompts :].to(rows.device))
        check_projection(whole, apart, f"stack={self._stack}")
        return rows

    def _frames(self, live: Any, waveform: Tensor) -> Tensor:
        """``[N, D]`` of the encoder, chunk by chunk."""
        whole = nn.functional.pad(waveform.float(), (_HISTORY, -len(waveform) % (_CHUNK * _SHIFT))) * 2**15
        bank = torchaudio.compliance.kaldi.fbank(whole[None], num_mel_bins=_FILTERS, frame_length=25, frame_shift=10, dither=0)
        bank = nn.functional.pad(bank, (0, 0, _OVERLAP, 0)).to(next(live.encoder.parameters()).dtype)
        cache, place = [None] * live.encoder.enc[1].num_blocks, 0
        heard = []
        for chunk in bank.unfold(0, _CHUNK + _OVERLAP, _CHUNK).transpose(1, 2):
            frames, cache, _, _, place = live.encoder.infer(chunk[None], cache, 0, None, place)
            heard.append(frames[0])
        return torch.cat(heard)

    def _speech(self, features: Tensor, first_row: int) -> Tensor:
        """Streams: silent text; the number of a prompt, or of a position in its recording; a row of the features."""
        prompts, places = torch.arange(self._prompts), torch.arange(len(features))
        rows = torch.cat([torch.full_like(prompts, -1), places + first_row])
        return torch.stack([torch.full_like(rows, -1), torch.cat([prompts, places]), rows], dim=1)

    def _hidden(self, model: nn.Module, row: Row) -> Tensor:
        hidden = super()._hidden(model, row)
        if not self._prompts or row.features is None:
            return hidden
        live: Any = model
        self._check_prompts(live)
        numbers = row.streams[:, 1]
        prompted: Tensor = live.prompt_embeddings(numbers.clamp(0, self._prompts - 1)).to(hidden.dtype)
        return torch.where(((numbers >= 0) & (row.streams[:, 2] < 0)).unsqueeze(1), prompted, hidden)

    def _heard(self, model: nn.Module, features: Tensor, streams: Tensor) -> Tensor:
        """``[T, H]``: each position's row and the earlier ones that the adapter looks at, no further back than the recording begins."""
        adapter = getattr(model, "adpter")  # noqa: B009
        back = -(-self._reach(adapter) // self._stack)
        # Within the first positions the adapter must see the beginning itself, where its convolutions pad.
        before = streams[:, 1].clamp(0, back)
        first = streams[:, 2].clamp_min(0) - before
        # Rows past the recording's end are looked at by no output that is kept.
        rows = (first.unsqueeze(1) + torch.arange(back + 1, device=first.device)).clamp_max(len(features) - 1)
        frames = features[rows].reshape(len(rows), (back + 1) * self._stack, -1)
        projected: Tensor = adapter(frames, torch.ones(len(frames), 1, frames.shape[1], dtype=torch.bool, device=frames.device))[0]
        return projected[torch.arange(len(rows), device=rows.device), before]

    def _project(self, model: nn.Module, features: Tensor) -> Tensor:
        """Never used alone: what the adapter makes of a row depends on where its recording begins."""
        raise NotImplementedError

    def _reach(self, adapter: nn.Module) -> int:
        """Frames before its own that an output of the adapter looks at."""
        reach, stride = 0, 1
        for layer in adapter.modules():
            if isinstance(layer, nn.Conv1d):
                reach += (layer.kernel_size[0] - 1) * stride
                stride *= layer.stride[0]
        if stride != self._stack:
            raise ValueError(f"the adapter {type(adapter).__name__} makes a position of {stride} frames; pass stack={stride}")
        return reach

    def _check_prompts(self, live: Any) -> None:
        wanted = live.prompt_num if getattr(live, "prompt_finetune", False) and getattr(live, "add_prompt_before", False) else 0
        if wanted != self._prompts:
            raise ValueError(
                f"the model puts {wanted} prompt embeddings before a recording, and FreezeOmni(prompts={self._prompts}) was built for another"
            )

    def _hears_with(self) -> Any:
        return self._stack

    def signature(self) -> Mapping[str, str]:
        """Adapter and every choice of the layout."""
        return {
            "adapter": "freeze_omni",
            **super().signature(),
            "before": self._words[0],
            "after": self._words[1],
            "prompts": str(self._prompts),
            "stack": str(self._stack),
            "verified": "unverified against the published weights",
        }
