"""Lets frameworks listen at this process's address of the plan instead of on all interfaces of its host.

TensorFlow's servers run whatever graph anybody sends them, PyTorch's store lets anybody write to it, and neither has an
option for the address that it listens at. So the entries through which their libraries call `bind` (those of the global
offset table, which the dynamic linker fills) are redirected to a function that replaces "any address" by the one of the
plan. All that depends on this is here. Where it does not work, on a system other than Linux or an unknown processor,
frameworks train as before, and `is_exposed` lets a run warn of it; `tests/training/test_listening.py` and
`tests/e2e/test_ports.py` fail when a framework no longer calls `bind` in this way. Nothing here runs while a process
trains: `bind` is called when servers start.

A private network namespace would protect these ports without any of this, but the user's code reads S3 and HDFS and
reports to trackers, so it needs the machine's network.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.machinery import ExtensionFileLoader
from ipaddress import IPv4Address, ip_address
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from velodrome.transport.sockets import listening_address

#: Packages whose libraries open ports by themselves. What users' own code opens is left alone.
_FRAMEWORKS = frozenset({"tensorflow", "torch", "jaxlib"})
#: Kinds of relocations whose place holds the address of a function of another library, by processor: JUMP_SLOT.
_JUMP_SLOT = {"x86_64": 7, "aarch64": 1026}
#: What a run says whose frameworks listen on all interfaces nevertheless.
EXPOSED = (
    "the framework's ports are open on all network interfaces of this machine, without authentication: whoever reaches "
    "them can change the training or run code as you; block them by a firewall, or train where nobody else connects"
)
_PT_DYNAMIC, _PT_LOAD = 2, 1
_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_JMPREL = 2, 5, 6, 10, 23
_RELOCATION = np.dtype([("place", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_SYMBOL = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
                    ("size", "<u8")])
_SEGMENT = struct.Struct("<IIQQQQQQ")
_Bind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, use_errno=True)


def redirects() -> bool:
    """Whether frameworks can be made to listen at one address on this system."""
    return sys.platform == "linux" and platform.machine() in _JUMP_SLOT


@contextmanager
def listening_at(host: str) -> Iterator[None]:
    """Let frameworks listen at an address of this host during the block, also those that are imported in it.

    A name is not enough: this host may know it by another address than the others do.
    """
    if not redirects() or not listening_address(host):
        yield
        return
    entries = _Entries(host)
    create = ExtensionFileLoader.create_module

    def create_and_redirect(loader: ExtensionFileLoader, spec: Any) -> Any:
        module = create(loader, spec)
        if _of_framework(spec.origin or ""):
            entries.redirect()
        return module

    ExtensionFileLoader.create_module = create_and_redirect  # type: ignore[assignment, method-assign]
    try:
        entries.redirect()
        yield
    finally:
        ExtensionFileLoader.create_module = create  # type: ignore[method-assign]
        entries.restore()


def is_exposed(port: int) -> bool:
    """Whether something on this host listens on a port of all interfaces; True where that cannot be seen."""
    try:
        lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()]
    except OSError:
        return True
    addresses = [words[1].split(":") for words in lines if words[3] == "0A"]
    return any(int(number, 16) == port and not address.strip("0") for address, number in addresses)


def _of_framework(path: str) -> bool:
    return not _FRAMEWORKS.isdisjoint(PurePath(path).parts)


class _Entries:
    """The entries for `bind` of all libraries of frameworks that are loaded, and what they held before."""

    def __init__(self, host: str) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._ours = _Bind(partial(_bind, self._libc.bind, host))
        self._seen: set[int] = set()
        self._before: dict[int, int] = {}

    def redirect(self) -> None:
        """Redirect the entries of libraries that were loaded since the last call."""
        ours = ctypes.cast(self._ours, ctypes.c_void_p).value
        assert ours is not None
        for start, path in _loaded():
            if start not in self._seen:
                self._seen.add(start)
                with suppress(OSError, ValueError):  # a library that cannot be read keeps its entries
                    for offset in bind_entries(path):
                        self._write(start + offset, ours)

    def restore(self) -> None:
        for place, value in self._before.items():
            ctypes.c_uint64.from_address(place).value = value
        self._before.clear()

    def _write(self, place: int, value: int) -> None:
        # The linker may have made the page read-only after it had filled it.
        page = place & -mmap.PAGESIZE
        if self._libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE):
            return
        entry = ctypes.c_uint64.from_address(place)
        self._before.setdefault(place, entry.value)
        entry.value = value


def _loaded() -> list[tuple[int, Path]]:
    """The frameworks' libraries and where the beginning of each file is mapped. The kernel's list, because the dynamic
    linker holds a lock while it visits its own: a thread that loads a library with the interpreter locked would wait
    for it, and a visitor in Python for the interpreter."""
    libraries = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        addresses, _, offset, _, _, *path = line.split(maxsplit=5)
        if path and not int(offset, 16) and _of_framework(path[0]):
            libraries.append((int(addresses.split("-")[0], 16), Path(path[0])))
    return libraries


def bind_entries(library: Path) -> list[int]:
    """Where a library holds the address of `bind`, relative to where its file is mapped; from the file, since reading
    all of its symbols in memory would count as memory of the process."""
    data = np.memmap(library, np.uint8, "r")
    header = data[:64].tobytes()
    if header[:6] != b"\x7fELF\x02\x01":
        return []
    first, size, count = struct.unpack_from("<Q", header, 32)[0], *struct.unpack_from("<HH", header, 54)
    segments = [_SEGMENT.unpack_from(data[first + size * number:][: size].tobytes()) for number in range(count)]
    dynamic = next((segment for segment in segments if segment[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return []
    words = np.frombuffer(data[dynamic[2] : dynamic[2] + dynamic[5]].tobytes(), "<u8").reshape(-1, 2)
    entries = {int(tag): int(value) for tag, value in words}
    if not {_DT_JMPREL, _DT_SYMTAB, _DT_STRTAB} <= entries.keys():
        return []

    def at(address: int) -> int:
        """The offset in the file of what is loaded at an address."""
        return next(address - int(start) + int(offset) for kind, _, offset, start, _, length, _, _ in segments
                    if kind == _PT_LOAD and start <= address < start + length)

    def table(address: int, count: int, kind: np.dtype[Any]) -> Any:
        begin = at(address)
        return data[begin : begin + count * kind.itemsize].view(kind)

    places = table(entries[_DT_JMPREL], entries[_DT_PLTRELSZ] // _RELOCATION.itemsize, _RELOCATION)
    places = places[places["kind"] == _JUMP_SLOT[platform.machine()]]
    symbols = table(entries[_DT_SYMTAB], int(places["symbol"].max(initial=0)) + 1, _SYMBOL)[places["symbol"]]
    names, imported = at(entries[_DT_STRTAB]), symbols["section"] == 0
    return [int(place) for place, name in zip(places["place"][imported], symbols["name"][imported], strict=True)
            if data[names + int(name) :][:5].tobytes() == b"bind\0"]


def _bind(real: Callable[..., int], host: str, descriptor: int, address: int, length: int) -> int:
    """`bind`, at the host's address where it was called for any address."""
    with suppress(Exception):  # an exception would not reach the framework, which would take the port as bound
        replaced = with_host(ctypes.string_at(address, length), host, partial(_takes_ipv4, descriptor))
        return real(descriptor, replaced, len(replaced))
    return real(descriptor, ctypes.c_void_p(address), length)


