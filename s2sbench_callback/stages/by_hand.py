"""An operator's wish to go to the next stage, in a job that is running."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_warn

_TAKEN = ("SIGKILL", "SIGSTOP", "SIGINT", "SIGTERM", "SIGCHLD")


class Operator:
    """Listens to a file that is touched and to a signal that is sent to any of the processes.

    Args:
        signal_name: For example ``SIGUSR2``; ``None`` listens to the file alone.

    Raises:
        ValueError: If there is no such signal, or it means something else already.
    """

    def __init__(self, signal_name: str | None) -> None:
        if signal_name is not None and (signal_name not in signal.Signals.__members__ or signal_name in _TAKEN):
            raise ValueError(f"advance_signal must be a signal that means nothing else, for example 'SIGUSR2', got {signal_name!r}")
        self._signal_name = signal_name
        self._heard = False
        self._before: Any = None
        self._listens = False
        self._unremovable: Path | None = None

    def listen(self) -> None:
        """Begins to hear the signal; the handler that was there before is called too."""
        if self._signal_name is None or self._listens or threading.current_thread() is not threading.main_thread():
            return
        self._before = signal.signal(signal.Signals[self._signal_name], self._hear)
        self._listens = True

    def stop(self) -> None:
        """Puts the earlier handler back."""
        if self._listens and self._signal_name is not None:
            signal.signal(signal.Signals[self._signal_name], self._before)
            self._listens = False

    def wish(self, file: Path, looks: bool) -> str | None:
        """How the operator has asked for the next stage since the last look, or ``None``.

        Args:
            file: Removed once it is seen.
            looks: Whether this process looks at the file.
        """
        if self._heard:
            self._heard = False
            return f"signal {self._signal_name}"
        if not looks or self._unremovable == file or not file.exists():
            return None
        try:
            file.unlink()
        except OSError as error:
            # It would be seen again and again, and end every stage that follows; and one rank alone must not raise.
            self._unremovable = file
            rank_zero_warn(f"{file} asks for the next stage and cannot be removed, so it is not heeded: {error}")
            return None
        return f"file {file}"

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard = True
        before: Callable[[int, FrameType | None], object] | Any = self._before
        if callable(before):
            before(number, frame)
