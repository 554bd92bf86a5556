"""The nodes of a cluster and what connects them: a bridge of the kernel, or a switch in user space where packets must
be delayed and the kernel cannot do it (no `netem`). Either can cut a node off from the others.

A namespace lives as long as a process in it does. The first process of each node, its holder, ends when its standard
input closes, which the kernel does when the controller ends, in whatever way. So no namespace, interface or mount can
outlive the controller. What connects the nodes has a namespace of its own; the machine's own network is never touched.

So has the gateway, a node through which the others reach the storage that a job's data is in. The nodes send it
whatever is not for a node; it redirects TCP connections to a relay, which makes them from this machine. Other traffic,
and so name servers, cannot be reached.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from velodrome.clusters.emulated import EmulatedCluster, programs
from velodrome.clusters.emulated.node import READY, Helper, Node, folder_prefix
from velodrome.clusters.interrupts import rollback
from velodrome.clusters.remote.link import is_loopback
from velodrome.data.storage.store import REMOTE
from velodrome.errors import BadRequest, Unavailable, VelodromeError

_SECONDS = 10.0
_TUN = Path("/dev/net/tun")


class Links(ABC):
    """The network between nodes."""

    #: What delays packets: `netem` or `user space`; None if nothing does.
    delayed_by: str | None

    def __init__(self, cluster: EmulatedCluster) -> None:
        self._cluster, self._ports = cluster, 0

    @abstractmethod
    def add(self, node: Node) -> None:
        """Connect one more host to the nodes."""

    @abstractmethod
    def lead(self, seconds: float) -> None:
        """Let packets leave earlier by the time that the emulation itself takes."""

    @abstractmethod
    def cut(self, number: int) -> None:
        """Drop everything that the node with this number, counted from 1, sends or would receive."""

    @abstractmethod
    def mend(self, number: int) -> None:
        """Connect it again."""

    @abstractmethod
    def close(self) -> None:
        """End what connects the nodes."""

    def _set_up(self, node: Node) -> None:
        """Give a node its address, and limit what it sends."""
        node.run("ip", "link", "set", "lo", "up")
        node.run("ip", "address", "add", f"{node.address}/24", "dev", "eth0")
        node.run("ip", "link", "set", "eth0", "up")
        for words in queues(self._cluster, "eth0", latency=None):
            node.run(*words)


def connect(cluster: EmulatedCluster, nodes: Sequence[Node]) -> Links:
    """Connect nodes as a cluster asks for it."""
    return UserSpace(cluster, nodes) if delayed_by(cluster, nodes[0]) == "user space" else Bridge(cluster, nodes)


def delayed_by(cluster: EmulatedCluster, node: Node) -> str | None:
    """What can delay packets of a cluster, tried on one of its nodes; `BadRequest` if nothing can."""
    if cluster.latency is None:
        return None
    if has_netem(node):
        return "netem"
    try:
        os.close(os.open(_TUN, os.O_RDWR))
    except OSError as error:
        raise BadRequest(f"--on emulated: latency needs netem, which this kernel lacks, or {_TUN} "
                         f"({error.strerror}); leave latency out") from None
    return "user space"


def has_netem(node: Node) -> bool:
    """Whether this kernel can delay packets; tried on a device of a node."""
    try:
        node.run("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
        node.run("tc", "qdisc", "del", "dev", "lo", "root")
    except VelodromeError:
        return False
    return True


class Bridge(Links):
    """A bridge in a namespace of its own, with a pair of devices to each node."""

    def __init__(self, cluster: EmulatedCluster, nodes: Sequence[Node]) -> None:
        super().__init__(cluster)
        self.delayed_by = "netem" if cluster.latency is not None else None
        self.switch = Node("switch", "", None)
        with rollback(self.close):
            self.switch.wait_until_ready()
            self.switch.run("ip", "link", "add", "bridge", "type", "bridge")
            self.switch.run("ip", "link", "set", "bridge", "up")
            for node in nodes:
                self.add(node)

    def add(self, node: Node) -> None:
        self._ports += 1
        port = f"port{self._ports}"
        self.switch.run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(node.pid))
        self.switch.run("ip", "link", "set", port, "master", "bridge", "up")
        self._set_up(node)
        for words in queues(self._cluster, port, latency=self._cluster.latency):
            self.switch.run(*words)

    def lead(self, seconds: float) -> None:
        """Nothing: the kernel is not late."""

    def cut(self, number: int) -> None:
        self.switch.run("ip", "link", "set", f"port{number}", "down")

    def mend(self, number: int) -> None:
        self.switch.run("ip", "link", "set", f"port{number}", "up")

    def close(self) -> None:
        self.switch.close()


class UserSpace(Links):
    """A process that passes packets on between the nodes, each after the latency."""

    delayed_by = "user space"

    def __init__(self, cluster: EmulatedCluster, nodes: Sequence[Node]) -> None:
        super().__init__(cluster)
        self._switch = Helper(
            programs.command("switch", cluster.latency or 0.0, cluster.bandwidth or 0.0, *(node.pid for node in nodes)),
            "--on emulated: latency cannot be emulated",
        )
        with rollback(self.close):
            self._switch.expect(READY, _SECONDS)
            for node in nodes:
                self._plug(node)

    def _plug(self, node: Node) -> None:
        self._ports += 1
        node.run("ip", "link", "set", "eth0", "address", programs.hardware_address(self._ports))
        self._set_up(node)

    def add(self, node: Node) -> None:
        self._switch.tell(f"add {node.pid}", _SECONDS)
        self._plug(node)

    def lead(self, seconds: float) -> None:
        self._switch.tell(f"lead {seconds:.6f}", _SECONDS)

    def cut(self, number: int) -> None:
        self._switch.tell(f"cut {number}", _SECONDS)

    def mend(self, number: int) -> None:
        self._switch.tell(f"mend {number}", _SECONDS)

    def close(self) -> None:
        self._switch.close()


def queues(cluster: EmulatedCluster, device: str, latency: float | None) -> list[list[str]]:
    """The commands that delay what leaves a device and limit its rate: a token bucket that holds 5 ms of traffic and a
    queue of 50 ms."""
    commands, parent = [], ["root"]
    add = ["tc", "qdisc", "add", "dev", device]
    if latency is not None:
        # As many packets as a fast link has on its way at once.
        commands.append([*add, "root", "handle", "1:", "netem", "delay", f"{latency * 1e6:.0f}us", "limit", "100000"])
        parent = ["parent", "1:1"]
    if cluster.bandwidth is not None:
        burst = max(16_000, int(cluster.bandwidth / 8 * programs.BURST))
        rate = f"{cluster.bandwidth:.0f}bit"
        commands.append([*add, *parent, "handle", "10:", "tbf", "rate", rate, "burst", str(burst),
                         "latency", f"{programs.QUEUE * 1e3:.0f}ms"])
    return commands


_REMOTE = re.compile(rf"[\w-]+:((?:{'|'.join(REMOTE)})://.*)", re.IGNORECASE)


def storage_of(dataset: str) -> str | None:
    """The address of the storage that a data set is in; None if it is on this machine."""
    match = _REMOTE.fullmatch(dataset)
    return match[1] if match else None


def check_storage(url: str) -> None:
    """Refuse storage that nodes cannot reach."""
    if shutil.which("iptables") is None:
        message = f"--on emulated: nodes reach {url!r} with iptables only: install it, or use data on this machine"
        raise Unavailable(message, [message])
    if url.lower().startswith("s3://"):
        url = os.environ.get("AWS_ENDPOINT_URL", url)
    host = urlsplit(url).hostname or ""
    if is_loopback(host):
        raise BadRequest(
            f"--on emulated: {url!r} is an address of loopback, where each emulated node finds itself only; give "
            "storage an address that other hosts could use, too"
        )


class Gateway:
    """A namespace among the nodes, and the relay that listens in it."""

    def __init__(self, node: Node, network: str) -> None:
        node.run("iptables", "-w", "5", "-t", "nat", "-A", "PREROUTING", "-i", "eth0", "!", "-d", network, "-p", "tcp",
                 "-j", "REDIRECT", "--to-ports", str(programs.PORT))
        self._relay = Helper(programs.command("relay", node.pid), "--on emulated: nodes cannot reach storage")
        #: Ends the relay; the namespace is closed by whoever made it.
        self.close = self._relay.close
        with rollback(self.close):
            self._relay.expect(READY, _SECONDS)


def names_of_machine(table: Path = Path("/etc/hosts")) -> str:
    """The names that this machine has a table of, without its own: nodes cannot ask a name server."""
    lines = table.read_text().splitlines() if table.exists() else []
    return "".join(f"{line}\n" for line in lines if (words := line.split()) and words[0][0].isdigit()
                   and not is_loopback(words[0]))


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
        with rollback(self.close):
            self.nodes += [Node(name, _NETWORK.format(number), hosts) for number, name in enumerate(names, 1)]
            for node in self.nodes:
                node.wait_until_ready()
            self._links = connect(cluster, self.nodes)

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
        for part in (self._gateway, self._outside, self._links, *self.nodes):
            if part is not None:
                part.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def missing_tools() -> list[str]:
    return [tool for tool in TOOLS if shutil.which(tool) is None]
