"""Faults on purpose: what a group must offer for them, and which faults a launcher and a job allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from velodrome.clusters.launcher import Launcher
from velodrome.clusters.plan import Process
from velodrome.errors import BadRequest
from velodrome.job.faults import Fault, parse_fault, process_names
from velodrome.job.job import Job
from velodrome.job.resolve import roles_of


@runtime_checkable
class Breakable(Protocol):
    """A group whose processes or hosts can be broken on purpose. Its launcher lists what in `faults`."""

    def begin_fault(self, fault: Fault, processes: Sequence[Process]) -> None:
        """Break what a fault names: these processes, or the host that they run on."""

    def end_fault(self, fault: Fault, processes: Sequence[Process]) -> None:
        """Make it whole again."""


def check_faults(job: Job, launcher: Launcher) -> None:
    """Refuse faults that a launcher cannot cause, or that name nothing that the job has."""
    possible: Sequence[str] = getattr(launcher, "faults", ())
    hosts: Sequence[str] = getattr(launcher, "host_names", ())
    for fault in map(parse_fault, job.faults):
        if fault.action not in possible:
            can = f"it can {' and '.join(possible)}" if possible else "it has no faults"
            raise BadRequest(
                f"--fault {fault.text!r}: --on {launcher.name} cannot {fault.action}; {can}, and --on emulated has all"
            )
        roles = roles_of(job)
        if fault.target in hosts or any(fault.target in process_names(*one) for one in roles):
            continue
        known = ", ".join([*(process_names(*one)[0] for one in roles), *hosts])
        raise BadRequest(f"--fault {fault.text!r}: there is no {fault.target!r}; choose from {known}")
