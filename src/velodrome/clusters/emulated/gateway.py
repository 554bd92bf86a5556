"""The way out of an emulated cluster: nodes reach the storage that a job's data is in, over their own links.

The gateway is one more host of the cluster. The nodes send it whatever is not for a node; it redirects TCP connections
to a relay, which makes them from this machine. Other traffic, and so name servers, cannot be reached.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from velodrome.clusters.emulated import relay
from velodrome.clusters.emulated.node import Node
from velodrome.data.storage.backends import REMOTE
from velodrome.errors import BadRequest, Unavailable, VelodromeError

_SECONDS = 10.0
_REMOTE = re.compile(rf"[\w-]+:((?:{'|'.join(REMOTE)})://.*)", re.IGNORECASE)


def storage_of(dataset: str) -> str | None:
    """The address of the storage that a data set is in; None if it is on this machine."""
    found = _REMOTE.fullmatch(dataset)
    return found[1] if found else None


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
        self.node = node
        words = ["iptables", "-w", "5", "-t", "nat", "-A", "PREROUTING", "-i", "eth0", "!", "-d", network, "-p", "tcp",
                 "-j", "REDIRECT", "--to-ports", str(relay.PORT)]
        node.run(*words)
        self._relay = subprocess.Popen(
            [sys.executable, "-I", "-S", relay.__file__, str(node.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True, cwd="/",
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _wait_until_ready(self) -> None:
        assert self._relay.stdout is not None
        assert self._relay.stderr is not None
        readable, _, _ = select.select([self._relay.stdout], [], [], _SECONDS)
        if not readable or self._relay.stdout.readline() != b"ready\n":
            self._relay.kill()
            reason = self._relay.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise VelodromeError(f"--on emulated: nodes cannot reach storage: {reason or 'the relay does not answer'}")

    def close(self) -> None:
        """End the relay; the namespace is closed by whoever made it."""
        assert self._relay.stdin is not None
        with suppress(OSError):
            self._relay.stdin.close()
        try:
            self._relay.wait(2.0)
        except subprocess.TimeoutExpired:
            self._relay.kill()
            self._relay.wait()
        for stream in (self._relay.stdout, self._relay.stderr):
            if stream is not None:
                stream.close()


def names_of_machine(table: Path = Path("/etc/hosts")) -> str:
    """The names that this machine has a table of, without its own: nodes cannot ask a name server."""
    lines = table.read_text().splitlines() if table.exists() else []
    return "".join(f"{line}\n" for line in lines if (words := line.split()) and words[0][0].isdigit()
                   and not _is_loopback(words[0]))
