"""Text LLMs: any causal LM of ``transformers``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from s2sbench_callback.adapters.attention import attention_arguments
from s2sbench_callback.adapters.protocol import Role, Row, Rows
from s2sbench_callback.prompts import Condition


class TextOnly:
    """Reads a text-only causal LM: T→T, the ceiling that a speech LM is held against.

    Layout: context ids, candidate ids, no BOS unless asked for, no end token.

    Args:
        tokenizer: A ``transformers`` tokenizer.
        bos: Whether to start each sequence with the tokenizer's BOS token, for models that were trained with one.

    Raises:
        ValueError: If ``bos`` is asked for and the tokenizer has none.
    """

    def __init__(self, tokenizer: Any, bos: bool = False) -> None:
        if bos and tokenizer.bos_token_id is None:
            raise ValueError(f"bos=True, but the tokenizer {type(tokenizer).__name__} has no BOS token; pass bos=False")
        self.tokenizer = tokenizer
        self.bos = bos

    @property
    def sample_rate(self) -> int:
        """Never used: there is no speech."""
        return 16_000

    def refusal(self, condition: Condition) -> str | None:
        """S→T is refused: the model cannot hear."""
        return None if condition == "t2t" else "a text-only model has no way to read speech"

    def encode_text(self, text: str) -> list[int]:
        """Ids without special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """Always refused."""
        raise TypeError("a text-only model has no way to read speech")

    def audio_fingerprint(self, model: nn.Module) -> str:
        """Always refused."""
        raise TypeError("a text-only model has no way to read speech")

    def context_streams(self, parts: Sequence[list[int] | Tensor]) -> Tensor:
        """One stream of ids ``[L, 1]``."""
        ids = [self.tokenizer.bos_token_id] if self.bos else []
        for part in parts:
            if isinstance(part, Tensor):
                raise TypeError("a text-only model has no way to read speech")
            ids.extend(part)
        return torch.tensor(ids, dtype=torch.int64).unsqueeze(1)

    def candidate_streams(self, ids: list[int]) -> Tensor:
        """One stream of ids ``[n, 1]``."""
        return torch.tensor(ids, dtype=torch.int64).unsqueeze(1)

    def text_logits(self, model: nn.Module, row: Row) -> Tensor:
        """The model's own forward, which computes logits at the asked positions alone."""
        language_model = cast(PreTrainedModel, model)
        output = language_model(
            input_ids=row.streams[:, 0].unsqueeze(0), logits_to_keep=row.sources, use_cache=False, **attention_arguments(row, language_model.dtype)
        )
        logits: Tensor = output.logits[0]
        return logits

    def roles(self, model: nn.Module) -> Mapping[Role, tuple[str | Rows, ...]]:
        """Embedding and head as ``transformers`` names them; everything else is the body."""
        language_model = cast(PreTrainedModel, model)
        by_module = {id(module): name for name, module in model.named_modules()}
        embedding, head = by_module[id(language_model.get_input_embeddings())], by_module[id(language_model.get_output_embeddings())]
        body = tuple(name for name, _ in model.named_parameters() if not name.startswith((f"{embedding}.", f"{head}.")))
        return {"lm_embedding": (f"{embedding}.",), "lm_head": (f"{head}.",), "lm_body": body}

    def signature(self) -> Mapping[str, str]:
        """Adapter, tokenizer class and BOS policy."""
        return {"adapter": "text_only", "tokenizer": type(self.tokenizer).__name__, "bos": str(self.bos).lower()}
