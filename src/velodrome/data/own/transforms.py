"""Changes training examples by a function of the user's, for augmentation: `module:function(example, rng)`.

The generator is seeded by seed, epoch and number of the example, so what is seen does not depend on who trains on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.data.examples import DerivedPart, ExampleSet, Named
from velodrome.data.own.names import users_function
from velodrome.errors import RunFailed, UserCodeError, VelodromeError, raised

Transform = Callable[[dict[str, Any], np.random.Generator], Any]
#: Threads of a process that transform examples; numpy works on several at once, plain Python does not.
_MOST_THREADS = 4


def rng_of(key: tuple[int, ...], epoch: int, index: int) -> np.random.Generator:
    """The generator of one example in one epoch."""
    return np.random.Generator(np.random.PCG64([*key, epoch, index]))


@dataclass(frozen=True)
class TransformedPart(DerivedPart):
    """Examples that are changed when they are asked for in training; in an evaluation they are as they were."""

    name: str = ""
    function: Transform = lambda example, rng: example
    key: tuple[int, ...] = ()

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        count = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        return ThreadPoolExecutor(count, thread_name_prefix="transform")

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> tuple[Named, Named]:
        inputs, targets = self.part.gather(indices, epoch)
        if epoch == 0:
            return inputs, targets
        every = {**inputs, **targets}

        def change(rows: range) -> None:
            for row in rows:
                example = {column: array[row] for column, array in every.items()}
                self._change(example, every, row, int(indices[row]), epoch)

        pool = self._threads
        pieces = [range(first, len(indices), pool._max_workers) for first in range(pool._max_workers)]
        for done in [pool.submit(change, piece) for piece in pieces]:
            done.result()
        return inputs, targets

    def _change(
        self, example: dict[str, Any], every: dict[str, NDArray[Any]], row: int, index: int, epoch: int
    ) -> None:
        """Pass one example to the function and put what it returns in its place."""
        try:
            changed = self.function(example, rng_of(self.key, epoch, index))
        except VelodromeError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"--transform {self.name!r} failed on example {index} in epoch {epoch}: {raised(error)}"
            ) from error
        changed = example if changed is None else changed
        if not isinstance(changed, dict) or changed.keys() != every.keys():
            what = f"a dictionary of {', '.join(map(str, changed))}" if isinstance(changed, dict) else (
                type(changed).__name__
            )
            raise RunFailed(
                f"--transform {self.name!r} returned {what}, and must return the example, a dictionary of "
                f"{', '.join(every)}"
            )
        for column, array in every.items():
            value = np.asarray(changed[column])
            if value.shape != array.shape[1:]:
                raise RunFailed(
                    f"--transform {self.name!r} returned {column!r} of shape {value.shape} for example {index}, and it "
                    f"must stay {array.shape[1:]}"
                )
            if not np.can_cast(value.dtype, array.dtype, "same_kind"):
                raise RunFailed(
                    f"--transform {self.name!r} returned {column!r} as {value.dtype}, and it must stay {array.dtype}: "
                    "convert it with astype()"
                )
            array[row] = value


def with_transform(name: str, data: ExampleSet, key: tuple[int, ...]) -> ExampleSet:
    """The data with the user's transform of its training examples; `key` seeds it, with epoch and number."""
    function: Transform = users_function("--transform", name, 2)
    # The arrays as they were stay at hand, for statistics of the training part.
    part = TransformedPart(data.train.inputs, data.train.targets, data.train, name, function, key)
    return replace(data, train=part, kind="arrays")
