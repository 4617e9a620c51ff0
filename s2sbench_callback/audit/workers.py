"""Work on many files in processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def in_processes(function: Callable[[Argument], Result], arguments: Sequence[Argument], workers: int, chunk: int | None = None) -> Iterator[Result]:
    """Results in the order of the arguments.

    Args:
        function: Of a module, so that it can be sent to another process.
        arguments: One each.
        workers: Number of processes; with 1 everything happens in this one.
        chunk: How many a process takes at a time; by default more the more there are.
    """
    workers = min(workers, len(arguments))
    if workers <= 1:
        yield from map(function, arguments)
        return
    # Imports torch once, not once a worker, and does not fork a process in which threads run.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__, "torchaudio"])
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_use_one_thread) as pool:
        yield from pool.map(function, arguments, chunksize=chunk or max(1, min(32, len(arguments) // (4 * workers))))


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)
