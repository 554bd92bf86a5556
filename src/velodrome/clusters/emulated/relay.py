"""Carries TCP connections of emulated nodes to whatever this machine can reach, such as an HDFS.

Run as a program; standard library only. It listens in the namespace of the gateway, where the kernel redirects every
connection that leaves the cluster to it, and connects from the machine's own namespace to where that was meant to go.
So neither an address nor a route of the machine changes. It ends when its standard input closes.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
import sys
from contextlib import suppress

#: Where connections are redirected to, in the gateway's namespace.
PORT = 19990
_SO_ORIGINAL_DST = 80
_CLONE_NEWNET = 0x40000000
_CONNECT_SECONDS = 10.0
_BLOCK = 1 << 18


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def listen_in(holder: int) -> socket.socket:
    """A socket that listens in the network namespace of a process; ours stays what it was."""
    ours = os.open("/proc/self/ns/net", os.O_RDONLY)
    theirs = os.open(f"/proc/{holder}/ns/net", os.O_RDONLY)
    try:
        _enter(theirs)
        try:
            return socket.create_server(("0.0.0.0", PORT), backlog=256)  # the namespace has no way to the outside
        finally:
            _enter(ours)
    finally:
        os.close(ours)
        os.close(theirs)


def meant_for(connection: socket.socket) -> tuple[str, int]:
    """The address that a redirected connection was made to."""
    port, address = struct.unpack("!2xH4s8x", connection.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16))
    return socket.inet_ntoa(address), port


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_BLOCK):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Connect one connection through, until both sides have said everything."""
    outside: asyncio.StreamWriter | None = None
    try:
        host, port = meant_for(writer.get_extra_info("socket"))
        answers, there = await asyncio.wait_for(asyncio.open_connection(host, port), _CONNECT_SECONDS)
        outside = there
        await asyncio.gather(_copy(reader, there), _copy(answers, writer))
    except (OSError, TimeoutError):
        # Reset rather than closed: the client learns that it has failed.
        with suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    finally:
        for one in (writer, outside):
            if one is not None:
                one.close()


async def serve(listener: socket.socket) -> None:
    over = asyncio.Event()
    server = await asyncio.start_server(carry, sock=listener)
    asyncio.get_running_loop().add_reader(0, lambda: over.set() if not os.read(0, 4096) else None)
    os.write(1, b"ready\n")
    async with server:
        await over.wait()
    os._exit(0)  # connections that are open end with the nodes


if __name__ == "__main__":
    asyncio.run(serve(listen_in(int(sys.argv[1]))))
