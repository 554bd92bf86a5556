"""What every transport can do: add up and hand round flat buffers between the processes of a job. No framework here."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import DTypeLike, NDArray


class Transport(Protocol):
    """Connected processes, numbered from 0; every call blocks until all of them have made it."""

    rank: int
    size: int

    def shared(self, shape: tuple[int, int], dtype: DTypeLike) -> NDArray[Any] | None:
        """Zeros in memory that all processes map and may change; None where they cannot share as much."""
        return None

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
