"""Hosts with a real sshd each: network namespaces with their own addresses, names and disks, all without a common disk.

`python tests/servers/sshd.py` prepares them once, with the network: Debian's openssh-server. The first
namespace has no sshd: it is where the controller runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml
from debian import install

from velodrome.clusters.emulated import EmulatedCluster
from velodrome.clusters.emulated.network import Network, missing_tools
from velodrome.clusters.emulated.node import Node

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
_PACKAGES = ("openssh-server", "openssh-client")


def unavailable() -> str:
    """Why there can be no such hosts here; empty if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts with sshd need Linux and root"
    if missing := missing_tools():
        return f"hosts with sshd need {', '.join(missing)}"
    return "" if Path(SSHD).exists() else "no sshd: python tests/servers/sshd.py (needs network and root)"


def prepare() -> None:
    """Install what is missing, and start no service."""
    if not Path(SSHD).exists():
        install(_PACKAGES)


class Hosts:
    """A controller's namespace and several hosts, with everything that an SSH client needs to reach them."""

    def __init__(self, home: Path, count: int, disk: str = "300m") -> None:
        self.home = home
        Path("/run/sshd").mkdir(parents=True, exist_ok=True)
        self.network = Network(EmulatedCluster(nodes=count + 1))
        self.controller, *self.nodes = self.network.nodes
        self.names = [node.name for node in self.nodes]
        #: Process ids of the commands that were started.
        self.controllers: list[int] = []
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        #: Where each host has its own disk.
        self.disk = home / "disk"
        self.disk.mkdir()
        for key in ("user", "stranger"):
            self.make_key(key)
        (home / "authorized").write_text((home / "user.pub").read_text())
        (home / "authorized").chmod(0o600)
        for node in self.nodes:
            self.make_key(f"host-{node.name}")
            node.run("mount", "-t", "tmpfs", "-o", f"size={disk}", "tmpfs", str(self.disk))
            self.start(node.name)
        self.write_config()
        self.write_clusters()

    def make_key(self, name: str) -> None:
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(self.home / name)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)

    def node(self, name: str) -> Node:
        return self.network[name]

    def start(self, name: str) -> None:
        """Start the sshd of a host and wait until it listens."""
        options = {
            "AuthorizedKeysFile": self.home / "authorized", "UsePAM": "no", "StrictModes": "no",
            "PidFile": self.home / f"{name}.pid", "PermitRootLogin": "yes", "MaxStartups": "100",
        }
        words = [SSHD, "-D", "-e", "-f", "/dev/null", "-p", "22", "-h", str(self.home / f"host-{name}")]
        words += [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        with (self.home / f"sshd-{name}.log").open("ab") as log:
            self._servers[name] = subprocess.Popen(
                self.node(name).enter(words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )
        probe = self.node(name).enter(["sh", "-c", "exec 3<>/dev/tcp/127.0.0.1/22"])
        probe[probe.index("sh")] = "bash"
        for _ in range(100):
            if subprocess.run(probe, capture_output=True).returncode == 0:
                return
            time.sleep(0.05)
        raise AssertionError(f"sshd of {name} does not listen")

    def processes(self, name: str) -> list[int]:
        """Everything that runs on a host, but the process that holds its namespace."""
        space = Path(f"/proc/{self.node(name).pid}/ns/net").readlink()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (entry / "ns" / "net").readlink() == space and int(entry.name) != self.node(name).pid:
                    found.append(int(entry.name))
        return found

    def command_lines(self, name: str) -> list[str]:
        found = []
        for pid in self.processes(name):
            with suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        return found

    def crash(self, name: str) -> None:
        """End everything on a host at once, as when its power is cut: its sshd and all processes."""
        while pids := self.processes(name):
            for pid in pids:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._servers[name].wait(0.1)

    def cut(self, name: str) -> None:
        """Cut a host off the network."""
        self.network.cut(name)

    def heal(self, name: str) -> None:
        self.network.mend(name)

    def write_config(self, *, key: str = "user", known: Sequence[str] | None = None, jump: Sequence[str] = ()) -> None:
        """The client's configuration: which key, whose host keys are known, and hosts behind the first one."""
        lines, keys = [], []
        for node in self.nodes:
            lines += [f"Host {node.name}", f"  HostName {node.address}", f"  IdentityFile {self.home / key}",
                      "  IdentitiesOnly yes", "  User root", f"  UserKnownHostsFile {self.home / 'known'}",
                      "  GlobalKnownHostsFile /dev/null"]
            if node.name in jump:
                lines.append(f"  ProxyCommand ssh -F {self.home / 'config'} -W %h:%p {self.names[0]}")
            if known is None or node.name in known:
                public = (self.home / f"host-{node.name}.pub").read_text().split()[:2]
                keys.append(" ".join([node.address, *public]))
        (self.home / "config").write_text("\n".join(lines) + "\n")
        (self.home / "known").write_text("\n".join(keys) + "\n")

    def write_clusters(self, **fields: object) -> None:
        """The definition of `lab`."""
        about = {
            "launcher": "ssh", "hosts": self.names, "ssh_config": str(self.home / "config"), "python": sys.executable,
            "root": str(self.disk / "velodrome"), **fields,
        }
        (self.home / "clusters.yaml").write_text(yaml.safe_dump({"lab": about}))

    def velodrome(self, *words: object, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
        """A command on the controller's side."""
        own = {**os.environ, "VELODROME_CLUSTERS": str(self.home / "clusters.yaml"), "NO_COLOR": "1",
               "VELODROME_STRICT_EVENTS": "1", **environment}
        process = subprocess.Popen(
            self.controller.enter([sys.executable, "-m", "velodrome", *map(str, words)]), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own, cwd=cwd or self.home,
        )
        self.controllers.append(process.pid)
        return process

    def close(self) -> None:
        for name in self.names:
            self.crash(name)
        for pid in self.processes(self.controller.name):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.network.close()
        for server in self._servers.values():
            server.wait()


@contextmanager
def ssh_hosts(home: Path, count: int = 2, disk: str = "300m") -> Iterator[Hosts]:
    """Hosts with sshd during the block; nothing is left of them."""
    made = Hosts(home, count, disk)
    try:
        yield made
    finally:
        made.close()


if __name__ == "__main__":
    prepare()
