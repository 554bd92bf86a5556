"""Gathers bytes of every process by nothing but a sum over the processes, which every strategy has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def gather(data: bytes, rank: int, size: int, total: Callable[[Vector], Vector]) -> list[bytes]:
    """The data of all processes, in each of them; `total` returns the sum of the processes' vectors."""
    lengths = np.zeros(size)
    lengths[rank] = len(data)
    lengths = total(lengths).round().astype(np.int64)
    table = np.zeros((size, int(lengths.max())))
    table[rank, : len(data)] = np.frombuffer(data, np.uint8)
    numbers = total(table.ravel()).round().astype(np.uint8).reshape(table.shape)
    return [row[:length].tobytes() for row, length in zip(numbers, lengths, strict=True)]
