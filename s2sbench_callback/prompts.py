"""What the model reads in each condition: instruction, context, candidate and the space between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from s2sbench_callback.items import Audio, Context, Language

Condition = Literal["s2t", "t2t"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
CONDITION_NAMES: dict[Condition, str] = {"s2t": "S→T", "t2t": "T→T"}

PROMPT_VERSION = "s2sbench-1"

SPOKEN_INSTRUCTION: dict[Language, str] = {
    "en": "Below is a segment of alternating speech and text content: ",
    "zh": "下面是一段语音和文本交错的内容：",
}
_WRITTEN_SPACE: dict[Language, str] = {"en": " ", "zh": ""}


@dataclass(frozen=True)
class Prompt:
    """A context as the model is to read it, and one candidate after it.

    Attributes:
        context: Texts and recordings in reading order; each text is tokenised on its own.
        candidate: The text to score, with the space that precedes it.
    """

    context: tuple[str | Audio, ...]
    candidate: str


def prompt(condition: Condition, language: Language, context: Context, candidate: str) -> Prompt:
    """Lays out one candidate in one condition, as Baichuan-Audio's scripts do.

    Args:
        condition: ``s2t`` (spoken context) or ``t2t`` (written context); the candidate is text in both.
        language: Language of the instruction, and of the spacing.
        context: The context, with a recording for ``s2t``.
        candidate: The candidate as it stands in the file.

    Raises:
        ValueError: If the condition needs a recording that the context does not have.
    """
    if condition == "t2t":
        return Prompt((context.text,), _WRITTEN_SPACE[language] + candidate)
    if context.audio is None:
        raise ValueError(f"S→T needs a recording, and there is none for the context {context.text[:60]!r}")
    return Prompt((SPOKEN_INSTRUCTION[language], context.audio), candidate)
