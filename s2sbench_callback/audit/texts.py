"""Texts cut into comparable pieces: without case, punctuation and width, words in English and characters in Chinese."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from s2sbench_callback.items import Item, Language

_APOSTROPHES = str.maketrans("", "", "'’")


def units(text: str, language: Language) -> list[str]:
    """Words or, in Chinese, characters (a word or number in Latin letters counts as one).

    Args:
        text: Any text.
        language: What to cut it into.
    """
    plain = unicodedata.normalize("NFKC", text).casefold().translate(_APOSTROPHES)
    return re.findall(r"[^\W_]+", plain) if language == "en" else re.findall(r"[a-z0-9]+|[^\W_]", plain)


def grams(pieces: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """Every run of so many neighbouring pieces."""
    return (tuple(pieces[start : start + size]) for start in range(len(pieces) - size + 1))


def spoken_texts(item: Item) -> Iterator[str]:
    """Contexts of a question, each once."""
    yield from dict.fromkeys(context.text for context in item.contexts)
