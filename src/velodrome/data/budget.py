"""How much memory data may take in this process, which may share its host with other workers of the same job."""

from __future__ import annotations

from velodrome import machine

_workers_on_host = 1


def share_host(workers: int) -> None:
    """Divide the memory of the host by that many workers from now on; a training process calls this once."""
    global _workers_on_host
    _workers_on_host = max(1, workers)


def memory_budget(fraction: float) -> int:
    """Bytes that data may take here: that fraction of the free memory, divided by the workers of the host."""
    return int(machine.process_memory() * fraction) // _workers_on_host
