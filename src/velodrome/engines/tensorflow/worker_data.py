"""The examples of a parameter-server worker, where that worker is: closures carry only numbers of examples.

A worker opens its data as files with the same descriptor numbers as every other worker, and the graph that the chief
hands out reads them there, once. What lies in memory gets no name on disk, so nothing is left behind. This is for data
that fits into a worker's memory; of what does not, the chief sends the examples along.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.data.splits import Part as Examples
from velodrome.data.splits import Splits
from velodrome.engines.tensorflow.batches import Pixels
from velodrome.errors import RunFailed

PARTS = ("train", "validation", "test")
_FIRST_DESCRIPTOR = 200
#: Bytes before the examples of every file: the head of an `.npy` file, so that one can be mapped as it is.
_HEAD = 128
_BLOCK = 16 << 20


def offer(data: Splits) -> None:
    """In a worker: open its examples for the closures to come."""
    for part in PARTS:
        examples: Examples = getattr(data, part)
        _open(_images_of(examples.images), _descriptor(part, "images"))
        _open(_in_memory(np.asarray(examples.labels, np.int64)), _descriptor(part, "labels"))


# Translating Python into graphs, which nothing here needs, would leave files behind: workers end without a last word.
@tf.autograph.experimental.do_not_convert
def pixels(part: str, examples: Examples) -> tf.data.Dataset:
    """For the chief to hand out: a data set whose every element is a whole part, as the worker that runs it has it."""
    @tf.autograph.experimental.do_not_convert
    def read(_: Any) -> Pixels:
        return Pixels(
            _read(_descriptor(part, "images"), tf.uint8, examples.images.shape),
            _read(_descriptor(part, "labels"), tf.int64, examples.labels.shape),
        )

    # Cached, the one element is handed out again and again without being copied.
    return tf.data.Dataset.from_tensors(0).map(read).cache().repeat()


def _read(descriptor: int, dtype: Any, shape: tuple[int, ...]) -> tf.Tensor:
    head = _HEAD // dtype.size
    flat = tf.raw_ops.ImmutableConst(
        dtype=dtype, shape=[head + int(np.prod(shape))], memory_region_name=f"/proc/self/fd/{descriptor}"
    )
    return tf.reshape(flat[head:], shape)


def _descriptor(part: str, what: str) -> int:
    return _FIRST_DESCRIPTOR + 2 * PARTS.index(part) + (what == "labels")


def _open(found: int, wanted: int) -> None:
    if Path(f"/proc/self/fd/{wanted}").exists():
        raise RunFailed(f"file descriptor {wanted} of this process is in use: start it with fewer open files")
    os.dup2(found, wanted, inheritable=False)
    os.close(found)


def _images_of(images: NDArray[np.uint8]) -> int:
    if not isinstance(images, np.memmap):
        return _in_memory(images)
    if isinstance(images.base, mmap.mmap) and images.offset == _HEAD and isinstance(images.filename, str | Path):
        return os.open(images.filename, os.O_RDONLY)
    with tempfile.TemporaryFile() as file:
        _write(file.fileno(), images)
        return os.dup(file.fileno())


def _in_memory(array: NDArray[Any]) -> int:
    descriptor = os.memfd_create("velodrome-examples")
    _write(descriptor, array)
    return descriptor


def _write(descriptor: int, array: NDArray[Any]) -> None:
    os.write(descriptor, bytes(_HEAD))
    rows = max(1, _BLOCK // max(1, array[:1].nbytes))
    for first in range(0, len(array), rows):
        block: Any = np.ascontiguousarray(array[first : first + rows]).reshape(-1).view(np.uint8)
        left = memoryview(block)
        while len(left):
            left = left[os.write(descriptor, left) :]
