"""Programs of the emulation, standard library only: each ends when its standard input closes.

`switch` forwards each packet after a fixed time, for kernels without `netem`. It makes a TAP device `eth0` in the
namespace of each node, reads packets from them and writes each to the node that it is for once it is due. Large TCP
segments pass whole (`IFF_VNET_HDR`), so that 1 Gbit/s is two thousand packets a second. What a node receives is limited
here, what it sends by its own queue. Lines on its input cut nodes off from the others, connect them again, and add one.

`relay` carries TCP connections of nodes to whatever this machine can reach, such as an HDFS. It listens in the
namespace of the gateway, where the kernel redirects every connection that leaves the cluster to it, and connects from
the machine's own namespace to where that was meant to go. So neither an address nor a route of the machine changes.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import heapq
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4, _TUN_F_TSO6 = 0x01, 0x02, 0x04
_PR_SET_TIMERSLACK = 29
#: Of the header that precedes each packet, and where the address of its receiver is.
_HEADER = 10
_LARGEST = 1 << 17
#: Packets that are read from one node before others get their turn.
_TURN = 32
#: Seconds of traffic that may pass at once, and that may wait, as in the queues of the nodes.
BURST, QUEUE = 0.005, 0.05
#: First bytes of the hardware addresses; the number of the node follows.
ADDRESSES = "02:56:44:00"
#: Where connections are redirected to, in the gateway's namespace.
PORT = 19990
_SO_ORIGINAL_DST = 80
_CONNECT_SECONDS = 10.0
_BLOCK = 1 << 18


def command(program: str, *words: object) -> list[str]:
    """The command line of one of the programs, without site packages, so that it starts at once."""
    return [sys.executable, "-I", "-S", __file__, program, *map(str, words)]


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


@contextmanager
def _namespace_of(process: int | str) -> Iterator[int]:
    """The network namespace of a process, opened for the block."""
    namespace = os.open(f"/proc/{process}/ns/net", os.O_RDONLY)
    try:
        yield namespace
    finally:
        os.close(namespace)


def hardware_address(number: int) -> str:
    return f"{ADDRESSES}:{number >> 8:02x}:{number & 255:02x}"


class Switch:
    """What is on its way: packets by the time at which they are due."""

    def __init__(self, latency: float, bandwidth: float, taps: list[int]) -> None:
        self._latency, self._seconds_per_byte = latency, 8 / bandwidth if bandwidth else 0.0
        self._taps = taps
        self._full: list[float] = [0.0] * len(taps)
        self._cut: set[int] = set()
        self._due: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def timeout(self, now: float) -> float | None:
        return max(0.0, self._due[0][0] - now) if self._due else None

    def receive(self, source: int) -> None:
        """Take what a node has sent."""
        for _ in range(_TURN):
            try:
                packet = os.read(self._taps[source], _LARGEST)
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    time.sleep(0.001)  # a device that is down
                return
            now = time.monotonic()
            if source in self._cut:
                continue
            if packet[_HEADER] & 1:  # to all
                for other in range(len(self._taps)):
                    if other != source:
                        self._accept(other, packet, now)
            else:
                number = (packet[_HEADER + 4] << 8 | packet[_HEADER + 5]) - 1
                if 0 <= number < len(self._taps):
                    self._accept(number, packet, now)

    def _accept(self, target: int, packet: bytes, now: float) -> None:
        """Note when a packet is due, or drop it: its receiver is cut off, or has too many waiting."""
        if target in self._cut:
            return
        due = arrives = now + self._latency
        if self._seconds_per_byte:
            full = max(self._full[target], arrives) + (len(packet) - _HEADER) * self._seconds_per_byte
            due = max(arrives, full - BURST)
            if due - arrives > QUEUE:
                return
            self._full[target] = full
        self._count += 1
        heapq.heappush(self._due, (due, self._count, target, packet))

    def deliver(self, now: float) -> None:
        """Hand over what is due."""
        while self._due and self._due[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._due)
            if target not in self._cut:
                with suppress(OSError):
                    os.write(self._taps[target], packet)

    def command(self, line: str) -> None:
        """`cut 3` cuts off the third node, `mend 3` connects it again, `lead 0.0001` shortens the delay by so much,
        `add 1234` connects the namespace of that process."""
        word, _, number = line.partition(" ")
        if word == "add":
            self._taps.append(open_tap(int(number)))
            self._full.append(0.0)
        elif word == "lead":
            self._latency = max(0.0, self._latency - float(number))
        else:
            (self._cut.add if word == "cut" else self._cut.discard)(int(number) - 1)


def open_tap(holder: int) -> int:
    """A TAP device named eth0 in the network namespace of a process."""
    with _namespace_of(holder) as namespace:
        _enter(namespace)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
    with suppress(OSError):
        fcntl.ioctl(tap, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO6)
    return tap


def _hurry() -> None:
    """Run before the processes that train, and wake up when asked to: a late switch is more latency."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        with suppress(OSError):
            os.nice(-15)


def run_switch(latency: str, bandwidth: str, *holders: str) -> None:
    taps = [open_tap(int(holder)) for holder in holders]
    switch = Switch(float(latency), float(bandwidth), taps)
    _hurry()
    os.set_blocking(0, False)
    os.write(1, b"ready\n")
    rest = ""
    while True:
        readable, _, _ = select.select([0, *taps], [], [], switch.timeout(time.monotonic()))
        switch.deliver(time.monotonic())
        for descriptor in readable:
            if descriptor != 0:
                switch.receive(taps.index(descriptor))
                continue
            data = os.read(0, 4096)
            if not data:
                return
            *lines, rest = (rest + data.decode()).split("\n")
            for line in lines:
                switch.command(line)
                os.write(1, b"done\n")
        switch.deliver(time.monotonic())


def listen_in(holder: int) -> socket.socket:
    """A socket that listens in the network namespace of a process; ours stays what it was."""
    with _namespace_of("self") as ours, _namespace_of(holder) as theirs:
        _enter(theirs)
        try:
            return socket.create_server(("0.0.0.0", PORT), backlog=256)  # the namespace has no way to the outside
        finally:
            _enter(ours)


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
    """Carry a connection until both sides have sent everything."""
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
        for side in (writer, outside):
            if side is not None:
                side.close()


async def serve(listener: socket.socket) -> None:
    over = asyncio.Event()
    server = await asyncio.start_server(carry, sock=listener)
    asyncio.get_running_loop().add_reader(0, lambda: over.set() if not os.read(0, 4096) else None)
    os.write(1, b"ready\n")
    async with server:
        await over.wait()
    os._exit(0)  # connections that are open end with the nodes


if __name__ == "__main__":
    if sys.argv[1] == "switch":
        run_switch(*sys.argv[2:])
    else:
        asyncio.run(serve(listen_in(int(sys.argv[2]))))
