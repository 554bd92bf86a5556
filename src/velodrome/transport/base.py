"""What every transport can do: add up and hand round flat buffers between the processes of a job. No framework here."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Flat(Protocol):
    """A buffer that is summed again and again: a process writes `mine`, calls `reduce` and reads `total`."""

    mine: NDArray[Any]
    total: NDArray[Any]

    def reduce(self) -> None:
        """Block until everybody has called it."""


class SentFlat(Flat):
    """The sum takes the place of what was written."""

    def __init__(self, transport: Transport, count: int, dtype: DTypeLike) -> None:
        self._transport = transport
        self.mine = self.total = np.zeros(count, dtype)

    def reduce(self) -> None:
        self._transport.all_reduce(self.mine)


class Transport(Protocol):
    """Connected processes, numbered from 0; every call blocks until all of them have made it."""

    rank: int
    size: int

    def flat(self, count: int, dtype: DTypeLike) -> Flat:
        """A buffer of so many numbers, where the processes sum it fastest. `total` may only be read."""
        return SentFlat(self, count, dtype)

    def all_reduce(self, buffer: NDArray[Any]) -> None:
        """Replace a contiguous buffer by its sum over the processes."""

    def broadcast(self, buffer: NDArray[Any], root: int = 0) -> None:
        """Replace a contiguous buffer by that of the root."""

    def barrier(self) -> None:
        """Wait for the others."""

    def close(self) -> None:
        """Leave together; nothing may be called afterwards."""


class Alone(Transport):
    """The transport of a job with one process: every sum is already there."""

    rank = 0
    size = 1

    def all_reduce(self, buffer: NDArray[Any]) -> None:
        pass

    def broadcast(self, buffer: NDArray[Any], root: int = 0) -> None:
        pass

    def barrier(self) -> None:
        pass

    def close(self) -> None:
        pass
