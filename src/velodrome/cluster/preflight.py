"""What can be known to fail before anything starts: each refusal says the numbers and the way out."""

from __future__ import annotations

import math
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import psutil

from velodrome.cluster.plan import roles_of
from velodrome.data import catalogue
from velodrome.engines.registry import engine_of, strategy_of
from velodrome.errors import BadRequest
from velodrome.models.own import split_name
from velodrome.models.zoo import check_shape, is_own
from velodrome.spec.job import Job
from velodrome.spec.resolve import batch_of_step

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check(job: Job) -> None:
    """Refuse a resolved job that cannot run on this machine."""
    engine, strategy = engine_of(job), strategy_of(job)
    if missing := engine.missing(strategy):
        raise BadRequest(f"{engine.name}/{strategy.name} cannot run here: {'; '.join(missing)}")
    check_job(job)
    _check_own_module(job)
    _check_memory(job)


def check_job(job: Job) -> None:
    """Refuse a resolved job that could run on no machine."""
    if is_own(job.model):
        split_name(job.model)
    else:
        if job.model_args:
            raise BadRequest(f"--model-arg: {job.model!r} of the zoo takes no arguments; they are for your own models")
        check_shape(job.model, catalogue.describe(job.dataset).input_shape)
    _check_batch(job)


def _check_own_module(job: Job) -> None:
    if not is_own(job.model):
        return
    # Only looked for, not imported: the controller never loads a framework.
    top = split_name(job.model)[0].partition(".")[0]
    if top not in sys.modules and PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) is None:
        raise BadRequest(f"--model {job.model!r}: no module named {top!r} in {Path.cwd()} or on PYTHONPATH")


def _check_batch(job: Job) -> None:
    examples = catalogue.describe(job.dataset, validation=job.validation).train
    batch = batch_of_step(job, strategy_of(job))
    if batch > examples:
        raise BadRequest(
            f"--batch-size {job.batch_size}: a step would need {batch:,} examples, and {job.dataset} has "
            f"{examples:,} to train on; choose a smaller batch"
        )


def available_memory() -> int:
    """Bytes that new processes may take: what the machine has left, within the limit of our container."""
    available = int(psutil.virtual_memory().available)
    for path in _LIMITS:
        try:
            limit = int(path.read_text())
        except (OSError, ValueError):
            continue
        available = min(available, limit)
    return available


def needed_memory(job: Job) -> int:
    """Bytes that the processes of a job take together, roughly."""
    engine = engine_of(job)
    about = catalogue.describe(job.dataset)
    # Bytes as they were read and as the framework's own tensor.
    data = 2 * (about.train + about.validation + about.test) * math.prod(about.input_shape)
    return len(roles_of(job)) * (engine.memory_bytes + data)


def _check_memory(job: Job) -> None:
    needed, available = needed_memory(job), available_memory()
    if needed > available:
        raise BadRequest(
            f"--workers {job.workers}: {len(roles_of(job))} {job.engine} processes need about {needed / 2**30:.1f} GiB "
            f"of memory, and {available / 2**30:.1f} GiB are free here; use fewer workers or servers"
        )
