"""Closures under way: how many there may be, what they returned, and no waiting for workers that will never come."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.engines.tensorflow.cluster import PeerMonitor
from velodrome.worker.context import Context

#: Closures per worker that are handed out at a time: one runs, one waits.
AHEAD = 2
_LOOK_SECONDS = 0.5

#: What was asked for, and what came back.
Result = tuple[Any, list[NDArray[Any]]]


class Closures:
    """Hands work to TensorFlow's coordinator and brings back results, in the order in which they come.

    The coordinator waits without limit for a lost worker to return, so threads of their own wait for results, and the
    caller looks after the peers meanwhile.
    """

    def __init__(self, coordinator: Any, watch: PeerMonitor, context: Context) -> None:
        self.coordinator, self._watch, self._context = coordinator, watch, context
        self._returned: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outstanding = 0
        self.enough = AHEAD * context.job.workers - 1
        self._waiters = ThreadPoolExecutor(self.enough + 1)

    def _fetch(self, key: Any, value: Any) -> None:
        try:
            self._returned.put((key, [np.asarray(each) for each in value.fetch()], None))
        except BaseException as error:
            self._returned.put((key, None, error))

    def schedule(self, key: Any, function: Any, *arguments: Any) -> None:
        """Have one worker, whichever is free, call a function that returns several tensors."""
        self._waiters.submit(self._fetch, key, self.coordinator.schedule(function, args=arguments))
        self._outstanding += 1

    def results(self, left: int) -> list[Result]:
        """What has come back, after waiting until at most `left` closures are under way."""
        found = []
        with self._context.waiting():
            while self._outstanding:
                try:
                    key, result, error = self._returned.get(timeout=_LOOK_SECONDS if self._outstanding > left else 0)
                except queue.Empty:
                    if self._outstanding <= left:
                        break
                    self._watch.check(self._context.job.keep_going)
                    continue
                if error is not None:
                    self._watch.check(self._context.job.keep_going)
                    raise error
                self._outstanding -= 1
                self._context.status.seen += 1
                found.append((key, result))
        self._watch.check(self._context.job.keep_going)
        return found
