"""A transport between threads of one process: its ranks share memory as those of a host do."""

from __future__ import annotations

import threading

import numpy as np

from velodrome.transport.base import Transport


class Group:
    """What the threads of a test share."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size, timeout=30)
        self.lock, self.memory, self.buffers = threading.Lock(), {}, [None] * size


class Threads(Transport):
    """The rank that one of the threads is."""

    def __init__(self, group: Group, rank: int) -> None:
        self._group, self.rank, self.size = group, rank, group.size

    def barrier(self) -> None:
        self._group.barrier.wait()

    def broadcast(self, buffer, root: int = 0) -> None:
        if self.rank == root:
            self._group.buffers[root] = buffer.copy()
        self.barrier()
        buffer[:] = self._group.buffers[root]
        self.barrier()

    def all_reduce(self, buffer) -> None:
        self._group.buffers[self.rank] = buffer.copy()
        self.barrier()
        buffer[:] = sum(self._group.buffers)
        self.barrier()

    def shared(self, shape, dtype):
        with self._group.lock:
            return self._group.memory.setdefault("rows", np.zeros(shape, dtype))
