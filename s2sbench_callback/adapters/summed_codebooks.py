"""Speech LMs that read a frame of audio as the sum of its codebooks' embeddings, in one sequence with the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from s2sbench_callback.adapters.attention import attention_arguments
from s2sbench_callback.adapters.embedding import embedded
from s2sbench_callback.adapters.protocol import Candidate, Role, Row, Rows
from s2sbench_callback.adapters.text_ids import TextIds, text_candidate
from s2sbench_callback.items import Language
from s2sbench_callback.prompts import Condition, Modality, paper_instruction
from s2sbench_callback.speech import module_fingerprint


class SummedCodebooks:
    """Reads Baichuan-Audio and models of its shape.

    Layout: text ids, then for each recording ``audio_start``, one position a frame, ``audio_end``, then the candidate; no BOS, no end
    token. At a frame the embedding is the sum over codebooks and there is no text; at a token it is the text embedding. A spoken candidate
    follows a further ``audio_start``. The spacing is the release's.

    The modules are named as Baichuan-Audio names them: ``model.embed_tokens``, ``model.layers``, ``model.norm``, ``model.audio_embed_layers``,
    ``lm_head``, ``audio_head`` and ``audio_tokenizer``, where ``audio_tokenizer(waveform [N])`` gives codes ``[F, K]``. The audio head is one linear
    layer a codebook, or a transformer over the codebooks of a frame that is called as ``audio_head(hidden [A, H], codes [A, K],
    model.audio_embed_layers)`` and gives a list of logits, as Baichuan's is.

    Verified against Baichuan-Omni-1.5's published modules of the same names, rebuilt in the tests; Baichuan-Audio's own model files were not
    to be had, so this is **unverified against the published code**.

    Args:
        tokenizer: A ``transformers`` tokenizer.
        audio_start: Token that opens a recording.
        audio_end: Token that closes it.
        sample_rate: Rate in Hz that the speech tokenizer expects.
        scored: Which tokens of a spoken candidate count: the ``semantic`` (first) codebook, or ``all`` of them.

    Raises:
        ValueError: If the tokenizer does not know one of the two tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        audio_start: str = "<audio_start_baichuan>",
        audio_end: str = "<audio_end_baichuan>",
        sample_rate: int = 16_000,
        scored: Literal["semantic", "all"] = "semantic",
    ) -> None:
        self.tokenizer = tokenizer
        self._text = TextIds(tokenizer)
        self._sample_rate = sample_rate
        self._scored = scored
        self._start = self._text.token(audio_start, "audio_start")
        self._end = self._text.token(audio_end, "audio_end")

    @property
    def sample_rate(self) -> int:
        """Rate in Hz that the speech tokenizer expects."""
        return self._sample_rate

    def refusal(self, condition: Condition) -> str | None:
        """Every condition can be asked."""
        return None

    def instruction(self, condition: Condition, language: Language) -> str:
        """The paper's."""
        return paper_instruction(condition, language)

    def encode_text(self, text: str) -> list[int]:
        """Ids without special tokens."""
        return self._text.encode(text)

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """Codes ``[F, K]`` from the model's own speech tokenizer."""
        codes: Tensor = model.audio_tokenizer(waveform)  # type: ignore[operator]
        return codes

    def audio_fingerprint(self, model: nn.Module) -> str:
        """Hash of the speech tokenizer's weights."""
        return module_fingerprint(cast(nn.Module, model.audio_tokenizer))

    def context_streams(self, parts: Sequence[list[int] | Tensor], candidate: Modality = "text") -> Tensor:
        """``[L, 1 + K]``: the text stream, then one stream a codebook; ``[L, 1]`` where there is no speech."""
        codebooks = next((part.shape[1] for part in parts if isinstance(part, Tensor)), 0)
        pieces: list[Tensor] = []
        for part in parts:
            if isinstance(part, Tensor):
                frames = torch.nn.functional.pad(part, (1, 0), value=-1)
                pieces.extend((text_candidate([self._start], 1 + codebooks).streams, frames, text_candidate([self._end], 1 + codebooks).streams))
            else:
                pieces.append(text_candidate(part, 1 + codebooks).streams)
        if candidate == "speech":
            pieces.append(text_candidate([self._start], 1 + codebooks).streams)
        return torch.cat(pieces)

    def candidate_positions(self, piece: list[int] | Tensor) -> Candidate:
        """Text alone ``[n, 1]``, or frames ``[n, 1 + K]`` of which one codebook or all are scored."""
        if not isinstance(piece, Tensor):
            return text_candidate(piece)
        scored = piece if self._scored == "all" else piece[:, :1]
        # Head 0 is text.
        return Candidate(torch.nn.functional.pad(piece, (1, 0), value=-1), torch.nn.functional.pad(scored, (1, 0), value=-1))

    def logits(self, model: nn.Module, row: Row) -> Tensor:
        """Embeddings, body, and the head that is asked; the other is never run."""
        hidden = self._embed(model, row.streams).unsqueeze(0)
        body: Any = model.model
        arguments = attention_arguments(row, hidden.dtype)
        if row.mask is not None and hasattr(body.layers[0].self_attn, "W_pack"):
            # Baichuan's own attention reads ones where it may look, not an additive mask.
            arguments["attention_mask"] = row.mask.to(hidden.dtype)[None, None]
        states: Tensor = body(inputs_embeds=hidden, use_cache=False, **arguments).last_hidden_state[0][row.sources]
        if not row.asks_other_heads:
            logits: Tensor = model.lm_head(states)  # type: ignore[operator]
            return logits
        return self._audio_logits(model, states, row)

    def _audio_logits(self, model: Any, states: Tensor, row: Row) -> Tensor:
        """``[A, V]`` of the largest codebook's size."""
        if isinstance(model.audio_head, nn.ModuleList):
            by_codebook = [head(states) for head in model.audio_head]
        else:
            tables = model.model.audio_embed_layers
            by_codebook = model.audio_head(states, self._given(row, len(tables)), tables)
        widest = max(logits.shape[-1] for logits in by_codebook)
        padded = [nn.functional.pad(logits, (0, widest - logits.shape[-1]), value=-torch.inf) for logits in by_codebook]
        return torch.stack(padded, dim=1)[torch.arange(len(states), device=states.device), row.heads - 1]

    def _given(self, row: Row, codebooks: int) -> Tensor:
        """``[A, K]`` codes of the frame that each target belongs to; a head looks at those before its own alone."""
        if self._scored == "semantic":
            return row.targets.new_zeros(len(row.targets), codebooks)
        frames = row.targets.view(-1, codebooks)
        return frames.repeat_interleave(codebooks, dim=0)

    @staticmethod
    def _embed(model: Any, streams: Tensor) -> Tensor:
        tables = [model.model.embed_tokens, *model.model.audio_embed_layers][: streams.shape[1]]
        return reduce(torch.add, (embedded(table, ids) for table, ids in zip(tables, streams.unbind(1), strict=True)))

    def roles(self, model: nn.Module) -> Mapping[Role, tuple[str | Rows, ...]]:
        """Whole modules for every role."""
        return {
            "audio_embedding": ("model.audio_embed_layers.",),
            "audio_head": ("audio_head.",),
            "lm_embedding": ("model.embed_tokens.",),
            "lm_head": ("lm_head.",),
            "lm_body": ("model.layers.", "model.norm."),
            "frontend": ("audio_tokenizer.",),
        }

    def signature(self) -> Mapping[str, str]:
        """Adapter, tokenizer, the tokens around a recording, its rate, and what of a spoken candidate is scored."""
        return {
            "adapter": "summed_codebooks",
            **self._text.signature(),
            "audio_brackets": f"{self._start},{self._end}",
            "sample_rate": str(self._sample_rate),
            "scored": f"{self._scored} codebook" + "s" * (self._scored == "all"),
            "verified": "unverified against the published code",
        }
