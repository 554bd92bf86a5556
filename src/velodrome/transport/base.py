"""The interface of all transports: collective operations on flat buffers between processes. No framework here."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import DTypeLike, NDArray


class Transport(Protocol):
    """The connected processes of a job, numbered from 0; every call blocks until all of them have made it."""

    rank: int
    size: int
    #: In rank 0: what the last call of `shared` could not have, as part of a sentence; None if there was enough memory.
    not_shared: str | None = None

    def shared(self, shape: tuple[int, int], dtype: DTypeLike) -> NDArray[Any] | None:
        """An array of zeros in memory that all processes share; None where they cannot share so much."""
        return None

    def all_reduce(self, buffer: NDArray[Any]) -> None:
        """Replace a contiguous buffer by its sum over the processes."""

    def broadcast(self, buffer: NDArray[Any], root: int = 0) -> None:
        """Replace a contiguous buffer by the root's."""

    def barrier(self) -> None:
        """Wait until all processes are here."""

    def close(self) -> None:
        """Leave together; nothing may be called afterwards."""


class Alone(Transport):
    """The transport of a job with one process: every sum is already complete."""

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
