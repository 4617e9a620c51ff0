"""What is asked: questions with their contexts and candidates, validated, without torch."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

Language = Literal["en", "zh"]
TieRule = Literal["lose", "win"]


def recording_digest(content: bytes) -> str:
    """Hash that names a recording by its bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@dataclass(frozen=True)
class Audio:
    """One recording on disk.

    Attributes:
        path: The file.
        digest: Hash of its bytes; recordings of equal digest are one recording.
        seconds: Its length.
    """

    path: Path
    digest: str
    seconds: float


@dataclass(frozen=True)
class Context:
    """What precedes a candidate, written and, where there is a recording, spoken."""

    text: str
    audio: Audio | None = None


@dataclass(frozen=True)
class Item:
    """One question: candidates after a context, one of which is the answer.

    Attributes:
        id: Name of the question, unique in its benchmark.
        contexts: The context of each candidate. In a clean set they are all the same; where they differ, each candidate is scored
            with its own.
        candidates: Texts to compare, two or more, all different; empty where the question is spoken alone.
        answer: Index of the right candidate.
        group: Questions that share one are not independent of each other; by default each stands for itself.
        candidate_audios: A recording of each candidate alone, where there are any.
        story_audios: A recording of context and candidate together for each candidate, where there are any.
        voice: Who speaks, in a set that several voices share.
    """

    id: str
    contexts: tuple[Context, ...]
    candidates: tuple[str, ...]
    answer: int
    group: str = field(default="")
    candidate_audios: tuple[Audio, ...] = ()
    story_audios: tuple[Audio, ...] = ()
    voice: str = ""

    def __post_init__(self) -> None:
        if len(self.candidates) < 2:
            raise ValueError(f"item {self.id!r} has {len(self.candidates)} candidate(s); a comparison needs at least 2")
        if len(self.contexts) != len(self.candidates):
            raise ValueError(f"item {self.id!r} has {len(self.contexts)} contexts for {len(self.candidates)} candidates; give one each")
        for kind, audios in (("recordings of candidates", self.candidate_audios), ("recordings of whole stories", self.story_audios)):
            if audios and len(audios) != len(self.candidates):
                raise ValueError(f"item {self.id!r} has {len(audios)} {kind} for {len(self.candidates)} candidates; give one each, or none")
            if len({audio.digest for audio in audios}) < len(audios):
                same = ", ".join(str(audio.path) for audio in audios)
                raise ValueError(f"item {self.id!r} has one recording for two candidates, so that no model can tell them apart: {same}")
        if not 0 <= self.answer < len(self.candidates):
            raise ValueError(f"item {self.id!r}: answer {self.answer} is no index of its {len(self.candidates)} candidates")
        for index, candidate in enumerate(self.candidates):
            if not candidate.strip() and not self.is_spoken:
                raise ValueError(f"item {self.id!r}: candidate {index} is empty")
        if self.has_texts and len({candidate.strip() for candidate in self.candidates}) != len(self.candidates):
            raise ValueError(f"item {self.id!r} has identical candidates: {list(self.candidates)}")
        for context in self.contexts:
            if not context.text.strip() and not self.is_spoken:
                raise ValueError(f"item {self.id!r} has an empty context")
        if not self.group:
            object.__setattr__(self, "group", self.id)

    @property
    def has_audio(self) -> bool:
        """Whether every candidate has a spoken context."""
        return all(context.audio is not None for context in self.contexts)

    @property
    def is_spoken(self) -> bool:
        """Whether there are spoken candidates, so that texts may be missing."""
        return bool(self.candidate_audios or self.story_audios)

    @property
    def has_texts(self) -> bool:
        """Whether every candidate is written."""
        return all(candidate.strip() for candidate in self.candidates)


@dataclass(frozen=True)
class Benchmark:
    """A set of questions under one name and one tie rule.

    Attributes:
        name: The ``<set>`` of the metric keys.
        language: ``en`` or ``zh``; decides prompt and spacing.
        items: The questions, in the order of the file.
        tie_rule: Whether the answer loses or wins a comparison in which both losses are equal.
    """

    name: str
    language: Language
    items: tuple[Item, ...]
    tie_rule: TieRule = "lose"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w@.+-]+", self.name) or self.name == "mean":
            raise ValueError(
                f"a benchmark's name is part of its metric keys: letters, digits and _ @ . + - alone, and not 'mean', which stands for the average "
                f"over sets; got {self.name!r}"
            )
        if self.language not in ("en", "zh"):
            raise ValueError(f"benchmark {self.name!r}: language must be 'en' or 'zh', got {self.language!r}")
        if self.tie_rule not in ("lose", "win"):
            raise ValueError(f"benchmark {self.name!r}: tie_rule must be 'lose' or 'win', got {self.tie_rule!r}")
        if not self.items:
            raise ValueError(f"benchmark {self.name!r} has no items")
        seen: set[str] = set()
        for item in self.items:
            if item.id in seen:
                raise ValueError(f"benchmark {self.name!r} has two items with the id {item.id!r}")
            seen.add(item.id)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that can change a figure: texts, answers, order, the recordings' bytes, language and tie rule."""
        digest = hashlib.blake2b(digest_size=8)

        def add(*parts: str) -> None:
            for part in parts:
                data = part.encode()
                digest.update(len(data).to_bytes(8, "big") + data)

        add(self.language, self.tie_rule)
        for item in self.items:
            add(item.id, item.group, str(item.answer), str(len(item.candidates)))
            for context, candidate in zip(item.contexts, item.candidates, strict=True):
                add(context.text, context.audio.digest if context.audio else "", candidate)
            for kind, audios in (("candidates", item.candidate_audios), ("stories", item.story_audios)):
                if audios:
                    add(kind, *(audio.digest for audio in audios))
        return digest.hexdigest()
