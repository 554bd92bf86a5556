"""Nodes on this machine: each is a network namespace with its own address and name, all connected by a bridge.

A namespace lives as long as a process in it does. The first process of each node, its holder, ends when its standard
input closes, which the kernel does when the controller ends, in whatever way. So no namespace, interface or mount can
outlive the controller. The bridge has a namespace of its own; the machine's own network is never touched.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from velodrome.cluster.emulated.request import EmulatedCluster
from velodrome.errors import VelodromeError

TOOLS = ("ip", "tc", "nsenter", "unshare", "mount")
#: Addresses exist inside the namespaces only, so they cannot collide with any that the machine uses.
_NETWORK = "10.77.0.{}"
_START_SECONDS = 10.0
#: What a holder does: it takes its name, sees its own table of hosts, reports that it is there, and waits for the end.
_HOLD = 'hostname "$1" && { [ -z "$2" ] || mount --bind "$2" /etc/hosts; } && echo ready && exec cat > /dev/null'


class Node:
    """One namespace and the process that holds it."""

    def __init__(self, name: str, address: str, hosts: Path | None) -> None:
        self.name, self.address = name, address
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", _HOLD, "sh", name, str(hosts or "")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, cwd="/",
        )

    def wait_until_ready(self) -> None:
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != b"ready\n":
            reason = self._holder.stderr.read().decode(errors="replace").strip()
            raise VelodromeError(f"{self.name} cannot be emulated: {reason or 'its first process ended at once'}")

    def enter(self, words: Sequence[str]) -> list[str]:
        """A command that runs inside the node, as the process that starts it."""
        return ["nsenter", f"--target={self._holder.pid}", "--net", "--uts", "--mount", "--wd=.", "--", *words]

    def run(self, *words: str) -> None:
        _run(self.enter(words))

    @property
    def pid(self) -> int:
        return self._holder.pid

    def close(self) -> None:
        assert self._holder.stdin is not None
        with suppress(OSError):
            self._holder.stdin.close()
        try:
            self._holder.wait(2.0)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()
        for stream in (self._holder.stdout, self._holder.stderr):
            if stream is not None:
                stream.close()


class Network:
    """The nodes of a cluster and the bridge between them."""

    def __init__(self, cluster: EmulatedCluster) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="velodrome-nodes-"))
        names = [f"node{number}" for number in range(1, cluster.nodes + 1)]
        hosts = self._scratch / "hosts"
        table = [f"{_NETWORK.format(number)} {name}" for number, name in enumerate(names, 1)]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *table]) + "\n")
        self.nodes: list[Node] = []
        self.switch = Node("switch", "", None)
        try:
            self.nodes += [Node(name, _NETWORK.format(number), hosts) for number, name in enumerate(names, 1)]
            for node in (self.switch, *self.nodes):
                node.wait_until_ready()
            self._connect(cluster)
        except BaseException:
            self.close()
            raise

    def _connect(self, cluster: EmulatedCluster) -> None:
        self.switch.run("ip", "link", "add", "bridge", "type", "bridge")
        self.switch.run("ip", "link", "set", "bridge", "up")
        for number, node in enumerate(self.nodes, 1):
            port = f"port{number}"
            self.switch.run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(node.pid))
            self.switch.run("ip", "link", "set", port, "master", "bridge", "up")
            node.run("ip", "link", "set", "lo", "up")
            node.run("ip", "address", "add", f"{node.address}/24", "dev", "eth0")
            node.run("ip", "link", "set", "eth0", "up")
            if cluster.bandwidth is not None:
                shape(node, "eth0", cluster.bandwidth)
                shape(self.switch, port, cluster.bandwidth)

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def close(self) -> None:
        for node in (*self.nodes, self.switch):
            node.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def shape(node: Node, device: str, bandwidth: float) -> None:
    """Limit what leaves a device: a token bucket that holds 5 ms of traffic and a queue of 50 ms."""
    burst = max(16_000, int(bandwidth / 8 * 0.005))
    node.run("tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{bandwidth:.0f}bit",
             "burst", str(burst), "latency", "50ms")


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_START_SECONDS)
    if done.returncode:
        command = words[words.index("--") + 1 :] if "--" in words else words
        raise VelodromeError(f"the emulated cluster cannot be created: {' '.join(command)}: {done.stderr.strip()}")


def missing_tools() -> list[str]:
    return [tool for tool in TOOLS if shutil.which(tool) is None]

