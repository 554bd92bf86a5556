"""Answers many requests at a time: examples that arrive while the model is busy are computed together, next.

Nobody waits for a batch to fill: a lone request is computed at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

import numpy as np

from velodrome.serving.model import NOT_FINITE, Array, BadInput, LoadedModel
from velodrome.serving.responses import numbers_of

#: Requests that may wait; more are turned away, so that memory stays bounded.
MOST_WAITING = 1_024
#: Requests of a batch: larger ones gain nothing, and the first of them would wait for the last.
MOST_TOGETHER = 8
_Waiting = tuple[Mapping[str, Array], "asyncio.Future[list[float]]"]


class Batcher:
    """A model behind a queue; several calls of it at a time."""

    def __init__(self, model: LoadedModel, executor: Executor, *, at_once: int = 1) -> None:
        self._model, self._executor, self._free = model, executor, at_once
        self._waiting: deque[_Waiting] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def numbers(self, inputs: Mapping[str, Array]) -> list[float]:
        """The numbers of one example, a batch of one, as `numbers_of` makes them."""
        if len(self._waiting) >= MOST_WAITING:
            raise BadInput("too many requests are waiting: try again in a moment", 503)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[float]] = loop.create_future()
        self._waiting.append((inputs, answer))
        if self._free:
            self._free -= 1
            task = loop.create_task(self._work())
            self._running.add(task)  # the loop itself holds tasks weakly
            task.add_done_callback(self._running.discard)
        return await answer

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                some: list[_Waiting] = []
                while self._waiting and len(some) < MOST_TOGETHER:
                    one = self._waiting.popleft()
                    if not one[1].done():  # who gave up needs none
                        some.append(one)
                if some:
                    await self._answer(loop, some)
        finally:
            self._free += 1

    async def _answer(self, loop: asyncio.AbstractEventLoop, some: Sequence[_Waiting]) -> None:
        try:
            found = await loop.run_in_executor(self._executor, self._computed, [inputs for inputs, _ in some])
        except Exception as error:  # of the runtime: each request gets it
            for _, answer in some:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), row in zip(some, found, strict=True):
            if answer.done():
                continue
            if row is None:
                answer.set_exception(BadInput(NOT_FINITE))
            else:
                answer.set_result(row)

    def _computed(self, examples: Sequence[Mapping[str, Array]]) -> list[list[float] | None]:
        """For each example its numbers, or None if some are not finite."""
        joined = {name: np.concatenate([one[name] for one in examples]) for name in examples[0]} \
            if len(examples) > 1 else examples[0]
        with np.errstate(invalid="ignore"):
            numbers = numbers_of(self._model.about, self._model.scores(joined))
        finite: list[bool] = np.logical_and.reduce(np.isfinite(numbers), axis=1).tolist()
        return [row if good else None for row, good in zip(numbers.tolist(), finite, strict=True)]
