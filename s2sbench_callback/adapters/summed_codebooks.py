"""Speech LMs that read a frame of audio as the sum of its codebooks' embeddings, in one sequence with the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from s2sbench_callback.adapters.attention import attention_arguments
from s2sbench_callback.adapters.protocol import Role, Row, Rows
from s2sbench_callback.prompts import Condition
from s2sbench_callback.speech import module_fingerprint


class SummedCodebooks:
    """Reads Baichuan-Audio and models of its shape.

    Layout: text ids, then for each recording ``audio_start``, one position a frame, ``audio_end``, then the candidate; no BOS, no end
    token. At a frame the embedding is the sum over codebooks and there is no text; at a token it is the text embedding.

    The modules are named as Baichuan-Audio names them: ``model.embed_tokens``, ``model.layers``, ``model.norm``, ``model.audio_embed_layers``,
    ``lm_head``, ``audio_head`` and ``audio_tokenizer``, where ``audio_tokenizer(waveform [N])`` gives codes ``[F, K]``.

    Args:
        tokenizer: A ``transformers`` tokenizer.
        audio_start: Token that opens a recording.
        audio_end: Token that closes it.
        sample_rate: Rate in Hz that the speech tokenizer expects.

    Raises:
        ValueError: If the tokenizer does not know one of the two tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        audio_start: str = "<audio_start_baichuan>",
        audio_end: str = "<audio_end_baichuan>",
        sample_rate: int = 16_000,
    ) -> None:
        self.tokenizer = tokenizer
        self._sample_rate = sample_rate
        self._brackets = tuple(_token_id(tokenizer, token) for token in (audio_start, audio_end))

    @property
    def sample_rate(self) -> int:
        """Rate in Hz that the speech tokenizer expects."""
        return self._sample_rate

    def refusal(self, condition: Condition) -> str | None:
        """Both conditions can be asked."""
        return None

    def encode_text(self, text: str) -> list[int]:
        """Ids without special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """Codes ``[F, K]`` from the model's own speech tokenizer."""
        codes: Tensor = model.audio_tokenizer(waveform)  # type: ignore[operator]
        return codes

    def audio_fingerprint(self, model: nn.Module) -> str:
        """Hash of the speech tokenizer's weights."""
        return module_fingerprint(cast(nn.Module, model.audio_tokenizer))

    def context_streams(self, parts: Sequence[list[int] | Tensor]) -> Tensor:
        """``[L, 1 + K]``: the text stream, then one stream a codebook; ``[L, 1]`` where there is no speech."""
        codebooks = next((part.shape[1] for part in parts if isinstance(part, Tensor)), 0)
        pieces: list[Tensor] = []
        for part in parts:
            if isinstance(part, Tensor):
                start, end = (_text_positions([bracket], codebooks) for bracket in self._brackets)
                pieces.extend((start, torch.cat([part.new_full((len(part), 1), -1), part], dim=1), end))
            else:
                pieces.append(_text_positions(part, codebooks))
        return torch.cat(pieces)

    def candidate_streams(self, ids: list[int]) -> Tensor:
        """``[n, 1]``: text alone."""
        return _text_positions(ids, 0)

    def text_logits(self, model: nn.Module, row: Row) -> Tensor:
        """Embeddings, body and text head; the audio head is never run."""
        hidden = self._embed(model, row.streams).unsqueeze(0)
        body: Any = model.model
        arguments = attention_arguments(row, hidden.dtype)
        states = body(inputs_embeds=hidden, use_cache=False, **arguments).last_hidden_state[0]
        logits: Tensor = model.lm_head(states[row.sources])  # type: ignore[operator]
        return logits

    @staticmethod
    def _embed(model: Any, streams: Tensor) -> Tensor:
        total: Tensor | None = None
        tables = [model.model.embed_tokens, *model.model.audio_embed_layers][: streams.shape[1]]
        for table, ids in zip(tables, streams.unbind(1), strict=True):
            embedded: Tensor = table(ids.clamp_min(0)) * (ids >= 0).unsqueeze(1)
            total = embedded if total is None else total + embedded
        assert total is not None
        return total

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
        """Adapter, tokenizer class, the tokens around a recording and its rate."""
        start, end = self._brackets
        return {
            "adapter": "summed_codebooks",
            "tokenizer": type(self.tokenizer).__name__,
            "audio_brackets": f"{start},{end}",
            "sample_rate": str(self._sample_rate),
        }


def _token_id(tokenizer: Any, token: str) -> int:
    index = tokenizer.get_vocab().get(token)
    if index is None:
        raise ValueError(
            f"the tokenizer {type(tokenizer).__name__} has no token {token!r}; name the tokens around a recording in audio_start and audio_end"
        )
    return int(index)


def _text_positions(ids: list[int], codebooks: int) -> Tensor:
    positions = torch.full((len(ids), 1 + codebooks), -1, dtype=torch.int64)
    positions[:, 0] = torch.tensor(ids, dtype=torch.int64)
    return positions
