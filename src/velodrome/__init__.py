"""Velodrome races distributed-training strategies against each other and tells which one to use.

    import velodrome
    result = velodrome.train(velodrome.Job(dataset="digits", engine="torch", strategy="ddp", workers=2))
    print(result["test"]["accuracy"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from velodrome.api import resume, train
    from velodrome.errors import BadRequest, RunFailed, VelodromeError
    from velodrome.spec.job import Job

__all__ = ["BadRequest", "Job", "RunFailed", "VelodromeError", "resume", "train"]

_ROOMS = {
    "Job": "velodrome.spec.job",
    "train": "velodrome.api",
    "resume": "velodrome.api",
    "BadRequest": "velodrome.errors",
    "RunFailed": "velodrome.errors",
    "VelodromeError": "velodrome.errors",
}


def __getattr__(name: str) -> Any:
    # Loaded at first use, so that a worker or `--help` does not pay for what it does not need.
    if name not in _ROOMS:
        raise AttributeError(f"module 'velodrome' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_ROOMS[name]), name)
