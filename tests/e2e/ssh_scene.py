"""Tools of the tests on hosts over SSH: a job that lasts, its processes there, and what is left of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import sshd

#: A script that lasts: it computes a little, so that it makes progress, and needs no framework.
LASTING = """
import time
for number in range(100_000):
    sum(range(50_000))
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Hosts]:
    """Two hosts with a real sshd each."""
    with sshd.ssh_hosts(tmp_path_factory.mktemp("ssh")) as made:
        yield made


def restored(hosts: sshd.Hosts) -> None:
    """Undo what an earlier test changed about how hosts are reached."""
    hosts.write_config()
    hosts.write_clusters()


def none_left(hosts: sshd.Hosts, seconds: float = 20) -> None:
    """No process is left on any host."""
    for name in hosts.names:
        eventually(lambda name=name: not left_on(hosts, name), seconds, lambda name=name: str(left_on(hosts, name)))


def left_on(hosts: sshd.Hosts, name: str) -> list[str]:
    return [line for line in hosts.command_lines(name) if line and "sshd" not in line.split()[0]]


def eventually(holds: Callable[[], object], seconds: float, why: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it never came true {why()}"
        time.sleep(0.1)


def finished(process: subprocess.Popen[str], seconds: float = 200) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=seconds)
    return process.returncode, out, errors


class Lasting:
    """A job of two processes, one on each host, that lasts until somebody ends it."""

    def __init__(
        self, hosts: sshd.Hosts, runs: Path, *more: object, silence: float = 8, script: bool = True
    ) -> None:
        """`more` are options; without `script` they say what is trained."""
        self.hosts, self.runs, self._sign = hosts, runs, ('"script"', 2) if script else ('"progress"', 1)
        hosts.write_clusters(silence=silence)
        (hosts.home / "lasting.py").write_text(LASTING)
        what = ["--script", "lasting.py", "--engine", "torch", "--workers", 2] if script else []
        self.process = hosts.velodrome(
            "train", *what, "--on", "lab", "--runs", runs, "--name", "long", "--stall-timeout", 60, *more,
        )
        eventually(self.training, 90 if script else 200, self.output)

    def output(self) -> str:
        return "" if self.process.poll() is None else f"{finished(self.process)}"

    def training(self) -> bool:
        assert self.process.poll() is None, self.output()
        return all(any("velodrome.training --" in line for line in self.hosts.command_lines(name))
                   for name in self.hosts.names) and (self.runs / "long" / "events.jsonl").exists() \
            and (self.runs / "long" / "events.jsonl").read_text().count(self._sign[0]) >= self._sign[1]

    def pid(self, name: str, what: str) -> int:
        for pid in self.hosts.processes(name):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if what in line:
                return pid
        raise LookupError(what)

    def agent(self, name: str) -> int:
        """The agent, and not the guardian that was forked from it: the parent of a worker."""
        worker = self.pid(name, "velodrome.training --")
        return int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])

    def failed(self, seconds: float = 90) -> str:
        code, _, errors = finished(self.process, seconds)
        assert code == 1, errors
        result = json.loads((self.runs / "long" / "result.json").read_text())
        assert result["status"] == "failed"
        return str(result["error"]["message"])
