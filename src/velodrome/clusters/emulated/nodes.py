"""Nodes on this machine: each is a network namespace with its own address and name, all connected to one another.

A namespace lives as long as a process in it does. The first process of each node, its holder, ends when its standard
input closes, which the kernel does when the controller ends, in whatever way. So no namespace, interface or mount can
outlive the controller. What connects the nodes has a namespace of its own, and so has the gateway to storage; the
machine's own network is never touched.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from velodrome.clusters.emulated.gateway import Gateway, names_of_machine
from velodrome.clusters.emulated.leftovers import folder_prefix
from velodrome.clusters.emulated.links import Links, connect
from velodrome.clusters.emulated.node import Node
from velodrome.clusters.emulated.request import EmulatedCluster

TOOLS = ("ip", "tc", "nsenter", "unshare", "mount")
#: Addresses exist inside the namespaces only, so they cannot collide with any that the machine uses.
_NETWORK = "10.77.0.{}"
_GATEWAY = 254


class Network:
    """The nodes of a cluster and what connects them."""

    def __init__(self, cluster: EmulatedCluster) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix=folder_prefix()))
        names = [f"node{number}" for number in range(1, cluster.nodes + 1)]
        self._hosts = hosts = self._scratch / "hosts"
        table = [f"{_NETWORK.format(number)} {name}" for number, name in enumerate(names, 1)]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *table]) + "\n")
        self.nodes: list[Node] = []
        self._links: Links | None = None
        self._outside: Node | None = None
        self._gateway: Gateway | None = None
        try:
            self.nodes += [Node(name, _NETWORK.format(number), hosts) for number, name in enumerate(names, 1)]
            for node in self.nodes:
                node.wait_until_ready()
            self._links = connect(cluster, self.nodes)
        except BaseException:
            self.close()
            raise

    @property
    def links(self) -> Links:
        assert self._links is not None, "the network is complete"
        return self._links

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def cut(self, name: str) -> None:
        """Cut a node off from the others: packets to and from it are dropped without a word."""
        self.links.cut(self.nodes.index(self[name]) + 1)

    def mend(self, name: str) -> None:
        """Connect a node again."""
        self.links.mend(self.nodes.index(self[name]) + 1)

    def open_gateway(self) -> None:
        """Let the nodes reach what this machine can reach, over their links; nothing if they can already."""
        if self._gateway is not None:
            return
        address = _NETWORK.format(_GATEWAY)
        self._outside = self._outside or Node("gateway", address, self._hosts)
        self._outside.wait_until_ready()
        self.links.add(self._outside)
        self._gateway = Gateway(self._outside, f"{_NETWORK.format(0)}/24")
        with self._hosts.open("a") as table:
            table.write(names_of_machine())
        for node in self.nodes:
            node.run("ip", "route", "add", "default", "via", address)

    def cache_of(self, name: str) -> Path:
        """Where a node keeps data that it has fetched over its own link."""
        return self._scratch / name / "cache"

    def close(self) -> None:
        if self._gateway is not None:
            self._gateway.close()
        if self._outside is not None:
            self._outside.close()
        if self._links is not None:
            self._links.close()
        for node in self.nodes:
            node.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def missing_tools() -> list[str]:
    return [tool for tool in TOOLS if shutil.which(tool) is None]
