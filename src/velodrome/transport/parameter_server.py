"""A parameter server: it keeps a slice of one flat buffer of weights, and workers push gradients to all servers.

A thread answers each worker, so one that must wait holds up nobody else. What an update does to the weights is the
business of the `Store` of an engine; who waits for whom, that of the policy.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from velodrome.catalog.world import Member
from velodrome.consistency.policies import Clocks, Policy
from velodrome.errors import PeerLost
from velodrome.transport.server_links import (
    NO_STEP,
    PROTOCOL,
    Kind,
    Numbers,
    Staleness,
    prepare,
    read_exactly,
    read_header,
    read_into,
    send,
)
from velodrome.transport.sockets import JobListener, listen_at

#: How often a server that waits for workers looks whether one has failed.
_POLL_SECONDS = 0.2


class Store(Protocol):
    """The slice of weights and optimizer state that a server keeps."""

    def prepare(self, layout: Numbers) -> None:
        """Make room for what worker 0 describes."""

    def row(self, number: int) -> Numbers:
        """Row 0 is the weights; what others are, engine and worker agree on. In the server's own memory."""

    def written(self, number: int) -> None:
        """Called when a row was replaced."""

    def gradient(self) -> Numbers:
        """A new buffer for what one worker pushes."""

    def total(self, gradients: Sequence[Numbers]) -> Numbers:
        """The sum of gradients, in the buffer of the first."""

    def squared_norm(self, total: Numbers) -> float:
        """The square of a gradient's norm."""

    def apply(self, total: Numbers, rate: float, factor: float) -> None:
        """Make one update by this factor times a gradient."""


