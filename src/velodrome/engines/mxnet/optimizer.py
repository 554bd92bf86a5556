"""MXNet's own optimizers for the names that jobs use."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from velodrome.job.job import Job

MOMENTUM = 0.9


def make_optimizer(job: Job, updates: int = 0) -> Any:
    """The job's optimizer after so many updates; its learning rate is set before every epoch."""
    # Gradients arrive divided by the batch.
    plain: dict[str, Any] = {"learning_rate": job.rate, "wd": 0.0, "rescale_grad": 1.0, "begin_num_update": updates}
    if job.optimizer == "sgd":
        return mx.optimizer.SGD(**plain)
    if job.optimizer == "momentum" and job.nesterov:
        return mx.optimizer.NAG(momentum=MOMENTUM, **plain)
    if job.optimizer == "momentum":
        return mx.optimizer.SGD(momentum=MOMENTUM, **plain)
    assert job.optimizer == "adam", "others are refused before anything starts"
    return mx.optimizer.Adam(**plain)
