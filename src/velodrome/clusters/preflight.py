"""The only gate between a request and anything that starts: `admit` completes a job, and refuses one that is known to
fail. Each refusal has the numbers and says how to fix it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from velodrome.catalog.exchange import mpi_fault, shared_memory_shortage
from velodrome.catalog.models import is_own, zoo_model
from velodrome.catalog.registry import check_arrays, engine_of, engines, strategy_of
from velodrome.clusters import environments
from velodrome.clusters.launcher import Finding, Launcher
from velodrome.data import catalogue
from velodrome.data.own.functions import refuse_standard
from velodrome.errors import BadRequest, Unavailable, VelodromeError, bytes_text
from velodrome.job.job import Job
from velodrome.job.resolve import resolve, roles_of
from velodrome.job.values import Target
from velodrome.machine import available_memory as available_memory
from velodrome.machine import cores
from velodrome.models.model_files import check_readable
from velodrome.models.own import own_names, split_name
from velodrome.tasks.registry import task_of

#: What must be free for the folder of a run.
DISK_BYTES = 100 << 20


@dataclass(frozen=True)
class Admitted:
    """A complete job, and the launcher that takes it."""

    job: Job
    launcher: Launcher


def complete(job: Job) -> Job:
    """The job with every default filled in, those of this machine included; `BadRequest` if it contradicts itself."""
    return resolve(job, environments.default_engine(job.model, job.script))


def examined(job: Job) -> Job:
    """A complete job that some machine can run; `BadRequest` otherwise."""
    job = complete(job)
    check_job(job)
    return job


def admit(job: Job, launcher: Launcher, *, resumed: bool = False) -> Admitted:
    """A complete job that can run on the hosts of a launcher; `BadRequest` otherwise.

    One that is `resumed` is not given its faults again, so the launcher need not be able to cause them.
    """
    job = examined(job)
    launcher.check(job)
    if not resumed:
        launcher.check_faults(job)
    return Admitted(job, launcher)


def check_here(job: Job) -> None:
    """Refuse a resolved job that this machine cannot run: for launchers that use it."""
    engine, strategy = engine_of(job), strategy_of(job)
    if missing := environments.missing(engine, strategy):
        raise Unavailable(f"{engine.name}/{strategy.name} cannot run here: {'; '.join(missing)}", missing)
    if strategy.uses_mpi and (lack := shared_memory_shortage(job.workers) or mpi_fault()):
        raise Unavailable(lack, [lack])
    if job.script is None:
        _check_own_modules(job)
    else:
        _check_script(job.script)
    if job.weights is not None:
        check_readable(job.weights)
    _check_memory(job)


def check_job(job: Job) -> None:
    """Refuse a resolved job that no machine can run."""
    if job.script is not None:
        return
    if is_own(job.model):
        split_name(job.model)
    else:
        if job.model_args:
            raise BadRequest(f"--model-arg: {job.model!r} of the zoo takes no arguments; they are for your own models")
        zoo_model(job.model)
    about = catalogue.describe(job.dataset, validation=job.validation, bad_data=job.bad_data)
    if about.kind == "arrays":  # what a function of the user's own makes is known when the workers have called it
        check_arrays(engine_of(job), job.dataset)
    _check_model(job)
    if job.task and is_own(job.task):
        split_name(job.task, "--task")
    if job.transform is not None:
        split_name(job.transform, "--transform")
    task = task_of(job)
    task.check_engine(engine_of(job))
    task.check_strategy(strategy_of(job))
    if job.target:
        task.check_target(Target.parse(job.target))
    _check_optimization(job, task.name)
    task.check(job, about)


def _check_model(job: Job) -> None:
    """Refuse a model that the engine does not have, with the names of those that do."""
    engine = engine_of(job)
    if engine.models is None or job.model in engine.models:
        return
    having = [other.name for other in engines() if other.models is None or job.model in other.models]
    raise BadRequest(f"--model {job.model!r}: {engine.title} has {', '.join(engine.models)}; choose one of them, or "
                     f"--engine {' or '.join(having)}")


def _check_optimization(job: Job, task: str) -> None:
    """Refuse options that a task does not support, or its engine cannot do."""
    if job.label_smoothing and task != "classification":
        raise BadRequest(
            f"--label-smoothing {job.label_smoothing:g}: {job.model!r} is a {task}, and labels are smoothed in "
            "classification only; leave it out"
        )
    if job.dtype == "bfloat16" and job.engine == "tensorflow" and task == "language-model":
        raise BadRequest(
            f"--dtype bfloat16: tensorflow's language model {job.model!r} computes in float32 or float64; choose one "
            "of them, or --engine torch"
        )


def _check_own_modules(job: Job) -> None:
    for field, name in own_names(job).items():
        _find_module(engine_of(job).key, f"--{field}", name)


def _find_module(engine: str, option: str, name: str) -> None:
    """Refuse `module:name` whose module is not there. Not imported: the controller never loads a framework."""
    top = split_name(name, option)[0].partition(".")[0]
    refuse_standard(option, name, top)
    here = top in sys.modules or PathFinder.find_spec(top, [str(Path.cwd())]) is not None
    importable = here or environments.has_module(environments.interpreter_of(engine), top)
    if not importable:
        raise BadRequest(f"{option} {name!r}: no module named {top!r} in {Path.cwd()} or on PYTHONPATH")


def _check_script(script: str) -> None:
    path = Path(script)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else f"is not a file in {Path.cwd()}"
        raise BadRequest(f"--script {script!r} {what}: give the path of a Python script")
    if not os.access(path, os.R_OK):
        raise BadRequest(f"--script {script!r} cannot be read: permission denied")


def needed_memory(job: Job) -> int:
    """Bytes that the processes of a job take together, roughly."""
    engine = engine_of(job)
    about = catalogue.describe(job.dataset, validation=job.validation, bad_data=job.bad_data)
    examples = sum(part or 0 for part in (about.train, about.validation, about.test))
    # Bytes as they were read and as the framework's own tensor.
    data = 2 * examples * about.example_bytes
    if about.files:  # what does not fit stays on disk
        data = min(data, available_memory() // (2 * len(roles_of(job))))
    return len(roles_of(job)) * (engine.memory_bytes + data)


def crowded(jobs: Iterable[Job]) -> str | None:
    """A warning if jobs have more workers than this machine has cores."""
    available = cores()
    counts = sorted({job.workers for job in jobs if job.workers > available})
    if not counts:
        return None
    has = "1 core" if available == 1 else f"{available} cores"
    return (
        f"--workers {', '.join(map(str, counts))}: this machine has {has}, so the workers share cores, and are slower "
        "than on as many machines"
    )


def _check_memory(job: Job) -> None:
    needed, available = needed_memory(job), available_memory()
    if needed > available:
        message = (
            f"--workers {job.workers}: {len(roles_of(job))} {job.engine} processes need about {bytes_text(needed)} "
            f"of memory, but only {bytes_text(available)} are free here; use fewer workers or servers"
        )
        raise Unavailable(message, [message])


def disk_and_data(job: Job) -> list[Finding]:
    """What of this machine's disk, and of the job's data, keeps a job from running here."""
    findings = []
    free = shutil.disk_usage(Path.cwd()).free
    if free < DISK_BYTES:
        findings.append(Finding(
            "error", "disk", None,
            f"{Path.cwd()} has {bytes_text(free)} left, but a run needs {bytes_text(DISK_BYTES)}",
            "free some space, or give --runs another folder",
        ))
    if job.script is None:
        try:
            catalogue.prepare(job.dataset, bad_data=job.bad_data)
        except VelodromeError as error:
            findings.append(Finding("error", "data", None, str(error)))
    return findings
