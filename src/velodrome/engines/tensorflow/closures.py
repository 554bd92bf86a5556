"""The closures of a parameter-server chief: how many are pending, what they returned, which workers are lost."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.engines.tensorflow.cluster import PeerMonitor, is_about_peers
from velodrome.worker.context import Context

#: Closures per worker that are scheduled at a time: one runs, one is queued.
AHEAD = 2
_POLL_SECONDS = 0.5

#: The key of a closure, and the values that it returned.
Result = tuple[Any, list[NDArray[Any]]]


@dataclass
class _Closure:
    """One call on a worker, and how often it was lost with a worker after it had run."""

    key: Any
    function: Any
    arguments: tuple[Any, ...]
    lost: int = 0


class Closures:
    """Schedules closures on TensorFlow's coordinator and collects results, in the order in which they arrive.

    The coordinator waits without limit for a lost worker to return, so separate threads wait for results, and the
    caller checks the peers meanwhile. The coordinator runs a closure again whose worker is lost while it runs; one
    whose worker is lost before its result was fetched is scheduled again here.
    """

    def __init__(self, coordinator: Any, monitor: PeerMonitor, context: Context) -> None:
        self.coordinator, self._monitor, self._context = coordinator, monitor, context
        self._returned: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pending = 0
        self.capacity = AHEAD * context.job.workers - 1
        self._waiters = ThreadPoolExecutor(self.capacity + 1)

    def _fetch(self, closure: _Closure, value: Any) -> None:
        try:
            self._returned.put((closure, [np.asarray(each) for each in value.fetch()], None))
        except BaseException as error:
            self._returned.put((closure, None, error))

    def schedule(self, key: Any, function: Any, *arguments: Any) -> None:
        """Have one worker, whichever is free, call a function that returns several tensors."""
        self._start(_Closure(key, function, arguments))
        self._pending += 1

    def _start(self, closure: _Closure) -> None:
        value = self.coordinator.schedule(closure.function, args=closure.arguments)
        self._waiters.submit(self._fetch, closure, value)

    def _run_again(self, closure: _Closure, error: BaseException) -> None:
        """Schedule a closure whose result is lost; raise the error if that cannot or may not help."""
        self._monitor.check(self._context.job.keep_going)
        closure.lost += 1
        if not (self._context.job.keep_going and is_about_peers(error)) or closure.lost > self._context.job.workers:
            raise error
        self._start(closure)

    def results(self, left: int) -> list[Result]:
        """The results that arrived, after waiting until at most `left` closures are pending."""
        found = []
        with self._context.waiting():
            while self._pending:
                try:
                    closure, result, error = self._returned.get(timeout=_POLL_SECONDS if self._pending > left else 0)
                except queue.Empty:
                    if self._pending <= left:
                        break
                    self._monitor.check(self._context.job.keep_going)
                    continue
                if error is not None:
                    self._run_again(closure, error)
                    continue
                self._pending -= 1
                self._context.status.seen += 1
                found.append((closure.key, result))
        self._monitor.check(self._context.job.keep_going)
        return found
