"""A cluster of several hosts on this machine: processes run in namespaces with addresses of their own.

Links have the bandwidth that was asked for, nodes their share of CPU and memory. Processes are children of the
controller, as with `local`; only what they see of the network and of the machine differs.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from velodrome.cluster import preflight
from velodrome.cluster.emulated.limits import Limits, clean
from velodrome.cluster.emulated.measure import measure
from velodrome.cluster.emulated.nodes import Network, missing_tools
from velodrome.cluster.emulated.request import parse
from velodrome.cluster.interrupts import deferred
from velodrome.cluster.launcher import Allocation, Exit
from velodrome.cluster.local.cold import Wrap, start_cold
from velodrome.cluster.local.group import LocalGroup
from velodrome.cluster.local.ports import PORTS
from velodrome.cluster.plan import Plan, Process
from velodrome.errors import BadRequest, Unavailable
from velodrome.spec.job import Job
from velodrome.spec.resolve import roles_of


@dataclass
class EmulatedGroup(LocalGroup):
    """Processes on emulated nodes: one that the kernel ended because its node was out of memory is reported so."""

    limits: Limits | None = None

    def exit_of(self, process: Process) -> Exit | None:
        found = super().exit_of(process)
        killed = found is not None and found.signal == "SIGKILL"
        if found is None or not killed or self.limits is None or not self.limits.memory_exceeded(process.host):
            return found
        return replace(found, cause=f"was ended by SIGKILL: {process.host} ran out of the memory it was given")


class EmulatedLauncher:
    """Starts processes on emulated nodes, which exist from the first job until the launcher is closed."""

    name = "emulated"

    def __init__(self, options: str = "") -> None:
        self._cluster = parse(options)
        self._network: Network | None = None
        self._limits: Limits | None = None
        self._facts: dict[str, object] = {}

    def check(self, job: Job) -> None:
        """Refuse what this machine cannot emulate or run."""
        if sys.platform != "linux" or os.geteuid() != 0:
            raise Unavailable("--on emulated needs Linux and root, to create network namespaces", ["root"])
        if missing := missing_tools():
            message = f"--on emulated needs {', '.join(missing)}: install iproute2 and util-linux"
            raise Unavailable(message, [message])
        if self._cluster.latency is not None:
            raise BadRequest("--on emulated: latency cannot be emulated yet; leave it out")
        preflight.check_here(job)
        memory, processes = self._cluster.memory, len(roles_of(job))
        per_node = -(-processes // self._cluster.nodes)
        needed = preflight.needed_memory(job) // processes * per_node
        if memory is not None and needed > memory:
            raise BadRequest(
                f"--on emulated: memory={memory // 2**20}m is less than the {needed // 2**20} MiB that {per_node} "
                f"process(es) of this job need on a node; give more memory or more nodes"
            )

    def prepare(self, engines: Sequence[str]) -> None:
        """Nothing: a process that was forked from a prepared one would not be in the namespace of a node."""

    def allocate(self, job: Job) -> Allocation:
        network = self._created()
        ports = iter(secrets.SystemRandom().sample(PORTS, 2000))
        hosts = tuple(node.name for node in network.nodes)
        return Allocation(hosts, lambda host: next(ports), spread=True, facts=self._facts)

    def _created(self) -> Network:
        if self._network is None:
            clean()
            with deferred():
                self._network = Network(self._cluster)
                self._limits = Limits(self._cluster, [node.name for node in self._network.nodes])
            self._facts = measure(self._cluster, self._network)
        return self._network

    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> EmulatedGroup:
        group = EmulatedGroup(secrets.token_hex(12), limits=self._limits)
        try:
            for process, place in _places(plan.processes).items():
                started = start_cold(plan, place, folder, group.token, resume=resume, wrap=self._inside(process.host))
                started.process = process  # the supervisor asks for it by the plan's own
                group.add(started)
        except BaseException:
            with deferred():
                group.stop()
            raise
        return group

    def _inside(self, host: str) -> Wrap:
        """Turns a command into one that runs on a node, within its limits."""
        network, limits = self._network, self._limits
        assert network is not None, "hosts were allocated"
        assert limits is not None, "hosts were allocated"
        return lambda words: network[host].enter(limits.enter(host, words))

    def close(self) -> None:
        with deferred():
            if self._network is not None:
                self._network.close()
            if self._limits is not None:
                self._limits.close()
            self._network = self._limits = None


def _places(processes: Sequence[Process]) -> dict[Process, Process]:
    """Each process with its place among all workers: the nodes share the cores of one machine."""
    workers = [process for process in processes if process.slots]
    return {
        process: replace(process, slot=workers.index(process), slots=len(workers)) if process.slots else process
        for process in processes
    }
