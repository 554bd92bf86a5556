"""The only gate between a request and anything that starts: a job is completed, and examined, in `admit`."""

from __future__ import annotations

from dataclasses import dataclass

from velodrome.clusters import environments, preflight
from velodrome.clusters.launcher import Launcher
from velodrome.job.job import Job
from velodrome.job.resolve import resolve


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
    preflight.check_job(job)
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
