"""How TensorFlow's processes connect: a rendezvous with a time limit, a monitor of peers, translated errors."""

from __future__ import annotations

import faulthandler
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import tensorflow as tf

from velodrome.catalog.world import Member, World, cluster_of, task_of
from velodrome.errors import PeerLost, PortTaken, RunFailed, headline
from velodrome.models.own import quoted_traceback
from velodrome.training.context import Context, Emitter
from velodrome.training.listening import EXPOSED, is_exposed
from velodrome.transport.sockets import is_address, listening_address

_DISCONNECTED = (
    tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError, tf.errors.InternalError, tf.errors.UnknownError,
)
_WORDS_ABOUT_PEERS = (
    "/job:", "connect", "socket", "peer", "ollective", "grpc", "gRPC", "RPC", "heartbeat", "oordination",
    "Cancelled", "cancelled", "unavailable", "Unavailable", "closed",
)


def cluster_resolver(world: World) -> Any:
    """The processes of a job as TensorFlow's strategies expect them."""
    task, index = task_of(world)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster_of(world)), task_type=task, task_id=index, rpc_layer="grpc"
    )


def listens(peer: Member) -> bool:
    """Whether a process accepts connections at its address."""
    try:
        with socket.create_connection((peer.host, peer.port), timeout=1.0):
            return True
    except OSError:
        return False


def _names(peers: Iterable[Member]) -> str:
    return ", ".join(sorted(f"{peer.name} ({peer.address})" for peer in peers))


def wait_for(expected: Sequence[Member], limit: float) -> None:
    """Wait until all of them listen; raise `RunFailed` with the names of those that do not in time."""
    missing = list(expected)
    deadline = time.monotonic() + limit
    while missing:
        missing = [peer for peer in missing if not listens(peer)]
        if missing and time.monotonic() > deadline:
            raise RunFailed(
                f"{_names(missing)} did not connect within {limit:g} s: see its log, or raise --start-timeout"
            )
        if missing:
            time.sleep(0.05)


def rendezvous(me: Member, others: Sequence[Member], limit: float) -> None:
    """Wait for all peers before TensorFlow takes over the port: its own wait has no limit and names no process.

    Each process listens on its port until it has reached all others. A peer that is late finds TensorFlow there.
    """
    address = listening_address(me.host)
    dual_stack = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual_stack or ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, me.port), family=family, dualstack_ipv6=dual_stack)
    except OSError as error:
        raise PortTaken(_port_taken(me.port)) from error
    with listener:
        wait_for(others, limit)


def warn_if_exposed(context: Context) -> None:
    """Warn once in a job of this machine whose servers listen on all of its interfaces after all."""
    me = context.world.me
    if context.is_chief and is_address(me.host) and ip_address(me.host).is_loopback and is_exposed(me.port):
        context.events.emit("warning", message=EXPOSED)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End the process if a call into TensorFlow takes longer: it may block with the interpreter locked."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _port_taken(port: int | None) -> str:
    return f"port {port} of this process is in use by another process: choose another port"


class PeerMonitor:
    """Checks every half second whether peers still listen; one that fails several checks in a row is lost."""

    _INTERVAL = 0.5
    _CHECKS = 3

    def __init__(self, peers: Sequence[Member], events: Emitter) -> None:
        self._peers, self._events, self._reported = peers, events, set[Member]()
        self.lost: set[Member] = set()
        threading.Thread(target=self._poll, daemon=True).start()

    def _poll(self) -> None:
        failures = dict.fromkeys(self._peers, 0)
        while True:
            for peer in self._peers:
                failures[peer] = 0 if listens(peer) else failures[peer] + 1
            self.lost = {peer for peer, failed in failures.items() if failed >= self._CHECKS}
            time.sleep(self._INTERVAL)

    def check(self, keep_going: bool) -> None:
        """Raise `PeerLost` if the job cannot continue without the lost peers; otherwise warn once about each."""
        lost = self.lost
        if not lost:
            return
        workers = {peer for peer in self._peers if peer.role == "worker"}
        if not keep_going or not lost <= workers or lost == workers:
            raise PeerLost(f"lost {_names(lost)}")
        for peer in lost - self._reported:
            self._reported.add(peer)
            self._events.emit("warning", message=f"lost {_names([peer])}; the other workers continue with its work")


def is_about_peers(error: BaseException) -> bool:
    """Whether an error means that a peer could not be reached."""
    if not isinstance(error, _DISCONNECTED):
        return False
    text = str(error.message)
    # A function of the user's in the graph may raise about connections, too.
    return any(word in text for word in _WORDS_ABOUT_PEERS) and quoted_traceback(text) is None


@contextmanager
def translate_errors(port: int | None) -> Iterator[None]:
    """Raise TensorFlow's errors about a port in use and about a lost peer as our own."""
    try:
        yield
    except tf.errors.OpError as error:
        text = str(error.message)
        if "Could not start gRPC server" in text or "Address already in use" in text:
            raise PortTaken(_port_taken(port)) from error
        if is_about_peers(error):
            raise PeerLost(f"lost the connection to a peer: {headline(text)}") from error
        raise
