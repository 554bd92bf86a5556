"""The launcher of Slurm clusters: one `sbatch` for each job, whose nodes are served through the shared folder; and the
group of a run's processes in such a job.

The agents talk to the controller through two files in a folder that all nodes see, so compute nodes need no connection
to it. An agent with a run waits for a lost controller as long as the batch script keeps a heartbeat file changing, and
its outbox holds everything since the beginning: `velodrome attach` reads it again and leaves out events that are
recorded already. When the folder is gone, or neither controller nor heartbeat was seen for `silence` seconds, the agent
ends itself and everything it started: Slurm cannot do so on a node that is cut off.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from velodrome.clusters.interrupts import deferred
from velodrome.clusters.launcher import (
    Allocation,
    Deliver,
    Diagnosis,
    Examination,
    Exit,
    Finding,
    Launcher,
    Notice,
    no_notice,
    refuse,
)
from velodrome.clusters.plan import Plan, Process
from velodrome.clusters.remote.channels import Channel, FileChannel
from velodrome.clusters.remote.group import HostRun, RemoteGroup
from velodrome.clusters.remote.launcher import RemoteLauncher
from velodrome.clusters.remote.link import HostError, Link
from velodrome.clusters.slurm import SlurmOptions, commands
from velodrome.clusters.slurm.commands import Step, nodes_of, sbatch_options, steps_of
from velodrome.clusters.slurm.job import HostRecord, SlurmJob, StillQueued, living_job, read_record, submit
from velodrome.errors import BadRequest, Unavailable, VelodromeError
from velodrome.job.job import Job

#: How old what Slurm said about its nodes may be.
_FRESH_SECONDS = 5.0
#: How long ends of processes are kept back while Slurm ends the job and has not said why.
_UNEXPLAINED_SECONDS = 30.0


@dataclass
class SlurmGroup(RemoteGroup):
    """A group whose hosts may be taken away: then the run is interrupted, and has not failed."""

    job: SlurmJob | None = None
    _silent: set[str] = field(default_factory=set)
    _asked: float = float("-inf")
    #: Since when Slurm has been ending the job for a reason that is not known yet.
    _ending_since: float | None = None
    _explained: bool = False

    def wait(self, seconds: float, deliver: Deliver) -> None:
        before = set(self._exits)
        super().wait(seconds, deliver)
        if self.job is None or self._explained:
            return
        if (silent := self.job.unanswered) is not None:
            for process in self._exits.keys() - before:
                if (end := self._exits[process]).is_lost:
                    self._exits[process] = replace(end, cause=f"{end.cause}, and {silent}")
        # Processes end before Slurm reports why: it ends those of all nodes when one of them fails.
        new = any(not self._exits[process].is_success for process in self._exits if process not in before)
        self.job.raise_if_interrupted(now=new or self._ending_since is not None)
        if new and self._ending_since is None and self.job.state.is_ending:
            self._ending_since = time.monotonic()
        if self._ending_since is not None:
            waited = time.monotonic() - self._ending_since
            self._explained = self._blame() or self.job.state.is_over or waited > _UNEXPLAINED_SECONDS

    def exit_of(self, process: Process) -> Exit | None:
        unexplained = self._ending_since is not None and not self._explained
        return None if unexplained else super().exit_of(process)

    def _blame(self) -> bool:
        """Let processes of failed nodes, if there are some, be the first that ended: the others are a consequence."""
        assert self.job is not None
        silent = commands.silent_nodes(self.job.nodes)
        causes = [process for process in self._names.values() if process.host in silent]
        if causes:
            self._exits.clear()
        for process in causes:
            why = f"was lost: node {process.host!r} failed (NODE_FAIL): its slurmd or its network is down"
            self._exits[process] = Exit(None, None, why)
        return bool(causes)

    def _silent_nodes(self) -> set[str]:
        """The nodes of the job that do not answer Slurm."""
        if self.job is not None and time.monotonic() - self._asked > _FRESH_SECONDS:
            self._silent, self._asked = commands.silent_nodes(self.job.nodes), time.monotonic()
        return self._silent

    def diagnose(self, process: Process, *, brief: bool = False) -> Diagnosis:
        diagnosis = super().diagnose(process, brief=brief)
        return diagnosis if diagnosis.cut_off else replace(diagnosis, cut_off=process.host in self._silent_nodes())

    def stop(self) -> None:
        try:
            if self.job is None or not self.job.state.is_over:
                super().stop()
        finally:
            if self.job is not None:
                self.job.release()


_READY_SECONDS = 120.0
#: The job in which nodes are examined: its time limit, and how long it may wait in the queue.
_EXAMINE_MINUTES, _EXAMINE_QUEUE_SECONDS = 15, 120.0


class SlurmLauncher(RemoteLauncher):
    """Submits a job for each run and starts processes through the agents of its nodes."""

    name = "slurm"
    options: SlurmOptions

    def __init__(self, options: SlurmOptions | None = None) -> None:
        super().__init__(options or SlurmOptions.model_validate({}))
        self._job: SlurmJob | None = None

    def hosts(self) -> list[str]:
        return [] if self._job is None else list(self._job.nodes)

    def part(self, hosts: Sequence[str]) -> SlurmLauncher:
        return SlurmLauncher(self.options)

    def divide(self, jobs: Sequence[Job]) -> list[Launcher]:
        """As many submissions at the same time as the idle nodes of the partition have room for."""
        need = max(nodes_of(job, self.options) for job in jobs)
        count = commands.idle_nodes(self.options.partition) // need
        return [self.part(()) for _ in range(count)] if count > 1 else [self]

    def check(self, job: Job) -> None:
        """Refuse what Slurm would refuse; what the nodes lack is known when there are some."""
        commands.require_tools()
        self.code(job)
        nodes = nodes_of(job, self.options)
        steps_of(job, nodes, self._placement)
        commands.check_submission(sbatch_options(self.options, nodes, "velodrome", Path("/dev/null")))

    @classmethod
    def living(cls, folder: Path) -> str | None:
        return living_job(folder)

    @classmethod
    def attached(cls, folder: Path) -> AttachedLauncher:
        return AttachedLauncher(folder)

    def prepare(self, engines: Sequence[str]) -> None:
        """Nothing: every job has nodes of its own."""

    def prepare_hosts(self, engines: Sequence[str], wheelhouse: Path | None) -> list[dict[str, object]] | None:
        raise BadRequest(
            "--on slurm: every job may get other nodes, so none can be prepared; install velodrome and its engines in "
            "an environment on the shared file system, and set python to its interpreter in clusters.yaml"
        )

    def examine(self, job: Job, *, measure: bool = False, notice: Notice = no_notice) -> Examination:
        """What Slurm would refuse, and what is wrong with nodes that a short job gets for the examination."""
        try:
            self.check(job)
        except Unavailable as error:
            return Examination([Finding("error", "tools", None, str(error))])
        except VelodromeError as error:
            return Examination([Finding("error", "job", None, str(error))])
        try:
            self._allocate_to_examine(job, notice)
            return super().examine(job, measure=measure)
        except StillQueued:
            assert self._job is not None
            state = self._job.state
            return Examination([Finding(
                "warning", "reachable", None, f"the nodes were not checked: Slurm gave none within "
                f"{self._examine_queue_seconds:g} s ({state.name}, {state.reason})", "try again when nodes are idle"
            )])
        except VelodromeError as error:
            return Examination([Finding("error", "reachable", None, str(error))])
        finally:
            self._release()

    @property
    def _examine_queue_seconds(self) -> float:
        return min(_EXAMINE_QUEUE_SECONDS, self.options.queue_timeout)

    def _allocate_to_examine(self, job: Job, notice: Notice) -> None:
        """Nodes as a job gets them, all with agents, for a few minutes."""
        nodes, limit = nodes_of(job, self.options), self.options.time
        if limit is None or not limit.isdecimal() or int(limit) > _EXAMINE_MINUTES:
            limit = str(_EXAMINE_MINUTES)
        short = self.options.model_copy(update={"time": limit})
        with deferred():
            self._job = submit(short, nodes, [Step("doctor", 0, nodes)], "velodrome-doctor")
        self._job.wait_until_running(self._examine_queue_seconds, notice)
        self.connect(self.hosts())

    def open_channel(self, host: str, session: str) -> Channel:
        assert self._job is not None, "a job was submitted"
        return FileChannel(self._job.mail / host, self._job.end)

    def link(self, host: str, channel: Channel) -> Link:
        """The link to an agent that the job has started, and that may have answered another controller before."""
        return Link(host, channel, self.options.silence, first=secrets.randbits(40))

    @property
    def ready_seconds(self) -> float:
        return _READY_SECONDS

    def connect(self, hosts: Sequence[str]) -> dict[str, Link]:
        """The links to nodes whose agents have been started."""
        try:
            return super().connect(hosts)
        except HostError as error:
            assert self._job is not None
            self._job.raise_if_interrupted(now=True)
            line = self._job.last_line(200)
            raise HostError(f"{error} (its log ends with {line!r})" if line else str(error)) from None

    def allocate(self, job: Job, folder: Path | None = None, notice: Notice = no_notice) -> Allocation:
        """Submit a job, wait for its nodes, and for their agents."""
        self._submit(job, folder)
        return self._nodes_for(job, notice)

    def _submit(self, job: Job, folder: Path | None = None) -> None:
        self._release()
        nodes = nodes_of(job, self.options)
        steps = steps_of(job, nodes, self._placement)
        with deferred():
            self._job = submit(self.options, nodes, steps, f"velodrome-{job.engine}-{job.strategy}")
            if folder is not None:  # at once: whoever kills this command leaves a job that `attach` finds
                self._job.record.write(folder)

    def _nodes_for(self, job: Job, notice: Notice) -> Allocation:
        """The nodes of the job that was submitted, when it has them."""
        assert self._job is not None
        self._job.wait_until_running(self.options.queue_timeout, notice)
        refuse(self.cheap_checks([*self.connect(self.used_hosts(job)).values()], job))
        allocation = super().allocate(job)
        return replace(allocation, facts={**allocation.facts, "job": self._job.number, "nodes": list(self._job.nodes)})

    def address(self, link: Link) -> str:
        """As configured, else what the other nodes of the allocation resolve its name to, else what Slurm uses."""
        if (chosen := self.options.addresses.get(link.host)) is not None:
            return chosen
        others = [other for other in self.links.values() if other is not link] or [link]
        answer, _ = others[0].ask("resolve", names=[link.host])
        usable = [address for address in answer["addresses"][link.host] if _reaches_others(address)]
        return usable[0] if usable else commands.node_address(link.host)

    def group(self, plan: Plan, folder: Path, token: str, hosts: Mapping[str, HostRun]) -> SlurmGroup:
        """The group, and in the run's folder what `attach` needs to know about it."""
        assert self._job is not None, "nodes were allocated"
        about = {host: HostRecord(code=run.code, python=run.python) for host, run in hosts.items()}
        begun = {"token": token, "started": time.time(), "hosts": about, "facts": dict(plan.facts)}
        self._job.record.model_copy(update=begun).write(folder)
        return SlurmGroup(token, folder, hosts, shared=True, job=self._job)

    def _release(self) -> None:
        with deferred():
            super().close()
            if self._job is not None:
                self._job.release()
                self._job = None

    def close(self) -> None:
        self._release()


