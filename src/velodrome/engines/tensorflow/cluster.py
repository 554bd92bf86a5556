"""How TensorFlow's processes find one another, in limited time and with names for those who do not come."""

from __future__ import annotations

import faulthandler
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from velodrome.errors import PeerLost, PortTaken, RunFailed, headline
from velodrome.offers.world import Member
from velodrome.worker.emitter import Emitter

_GONE = (
    tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError, tf.errors.InternalError, tf.errors.UnknownError,
)


def listens(peer: Member, limit: float = 1.0) -> bool:
    """Whether anybody answers at the address of a process."""
    try:
        with socket.create_connection((peer.host, peer.port), timeout=limit):
            return True
    except OSError:
        return False


def _named(peers: Iterable[Member]) -> str:
    return ", ".join(sorted(f"{peer.name} ({peer.address})" for peer in peers))


def wait_for(expected: Sequence[Member], limit: float) -> None:
    """Until all of them listen; says who did not come."""
    missing = list(expected)
    deadline = time.monotonic() + limit
    while missing:
        missing = [peer for peer in missing if not listens(peer)]
        if missing and time.monotonic() > deadline:
            raise RunFailed(_absent(missing, limit))
        if missing:
            time.sleep(0.05)


def meet(me: Member, others: Sequence[Member], limit: float) -> None:
    """Until everybody is there, before TensorFlow takes over the port: its own waiting knows no limit and no names.

    Each process listens on its port until it has seen all the others; who sees it later sees TensorFlow there.
    """
    both = socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server(
            ("", me.port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both
        )
    except OSError as error:
        raise PortTaken(_taken(me.port)) from error
    with listener:
        wait_for(others, limit)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Around a call into TensorFlow that may block with the interpreter locked: past the limit the process ends."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _taken(port: int | None) -> str:
    return f"port {port} of this process is taken by another one: choose another port"


def _absent(missing: Sequence[Member], limit: float) -> str:
    return f"{_named(missing)} did not connect within {limit:g} s: see its log, or raise --start-timeout"


class Watch:
    """Looks every half second whether peers still listen; one that does not answer several times is lost."""

    _EVERY = 0.5
    _TRIES = 3

    def __init__(self, watched: Sequence[Member], events: Emitter) -> None:
        self._watched, self._events, self._told = watched, events, set[Member]()
        self.lost: set[Member] = set()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        misses = dict.fromkeys(self._watched, 0)
        while True:
            for peer in self._watched:
                misses[peer] = 0 if listens(peer) else misses[peer] + 1
            self.lost = {peer for peer, missed in misses.items() if missed >= self._TRIES}
            time.sleep(self._EVERY)

    def check(self, keep_going: bool) -> None:
        """Raise `PeerLost` if the job cannot go on without those that are lost; warn once about others."""
        lost = self.lost
        if not lost:
            return
        workers = {peer for peer in self._watched if peer.role == "worker"}
        if not keep_going or not lost <= workers or lost == workers:
            raise PeerLost(f"lost {_named(lost)}")
        for peer in lost - self._told:
            self._told.add(peer)
            self._events.emit("warning", message=f"lost {_named([peer])}; the others go on with its work")


@contextmanager
def told_plainly(port: int | None) -> Iterator[None]:
    """Around distributed work: TensorFlow's words for a taken port and for a lost peer become ours."""
    try:
        yield
    except tf.errors.OpError as error:
        text = str(error.message)
        if "Could not start gRPC server" in text or "Address already in use" in text:
            raise PortTaken(_taken(port)) from error
        if isinstance(error, _GONE) and _speaks_of_peers(text):
            raise PeerLost(f"lost a peer in training: {headline(text)}") from error
        raise


def _speaks_of_peers(text: str) -> bool:
    words = (
        "/job:", "connect", "socket", "peer", "ollective", "grpc", "gRPC", "RPC", "heartbeat", "oordination",
        "Cancelled", "cancelled", "unavailable", "Unavailable", "closed",
    )
    return any(word in text for word in words)
