"""What the model reads in each condition: instruction, context, candidate and the space between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from s2sbench_callback.items import Audio, Benchmark, Item, Language

Modality = Literal["text", "speech"]
Condition = Literal["s2t", "t2t", "s2s", "t2s"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
DEFAULT_CONDITIONS: tuple[Condition, ...] = ("s2t", "t2t")
CONDITION_NAMES: dict[Condition, str] = {"s2t": "S→T", "t2t": "T→T", "s2s": "S→S", "t2s": "T→S"}
CANDIDATES: dict[Condition, Modality] = {"s2t": "text", "t2t": "text", "s2s": "speech", "t2s": "speech"}

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
        candidate: The text to score, with the space that precedes it, or the recording.
    """

    context: tuple[str | Audio, ...]
    candidate: str | Audio

    @property
    def recordings(self) -> tuple[Audio, ...]:
        """Every recording in it."""
        return tuple(part for part in (*self.context, self.candidate) if isinstance(part, Audio))


def paper_instruction(condition: Condition, language: Language) -> str:
    """The instruction of the release's scripts: before a spoken context with a written candidate."""
    return SPOKEN_INSTRUCTION[language] if condition == "s2t" else ""


def prompt(condition: Condition, language: Language, item: Item, index: int, instruction: str = "") -> Prompt:
    """Lays out one candidate in one condition, as Baichuan-Audio's scripts do where they say how.

    A spoken candidate follows its context as it is. Where a set has whole spoken stories alone, S→S has no context and the whole story is the
    candidate.

    Args:
        condition: How context and candidate are given.
        language: Language of the spacing.
        item: The question.
        index: Which of its candidates.
        instruction: What is read before the context.

    Raises:
        ValueError: If the condition needs a recording that the item does not have.
    """
    reason = lacks(item, condition)
    if reason:
        raise ValueError(f"{CONDITION_NAMES[condition]} cannot be asked of item {item.id!r}: it has {reason}")
    context, before = item.contexts[index], (instruction,) if instruction else ()
    if condition == "s2s" and not (item.has_audio and item.candidate_audios):
        return Prompt(before, item.story_audios[index])
    heard: str | Audio = context.audio if condition in ("s2t", "s2s") and context.audio else context.text
    if CANDIDATES[condition] == "speech":
        return Prompt((*before, heard), item.candidate_audios[index])
    return Prompt((*before, heard), (_WRITTEN_SPACE[language] if condition == "t2t" else "") + item.candidates[index])


def lacks(asked: Item | Benchmark, condition: Condition) -> str | None:
    """What a condition needs and an item, or some item of a set, does not have; ``None`` if it has everything."""
    if isinstance(asked, Benchmark):
        return next((reason for item in asked.items if (reason := lacks(item, condition))), None)
    if CANDIDATES[condition] == "text" and not asked.has_texts:
        return "no written candidates"
    if condition in ("t2t", "t2s") and not all(context.text.strip() for context in asked.contexts):
        return "no written contexts"
    if condition == "s2t" and not asked.has_audio:
        return "no recordings"
    if condition == "s2s" and not (asked.has_audio and asked.candidate_audios) and not asked.story_audios:
        return "no spoken candidates (candidate_audio_path or story_audio_path in the YAML)"
    if condition == "t2s" and not asked.candidate_audios:
        return "no recordings of candidates alone (candidate_audio_path in the YAML)"
    return None
