"""A real Ray cluster whose nodes are network namespaces: a head beside the controller, and two hosts that train.

Each host has its own address, name and disk. `ray start` runs in the foreground on each of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import yaml

from velodrome.clusters.emulated import EmulatedCluster
from velodrome.clusters.emulated.network import Network, missing_tools
from velodrome.clusters.emulated.node import Node

_PORT = 6379
_START_SECONDS = 120.0
#: Whether Ray asks for a token would depend on whether its user has one; these hosts are reached by nobody else.
_SETTINGS = {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "100", "RAY_USAGE_STATS_ENABLED": "0",
             "RAY_DISABLE_IMPORT_WARNING": "1"}


def unavailable() -> str:
    """Why there can be no such hosts here; empty if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts with Ray need Linux and root"
    if find_spec("ray") is None:
        return "ray is not installed"
    return f"hosts with Ray need {', '.join(missing)}" if (missing := missing_tools()) else ""


class RayHosts:
    """The head's namespace, where commands run, and several hosts."""

    def __init__(self, home: Path, count: int = 2, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are variables of Ray on each host, and of no command."""
        self.home = home
        self._settings = {**os.environ, **_SETTINGS, **(settings or {})}
        self.network = Network(EmulatedCluster(nodes=count + 1))
        self.controller, *self.nodes = self.network.nodes
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.disk = home / "disk"
        self.disk.mkdir()
        #: Ray's sockets have short paths only.
        self._temporary = Path(f"/tmp/r{os.getpid()}")
        try:
            for node in self.nodes:
                node.run("mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(self.disk))
            head = ["--head", f"--port={_PORT}", "--num-cpus=0", "--include-dashboard=false",
                    f"--temp-dir={self._temporary}"]
            self._start(self.controller, *head)
            self._wait_for(1)
            for number, node in enumerate(self.nodes, 2):
                # One after the other: they choose names in the same folder.
                self.start(node.name)
                self._wait_for(number)
            self.write_clusters()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return f"{self.controller.address}:{_PORT}"

    def _start(self, node: Node, *words: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block",
                   f"--node-ip-address={node.address}", "--object-store-memory=80000000", *words]
        with (self.home / f"ray-{node.name}.log").open("ab") as log:
            self._started[node.name] = subprocess.Popen(
                node.enter(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=self._settings,
            )

    def start(self, name: str) -> None:
        """Start Ray on a host."""
        self._start(self.network[name], f"--address={self.address}", "--num-cpus=1")

    def _wait_for(self, count: int) -> None:
        """Wait until so many nodes are alive."""
        script = (
            "import sys\nfrom ray._raylet import GcsClient\n"
            f"nodes = GcsClient(address='{self.address}').get_all_node_info(timeout=5).values()\n"
            "print(sum(1 for node in nodes if node.state == 0))"
        )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            done = subprocess.run(self.controller.enter([sys.executable, "-c", script]), capture_output=True, text=True,
                                  env=self._settings)
            if done.stdout.strip() == str(count):
                return
            if time.monotonic() > deadline:
                logs = "\n".join(log.read_text(errors="replace")[-1500:] for log in self.home.glob("ray-*.log"))
                said = done.stdout.strip() or done.stderr[-300:]
                raise RuntimeError(f"Ray has {said} of {count} nodes:\n{logs}")
            time.sleep(0.5)

    def processes(self, name: str) -> dict[int, str]:
        """The command lines of what runs on a host, but for the process that holds its namespace."""
        holder = self.network[name].pid
        space = Path(f"/proc/{holder}/ns/net").readlink()
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (entry / "ns" / "net").readlink() == space and int(entry.name) != holder:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(entry.name)] = line
        return found

    def workers(self, name: str) -> dict[int, str]:
        """Training processes of a host."""
        return {pid: line for pid, line in self.processes(name).items() if "velodrome.training --" in line}

    def kill_daemon(self, name: str) -> None:
        """Kill the raylet of a host."""
        for pid, line in self.processes(name).items():
            if line.split(" ")[0].endswith("/raylet"):
                os.kill(pid, signal.SIGKILL)

    def restart(self, name: str) -> None:
        """End whatever is left on a host and start Ray there again."""
        self._end(name)
        self._wait_for(len(self.nodes))  # until Ray has noticed: the old node would count as the new one
        self.start(name)
        self._wait_for(len(self.nodes) + 1)

    def _end(self, name: str) -> None:
        deadline = time.monotonic() + 20
        while (pids := self.processes(name)) and time.monotonic() < deadline:
            for pid in pids:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if (started := self._started.get(name)) is not None:
                with suppress(subprocess.TimeoutExpired):
                    started.wait(0.2)

    def write_clusters(self, **fields: object) -> None:
        """The definition of `farm`."""
        about = {"launcher": "ray", "address": self.address, "root": str(self.disk / "velodrome"), **fields}
        (self.home / "clusters.yaml").write_text(yaml.safe_dump({"farm": about}))

    def velodrome(self, *words: object, **variables: str) -> subprocess.Popen[str]:
        """A command on the head."""
        own = {**os.environ, **_SETTINGS, "VELODROME_CLUSTERS": str(self.home / "clusters.yaml"), "NO_COLOR": "1",
               **variables}
        return subprocess.Popen(
            self.controller.enter([sys.executable, "-m", "velodrome", *map(str, words)]), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own, cwd=self.home,
        )

    def close(self) -> None:
        for node in (*self.nodes, self.controller):
            self._end(node.name)
        self.network.close()
        subprocess.run(["rm", "-rf", str(self._temporary)], check=False)


@contextmanager
def ray_hosts(home: Path, count: int = 2, settings: Mapping[str, str] | None = None) -> Iterator[RayHosts]:
    """Hosts with Ray during the block; nothing is left of them."""
    made = RayHosts(home, count, settings)
    try:
        yield made
    finally:
        made.close()
