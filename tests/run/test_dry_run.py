"""A job is rehearsed in one process, without anything about how it is distributed."""

from __future__ import annotations

from typing import Any

import pytest

from velodrome.job.job import Job
from velodrome.job.resolve import alone, resolve


@pytest.mark.parametrize("fields", [
    {"engine": "torch", "strategy": "ddp", "consistency": "bsp"},
    {"engine": "mxnet", "strategy": "kvstore", "consistency": "asp"},
    {"engine": "tensorflow", "strategy": "parameter-server", "consistency": "asp"},
    {"engine": "deepspeed", "strategy": "zero2", "consistency": "bsp"},
    {"engine": "torch", "strategy": "tensor", "consistency": "bsp", "mesh": "data=1,tensor=2"},
])
def test_one_process_has_no_consistency(fields: dict[str, Any]) -> None:
    job = alone(resolve(Job(workers=2, **fields)))
    assert (job.strategy, job.consistency, job.workers, job.servers, job.mesh) == ("single", None, 1, 0, None)
