"""Text LLMs: any causal LM of ``transformers``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from s2sbench_callback.adapters.attention import causal_lm_logits
from s2sbench_callback.adapters.protocol import Candidate, Role, Row, Rows
from s2sbench_callback.adapters.text_ids import TextIds, column, text_candidate
from s2sbench_callback.items import Language
from s2sbench_callback.prompts import Condition, Modality

_DEAF = "a text-only model has no way to read speech"


class TextOnly:
    """Reads a text-only causal LM, Qwen2.5 for example: T→T, the ceiling that a speech LM is held against.

    Layout: BOS where the tokenizer itself starts with one, context ids, candidate ids, no end token.

    Args:
        tokenizer: A ``transformers`` tokenizer.
        bos: Whether to start each sequence with the tokenizer's BOS token; by default as the tokenizer does by itself.

    Raises:
        ValueError: If ``bos`` is asked for and the tokenizer has none.
    """

    def __init__(self, tokenizer: Any, bos: bool | None = None) -> None:
        self.tokenizer = tokenizer
        self._text = TextIds(tokenizer)
        self._bos = self._text.bos(bos)

    @property
    def sample_rate(self) -> int:
        """Never used: there is no speech."""
        return 16_000

    def refusal(self, condition: Condition) -> str | None:
        """All but T→T is refused: the model cannot hear."""
        return None if condition == "t2t" else _DEAF

    def instruction(self, condition: Condition, language: Language) -> str:
        """None."""
        return ""

    def encode_text(self, text: str) -> list[int]:
        """Ids without special tokens."""
        return self._text.encode(text)

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """Always refused."""
        raise TypeError(_DEAF)

    def audio_fingerprint(self, model: nn.Module) -> str:
        """Always refused."""
        raise TypeError(_DEAF)

    def context_streams(self, parts: Sequence[list[int] | Tensor], candidate: Modality = "text") -> Tensor:
        """One stream of ids ``[L, 1]``."""
        ids = list(self._bos)
        for part in parts:
            if isinstance(part, Tensor):
                raise TypeError(_DEAF)
            ids.extend(part)
        return column(ids)

    def candidate_positions(self, piece: list[int] | Tensor) -> Candidate:
        """One stream of ids ``[n, 1]``, each of them scored."""
        if isinstance(piece, Tensor):
            raise TypeError(_DEAF)
        return text_candidate(piece)

    def logits(self, model: nn.Module, row: Row) -> Tensor:
        """The model's own forward, which computes logits at the asked positions alone."""
        return causal_lm_logits(model, row)

    def roles(self, model: nn.Module) -> Mapping[Role, tuple[str | Rows, ...]]:
        """Embedding and head as ``transformers`` names them; everything else is the body."""
        language_model = cast(PreTrainedModel, model)
        by_module = {id(module): name for name, module in model.named_modules()}
        embedding, head = by_module[id(language_model.get_input_embeddings())], by_module[id(language_model.get_output_embeddings())]
        body = tuple(name for name, _ in model.named_parameters() if not name.startswith((f"{embedding}.", f"{head}.")))
        return {"lm_embedding": (f"{embedding}.",), "lm_head": (f"{head}.",), "lm_body": body}

    def signature(self) -> Mapping[str, str]:
        """Adapter, tokenizer class and BOS policy."""
        return {"adapter": "text_only", **self._text.signature(), "bos": str(bool(self._bos)).lower()}
