"""Rows of arrays that are not in memory, read a little ahead of their use. No framework here: engines make tensors."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.data.examples import ExamplePart, Named
from velodrome.tasks.schedule import Indices

#: Bytes of rows that are read at a time.
WINDOW_BYTES = 8 << 20


class Prefetch:
    """One part, read step by step: a thread reads the next few steps while the ones before are trained on."""

    def __init__(self, part: ExamplePart) -> None:
        self._gather = part.reader()
        self._bytes = max(1, sum(column.bytes for column in (*part.input_fields, *part.target_fields)))
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="examples")

    def begin(self, indices: Indices, offsets: Indices, epoch: int = 0) -> None:
        """Use this order of examples, with the offsets of its steps; `epoch` is 0 in an evaluation."""
        self._order, self._epoch, self._window = indices, epoch, (0, 0)
        longest = int(np.diff(offsets).max(initial=1))
        steps = max(1, WINDOW_BYTES // max(1, longest * self._bytes))
        # Windows end where steps do.
        self._ends = np.unique(np.append(offsets[::steps], offsets[-1:])).tolist()
        self._number = 0
        self._next = self._read(0)

    def _read(self, number: int) -> Future[tuple[Named, Named]] | None:
        if number + 1 >= len(self._ends):
            return None
        return self._reader.submit(self._gather, self._order[self._ends[number] : self._ends[number + 1]], self._epoch)

    def rows(self, low: int, high: int) -> tuple[Named, Named]:
        """Inputs and targets from position `low` of the order up to, not including, `high`; one step after another."""
        while low >= self._window[1]:
            assert self._next is not None, "steps must be requested in order"
            self._held = self._next.result()
            self._window = self._ends[self._number], self._ends[self._number + 1]
            self._number += 1
            self._next = self._read(self._number)
        first = self._window[0]
        inputs, targets = (_cut(arrays, low - first, high - first) for arrays in self._held)
        return inputs, targets


def _cut(arrays: Named, low: int, high: int) -> dict[str, NDArray[Any]]:
    return {name: array[low:high] for name, array in arrays.items()}
