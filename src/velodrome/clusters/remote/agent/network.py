"""What an agent finds out about its host, the processes there, and the network to other hosts."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from velodrome.clusters.remote.agent.streams import Header

#: Where engine environments are installed on this host: as `environments.folder` has it.
_ENVIRONMENTS, _USUAL_ENVIRONMENTS = "VELODROME_ENVIRONMENTS", "~/.local/share/velodrome/environments"
_ACCEPT_SECONDS = 20.0
_CONNECT_SECONDS = 5.0
#: Connections that are answered at the same time; a host of a large cluster has some from every other one.
_MOST_CONNECTIONS = 256


def facts(root: Path) -> Header:
    """What this host is, has and is doing at this moment."""
    memory = None
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        memory = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    place = root
    while not place.is_dir() and place != place.parent:
        place = place.parent
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "host": socket.gethostname(), "clock": time.time(), "python": sys.version.split()[0],
        "interpreter": sys.executable, "base": getattr(sys, "_base_executable", None) or sys.executable,
        "home": str(Path.home()), "cores": cores,
        "memory": memory, "disk": shutil.disk_usage(place).free,
        "connection": os.environ.get("SSH_CONNECTION", ""), "root": str(root),
        "environments": str(Path(os.environ.get(_ENVIRONMENTS) or _USUAL_ENVIRONMENTS).expanduser()),
    }


def stack_of(pid: int, python: str, limit: float = 10.0) -> str:
    """What every Python thread of a process is doing, by the py-spy beside an interpreter or on the path; otherwise why
    that is not known. Works on a process that is stopped, too."""
    beside = Path(python).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return "(no stack: py-spy is not installed)"
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=limit,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"(no stack: {error})"
    errors = done.stderr.strip().splitlines() or ["py-spy printed nothing"]
    return done.stdout.strip() or f"(no stack: {errors[-1][:300]})"


def ports(header: Header, body: bytes) -> Header:
    """Those of the given ports that nobody listens on at this moment, as many as are wanted."""
    free: list[int] = []
    for port in header["ports"]:
        if len(free) == header["count"]:
            break
        with suppress(OSError), socket.socket() as trial:
            trial.bind(("", port))
            free.append(port)
    return {"ports": free}


def resolve(header: Header, body: bytes) -> Header:
    """The addresses of names as this host sees them; none for a name that it does not know."""
    addresses: dict[str, list[str]] = {}
    for name in header["names"]:
        addresses[name] = []
        with suppress(OSError):
            known = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            addresses[name] = sorted({str(address[4][0]) for address in known})
    return {"addresses": addresses}


def _listener(address: str, port: int) -> socket.socket:
    """A socket that listens at an address of this host and, where the others know it by a name or by an address that it
    does not have itself, at all addresses, IPv6 included where it has some."""
    with suppress(ValueError, OSError):
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
        return socket.create_server((address, port), family=family)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("", port))


def listen(header: Header, body: bytes) -> Header:
    """Listen for a while; whoever begins with the key gets the first bytes back, and the rest is thrown away."""
    listener, limit = _listener(header.get("address", ""), header.get("port", 0)), header.get("limit", _ACCEPT_SECONDS)
    key, served = header["key"].encode(), threading.BoundedSemaphore(_MOST_CONNECTIONS)
    until = [time.monotonic() + limit]

    def serve(link: socket.socket) -> None:
        with suppress(OSError), link:
            if _begins_with(link, key):
                until[0] = time.monotonic() + limit
                _echo(link)
        served.release()

    def accept() -> None:
        with suppress(OSError), listener:
            while (left := until[0] - time.monotonic()) > 0:
                listener.settimeout(left)
                link, _ = listener.accept()
                if served.acquire(blocking=False):
                    threading.Thread(target=serve, args=(link,), daemon=True).start()
                else:
                    link.close()

    port = listener.getsockname()[1]
    threading.Thread(target=accept, daemon=True).start()
    return {"port": port}


def _begins_with(link: socket.socket, key: bytes) -> bool:
    """Whether the other side sends the key, in a few seconds."""
    said, deadline = b"", time.monotonic() + _CONNECT_SECONDS
    while len(said) < len(key) and (left := deadline - time.monotonic()) > 0:
        link.settimeout(left)
        data = link.recv(len(key) - len(said))
        if not data:
            return False
        said += data
    return hmac.compare_digest(said, key)


def _echo(link: socket.socket) -> None:
    link.settimeout(30.0)
    while (data := link.recv(1)) and data != b".":
        link.sendall(data)
    while link.recv(1 << 20):
        pass


def connect(header: Header, body: bytes) -> Header:
    """Connect to another host: the round-trip time and, if it is to be measured for some seconds, the bandwidth."""
    link = socket.create_connection((header["address"], header["port"]), timeout=header.get("limit", _CONNECT_SECONDS))
    with link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(header["key"].encode())
        trips = []
        for _ in range(header.get("trips", 3)):
            began = time.perf_counter()
            link.sendall(b"x")
            if not link.recv(1):
                raise OSError("the connection was closed at once")
            trips.append(time.perf_counter() - began)
        measured: Header = {"round_trip": sorted(trips)[len(trips) // 2]}
        if seconds := header.get("measure", 0.0):
            link.sendall(b".")
            measured["bandwidth"] = _bandwidth(link, seconds)
    return measured


def _bandwidth(link: socket.socket, seconds: float) -> float:
    """Bits per second that a connection takes, once its buffers are full."""
    block, sent = bytes(1 << 16), 0
    began = time.perf_counter()
    skipped, mark = 0, began
    while (now := time.perf_counter()) - began < seconds:
        if not skipped and now - began > seconds / 3:
            skipped, mark = sent, now
        link.sendall(block)
        sent += len(block)
    return 8 * (sent - skipped) / (time.perf_counter() - mark)
