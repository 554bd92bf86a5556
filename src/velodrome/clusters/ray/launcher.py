"""The launcher of Ray clusters: each process has an actor with resources of its own, which holds an agent.

The agent of a node's first process also prepares the node and brings files back.

Imports no Ray: requests, and a stream of bytes to each agent, go through a process that has imported it (`driver.py`).
"""

from __future__ import annotations

import itertools
import math
import queue
import secrets
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from velodrome.clusters.interrupts import rollback
from velodrome.clusters.launcher import Allocation, Launcher, Notice, no_notice
from velodrome.clusters.plan import Plan, Process, place
from velodrome.clusters.ray import RayOptions
from velodrome.clusters.remote.agent import Header
from velodrome.clusters.remote.channels import PipeChannel, agent_words
from velodrome.clusters.remote.launcher import RemoteLauncher
from velodrome.clusters.remote.link import HostError, Link, close_all
from velodrome.errors import Unavailable, VelodromeError
from velodrome.job.job import Job
from velodrome.job.resolve import roles_of

_RELEASE_SECONDS = 30.0
#: What starting an actor may take, and what it may take with a runtime environment, whose packages are installed first.
_START_SECONDS, _ENVIRONMENT_SECONDS = 60.0, 600.0
#: Ray counts resources in units of 1/10,000.
_FRACTIONS = 10_000


