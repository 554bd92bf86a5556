"""Answers many requests at a time: examples that arrive while the model is busy are computed together, next.

Nobody waits for a batch to fill: a lone request is computed at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor

import numpy as np

from velodrome.serving.model import LARGEST_BATCH, Array, BadInput, LoadedModel

#: Requests that may wait; more are turned away, so that memory stays bounded.
MOST_WAITING = 1_024


class Batcher:
    """A model behind a queue; one call of it at a time."""

    def __init__(self, model: LoadedModel, executor: Executor) -> None:
        self._model, self._executor = model, executor
        self._waiting: list[tuple[Mapping[str, Array], asyncio.Future[Array]]] = []
        self._running: asyncio.Task[None] | None = None

    async def scores(self, inputs: Mapping[str, Array]) -> Array:
        """The scores of one example, a batch of one."""
        if len(self._waiting) >= MOST_WAITING:
            raise BadInput("too many requests are waiting: try again in a moment", 503)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Array] = loop.create_future()
        self._waiting.append((inputs, answer))
        if self._running is None:
            self._running = loop.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                some, self._waiting = self._waiting[:LARGEST_BATCH], self._waiting[LARGEST_BATCH:]
                some = [(inputs, answer) for inputs, answer in some if not answer.done()]  # who gave up needs none
                if not some:
                    continue
                try:
                    joined = {name: np.concatenate([inputs[name] for inputs, _ in some]) for name in some[0][0]} \
                        if len(some) > 1 else some[0][0]
                    found = await loop.run_in_executor(self._executor, self._model.scores, joined)
                except Exception as error:  # of the runtime: each request gets it
                    for _, answer in some:
                        if not answer.done():
                            answer.set_exception(error)
                    continue
                for place, (_, answer) in enumerate(some):
                    if not answer.done():
                        answer.set_result(found[place : place + 1])
        finally:
            self._running = None
