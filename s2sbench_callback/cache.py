"""The user's cache folder, and files in it that are made once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Where things are kept that can be made again.

    Args:
        cache_dir: A folder of the user's choice; by default ``$S2SBENCH_CACHE``, else ``s2sbench_callback`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    if cache_dir is not None:
        return Path(cache_dir)
    if chosen := os.environ.get("S2SBENCH_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "s2sbench_callback"


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """A folder that is there whole or not at all, also when several processes want it at once.

    Args:
        folder: The folder; its name says everything that decides its content.
        make: Fills an empty folder.
    """
    if folder.is_dir():
        return folder
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    make(unfinished)
    try:
        unfinished.rename(folder)
    except OSError:
        # Another process was faster; what it made is the same.
        if not folder.is_dir():
            raise
        shutil.rmtree(unfinished)
    return folder


def shows_progress() -> bool:
    """Whether this process may draw a bar while it fills the cache: one a node."""
    return os.environ.get("LOCAL_RANK", "0") == "0"
