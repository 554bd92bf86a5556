"""The launcher of Slurm clusters: one `sbatch` for each job, whose nodes are served through the shared folder."""

from __future__ import annotations

import ipaddress
import json
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.cluster import preflight
from velodrome.cluster.findings import refuse
from velodrome.cluster.interrupts import deferred
from velodrome.cluster.launcher import Allocation, Launcher
from velodrome.cluster.placement import place
from velodrome.cluster.plan import Plan
from velodrome.cluster.remote import checks, starting
from velodrome.cluster.remote.code import code_of
from velodrome.cluster.remote.group import HostRun, in_parallel
from velodrome.cluster.remote.launcher import RemoteLauncher
from velodrome.cluster.remote.link import Channel, HostError, Link
from velodrome.cluster.slurm import commands
from velodrome.cluster.slurm.allocation import SlurmJob, submit
from velodrome.cluster.slurm.group import SlurmGroup
from velodrome.cluster.slurm.mail import FileChannel
from velodrome.cluster.slurm.options import SlurmOptions
from velodrome.cluster.slurm.script import nodes_of, sbatch_options, steps_of
from velodrome.errors import BadRequest
from velodrome.offers.registry import engine_of
from velodrome.spec.job import Job
from velodrome.spec.resolve import roles_of

#: In the run's folder: where its job can be found again.
RECORD = "slurm.json"
_READY_SECONDS = 120.0


class SlurmLauncher(RemoteLauncher):
    """Submits a job for each run and starts processes through the agents of its nodes."""

    name = "slurm"
    options: SlurmOptions

    def __init__(self, options: SlurmOptions | None = None, pins: Mapping[str, str] | None = None) -> None:
        super().__init__(options or SlurmOptions.model_validate({}), pins)
        self._job: SlurmJob | None = None

    def hosts(self) -> list[str]:
        return [] if self._job is None else list(self._job.nodes)

    def part(self, hosts: Sequence[str]) -> SlurmLauncher:
        return SlurmLauncher(self.options, self._placement.pins)

    def divide(self, jobs: Sequence[Job]) -> list[Launcher]:
        """As many submissions at the same time as the idle nodes of the partition have room for."""
        need = max(nodes_of(job, self.options) for job in jobs)
        count = commands.idle_nodes(self.options.partition) // need
        return [self.part(()) for _ in range(count)] if count > 1 else [self]

    def check(self, job: Job) -> None:
        """Refuse what Slurm would refuse; what the nodes lack is known when there are some."""
        commands.require_tools()
        code_of(job, self.options.code, self.options.code_limit)
        nodes = nodes_of(job, self.options)
        steps_of(job, nodes, self._placement)
        commands.check_submission(sbatch_options(self.options, nodes, "velodrome", Path("/dev/null")))

    def prepare(self, engines: Sequence[str]) -> None:
        """Nothing: every job has nodes of its own."""

    def open_channel(self, host: str, session: str) -> Channel:
        assert self._job is not None, "a job was submitted"
        return FileChannel(self._job.mail / host, self._job.end)

    def connect(self, hosts: Sequence[str]) -> dict[str, Link]:
        """The links to nodes whose agents have been started."""
        missing = [host for host in hosts if host not in self.links]
        first = secrets.randbits(40)  # an agent may have answered another controller before

        def open_one(host: str) -> Link:
            link = Link(host, self.open_channel(host, ""), self.options.silence, first=first)
            try:
                link.wait_until_ready(_READY_SECONDS)
                link.read_clock()
            except BaseException:
                link.close()
                raise
            return link

        with ThreadPoolExecutor(max(1, len(missing))) as pool:
            futures = {host: pool.submit(open_one, host) for host in missing}
        errors = [error for future in futures.values() if (error := future.exception()) is not None]
        self.links |= {host: future.result() for host, future in futures.items() if future.exception() is None}
        if errors:
            assert self._job is not None
            self._job.raise_if_interrupted(now=True)
            raise HostError("; ".join(map(str, errors)) + _noted(self._job.mail / "job.log"))
        return {host: self.links[host] for host in hosts}

    def allocate(self, job: Job) -> Allocation:
        """Submit a job, wait for its nodes, and for their agents."""
        self._release()
        nodes = nodes_of(job, self.options)
        steps = steps_of(job, nodes, self._placement)
        with deferred():
            self._job = submit(self.options, nodes, steps, f"velodrome-{job.engine}-{job.strategy}")
        self._job.wait_until_running(self.options.queue_timeout, self._job.mail / "job.log")
        used = self.used_hosts(job)
        links = self.connect(used)
        placed = Counter(place(roles_of(job), self.hosts(), self._placement, self._capacity()))
        each = preflight.needed_memory(job) // len(roles_of(job))
        refuse(checks.cheap([*links.values()], job, self.interpreter, placed, each))
        found = super().allocate(job)
        return replace(found, facts={**found.facts, "job": self._job.number, "nodes": list(self._job.nodes)})

    def address(self, link: Link) -> str:
        """As configured, else what the other nodes of the allocation resolve its name to, else what Slurm uses."""
        if (chosen := self.options.addresses.get(link.host)) is not None:
            return chosen
        others = [other for other in self.links.values() if other is not link] or [link]
        answer, _ = others[0].ask("resolve", names=[link.host])
        usable = [address for address in answer["addresses"][link.host] if _reaches_others(address)]
        return usable[0] if usable else commands.node_address(link.host)

    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> SlurmGroup:
        assert self._job is not None, "nodes were allocated"
        token = secrets.token_hex(12)
        links = [self.links[host] for host in dict.fromkeys(process.host for process in plan.processes)]
        code = code_of(plan.job, self.options.code, self.options.code_limit)
        pythons = self.pythons(links, engine_of(plan.job))
        request = starting.Request(plan, folder, token, code, self.options, pythons, resume)
        hosts = in_parallel(links, lambda link: starting.prepare_host(link, request))
        group = SlurmGroup(token, folder, hosts, shared=True, job=self._job)
        try:
            for process in plan.processes:
                group.add(process)
            about = {host: {"code": run.code, "python": run.python} for host, run in hosts.items()}
            record = {**self._job.record.as_json(), "token": token, "started": time.time(), "hosts": about,
                      "facts": dict(plan.facts)}
            files.write_text(folder / RECORD, json.dumps(record, indent=2) + "\n")
            starting.start_all(request, group)
        except BaseException:
            with deferred():
                group.stop()
            raise
        return group

    def _release(self) -> None:
        with deferred():
            super().close()
            if self._job is not None:
                self._job.release()
                self._job = None

    def close(self) -> None:
        self._release()


