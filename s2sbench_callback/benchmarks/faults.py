"""What is wrong with a set on disk: raised at once by who wants to use it, collected by who wants to mend it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        kind: What sort of thing, as one word for scripts: ``missing_recording``, ``duplicate_uttid``, …
        place: The file, and the row where it is one.
        reason: What is wrong there, and the way out where there is one.
    """

    kind: str
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class Faults:
    """Takes faults as a reader finds them.

    Args:
        at_once: Whether the first one is raised, so that a reader goes no further.
    """

    def __init__(self, at_once: bool) -> None:
        self._at_once = at_once
        self.found: list[Fault] = []

    def add(self, kind: str, place: str, reason: str, cause: Exception | None = None) -> None:
        """Reports one.

        Raises:
            FileNotFoundError: If faults are raised at once and the kind begins with ``missing``.
            ValueError: If they are raised at once and it is another.
        """
        fault = Fault(kind, place, reason)
        if self._at_once:
            raise (FileNotFoundError if kind.startswith("missing") else ValueError)(str(fault)) from cause
        self.found.append(fault)
