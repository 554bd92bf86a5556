"""The closures of a parameter-server chief: how many are pending, what they returned, which workers are lost."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.engines.tensorflow.cluster import PeerMonitor
from velodrome.worker.context import Context

#: Closures per worker that are scheduled at a time: one runs, one is queued.
AHEAD = 2
_POLL_SECONDS = 0.5

#: The key of a closure, and the values that it returned.
Result = tuple[Any, list[NDArray[Any]]]


class Closures:
    """Schedules closures on TensorFlow's coordinator and collects results, in the order in which they arrive.

    The coordinator waits without limit for a lost worker to return, so separate threads wait for results, and the
    caller checks the peers meanwhile.
    """

    def __init__(self, coordinator: Any, monitor: PeerMonitor, context: Context) -> None:
        self.coordinator, self._monitor, self._context = coordinator, monitor, context
        self._returned: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pending = 0
        self.capacity = AHEAD * context.job.workers - 1
        self._waiters = ThreadPoolExecutor(self.capacity + 1)

    def _fetch(self, key: Any, value: Any) -> None:
        try:
            self._returned.put((key, [np.asarray(each) for each in value.fetch()], None))
        except BaseException as error:
            self._returned.put((key, None, error))

    def schedule(self, key: Any, function: Any, *arguments: Any) -> None:
        """Have one worker, whichever is free, call a function that returns several tensors."""
        self._waiters.submit(self._fetch, key, self.coordinator.schedule(function, args=arguments))
        self._pending += 1

    def results(self, left: int) -> list[Result]:
        """The results that arrived, after waiting until at most `left` closures are pending."""
        found = []
        with self._context.waiting():
            while self._pending:
                try:
                    key, result, error = self._returned.get(timeout=_POLL_SECONDS if self._pending > left else 0)
                except queue.Empty:
                    if self._pending <= left:
                        break
                    self._monitor.check(self._context.job.keep_going)
                    continue
                if error is not None:
                    self._monitor.check(self._context.job.keep_going)
                    raise error
                self._pending -= 1
                self._context.status.seen += 1
                found.append((key, result))
        self._monitor.check(self._context.job.keep_going)
        return found
