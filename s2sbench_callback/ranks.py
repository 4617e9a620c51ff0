"""What the processes of one run agree on: counts, sums and failures."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

T = TypeVar("T")


class ProbeError(RuntimeError):
    """A probe failed on one rank or more; raised on all of them with the same words."""


@dataclass(frozen=True)
class Failure:
    """What went wrong on one rank.

    Attributes:
        rank: Where.
        message: What, naming the item.
        out_of_memory: Whether fewer tokens in a forward may help.
    """

    rank: int
    message: str
    out_of_memory: bool


@dataclass(frozen=True)
class Ranks:
    """The processes of a run. Every method is called by all ranks together, or by none.

    Attributes:
        rank: This process.
        size: How many there are.
        device: Where tensors for the process group belong.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009  # immutable

    @classmethod
    def of_this_run(cls, device: torch.device) -> Ranks:
        """The ranks of torch's process group, or this process alone."""
        if not dist.is_available() or not dist.is_initialized():
            return cls(device=device)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    def maximum(self, number: int) -> int:
        """The largest number on any rank."""
        if self.size == 1:
            return number
        tensor = torch.tensor(number, device=self.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def minimum(self, number: int) -> int:
        """The smallest number on any rank."""
        return -self.maximum(-number)

    def total(self, array: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Sum over ranks of arrays of one shape."""
        if self.size == 1:
            return array
        # Exact: every entry but one is zero, so nothing is rounded.
        tensor = torch.from_numpy(array.copy()).to(self.device)
        dist.all_reduce(tensor)
        return tensor.cpu().numpy()

    def failures(self, mine: Failure | None) -> list[Failure]:
        """What went wrong anywhere, in order of ranks."""
        if self.size == 1:
            return [mine] if mine else []
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, mine)
        return [failure for failure in gathered if failure is not None]

    def raise_together(self, mine: Failure | None, cause: Exception | None = None) -> None:
        """Raises on every rank if any has failed.

        Args:
            mine: What went wrong here.
            cause: The exception behind it.

        Raises:
            torch.OutOfMemoryError: If memory was all that failed anywhere.
            ProbeError: If anything else did.
        """
        failed = self.failures(mine)
        if failed:
            kind = torch.OutOfMemoryError if all(failure.out_of_memory for failure in failed) else ProbeError
            raise kind("; ".join(failure.message for failure in failed)) from cause

    def together(self, work: Callable[[], T], doing: str) -> T:
        """Does work that needs no other rank, and raises on all of them if it failed on any.

        Args:
            work: The work of this rank.
            doing: What it is, for the message.

        Raises:
            ProbeError: On all ranks, if one of several failed; a single process raises the exception itself.
            torch.OutOfMemoryError: On all ranks, if memory was all that failed.
        """
        try:
            result = work()
        except Exception as error:
            if self.size == 1:
                raise
            message = f"rank {self.rank}, {doing}: {type(error).__name__}: {error}"
            self.raise_together(Failure(self.rank, message, isinstance(error, torch.OutOfMemoryError)), error)
            raise
        self.raise_together(None)
        return result

    def words(self, mine: str | None) -> list[str]:
        """What any rank has to say, in order of ranks."""
        return [failure.message for failure in self.failures(Failure(self.rank, mine, False) if mine else None)]

    def broadcast(self, value: str) -> str:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        values: list[Any] = [value]
        dist.broadcast_object_list(values, src=0)
        return str(values[0])


def share(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Splits work into one share a rank: the dearest first, each to the rank with the least so far.

    Args:
        costs: Cost of each piece.
        ranks: Number of shares.

    Returns:
        Indices of the pieces by rank, ascending; a share may be empty.
    """
    loads = [0.0] * ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        lightest = min(range(ranks), key=lambda rank: (loads[rank], rank))
        loads[lightest] += costs[index]
        shares[lightest].append(index)
    return [sorted(each) for each in shares]


def end_the_job(message: str, end_others: Callable[[], object]) -> NoReturn:
    """Ends this process at once: inside a sharded forward the other ranks wait for it and cannot be told.

    Whoever launched this process sees the failure and ends the others; those that this process launched, it ends itself.

    Args:
        message: What went wrong, naming rank and item.
        end_others: Ends the processes that this one has launched.
    """
    sys.stderr.write(f"S2SBench: {message}. The forward is sharded, so the other ranks wait for this one; the job ends here.\n")
    sys.stderr.flush()
    end_others()
    os._exit(1)
