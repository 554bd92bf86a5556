"""The memory of an eager tensor as an array that may be written: lets MPI reduce a gradient where it lies.

TensorFlow lends a tensor's memory for reading only, so this relies on an implementation detail: the buffer protocol
exposes the tensor's own memory. `available` checks this once in each process; where it does not hold, or the tensor
lies on a GPU, `AllReduce` copies the gradient out and back, which trains just the same.

What it gains, per step on one core of an EPYC: 0.38 instead of 0.69 ms for the 266,610 weights of dense-300-100, 0.51
instead of 1.16 ms for the 431,080 of lenet5, 5.4 instead of 13.9 ms for 5 million.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray


def writable_memory(tensor: tf.Tensor) -> NDArray[Any] | None:
    """The tensor's memory as a flat array, or None if it cannot be written in place. Write only to a tensor that you
    alone hold."""
    return _view(tensor) if "CPU" in tensor.device and available() else None


@cache
def available() -> bool:
    """Whether what is written through the view appears in the tensor."""
    with tf.device("CPU:0"):
        tensor = tf.zeros([64]) + 1  # computed, not a constant: nothing else holds its memory
    try:
        _view(tensor)[:] = np.arange(64)
    except (TypeError, ValueError, BufferError, AttributeError):
        return False
    return bool(np.array_equal(tf.identity(tensor).numpy(), np.arange(64)))


def _view(tensor: tf.Tensor) -> NDArray[Any]:
    lent = np.asarray(memoryview(tensor))
    memory = (ctypes.c_char * lent.nbytes).from_address(lent.ctypes.data)
    return np.frombuffer(memoryview(memory), lent.dtype)