class AttachedLauncher(SlurmLauncher):
    """A launcher whose processes were started by a controller that is gone."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        commands.require_tools()
        self.record = read_record(folder)
        state = commands.state_of(self.record["job"])
        if state.is_over or not Path(self.record["mail"]).is_dir():
            raise BadRequest(
                f"run {folder.name!r}: Slurm job {self.record['job']} is not running any more ({state.name}); "
                f"`velodrome resume {folder.name} --on slurm` submits it again"
            )
        self._job = SlurmJob(self.record["job"], Path(self.record["mail"]), self.record["session"],
                             self.record["nodes"])

    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> SlurmGroup:
        """The group of the processes as they are."""
        names = list(dict.fromkeys(process.host for process in plan.processes))
        # Its reports begin with the first one: whoever takes them must be there before they come.
        group = SlurmGroup(self.record["token"], folder, {}, shared=True, job=self._job)
        links = {name: Link(name, self.open_channel(name, ""), self.options.silence, first=secrets.randbits(40),
                            take=group.take_over) for name in names}
        self.links |= links
        about = self.record["hosts"]
        group.hosts = {name: HostRun(link, str(folder.resolve()), about[name]["code"], about[name]["python"])
                       for name, link in links.items()}
        for process in plan.processes:
            group.add(process)
        return group


def read_record(folder: Path) -> dict[str, Any]:
    """What is stored about the job of a run; `BadRequest` if it has none."""
    try:
        found: dict[str, Any] = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError):
        raise BadRequest(f"run {folder.name!r} has no job of Slurm to attach to") from None
    return found


def _reaches_others(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (found.is_loopback or found.is_unspecified or found.is_link_local) and found.version == 4


def _noted(log: Path) -> str:
    """The last line of a job's log, which says why a step did not start."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return f" (its log ends with {lines[-1][:200]!r})" if lines else ""
