"""NeMo's SALM, of its collection ``speechlm2``: a LightningModule that hears through perception and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from s2sbench_callback.adapters.attention import attention_arguments
from s2sbench_callback.adapters.embedding import embedded
from s2sbench_callback.adapters.nemo_perception import fingerprint, heard, perception_roles, placed
from s2sbench_callback.adapters.protocol import Candidate, Role, Row, Rows
from s2sbench_callback.adapters.role_prefixes import around, prefixes
from s2sbench_callback.adapters.text_ids import TextIds, text_candidate
from s2sbench_callback.items import Language
from s2sbench_callback.prompts import CANDIDATES, Condition, Modality, paper_instruction

_SALM_IS_MUTE = "NeMo's SALM hears and writes, and has no audio head to score spoken candidates with"


class NeMoSALM:
    """Reads ``SALM``; the language model is the LightningModule itself, ``locator="."``.

    Layout: BOS where the tokenizer itself starts with one, then text ids and, in place of NeMo's one audio placeholder a recording, what perception
    makes of it, 80 ms a position in the published models; then the candidate. No end token, no turns of a chat template; spacing and the
    instruction are the paper's. S→S and T→S are refused: there is no audio head.

    Features are what enters perception's projection, ``perception.proj``, or ``perception.modality_adapter.proj`` where the adapter projects by
    itself; the projection (role ``audio_embedding``) runs live. Preprocessor, encoder and the rest of the modality adapter are ``frontend``.
    Where nothing projects, all of perception is. A recording longer than the model's ``encoder_chunk_size_seconds`` is heard in chunks of
    that length, as SALM itself does, each alone.

    T→T goes by ``embed_tokens`` and the LLM: SALM's own ``prepare_inputs`` fails without a recording. Its loss leaves out tokens that are the padding
    id (``unk`` where there is none); here each token of a candidate is scored.

    Verified against SALM of NeMo 3.0.0: logits equal its ``prepare_inputs`` and ``forward`` on ids with placeholders. ``SALMWithAsrDecoder``, which
    reads a transcript behind each recording, and ``SALMAutomodel`` are not read.

    Args:
        tokenizer: SALM's own ``tokenizer`` (NeMo's ``AutoTokenizer``), or a ``transformers`` tokenizer.
        bos: Whether to start each sequence with the tokenizer's BOS token; by default as the tokenizer does by itself.
        sample_rate: Rate in Hz that perception expects.

    Raises:
        ValueError: If ``bos`` is asked for and the tokenizer has none.
    """

    def __init__(self, tokenizer: Any, bos: bool | None = None, sample_rate: int = 16_000) -> None:
        self._text = TextIds(tokenizer)
        self.tokenizer = self._text.tokenizer
        self._bos = self._text.bos(bos)
        self._sample_rate = sample_rate

    @property
    def sample_rate(self) -> int:
        """Rate in Hz that perception expects."""
        return self._sample_rate

    def refusal(self, condition: Condition) -> str | None:
        """Spoken candidates are refused."""
        return _SALM_IS_MUTE if CANDIDATES[condition] == "speech" else None

    def instruction(self, condition: Condition, language: Language) -> str:
        """The paper's."""
        return paper_instruction(condition, language)

    def encode_text(self, text: str) -> list[int]:
        """Ids without special tokens."""
        return self._text.encode(text)

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """Features ``[F, D]`` that enter the projection.

        Raises:
            ValueError: If the model is another than SALM, or hears at another rate.
        """
        return heard(_salm(model).perception, waveform, self._sample_rate, _chunk_seconds(model))

    def audio_fingerprint(self, model: nn.Module) -> str:
        """Hash of perception without its projection, and the length of chunks."""
        return f"{fingerprint(_salm(model).perception)}-{_chunk_seconds(model)}"

    def context_streams(self, parts: Sequence[list[int] | Tensor], candidate: Modality = "text") -> Tensor:
        """``[L, 2]``: text ids, and rows of the features; ``[L, 1]`` where there is no speech."""
        streams = 1 + any(isinstance(part, Tensor) for part in parts)
        pieces, heard = [text_candidate(self._bos, streams).streams], 0
        for part in parts:
            if isinstance(part, Tensor):
                rows = torch.arange(heard, heard + len(part))
                pieces.append(torch.stack([torch.full_like(rows, -1), rows], dim=1))
                heard += len(part)
            else:
                pieces.append(text_candidate(part, streams).streams)
        return torch.cat(pieces)

    def candidate_positions(self, piece: list[int] | Tensor) -> Candidate:
        """Text ``[n, 1]``, each token of it scored."""
        if isinstance(piece, Tensor):
            raise TypeError(_SALM_IS_MUTE)
        return text_candidate(piece)

    def logits(self, model: nn.Module, row: Row) -> Tensor:
        """Embeddings with what was heard put between them, then the LLM, which computes logits at the asked positions alone."""
        live = _salm(model)
        hidden = embedded(live.embed_tokens, row.streams[:, 0])
        if row.features is not None:
            hidden = hidden + placed(live.perception, row.features, row.streams[:, -1], hidden.dtype)
        output = live.llm(inputs_embeds=hidden.unsqueeze(0), logits_to_keep=row.sources, use_cache=False, **attention_arguments(row, hidden.dtype))
        logits: Tensor = output.logits[0]
        return logits

    def roles(self, model: nn.Module) -> Mapping[Role, tuple[str | Rows, ...]]:
        """``embed_tokens`` and ``llm.lm_head`` are the LLM's, the rest of ``llm`` its body; perception is split at its projection."""
        live = _salm(model)
        # Not get_output_embeddings, which gives none where the LLM's own embedding is gone.
        head = live.llm.lm_head
        return {
            **perception_roles(model, live.perception),
            "lm_embedding": prefixes(model, [live.embed_tokens]),
            "lm_head": prefixes(model, [head]),
            "lm_body": around(model, live.llm, head),
        }

    def signature(self) -> Mapping[str, str]:
        """Adapter, tokenizer, BOS policy and rate."""
        return {"adapter": "nemo_salm", **self._text.signature(), "bos": str(bool(self._bos)).lower(), "sample_rate": str(self._sample_rate)}


def _salm(model: nn.Module) -> Any:
    other = "a transcript follows each recording" if hasattr(model.perception, "transcribe_encoded") else None
    other = "its LLM is NeMo Automodel's" if hasattr(model, "_embed_tokens") else other
    if other:
        raise ValueError(f"NeMoSALM reads SALM, and this is {type(model).__name__}, where {other}; write an adapter of your own for it")
    return model


def _chunk_seconds(model: Any) -> float | None:
    seconds: float | None = model.cfg.get("encoder_chunk_size_seconds", None)
    return seconds
