"""Closures under way: how many there may be, what they returned, and no waiting for workers that will never come."""

from __future__ import annotations

import queue
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.engines.tensorflow.cluster import Watch
from velodrome.worker.context import Context

#: Closures per worker that are handed out at a time: one runs, one waits.
AHEAD = 2
_LOOK_SECONDS = 0.5


class Closures:
    """Hands work to TensorFlow's coordinator and brings results back in order.

    The coordinator waits without limit for a lost worker to return, so a thread of its own waits for results, and the
    caller looks after the peers meanwhile.
    """

    def __init__(self, coordinator: Any, watch: Watch, context: Context) -> None:
        self._coordinator, self._watch, self._context = coordinator, watch, context
        self._sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._returned: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outstanding = 0
        self.enough = AHEAD * context.job.workers - 1
        threading.Thread(target=self._fetch, daemon=True).start()

    def _fetch(self) -> None:
        while True:
            value = self._sent.get()
            try:
                self._returned.put((np.asarray(value.fetch()), None))
            except BaseException as error:
                self._returned.put((None, error))

    def schedule(self, function: Any, *arguments: Any) -> None:
        self._sent.put(self._coordinator.schedule(function, args=arguments))
        self._outstanding += 1

    def results(self, left: int) -> list[NDArray[np.float64]]:
        """What has come back, after waiting until at most `left` closures are under way."""
        found = []
        with self._context.waiting():
            while self._outstanding:
                try:
                    result, error = self._returned.get(timeout=_LOOK_SECONDS if self._outstanding > left else 0)
                except queue.Empty:
                    if self._outstanding <= left:
                        break
                    self._watch.check(self._context.job.keep_going)
                    continue
                if error is not None:
                    self._watch.check(self._context.job.keep_going)
                    raise error
                self._outstanding -= 1
                found.append(result)
        self._watch.check(self._context.job.keep_going)
        return found
