"""Which checkpoints of a running job are ready to be scored, and when there will be no more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from s2sbench_callback.checkpoints import BrokenCheckpoint, Checkpoint, inside


@dataclass
class Watch:
    """Looks into a folder again and again.

    A checkpoint is ready when all its parts are there and it was the same, in size and time of change, at the look before; one that nobody has
    touched for a while is ready at once.

    Attributes:
        folder: Where checkpoints appear, at any depth.
        settled_after: Seconds without a change after which a checkpoint is ready at first sight.
        trust: Whether checkpoints may hold objects besides tensors and plain data.
    """

    folder: Path
    settled_after: float = 60.0
    trust: bool = False
    _seen: dict[Path, Mapping[str, str | int]] = field(default_factory=dict)
    _refused: dict[Path, Mapping[str, str | int]] = field(default_factory=dict)

    def ready(self) -> list[tuple[int, Checkpoint]]:
        """Steps and checkpoints that can be scored now, in the order of steps, one a step.

        A checkpoint that cannot be read is left for later: it may be being written still.
        """
        found = [checkpoint for checkpoint in inside(self.folder) if checkpoint.is_complete()]
        settled = [each for each in found if self._refused.get(each.path) != each.stamp and self._is_settled(each)]
        self._seen = {each.path: each.stamp for each in found}
        by_step: dict[int, Checkpoint] = {}
        for checkpoint in sorted(settled, key=lambda each: (each.path.stem.startswith("last"), str(each.path))):
            try:
                by_step.setdefault(checkpoint.step(self.trust), checkpoint)
            except BrokenCheckpoint:
                continue
        return sorted(by_step.items())

    def refuse(self, checkpoint: Checkpoint) -> None:
        """Leaves a checkpoint alone until it changes."""
        self._refused[checkpoint.path] = checkpoint.stamp

    def _is_settled(self, checkpoint: Checkpoint) -> bool:
        age = time.time() - int(checkpoint.stamp["changed"]) / 1e9
        return age > self.settled_after or self._seen.get(checkpoint.path) == checkpoint.stamp


@dataclass
class Ending:
    """When to stop watching.

    Attributes:
        until: Step of the last checkpoint, where it is known.
        stop_file: Its presence ends the watch.
        idle_seconds: Time without a new checkpoint that ends it; ``None`` waits for ever.
    """

    until: int | None
    stop_file: Path
    idle_seconds: float | None
    _last_news: float = field(default_factory=time.monotonic)

    def news(self) -> None:
        """A checkpoint was scored."""
        self._last_news = time.monotonic()

    def reason(self, last_step: int | None) -> str | None:
        """Why to stop now, or ``None``.

        Args:
            last_step: The highest step that was scored, or found to be broken.
        """
        if self.until is not None and last_step is not None and last_step >= self.until:
            return f"step {last_step} is scored, and the training ends at {self.until}"
        if self.stop_file.exists():
            return f"{self.stop_file} is there"
        idle = time.monotonic() - self._last_news
        if self.idle_seconds is not None and idle > self.idle_seconds:
            return f"no new checkpoint for {idle / 60:.0f} minutes"
        return None
