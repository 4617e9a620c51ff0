"""Text to ids, one piece of a prompt at a time, whatever the tokenizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from s2sbench_callback.adapters.protocol import Candidate

_WORD_START = "▁"


class TextIds:
    """A tokenizer of ``transformers``, a SentencePiece processor, or NeMo's wrapper of either, as adapters use it: no special tokens, borders kept.

    Tokenizers of SentencePiece's kind (Llama 2, Moshi) put a word start before every piece by themselves, so there the one space that T→T puts
    before an English candidate is dropped: it would stand there twice.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        if isinstance(tokenizer, str):
            raise ValueError(
                f"tokenizer={tokenizer!r} is a text; pass the tokenizer itself, for example AutoTokenizer.from_pretrained({tokenizer!r})"
            )
        # NeMo's tokenizers wrap one of the two.
        wraps = hasattr(tokenizer, "text_to_ids") and hasattr(tokenizer, "tokenizer")
        self.tokenizer = tokenizer.tokenizer if wraps else tokenizer

    @property
    def name(self) -> str:
        """Class of the tokenizer."""
        return type(self.tokenizer).__name__

    def encode(self, text: str) -> list[int]:
        """Ids of one piece of prompt, without special tokens."""
        if text.startswith(" "):
            without = self._ids(text[1:])
            if without and str(self._piece(without[0])).startswith(_WORD_START):
                return without
        return self._ids(text)

    def _ids(self, text: str) -> list[int]:
        if callable(self.tokenizer):
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return list(self.tokenizer.encode(text))

    def token(self, token: str, argument: str) -> int:
        """Id of a special token.

        Args:
            token: The token as the tokenizer spells it.
            argument: Which argument of the adapter names another.

        Raises:
            ValueError: If the tokenizer does not know it.
        """
        if hasattr(self.tokenizer, "get_vocab"):
            index = self.tokenizer.get_vocab().get(token)
        else:
            index = self.tokenizer.piece_to_id(token)
            index = index if self.tokenizer.id_to_piece(index) == token else None
        if index is None:
            raise ValueError(f"the tokenizer {self.name} has no token {token!r}; name the model's own in {argument}=")
        return int(index)

    def bos(self, wanted: bool | None) -> list[int]:
        """What each sequence starts with.

        Args:
            wanted: Whether it is the BOS token; by default it is what the tokenizer itself puts before a text, ``[gMASK]<sop>`` for example.

        Raises:
            ValueError: If it is asked for and the tokenizer has none.
        """
        index = getattr(self.tokenizer, "bos_token_id", None)
        if wanted is None:
            return self._prefix()
        if wanted and index is None:
            raise ValueError(f"bos=True, but the tokenizer {self.name} has no BOS token; pass bos=False")
        return [int(index)] if wanted and index is not None else []

    def _prefix(self) -> list[int]:
        """Ids that the tokenizer puts before a text by itself; those that it puts behind one do not count."""
        if not callable(self.tokenizer):
            return []
        whole, text = list(self.tokenizer("a", add_special_tokens=True)["input_ids"]), self._ids("a")
        starts = (start for start in range(len(whole) - len(text) + 1) if whole[start : start + len(text)] == text)
        return whole[: next(starts, 0)]

    def signature(self) -> dict[str, str]:
        """What of it can change a figure."""
        return {"tokenizer": self.name, "spacing": "as written, or the tokenizer's own word start"}

    def _piece(self, index: int) -> Any:
        convert = getattr(self.tokenizer, "convert_ids_to_tokens", None) or getattr(self.tokenizer, "id_to_piece", None)
        return convert(index) if convert else ""


def column(ids: list[int]) -> Tensor:
    """Ids as positions of one stream, ``[n, 1]``."""
    return torch.tensor(ids, dtype=torch.int64).unsqueeze(1)


def text_candidate(ids: list[int], streams: int = 1) -> Candidate:
    """Text to score, in the first of some streams while the others are silent."""
    positions = column(ids)
    return Candidate(torch.nn.functional.pad(positions, (0, streams - 1), value=-1), positions)