class AttachedLauncher(SlurmLauncher):
    """A launcher whose job was submitted by a controller that is gone. The job is not touched before it is used."""

    def __init__(self, folder: Path) -> None:
        self.record = record = read_record(folder)
        super().__init__(record.options)
        if record.state() is None:
            raise BadRequest(
                f"run {folder.name!r}: Slurm job {record.job} is not running any more; "
                f"`velodrome resume {folder.name} --on slurm` submits it again"
            )
        self._job = SlurmJob(record.job, Path(record.mail), record.session, record.options, record.nodes)
        #: Whether the job has not been taken over yet.
        self._untouched = True

    @property
    def started(self) -> float | None:
        """When the processes were started; None if the controller was gone before."""
        return self.record.started

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the earlier controller knew about the hosts."""
        return self.record.facts

    def allocate(self, job: Job, folder: Path | None = None, notice: Notice = no_notice) -> Allocation:
        """The nodes of the job that is there, and those of a new one when it has been used."""
        if not self._untouched:
            return super().allocate(job, folder, notice)
        self._untouched = False
        return self._nodes_for(job, notice)

    def close(self) -> None:
        """End the job if it was taken over; otherwise it keeps running."""
        if self._untouched and self._job is not None:
            self._job.abandon()
            self._job = None
        super().close()

    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> RemoteGroup:
        """The group of the processes as they are, or as they are started now if there are none yet."""
        if self.record.token is None:
            return super().start(plan, folder, resume=resume)
        self._untouched = False
        names = list(dict.fromkeys(process.host for process in plan.processes))
        # Its reports begin with the first one: whoever takes them must be there before they come.
        group = SlurmGroup(self.record.token, folder, {}, shared=True, job=self._job)
        about, inside = self.record.hosts, str(folder.resolve())
        for name in names:
            link = Link(name, self.open_channel(name, ""), self.options.silence, first=secrets.randbits(40),
                        take=group.take_over)
            self.links[name] = link
            group.hosts = {**group.hosts, name: HostRun(link, inside, about[name].code, about[name].python)}
        for process in plan.processes:
            group.add(process)
        return group


def _reaches_others(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_unspecified or parsed.is_link_local) and parsed.version == 4
