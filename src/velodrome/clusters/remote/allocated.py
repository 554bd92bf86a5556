"""Launchers whose hosts are given to one run after another, and may be taken away: a job of a queue, or pods.

A `HostJob` is what holds the hosts of a run: it is submitted, waited for, and released with the run. What a launcher
adds is how it is submitted, and how the stream to an agent comes about.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from velodrome.clusters.interrupts import deferred
from velodrome.clusters.launcher import (
    Allocation,
    Deliver,
    Diagnosis,
    Examination,
    Exit,
    Finding,
    Notice,
    no_notice,
    refuse,
)
from velodrome.clusters.plan import Plan, Process
from velodrome.clusters.remote.group import HostRun, RemoteGroup
from velodrome.clusters.remote.launcher import RemoteLauncher
from velodrome.clusters.remote.link import HostError, Link
from velodrome.errors import Unavailable, VelodromeError
from velodrome.job.job import Job

#: How old what is known about silent hosts may be.
_FRESH_SECONDS = 5.0
#: How long ends of processes are kept back while the job is being ended for a reason that is not known yet.
_UNEXPLAINED_SECONDS = 30.0
#: How long a job in which hosts are examined may wait in the queue.
_EXAMINE_QUEUE_SECONDS = 120.0


class StillQueued(VelodromeError):
    """A job has not been given its hosts in time; `waits_for` is what it waits for, in a few words."""

    def __init__(self, message: str, waits_for: str) -> None:
        super().__init__(message)
        self.waits_for = waits_for


class HostJobState(Protocol):
    """What is known about a job."""

    @property
    def is_over(self) -> bool: ...

    @property
    def is_ending(self) -> bool:
        """Whether its processes are being ended, or have ended."""


class HostJob(ABC):
    """A job that holds the hosts of a run."""

    #: Its hosts, once it has them.
    nodes: list[str]
    #: What becomes of a host that does not answer, as the end of a sentence.
    failure = "failed: it is down, or its network is"

    @property
    @abstractmethod
    def state(self) -> HostJobState:
        """As it was a moment ago."""

    @property
    def unanswered(self) -> str | None:
        """That the scheduler has not answered for too long, as the end of a sentence; None otherwise."""
        return None

    @abstractmethod
    def raise_if_interrupted(self, *, now: bool = False) -> None:
        """`AllocationEnded` if the hosts were taken away; `now` asks anew."""

    @abstractmethod
    def wait_until_running(self, seconds: float, notice: Notice) -> None:
        """Return when the job has its hosts; `StillQueued` if it has not within so many seconds."""

    @abstractmethod
    def release(self) -> None:
        """End the job, and wait until it has ended; nothing if that was done."""

    def silent_nodes(self) -> set[str]:
        """Its hosts that do not answer the scheduler."""
        return set()

    def last_line(self, length: int) -> str:
        """The last line of its log, which says why an agent did not start; empty if there is none."""
        return ""

    def store(self, folder: Path, **begun: Any) -> None:  # noqa: B027
        """Store in a run's folder what finds the job again, and what has `begun` in it, where it outlives a command."""


@dataclass
class AllocatedGroup(RemoteGroup):
    """A group whose hosts may be taken away: then the run is interrupted, and has not failed."""

    job: HostJob = field(kw_only=True)
    _silent: set[str] = field(default_factory=set)
    _asked: float = float("-inf")
    #: Since when the job has been ending for a reason that is not known yet.
    _ending_since: float | None = None
    _explained: bool = False

    def wait(self, seconds: float, deliver: Deliver) -> None:
        before = set(self._exits)
        super().wait(seconds, deliver)
        if self._explained:
            return
        new = [process for process in self._exits if process not in before]
        if (silent := self.job.unanswered) is not None:
            for process in new:
                if (end := self._exits[process]).is_lost:
                    self._exits[process] = replace(end, cause=f"{end.cause}, and {silent}")
        # Processes end before the scheduler reports why: those of all hosts are ended when one of them fails.
        failed = any(not self._exits[process].is_success for process in new)
        self.job.raise_if_interrupted(now=failed or self._ending_since is not None)
        if failed and self._ending_since is None and self.job.state.is_ending:
            self._ending_since = time.monotonic()
        if self._ending_since is not None:
            waited = time.monotonic() - self._ending_since
            self._explained = self._blame() or self.job.state.is_over or waited > _UNEXPLAINED_SECONDS

    def exit_of(self, process: Process) -> Exit | None:
        unexplained = self._ending_since is not None and not self._explained
        return None if unexplained else super().exit_of(process)

    def _blame(self) -> bool:
        """Let processes of failed hosts, if there are some, be the first that ended: the others are a consequence."""
        silent = self.job.silent_nodes()
        causes = [process for process in self._names.values() if process.host in silent]
        if causes:
            self._exits.clear()
        for process in causes:
            self._exits[process] = Exit(None, None, f"was lost: node {process.host!r} {self.job.failure}")
        return bool(causes)

    def diagnose(self, process: Process, *, brief: bool = False) -> Diagnosis:
        diagnosis = super().diagnose(process, brief=brief)
        if diagnosis.cut_off:
            return diagnosis
        if time.monotonic() - self._asked > _FRESH_SECONDS:
            self._silent, self._asked = self.job.silent_nodes(), time.monotonic()
        return replace(diagnosis, cut_off=process.host in self._silent)

    def stop(self) -> None:
        try:
            if not self.job.state.is_over:
                super().stop()
        finally:
            self.job.release()


