"""The network interfaces behind addresses of the plan, so that a transport listens there and nowhere else."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address

import psutil

from velodrome.errors import PortTaken, RunFailed


def is_address(host: str) -> bool:
    """Whether a host is given as an address and not by a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def listening_address(host: str) -> str:
    """What to listen at so that the others reach this process at its host of the plan and, where that is an address of
    this machine, nowhere else; a name may have another address here than the others know. Empty for all interfaces."""
    return host if is_address(host) and interface_of(host) else ""


def interface_of(host: str) -> str | None:
    """The network interface of this machine that holds the address of a host, if any does."""
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            # All of 127.0.0.0/8 is the loopback's, which shows one address only.
            if entry.address == address or (address.startswith("127.") and entry.address == "127.0.0.1"):
                return str(name)
    return None


def address_towards(host: str, port: int) -> str:
    """The address of this machine from which another one is reached; nothing is sent."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return host


def listen_at(host: str, port: int, backlog: int) -> socket.socket:
    """A listening socket of worker 0 on its address of the plan, and on no other one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=backlog)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {port} on {host} is taken: choose another one") from error
        raise RunFailed(
            f"cannot listen on {host}:{port} ({error.strerror or error}): worker 0 must run on {host!r}"
        ) from error