def with_host(address: bytes, host: str, takes_ipv4: Callable[[], bool]) -> bytes:
    """A `sockaddr` with the host in place of any address; one that names an address stays. A socket for IPv6 has an
    IPv4 address in its own notation, if it takes connections from there; otherwise it gets IPv6's loopback."""
    (family,) = struct.unpack_from("=H", address)
    wanted = ip_address(host)
    if family == socket.AF_INET and not any(address[4:8]):
        # Nobody connects by IPv4 to a host whose address is one of IPv6.
        packed = wanted.packed if isinstance(wanted, IPv4Address) else socket.inet_aton("127.0.0.1")
        return address[:4] + packed + address[8:]
    if family == socket.AF_INET6 and not any(address[8:24]):
        if not isinstance(wanted, IPv4Address):
            packed = wanted.packed
        elif takes_ipv4():
            packed = bytes(10) + b"\xff\xff" + wanted.packed
        else:
            packed = socket.inet_pton(socket.AF_INET6, "::1")
        return address[:8] + packed + address[24:]
    return address


def _takes_ipv4(descriptor: int) -> bool:
    """Whether a socket for IPv6 takes connections by IPv4, too."""
    borrowed = socket.socket(fileno=descriptor)
    try:
        return not borrowed.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    finally:
        borrowed.detach()