class AllocatedLauncher(RemoteLauncher):
    """Submits a job for each run and starts processes through the agents of its hosts."""

    #: The name of what gives the hosts, for messages.
    scheduler: str
    group_class: type[AllocatedGroup] = AllocatedGroup
    _job: HostJob | None = None

    @abstractmethod
    def submit(self, job: Job, *, to_examine: bool = False) -> HostJob:
        """Ask for the hosts of a job, each with an agent; `to_examine` for a few minutes only."""

    @property
    @abstractmethod
    def queue_seconds(self) -> float:
        """How long a job may wait for its hosts."""

    @property
    def job(self) -> HostJob:
        """The job that was submitted."""
        assert self._job is not None, "a job was submitted"
        return self._job

    def hosts(self) -> list[str]:
        return [] if self._job is None else list(self._job.nodes)

    def check(self, job: Job) -> None:
        """Refuse what cannot be sent to hosts; what they lack is known when there are some."""
        self.code(job)

    def prepare(self, engines: Sequence[str]) -> None:
        """Nothing: every job has hosts of its own."""

    def examine(self, job: Job, *, measure: bool = False, notice: Notice = no_notice) -> Examination:
        """What would be refused, and what is wrong with hosts that a short job gets for the examination."""
        try:
            self.check(job)
        except Unavailable as error:
            return Examination([Finding("error", "tools", None, str(error))])
        except VelodromeError as error:
            return Examination([Finding("error", "job", None, str(error))])
        seconds = min(_EXAMINE_QUEUE_SECONDS, self.queue_seconds)
        try:
            with deferred():
                self._job = self.submit(job, to_examine=True)
            self._job.wait_until_running(seconds, notice)
            self.connect(self.hosts())
            return super().examine(job, measure=measure)
        except StillQueued as error:
            return Examination([Finding(
                "warning", "reachable", None, f"the nodes were not checked: {self.scheduler} gave none within "
                f"{seconds:g} s ({error.waits_for})", "try again when nodes are idle"
            )])
        except VelodromeError as error:
            return Examination([Finding("error", "reachable", None, str(error))])
        finally:
            self._release()

    def connect(self, hosts: Sequence[str]) -> dict[str, Link]:
        """The links to hosts whose agents have been started."""
        try:
            return super().connect(hosts)
        except HostError as error:
            self.job.raise_if_interrupted(now=True)
            line = self.job.last_line(200)
            raise HostError(f"{error} (its log ends with {line!r})" if line else str(error)) from None

    def allocate(self, job: Job, folder: Path | None = None, notice: Notice = no_notice) -> Allocation:
        """Submit a job, wait for its hosts, and for their agents."""
        self._release()
        with deferred():
            self._job = self.submit(job)
            if folder is not None:  # at once: whoever kills this command leaves a job that `attach` finds
                self._job.store(folder)
        return self._nodes_for(job, notice)

    def _nodes_for(self, job: Job, notice: Notice) -> Allocation:
        """The hosts of the job that was submitted, when it has them."""
        self.job.wait_until_running(self.queue_seconds, notice)
        refuse(self.cheap_checks([*self.connect(self.used_hosts(job)).values()], job))
        return super().allocate(job)

    def group(self, plan: Plan, folder: Path, token: str, hosts: Mapping[str, HostRun]) -> AllocatedGroup:
        """The group, and in the run's folder what `attach` needs to know about it."""
        prepared = {
            host: {"folder": run.folder, "code": run.code, "python": run.python} for host, run in hosts.items()
        }
        self.job.store(folder, token=token, started=time.time(), hosts=prepared, facts=dict(plan.facts))
        shared = self.options.shared_dir is not None
        return self.group_class(token, folder, hosts, shared=shared, links=self.links_of(plan), job=self.job)

    def _release(self) -> None:
        with deferred():
            super().close()
            if self._job is not None:
                self._job.release()
                self._job = None

    def close(self) -> None:
        self._release()