class ParameterServer:
    """One server: its store, the clocks of its workers, and a thread for each of them."""

    def __init__(self, store: Store, policy: Policy, workers: int, name: Callable[[int], str]) -> None:
        """`name` names a worker in messages."""
        self._store, self._policy, self._workers, self._name = store, policy, workers, name
        self._changed = threading.Condition()
        self._clocks = Clocks.of(workers)
        #: Whether the weights have been written, once.
        self._ready = False
        #: Workers that have begun the epoch, and those that have finished it.
        self._begun: set[int] = set()
        self._finished: set[int] = set()
        self._steps, self._next_step = 0, 0
        #: Updates so far, and how many there were when each worker read its weights.
        self._version = 0
        self._read = [0] * workers
        #: What each worker has pushed of an update of all, in a buffer of its own, and the sum of a `SUM`.
        self._buffers: dict[int, Numbers] = {}
        self._pushed: set[int] = set()
        self._total: Numbers | None = None
        self._sums, self._squared_norm = 0, 0.0
        self._counted = Staleness()
        self._failure: BaseException | None = None

    def serve(self, listener: JobListener) -> None:
        """Serve until all workers have left; `PeerLost` names one that is gone without that."""
        threads: dict[int, threading.Thread] = {}
        while len(threads) < self._workers or any(thread.is_alive() for thread in threads.values()):
            if self._failure is not None:
                raise self._failure
            for link, words in listener.accept(_POLL_SECONDS):
                worker = int(words[0]) if len(words) == 1 and words[0].isdecimal() else self._workers
                if worker >= self._workers or worker in threads:
                    link.close()
                    continue
                prepare(link)
                threads[worker] = threading.Thread(
                    target=self._answer_all, args=(worker, link), name=f"worker-{worker}", daemon=True
                )
                threads[worker].start()
        if self._failure is not None:
            raise self._failure

    def _answer_all(self, worker: int, link: socket.socket) -> None:
        try:
            with link:
                while self._answer(worker, link):
                    pass
        except OSError as error:
            self._fail(PeerLost(f"{self._name(worker)} is gone: {error.strerror or error}"))
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _answer(self, worker: int, link: socket.socket) -> bool:
        """Answer one request of a worker; whether more may follow."""
        kind, number, first, second, size = read_header(link)
        match kind:
            case Kind.LAYOUT:
                self._store.prepare(np.frombuffer(read_exactly(link, size), np.int64))
                send(link, kind)
            case Kind.WRITE:
                self._write(number, link)
                send(link, kind)
            case Kind.READ:
                self._wait(lambda: self._ready)
                with self._changed:
                    copy = self._store.row(number).copy()
                send(link, kind, payload=copy)
            case Kind.BEGIN:
                send(link, kind, number=self._begin(worker, number))
            case Kind.PUSH | Kind.SUM:
                if worker not in self._buffers:
                    self._buffers[worker] = self._store.gradient()
                read_into(link, self._buffers[worker])
                if kind == Kind.SUM:
                    send(link, kind, first=self._sum(worker))
                else:
                    self._update(worker, first)
                    self._send_weights(worker, link, kind, last=bool(number))
            case Kind.APPLY:
                self._apply(worker, first, second)
                self._send_weights(worker, link, kind, last=bool(number))
            case Kind.FINISH:
                self._finish(worker)
                table = [[self._counted.lead, 0], *sorted(self._counted.ages.items())]
                send(link, kind, payload=np.array(table, np.int64))
            case Kind.LEAVE:
                send(link, kind)
                return False
            case _:
                raise ConnectionError(f"a message of unknown kind {kind}")
        return True

    def _write(self, number: int, link: socket.socket) -> None:
        read_into(link, self._store.row(number))
        with self._changed:
            self._store.written(number)
            self._ready = self._ready or number == 0
            self._changed.notify_all()

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait until something is so. The supervisor of the run knows how long that may take."""
        with self._changed:
            while not done():
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()

    def _begin(self, worker: int, steps: int) -> int:
        """Wait until all workers begin the epoch, so that no push belongs to the one before; the worker's first step
        if steps are handed out."""
        with self._changed:
            if not self._begun:
                self._clocks, self._finished, self._counted = Clocks.of(self._workers), set(), Staleness()
                self._steps, self._next_step = steps, 0
                self._policy.begin_epoch()
            self._begun.add(worker)
            self._read[worker] = self._version
            self._changed.notify_all()
            self._wait(lambda: len(self._begun) == self._workers)
            return self._hand_out(worker)

    def _hand_out(self, worker: int) -> int:
        """The next step of the epoch, which only this worker makes; `NO_STEP` if none is left, or all know theirs."""
        if self._next_step < self._steps:
            self._next_step += 1
            return self._next_step - 1
        if self._steps:
            self._clocks.finish(worker)
        return NO_STEP

    def _sum(self, worker: int) -> float:
        """Wait for the gradients of all workers; the square of the norm of their sum."""
        with self._changed:
            if self._gathered(worker):
                self._total = self._store.total([self._buffers[each] for each in range(self._workers)])
                self._squared_norm = self._store.squared_norm(self._total)
                self._sums += 1
                self._changed.notify_all()
            else:
                this = self._sums
                self._wait(lambda: self._sums != this)
            return self._squared_norm

    def _gathered(self, worker: int) -> bool:
        """Record that a worker has sent its part of an update of all; whether it was the last."""
        self._pushed.add(worker)
        if len(self._pushed) < self._workers:
            return False
        self._pushed.clear()
        return True

    def _update(self, worker: int, rate: float) -> None:
        """Make an update by the gradient that a worker has pushed, alone or, once all have, by those of all."""
        with self._changed:
            if not self._policy.together:
                self._make(self._buffers[worker], [worker], rate)
            elif self._gathered(worker):
                everybody = range(self._workers)
                self._make(self._store.total([self._buffers[each] for each in everybody]), everybody, rate)
            self._advance(worker)

    def _apply(self, worker: int, rate: float, factor: float) -> None:
        """Make an update by what `SUM` has summed, once all workers have told the factor."""
        with self._changed:
            if self._gathered(worker):
                assert self._total is not None, "its sum comes first"
                self._make(self._total, range(self._workers), rate, factor)
            self._advance(worker)

    def _make(self, total: Numbers, workers: Sequence[int], rate: float, factor: float = 1.0) -> None:
        self._store.apply(total, rate, factor)
        self._counted.ages.update(self._version - self._read[worker] for worker in workers)
        self._version += 1

    def _advance(self, worker: int) -> None:
        self._clocks.push(worker, time.monotonic())
        self._changed.notify_all()

    def _send_weights(self, worker: int, link: socket.socket, kind: int, *, last: bool) -> None:
        """Answer a push as soon as the worker may begin another step, unless it was its last one."""
        began = time.monotonic()
        with self._changed:
            step = self._hand_out(worker)
            if last:
                self._clocks.finish(worker)
                self._changed.notify_all()
            if self._clocks.training[worker]:
                self._wait(lambda: self._policy.may_begin(worker, self._clocks))
                self._counted.lead = max(self._counted.lead, self._clocks.lead(worker))
            self._read[worker] = self._version
            weights = self._store.row(0)
            if not self._policy.together:  # others may change them while they are sent
                weights = weights.copy()
        send(link, kind, number=step, first=time.monotonic() - began, payload=weights)

    def _finish(self, worker: int) -> None:
        """Wait until all workers have finished the epoch."""
        with self._changed:
            self._clocks.finish(worker)
            self._finished.add(worker)
            self._changed.notify_all()
            self._wait(lambda: len(self._finished) == self._workers)
            self._begun.clear()


def open_listener(server: Member, workers: int) -> JobListener:
    """A server's socket at its address of the plan."""
    return JobListener(listen_at(server.host, server.port, max(128, workers)), PROTOCOL)
