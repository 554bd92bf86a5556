"""A cluster of several hosts on this machine: processes run in namespaces with addresses of their own.

Links have the bandwidth that was asked for, nodes their share of CPU and memory. Processes are children of the
controller, as with `local`; only what they see of the network and of the machine differs.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from velodrome.clusters import preflight
from velodrome.clusters.emulated import EmulatedOptions
from velodrome.clusters.emulated.measure import lacking, measure
from velodrome.clusters.emulated.network import Network, check_storage, missing_tools, storage_of
from velodrome.clusters.emulated.node import Limits, clean
from velodrome.clusters.interrupts import deferred
from velodrome.clusters.launcher import Allocation, Diagnosis, Examination, Exit, Finding, Notice, no_notice
from velodrome.clusters.local.launcher import LocalGroup, LocalLauncher
from velodrome.clusters.local.processes import Inside, LocalProcess, start_cold, start_warm
from velodrome.clusters.plan import PORTS, Plan, Process, place
from velodrome.errors import BadRequest, Unavailable, VelodromeError
from velodrome.job.job import Job
from velodrome.job.resolve import roles_of
from velodrome.job.values import ACTIONS, Fault, parse_fault
from velodrome.machine import cores


@dataclass
class EmulatedGroup(LocalGroup):
    """Processes on emulated nodes: one that the kernel ended because its node was out of memory is reported so."""

    limits: Limits = field(kw_only=True)
    network: Network = field(kw_only=True)
    #: Cores that the processes of each node use together.
    cores: Mapping[str, float] = field(default_factory=dict)
    _cut: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__post_init__()
        # The nodes outlive a run, and so do their counts.
        self._traffic_before, self._kills_before = self._counters(), self._kills()

    def _counters(self) -> dict[str, dict[str, int]]:
        return {node.name: node.traffic() for node in self.network.nodes}

    def _kills(self) -> dict[str, int]:
        return {node.name: self.limits.memory_kills(node.name) for node in self.network.nodes}

    def traffic(self) -> dict[str, dict[str, int]]:
        """What each node exchanged since the processes were started, by its own counters."""
        return {
            node: {name: value - self._traffic_before[node][name] for name, value in counters.items()}
            for node, counters in self._counters().items()
        }

    def begin_fault(self, fault: Fault, processes: Sequence[Process]) -> None:
        host = processes[0].host if processes else fault.target
        if fault.action == "partition":
            self.network.cut(host)
            self._cut.add(host)
        elif fault.action == "slow":
            self.limits.slow(host, fault.factor or 1.0, self.cores.get(host, 1.0))
        else:
            super().begin_fault(fault, processes)

    def end_fault(self, fault: Fault, processes: Sequence[Process]) -> None:
        host = processes[0].host if processes else fault.target
        if fault.action == "partition":
            self.network.mend(host)
            self._cut.discard(host)
        elif fault.action == "slow":
            self.limits.restore(host)
        else:
            super().end_fault(fault, processes)

    def diagnose(self, process: Process, *, brief: bool = False) -> Diagnosis:
        return replace(super().diagnose(process, brief=brief), cut_off=process.host in self._cut)

    def stop(self) -> None:
        super().stop()
        # The next job of a race finds the nodes whole.
        for host in self._cut:
            self.network.mend(host)
        for host in self.cores:
            self.limits.restore(host)

    def exit_of(self, process: Process) -> Exit | None:
        end, host = super().exit_of(process), process.host
        if end is None or end.signal != "SIGKILL" or self.limits.memory_kills(host) <= self._kills_before[host]:
            return end
        return replace(end, cause=f"was ended by SIGKILL: {host} ran out of the memory it was given")


class EmulatedLauncher(LocalLauncher):
    """Starts processes on emulated nodes, which exist from the first job until the launcher is closed."""

    name = "emulated"
    #: What can be done to processes and nodes on purpose.
    faults = ACTIONS

    def __init__(self, options: EmulatedOptions | None = None) -> None:
        super().__init__()
        options = options or EmulatedOptions.model_validate({})
        self._cluster = options.request()
        self._placement = options.policy
        self._network: Network | None = None
        self._limits: Limits | None = None
        self._facts: dict[str, object] = {}
        #: What this machine has been checked to emulate: nodes that are never slowed down (False), or that are (True).
        self._able: set[bool] = set()

    @property
    def host_names(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(1, self._cluster.nodes + 1))

    def check(self, job: Job) -> None:
        """Refuse what this machine cannot emulate or run."""
        if sys.platform != "linux" or os.geteuid() != 0:
            raise Unavailable("--on emulated needs Linux and root, to create network namespaces", ["root"])
        if missing := missing_tools():
            message = f"--on emulated needs {', '.join(missing)}: install iproute2 and util-linux"
            raise Unavailable(message, [message])
        placed = Counter(place(roles_of(job), self.host_names, self._placement, self._capacity()))
        super().check(job)
        if storage := storage_of(job.dataset):
            check_storage(storage)
        memory, processes = self._cluster.memory, len(roles_of(job))
        per_node = max(placed.values())
        needed = preflight.needed_memory(job) // processes * per_node
        if memory is not None and needed > memory:
            raise BadRequest(
                f"--on emulated: memory={memory // 2**20}m is less than the {needed // 2**20} MiB that {per_node} "
                f"process(es) of this job need on a node; give more memory or more nodes"
            )
        slows = any(parse_fault(fault).action == "slow" for fault in job.faults)
        if self._network is None and slows not in self._able:
            if lacks := lacking(self._cluster, slows=slows):
                raise Unavailable("; ".join(lacks), lacks)
            self._able.add(slows)

    def prepare(self, engines: Sequence[str]) -> None:
        """Import the engines once: processes are forked from that and then move onto their nodes.

        Not if memory is limited: what they share with the process that they were forked from would not count.
        """
        if self._cluster.memory is None:
            super().prepare(engines)

    def allocate(self, job: Job, folder: Path | None = None, notice: Notice = no_notice) -> Allocation:
        network = self._created()
        if storage_of(job.dataset):
            with deferred():
                network.open_gateway()
        ports = iter(secrets.SystemRandom().sample(PORTS, 2000))
        hosts = tuple(node.name for node in network.nodes)
        return Allocation(
            hosts, lambda host: next(ports), placement=self._placement, capacity=self._capacity(), facts=self._facts
        )

    def examine(self, job: Job, *, measure: bool = False, notice: Notice = no_notice) -> Examination:
        """What keeps this machine from running a job and, if asked for, what two nodes measure."""
        findings = super().examine(job).findings
        if not measure or findings:
            return Examination(findings)
        try:
            self._created()
        except VelodromeError as error:
            return Examination([Finding("error", "network", None, str(error))])
        measured: Any = self._facts["measured"]
        if measured is None:
            return Examination([Finding("warning", "network", None,
                "the network was not measured: this needs two hosts, and a machine that is not too busy")])
        first, second = self.host_names[:2]
        pair = {"from": second, "to": first, "round_trip": measured["round_trip"], "bandwidth": measured["bandwidth"]}
        return Examination([], [pair], self._facts)

    def _capacity(self) -> dict[str, int]:
        """How many processes `pack` puts on a node: one per core that it may use."""
        return dict.fromkeys(self.host_names, max(1, int(self._cluster.cpu or cores())))

    def _created(self) -> Network:
        if self._network is None:
            clean()
            with deferred():
                self._network = Network(self._cluster)
                self._limits = Limits(self._cluster, [node.name for node in self._network.nodes])
            self._facts = measure(self._cluster, self._network, self._limits.limited_by)
        return self._network

    @property
    def _allocated(self) -> tuple[Network, Limits]:
        assert self._network is not None, "hosts were allocated"
        assert self._limits is not None, "hosts were allocated"
        return self._network, self._limits

    def group(self, plan: Plan) -> EmulatedGroup:
        network, limits = self._allocated
        for fault in map(parse_fault, plan.job.faults):
            if fault.action == "slow":
                for host in _hosts_of(fault, plan.processes):
                    limits.prepare_slowing(host)
        return EmulatedGroup(secrets.token_hex(12), limits=limits, network=network, cores=_cores(plan))

    def start_process(self, plan: Plan, process: Process, folder: Path, token: str, *, resume: bool) -> LocalProcess:
        """Start a process on its node, within its limits; one that fetches data does so into a cache of its own."""
        (network, limits), host = self._allocated, process.host
        placed = _among_all(process, plan)
        # A relative path would lead through the mounts of this machine, and a file cannot move from those to a node's.
        folder = folder.absolute()
        own = {"VELODROME_CACHE": str(network.cache_of(host))} if storage_of(plan.job.dataset) else {}
        started: LocalProcess
        if (template := self.template_for(plan)) is not None:
            inside = Inside(network[host].pid, limits.groups_of(host), own)
            started = start_warm(template, plan, placed, folder, token, resume=resume, inside=inside)
        else:
            words = ["env", *(f"{name}={value}" for name, value in own.items())] if own else []
            started = start_cold(
                plan, placed, folder, token, resume=resume,
                wrap=lambda command: network[host].enter(limits.enter(host, [*words, *command])),
            )
        started.process = process  # the supervisor asks for it by the plan's own
        return started

    def close(self) -> None:
        with deferred():
            super().close()
            if self._network is not None:
                self._network.close()
            if self._limits is not None:
                self._limits.close()
            self._network = self._limits = None


def _hosts_of(fault: Fault, processes: Sequence[Process]) -> set[str]:
    meant = fault.processes([(process.role, process.rank, process.host) for process in processes])
    return {process.host for process in processes if (process.role, process.rank) in meant}


def _cores(plan: Plan) -> dict[str, float]:
    """Cores that the processes of each node use: threads of workers, one for each of the others."""
    used_cores: dict[str, float] = {}
    for process in plan.processes:
        slots = _among_all(process, plan).slots
        used = plan.job.threads or (max(1, cores() // slots) if slots else 1)
        used_cores[process.host] = min(float(cores()), used_cores.get(process.host, 0.0) + used)
    return used_cores


def _among_all(process: Process, plan: Plan) -> Process:
    """A process with its place among all workers: the nodes share the cores of one machine."""
    workers = [other for other in plan.processes if other.slots]
    return replace(process, slot=workers.index(process), slots=len(workers)) if process.slots else process
