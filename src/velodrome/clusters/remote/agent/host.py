"""What an agent does on its host: it reports what the host has and what processes there do, tries the network to other
hosts, and keeps files: what is sent, unpacked, and brought back.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from velodrome.clusters.remote.agent import CHUNK, Header

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
    """Listen for a while; a connection that begins with the key gets its first bytes back; the rest is discarded."""
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
    sent, deadline = b"", time.monotonic() + _CONNECT_SECONDS
    while len(sent) < len(key) and (left := deadline - time.monotonic()) > 0:
        link.settimeout(left)
        data = link.recv(len(key) - len(sent))
        if not data:
            return False
        sent += data
    return hmac.compare_digest(sent, key)


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


Send = Callable[[Header, bytes], None]
_INCOMPLETE = (".part", ".tmp")


class HostFiles:
    """The files below the agent's root, and which of those of runs the controller has."""

    def __init__(self, root: Path, send: Send) -> None:
        self.root, self._send = root, send
        #: Size and time of the files that the controller has.
        self._sent: dict[Path, tuple[int, int]] = {}
        #: Folder and patterns by the token of the run.
        self._watched: dict[str, tuple[Path, list[str]]] = {}
        #: Held while files are sent, by the watching thread or for a request: the chunks of a file stay together.
        self._sending = threading.Lock()

    def has(self, header: Header, body: bytes) -> Header:
        """Where a path below the root lies, and whether it is there."""
        path = self.root / header["path"]
        if header.get("use"):  # what is used stays
            with suppress(OSError):
                os.utime(path)
        return {"path": str(path), "there": path.exists()}

    def put(self, header: Header, body: bytes) -> Header:
        """Append bytes to a file, which gets its name with the last of them."""
        path = self.root / header["path"]
        partial = path.with_name(f"{path.name}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("ab" if header["at"] else "wb") as stream:
                stream.write(body)
            if header["last"]:
                partial.replace(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise
        return {"path": str(path)}

    def unpack(self, header: Header, body: bytes) -> Header:
        """Unpack a tar file into a new folder, in full or not at all; nothing to do if the folder is there."""
        target, source = self.root / header["to"], self.root / header["path"]
        if not target.is_dir():
            partial = target.with_name(f"{target.name}.part{os.getpid()}")
            try:
                with tarfile.open(source) as archive:
                    _extract(archive, partial)
                partial.rename(target)
            except (OSError, ValueError, tarfile.TarError):
                shutil.rmtree(partial, ignore_errors=True)
                if not target.is_dir():  # another session may have been faster
                    raise
        source.unlink(missing_ok=True)
        return {"path": str(target)}

    def known(self, header: Header, body: bytes) -> None:
        """Note that the controller has the files of a run's folder as they are now."""
        self._sent.update(_complete(Path(header["folder"]), ["**/*"]))

    def watch(self, header: Header, body: bytes) -> None:
        """Send files of a run whenever they are new or changed: checkpoints, which must not be lost with the host."""
        self._watched[header["token"]] = (Path(header["folder"]), header["patterns"])

    def forget(self, token: str) -> None:
        self._watched.pop(token, None)

    def send_watched(self) -> None:
        for token, (folder, patterns) in list(self._watched.items()):
            with suppress(OSError), self._sending:
                if token in self._watched:  # it may have just been forgotten
                    self._send_new(token, folder, patterns)

    def collect(self, header: Header, body: bytes) -> Header:
        """Send all files of a run that the controller does not have."""
        self.forget(header["token"])
        with self._sending:
            return {"files": self._send_new(header["token"], Path(header["folder"]), ["**/*"])}

    def _send_new(self, token: str, folder: Path, patterns: Iterable[str]) -> int:
        count = 0
        for path, stamp in sorted(_complete(folder, patterns).items()):
            if self._sent.get(path) == stamp:
                continue
            try:
                self._send_file(token, path, str(path.relative_to(folder)))
            except FileNotFoundError:  # an old checkpoint that has just been removed
                continue
            self._sent[path] = stamp
            count += 1
        return count

    def _send_file(self, token: str, path: Path, name: str) -> None:
        at = 0
        with path.open("rb") as stream:
            while True:
                data = stream.read(CHUNK)
                self._send({"is": "file", "run": token, "name": name, "at": at, "last": not data}, data)
                if not data:
                    return
                at += len(data)


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Write the files of an archive below a folder; `ValueError` if it holds anything else, such as a link.

    The extraction filters of `tarfile` do the same, and Python 3.11 has them only from 3.11.4 on.
    """
    folder.mkdir(parents=True)
    for member in archive:
        name = PurePosixPath(member.name)
        stream = archive.extractfile(member) if member.isreg() else None
        if stream is None or name.is_absolute() or ".." in name.parts:
            raise ValueError(f"the archive holds {member.name!r}, which is no plain file below its folder")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with stream, path.open("wb") as copy:
            shutil.copyfileobj(stream, copy)
        path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _complete(folder: Path, patterns: Iterable[str]) -> dict[Path, tuple[int, int]]:
    """Regular files below a folder that are not being written, with size and time."""
    stamps = {}
    for pattern in patterns:
        for path in folder.glob(pattern):
            with suppress(OSError):
                if path.is_file() and not path.is_symlink() and path.suffix not in _INCOMPLETE:
                    about = path.stat()
                    stamps[path] = (about.st_size, about.st_mtime_ns)
    return stamps