class RayLauncher(RemoteLauncher):
    """Starts processes on the nodes of a Ray cluster."""

    name = "ray"
    options: RayOptions

    def __init__(self, options: RayOptions, only: Sequence[str] | None = None) -> None:
        """`only` are the nodes that it may use; by default all that have the resources."""
        super().__init__(options)
        self._only = only
        self._driver: RayDriver | None = None
        self._nodes: dict[str, dict[str, Any]] = {}
        #: How many processes the job that was checked last will have on a node.
        self._expected: Counter[str] = Counter()
        #: How many places, each for one process, are reserved on a node.
        self._reserved: Counter[str] = Counter()
        #: The links to agents of a node's processes but the first, which has that of the node.
        self._others: dict[str, list[Link]] = {}

    def check(self, job: Job) -> None:
        if find_spec("ray") is None:
            message = 'Python module \'ray\' is not installed: pip install "velodrome[ray]"'
            raise Unavailable(f"--on ray: {message}", [message])
        spread = self._placement.policy != "pack" or self._placement.slots is not None
        self._expected = Counter(place(roles_of(job), self.used_hosts(job), self._placement) if spread else ())
        super().check(job)

    def _connected(self) -> RayDriver:
        if self._driver is None:
            self._driver = RayDriver(self.options.address)
            with rollback(self._end_driver):
                nodes = self._driver.connect(self.options.address)
            wanted = self.options.resources
            self._nodes = {name: node for name, node in nodes.items()
                           if all(node["resources"].get(resource, 0) >= amount for resource, amount in wanted.items())
                           and node["resources"].get("CPU", 0) > 0 and (self._only is None or name in self._only)}
            if not self._nodes:
                raise HostError(f"no node of the Ray cluster has {_listed(wanted)}; it has {len(nodes)} nodes")
        return self._driver

    def hosts(self) -> list[str]:
        self._connected()
        return list(self._nodes)

    def part(self, hosts: Sequence[str]) -> RayLauncher:
        return RayLauncher(self.options, only=hosts)

    def divide(self, jobs: Sequence[Job]) -> list[Launcher]:
        """Parts of a cluster that runs; one that is started by the command is this machine."""
        return super().divide(jobs) if self.options.address is not None else [self]

    def try_to_connect(self, hosts: Sequence[str]) -> dict[str, str]:
        """Connect to nodes, on which places are reserved first, all or none."""
        new = Counter({host: self._expected[host] or 1 for host in hosts if host not in self._reserved})
        if new and (missing := self._reserve(new)):
            return {next(iter(new)): missing}
        return super().try_to_connect(hosts)

    def allocate(self, job: Job, folder: Path | None = None, notice: Notice = no_notice) -> Allocation:
        """Nodes with as many places, and agents, as the job has processes there."""
        hosts = self.used_hosts(job)
        self.connect(hosts)
        wanted = Counter(place(roles_of(job), hosts, self._placement, self.host_cores))
        lost = any(link.lost for others in self._others.values() for link in others)
        if lost or any(self._reserved[host] != count for host, count in wanted.items()):
            self._release()
            if missing := self._reserve(wanted):
                raise HostError(missing)
        self._open_others(wanted)
        return super().allocate(job)

    def _open_others(self, counts: Counter[str]) -> None:
        """Start the agents of processes that are not the first of their node."""
        places = [(host, number) for host, count in counts.items() for number in range(1, count)
                  if host not in self._others]
        with ThreadPoolExecutor(max(1, len(places))) as pool:
            futures = [pool.submit(self._open_other, host, number) for host, number in places]
        for (host, _), future in zip(places, futures, strict=True):
            if future.exception() is None:
                self._others.setdefault(host, []).append(future.result())
        for error in filter(None, (future.exception() for future in futures)):
            self._release()
            raise error

    def links_of(self, plan: Plan) -> Mapping[Process, Link]:
        """One agent, and so one actor, for each process."""
        free = {host: [self.links[host], *self._others.get(host, ())] for host in self._reserved}
        return {process: free[process.host].pop(0) for process in plan.processes}

    def _reserve(self, counts: Counter[str]) -> str | None:
        """Reserve places on nodes, all or none; a sentence if that cannot be."""
        driver, limit = self._connected(), self.options.reserve_timeout
        places = {
            _place(host, number): {"node": host, "resources": self._bundle(host, count)}
            for host, count in counts.items() for number in range(count)
        }
        answer = driver.ask("reserve", limit + 30.0, places=places, limit=limit)
        if answer.get("missing"):
            hosts = ", ".join(map(repr, counts))
            return f"{hosts} could not be reserved by Ray within {limit:g} s: {'; '.join(answer['missing'])}"
        self._reserved += counts
        return None

    def _release(self) -> None:
        """End all agents and give their places back."""
        super().close()
        close_all(link for others in self._others.values() for link in others)
        self._others.clear()
        if self._reserved and self._driver is not None:
            with suppress(VelodromeError):
                self._driver.ask("release", _RELEASE_SECONDS)
        self._reserved.clear()

    def _bundle(self, host: str, count: int = 1) -> dict[str, float]:
        """What one of so many processes on a node reserves: by default its share of the node."""
        cpus = self.options.cpus
        if cpus is None:
            cpus = math.floor(self._nodes[host]["resources"]["CPU"] / count * _FRACTIONS) / _FRACTIONS
        wanted = {"CPU": cpus, "GPU": self.options.gpus, **self.options.resources}
        return {name: amount for name, amount in wanted.items() if amount}

    def open_channel(self, host: str, session: str) -> RayChannel:
        return self._open(host, 0, session)

    def _open(self, host: str, number: int, session: str) -> RayChannel:
        options = self.options
        words = agent_words(session, options.silence, options.root)
        limit = options.start_timeout or (_ENVIRONMENT_SECONDS if options.runtime_env else _START_SECONDS)
        return self._connected().open(_place(host, number), words, options.runtime_env, limit)

    def _open_other(self, host: str, number: int) -> Link:
        return self.open_link(host, self._open(host, number, secrets.token_hex(12)))

    def address(self, link: Link) -> str:
        return self.options.addresses.get(link.host, str(self._nodes[link.host]["address"]))

    def close(self) -> None:
        self._release()
        self._end_driver()

    def _end_driver(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None


def _place(host: str, number: int) -> str:
    """The name of a place on a node."""
    return f"{host}#{number}"


def _listed(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items()) or "any resources"


#: How often a stream that is silent looks whether the driver is still there.
_POLL_SECONDS = 0.5
#: Starting Ray takes seconds on an idle machine.
START_SECONDS = 120.0
_END_SECONDS = 30.0
#: For an answer, beyond the time that the driver itself allows.
_MORE_SECONDS = 30.0
#: For a driver that still waits for a cluster of others: it has nothing there to give back.
_ABANDON_SECONDS = 1.0
#: Ray gives up after 30 s by itself, which a busy machine may need; and it must not report to anybody.
_SETTINGS = {"RAY_raylet_start_wait_time_s": "100", "RAY_USAGE_STATS_ENABLED": "0"}
#: A cluster of our own is on loopback. Ray has no other option for it: it replaces a loopback address that it is given
#: by that of the network, except where it has no clusters of several machines.
_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class _DriverPipes(PipeChannel):
    """The pipes of the driver."""

    #: How long it may take to leave Ray.
    end_seconds = _END_SECONDS

    def end_reason(self) -> str:
        return f"ended: {super().end_reason()}"

    def close(self, seconds: float | None = None) -> None:
        super().close(self.end_seconds)


class RayDriver:
    """The process that has imported Ray."""

    def __init__(self, address: str | None) -> None:
        """Start it, for the cluster at an address or one of its own on this machine."""
        self._pipes = _DriverPipes(
            [sys.executable, "-P", "-m", "velodrome.clusters.ray.driver"],
            _SETTINGS if address else _SETTINGS | _ON_LOOPBACK,
        )
        self._link = Link("Ray", self._pipes, math.inf, take=self._take)
        self._numbers = itertools.count()
        self._streams: dict[str, queue.Queue[bytes]] = {}
        self._reasons: dict[str, str] = {}

    def ask(self, do: str, seconds: float, **fields: Any) -> Header:
        """The answer to a request; `VelodromeError` if there is none, or it is an error."""
        try:
            return self._link.ask(do, seconds=seconds, **fields)[0]
        except HostError as error:
            raise VelodromeError(str(error).replace("'Ray'", "Ray", 1)) from None

    def connect(self, address: str | None) -> dict[str, dict[str, Any]]:
        """Join the cluster at an address, or start one on this machine; its nodes by name."""
        self._pipes.end_seconds = _ABANDON_SECONDS if address else _END_SECONDS
        nodes: dict[str, dict[str, Any]] = self.ask("connect", START_SECONDS, address=address)["nodes"]
        self._pipes.end_seconds = _END_SECONDS
        return nodes

    def open(self, place: str, words: list[str], runtime_env: Mapping[str, Any], limit: float) -> RayChannel:
        """Start an agent at a place that was reserved, within so many seconds; the stream to it."""
        name = f"{place} {next(self._numbers)}"  # an earlier stream to the same place may report its end late
        self._streams[name] = queue.Queue()
        answer = self.ask("open", limit + _MORE_SECONDS, stream=name, place=place, words=words,
                          runtime_env=dict(runtime_env), limit=limit)
        if answer.get("failed"):
            raise HostError(answer["failed"])
        return RayChannel(self, name)

    def read(self, stream: str) -> bytes:
        """Bytes of an agent; none at its end."""
        while True:
            with suppress(queue.Empty):
                return self._streams[stream].get(timeout=_POLL_SECONDS)
            if self._link.lost is not None and self._streams[stream].empty():
                return b""

    def send(self, stream: str, data: bytes) -> None:
        if self._link.lost is not None:
            raise BrokenPipeError(self._link.lost)
        self._link.tell("write", data, stream=stream)

    def end_reason(self, stream: str) -> str:
        """Why a stream ended, as the end of a sentence."""
        return self._reasons.get(stream, "cannot be reached: the connection to Ray ended")

    def close_agent(self, stream: str) -> None:
        with suppress(VelodromeError):
            self.ask("close", _END_SECONDS, stream=stream)

    def close(self) -> None:
        """Leave Ray, and end it if it was started here."""
        self._link.close()

    def _take(self, link: Link, header: Header, body: bytes) -> None:
        if header["is"] == "end":
            self._reasons[header["stream"]] = header["reason"]
        self._streams[header["stream"]].put(body)


class RayChannel:
    """The stream to an agent."""

    def __init__(self, driver: RayDriver, stream: str) -> None:
        self._driver, self._stream = driver, stream

    def read(self) -> bytes:
        return self._driver.read(self._stream)

    def write(self, data: bytes) -> None:
        self._driver.send(self._stream, data)

    def end_reason(self) -> str:
        return self._driver.end_reason(self._stream)

    def close(self) -> None:
        self._driver.close_agent(self._stream)
