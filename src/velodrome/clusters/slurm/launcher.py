"""The launcher of Slurm clusters: one `sbatch` for each job, whose nodes are served through the shared folder.

The agents talk to the controller through two files in a folder that all nodes see, so compute nodes need no connection
to it. An agent with a run waits for a lost controller as long as the batch script keeps a heartbeat file changing, and
its outbox holds everything since the beginning: `velodrome attach` reads it again and leaves out events that are
recorded already. When the folder is gone, or neither controller nor heartbeat was seen for `silence` seconds, the agent
ends itself and everything it started: Slurm cannot do so on a node that is cut off.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from velodrome.clusters.launcher import Allocation, Launcher, Notice, no_notice
from velodrome.clusters.plan import Plan
from velodrome.clusters.remote.allocated import AllocatedGroup, AllocatedLauncher
from velodrome.clusters.remote.channels import Channel, FileChannel
from velodrome.clusters.remote.group import HostRun, RemoteGroup
from velodrome.clusters.remote.link import Link
from velodrome.clusters.slurm import SlurmOptions, commands
from velodrome.clusters.slurm.commands import Step, nodes_of, sbatch_options, steps_of
from velodrome.clusters.slurm.job import SlurmJob, living_job, read_record, submit
from velodrome.errors import BadRequest
from velodrome.job.job import Job

_READY_SECONDS = 120.0
#: The time limit of the job in which nodes are examined.
_EXAMINE_MINUTES = 15


class SlurmLauncher(AllocatedLauncher):
    """Submits a job for each run and starts processes through the agents of its nodes."""

    name = "slurm"
    scheduler = "Slurm"
    options: SlurmOptions
    _job: SlurmJob | None = None

    def __init__(self, options: SlurmOptions | None = None) -> None:
        super().__init__(options or SlurmOptions.model_validate({}))

    @property
    def job(self) -> SlurmJob:
        assert self._job is not None, "a job was submitted"
        return self._job

    def part(self, hosts: Sequence[str]) -> SlurmLauncher:
        return SlurmLauncher(self.options)

    def divide(self, jobs: Sequence[Job]) -> list[Launcher]:
        """As many submissions at the same time as the idle nodes of the partition have room for."""
        need = max(nodes_of(job, self.options) for job in jobs)
        count = commands.idle_nodes(self.options.partition) // need
        return [self.part(()) for _ in range(count)] if count > 1 else [self]

    def check(self, job: Job) -> None:
        """Refuse what Slurm would refuse."""
        commands.require_tools()
        super().check(job)
        nodes = nodes_of(job, self.options)
        steps_of(job, nodes, self._placement)
        commands.check_submission(sbatch_options(self.options, nodes, "velodrome", Path("/dev/null")))

    @classmethod
    def living(cls, folder: Path) -> str | None:
        return living_job(folder)

    @classmethod
    def attached(cls, folder: Path) -> AttachedLauncher:
        return AttachedLauncher(folder)

    def prepare_hosts(self, engines: Sequence[str], wheelhouse: Path | None) -> list[dict[str, object]] | None:
        raise BadRequest(
            "--on slurm: every job may get other nodes, so none can be prepared; install velodrome and its engines in "
            "an environment on the shared file system, and set python to its interpreter in clusters.yaml"
        )

    @property
    def queue_seconds(self) -> float:
        return self.options.queue_timeout

    @property
    def ready_seconds(self) -> float:
        return _READY_SECONDS

    def submit(self, job: Job, *, to_examine: bool = False) -> SlurmJob:
        """Submit a job; `to_examine` for a few minutes, with an agent on every node."""
        nodes, limit = nodes_of(job, self.options), self.options.time
        if not to_examine:
            steps = steps_of(job, nodes, self._placement)
            return submit(self.options, nodes, steps, f"velodrome-{job.engine}-{job.strategy}")
        if limit is None or not limit.isdecimal() or int(limit) > _EXAMINE_MINUTES:
            limit = str(_EXAMINE_MINUTES)
        short = self.options.model_copy(update={"time": limit})
        return submit(short, nodes, [Step("doctor", 0, nodes)], "velodrome-doctor")

    def open_channel(self, host: str, session: str) -> Channel:
        return FileChannel(self.job.mail / host, self.job.end)

    def link(self, host: str, channel: Channel) -> Link:
        """The link to an agent that the job has started, and that may have answered another controller before."""
        return Link(host, channel, self.options.silence, first=secrets.randbits(40))

    def _nodes_for(self, job: Job, notice: Notice) -> Allocation:
        allocation = super()._nodes_for(job, notice)
        return replace(allocation, facts={**allocation.facts, "job": self.job.number, "nodes": list(self.job.nodes)})

    def address(self, link: Link) -> str:
        """As configured, else what the other nodes of the allocation resolve its name to, else what Slurm uses."""
        if (chosen := self.options.addresses.get(link.host)) is not None:
            return chosen
        others = [other for other in self.links.values() if other is not link] or [link]
        answer, _ = others[0].ask("resolve", names=[link.host])
        usable = [address for address in answer["addresses"][link.host] if _reaches_others(address)]
        return usable[0] if usable else commands.node_address(link.host)


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
        # An agent repeats its reports from the first one on: the group must be there before they come.
        group = AllocatedGroup(self.record.token, folder, {}, shared=True, job=self.job)
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
