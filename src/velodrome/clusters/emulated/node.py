"""One node on this machine: a network namespace with its own address and name, held by a process; and the gateway, a
node through which the others reach the storage that a job's data is in.

The nodes send the gateway whatever is not for a node; it redirects TCP connections to a relay, which makes them from
this machine. Other traffic, and so name servers, cannot be reached.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from velodrome.clusters.emulated import programs
from velodrome.data.storage.store import REMOTE
from velodrome.errors import BadRequest, Unavailable, VelodromeError

#: What a helper prints first.
READY = "ready"
#: Both take milliseconds on an idle machine.
_START_SECONDS, _RUN_SECONDS = 30.0, 30.0
#: What a holder does: it takes its name, sees its own table of hosts, reports that it is there, and waits for the end.
_HOLD = 'hostname "$1" && { [ -z "$2" ] || mount --bind "$2" /etc/hosts; } && echo ready && exec cat > /dev/null'


class Helper:
    """A process of the emulation: it prints a line when it is ready, and ends when its standard input closes."""

    def __init__(self, words: Sequence[str], failed: str) -> None:
        """`failed` begins the sentence if it does not do what it should."""
        self._failed = failed
        self._popen = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def expect(self, word: str, seconds: float) -> None:
        """Wait for a line; `VelodromeError` if it is another one or does not come in time."""
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        in_time = select.select([self._popen.stdout], [], [], seconds)[0]
        if in_time and self._popen.stdout.readline() == f"{word}\n".encode():
            return
        self._popen.kill()
        if in_time:
            printed = self._popen.stderr.read().decode(errors="replace").strip()
            reason = printed.rpartition("\n")[2] or "its process ended at once"
        else:
            what = "start" if word == READY else "answer"
            reason = f"its process did not {what} within {seconds:g} s; is this machine busy?"
        raise VelodromeError(f"{self._failed}: {reason}")

    def tell(self, line: str, seconds: float) -> None:
        """Send a line, and wait until it is done."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(f"{line}\n".encode())
            self._popen.stdin.flush()
        except OSError as error:
            raise VelodromeError(f"{self._failed}: its process is gone") from error
        self.expect("done", seconds)

    def close(self) -> None:
        assert self._popen.stdin is not None
        with suppress(OSError):
            self._popen.stdin.close()
        try:
            self._popen.wait(2.0)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        for stream in (self._popen.stdout, self._popen.stderr):
            if stream is not None:
                stream.close()


class Node:
    """One namespace and the process that holds it."""

    def __init__(self, name: str, address: str, hosts: Path | None) -> None:
        self.name, self.address = name, address
        self._holder = Helper(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", _HOLD, "sh", name, str(hosts or "")],
            f"{name} cannot be emulated",
        )
        self.close = self._holder.close

    def wait_until_ready(self) -> None:
        """Wait for the first process; `VelodromeError` if it fails or does not come in time."""
        self._holder.expect(READY, _START_SECONDS)

    def enter(self, words: Sequence[str]) -> list[str]:
        """A command that runs inside the node, as the process that starts it."""
        return ["nsenter", f"--target={self._holder.pid}", "--net", "--uts", "--mount", "--wd=.", "--", *words]

    def run(self, *words: str) -> None:
        _run(self.enter(words))

    @property
    def pid(self) -> int:
        return self._holder.pid

    def traffic(self) -> dict[str, int]:
        """Bytes that the node has received, sent and kept on loopback so far, by its own counters."""
        totals = {"in": 0, "out": 0, "loopback": 0}
        for line in Path(f"/proc/{self.pid}/net/dev").read_text().splitlines()[2:]:
            name, _, counters = line.partition(":")
            received, sent = (int(number) for number in counters.split()[:9:8])
            if name.strip() == "lo":
                totals["loopback"] += received
            else:
                totals["in"], totals["out"] = totals["in"] + received, totals["out"] + sent
        return totals


def _run(words: Sequence[str]) -> None:
    command = " ".join(words[words.index("--") + 1 :] if "--" in words else words)
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_RUN_SECONDS)
    except subprocess.TimeoutExpired:
        raise VelodromeError(f"the emulated cluster cannot be changed: {command}: it did not end within "
                             f"{_RUN_SECONDS:g} s; is this machine busy?") from None
    if done.returncode:
        raise VelodromeError(f"the emulated cluster cannot be created: {command}: {done.stderr.strip()}")


_SECONDS = 10.0
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
    if host == "localhost" or _is_loopback(host):
        raise BadRequest(
            f"--on emulated: {url!r} is an address of loopback, where each emulated node finds itself only; give "
            "storage an address that other hosts could use, too"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Gateway:
    """A namespace among the nodes, and the relay that listens in it."""

    def __init__(self, node: Node, network: str) -> None:
        node.run("iptables", "-w", "5", "-t", "nat", "-A", "PREROUTING", "-i", "eth0", "!", "-d", network, "-p", "tcp",
                 "-j", "REDIRECT", "--to-ports", str(programs.PORT))
        self._relay = Helper(programs.command("relay", node.pid), "--on emulated: nodes cannot reach storage")
        try:
            self._relay.expect(READY, _SECONDS)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the relay; the namespace is closed by whoever made it."""
        self._relay.close()


def names_of_machine(table: Path = Path("/etc/hosts")) -> str:
    """The names that this machine has a table of, without its own: nodes cannot ask a name server."""
    lines = table.read_text().splitlines() if table.exists() else []
    return "".join(f"{line}\n" for line in lines if (words := line.split()) and words[0][0].isdigit()
                   and not _is_loopback(words[0]))
