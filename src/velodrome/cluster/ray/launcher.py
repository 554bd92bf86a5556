"""The launcher of Ray clusters: each node has an agent, held by an actor that reserves the node's resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from velodrome.cluster.launcher import Launcher
from velodrome.cluster.ray.client import START_SECONDS, RayChannel, RayDriver
from velodrome.cluster.ray.options import RayOptions
from velodrome.cluster.remote import bootstrap
from velodrome.cluster.remote.launcher import RemoteLauncher
from velodrome.cluster.remote.link import HostError, Link
from velodrome.errors import Unavailable
from velodrome.spec.job import Job


class RayLauncher(RemoteLauncher):
    """Starts processes on the nodes of a Ray cluster."""

    name = "ray"
    options: RayOptions

    def __init__(
        self, options: RayOptions, pins: Mapping[str, str] | None = None, only: Sequence[str] | None = None
    ) -> None:
        """`only` are the nodes that it may use; by default all that have the resources."""
        super().__init__(options, pins)
        self._only = only
        self._driver: RayDriver | None = None
        self._nodes: dict[str, dict[str, Any]] = {}
        self._reserved: set[str] = set()

    def check(self, job: Job) -> None:
        if find_spec("ray") is None:
            message = 'Python module \'ray\' is not installed: pip install "velodrome[ray]"'
            raise Unavailable(f"--on ray: {message}", [message])
        super().check(job)

    def _connected(self) -> RayDriver:
        if self._driver is None:
            self._driver = RayDriver()
            found = self._driver.ask("connect", START_SECONDS, address=self.options.address)["nodes"]
            wanted = self.options.resources
            self._nodes = {name: node for name, node in found.items()
                           if all(node["resources"].get(one, 0) >= amount for one, amount in wanted.items())
                           and (self._only is None or name in self._only)}
            if not self._nodes:
                raise HostError(f"no node of the Ray cluster has {_listed(wanted)}; it has {len(found)} nodes")
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
        """Connect to nodes, whose resources are reserved first, all or none."""
        driver = self._connected()
        new = [host for host in dict.fromkeys(hosts) if host not in self._reserved]
        if new:
            bundles = {host: self._bundle(host) for host in new}
            limit = self.options.reserve_timeout
            answer = driver.ask("reserve", limit + 30.0, bundles=bundles, limit=limit)
            if answer.get("missing"):
                sentence = f"could not be reserved by Ray within {limit:g} s: {'; '.join(answer['missing'])}"
                return {new[0]: f"{', '.join(map(repr, new))} {sentence}"}
            self._reserved.update(new)
        return super().try_to_connect(hosts)

    def _bundle(self, host: str) -> dict[str, float]:
        resources = self._nodes[host]["resources"]
        cpus = self.options.cpus if self.options.cpus is not None else resources.get("CPU", 0.0)
        wanted = {"CPU": cpus, "GPU": self.options.gpus, **self.options.resources}
        return {name: amount for name, amount in wanted.items() if amount} or {"CPU": 1.0}

    def open_channel(self, host: str, session: str) -> RayChannel:
        options = self.options
        words = bootstrap.command("", session, options.silence, options.root)[1:]
        return self._connected().open(host, words, options.runtime_env)

    def address(self, link: Link) -> str:
        return self.options.addresses.get(link.host, str(self._nodes[link.host]["address"]))

    def close(self) -> None:
        super().close()
        if self._driver is not None:
            self._driver.close()
            self._driver = None


def _listed(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items()) or "any resources"
