"""Where each layer's weights lie in one flat buffer, so that taking it apart copies next to nothing.

TensorFlow cuts a tensor without copying it only at whole rows of 64 bytes. Layers that fill such rows come first, all
others behind them, and the buffer ends with a full row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Array = NDArray[Any]

#: Numbers in a row: 64 bytes of float32, 128 of float64.
_ROW = 16


class Layout:
    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self._shapes = list(shapes)
        self._sizes = [int(np.prod(shape)) for shape in shapes]
        numbers = range(len(self._sizes))
        self._full = [number for number in numbers if self._sizes[number] % _ROW == 0]
        self._odd = [number for number in numbers if self._sizes[number] % _ROW]
        self.parameters = sum(self._sizes)
        #: Zeros at the end.
        self._spare = -self.parameters % _ROW

    def laid(self, plain: Array) -> Array:
        """The buffer, from all weights one after the other."""
        parts = np.split(plain, np.cumsum(self._sizes)[:-1])
        spare = np.zeros(self._spare, plain.dtype)
        return np.concatenate([*(parts[number] for number in [*self._full, *self._odd]), spare])

    def plain(self, buffer: Array) -> Array:
        """All weights one after the other, from the buffer."""
        order = [*self._full, *self._odd]
        parts = dict(zip(order, np.split(buffer, np.cumsum([self._sizes[number] for number in order])), strict=False))
        return np.concatenate([parts[number] for number in range(len(order))])

    def layers(self, buffer: tf.Tensor) -> list[tf.Tensor]:
        """The buffer as the weights of each layer, in a graph."""
        rows = [self._sizes[number] // _ROW for number in self._full]
        parts: dict[int, tf.Tensor] = {}
        if self._full:
            *full, buffer = tf.split(tf.reshape(buffer, [-1, _ROW]), [*rows, -1])
            parts |= dict(zip(self._full, full, strict=True))
        if self._odd:
            sizes = [self._sizes[number] for number in self._odd]
            odd = tf.split(tf.reshape(buffer, [-1]), [*sizes, self._spare])
            parts |= dict(zip(self._odd, odd, strict=False))
        return [tf.reshape(parts[number], shape) for number, shape in enumerate(self._shapes)]
