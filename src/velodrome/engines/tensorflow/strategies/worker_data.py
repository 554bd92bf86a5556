"""Where the closures of a chief find their examples: with the worker, sent to it once, or sent along with each closure.

A worker opens its examples as files with the same descriptor numbers as every other worker, and the graph that the
chief sends maps them there, once. Data in memory gets no name on disk, so nothing is left behind. For small data it is
no faster than a dataset that the chief sends (13,100 and 15,000 against 13,700 examples/s of dense-300-100 on a busy
machine). Its gain is that no example crosses the network: a set that is too large to be sent once would travel in every
epoch. It needs `ImmutableConst` and `/proc/self/fd`. With `--implementation stock`, or where one of these is missing,
the chief sends a part of moderate size once, as a dataset that every worker keeps, and the examples of a larger one
along with each closure. A part that lies on disk because it does not fit into memory is always sent along."""

from __future__ import annotations

import mmap
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow.feed import PARTS, Examples, Source
from velodrome.errors import RunFailed
from velodrome.tasks.schedule import Indices
from velodrome.training.context import Context

_FIRST_DESCRIPTOR = 200
#: Bytes before the examples of every file: the size of an `.npy` header, so that such a file can be mapped as it is.
_HEADER = 128
_BLOCK = 16 << 20


def supported() -> bool:
    """Whether the graph of a closure can map files by their descriptors. The same in every process of a job."""
    return hasattr(tf.raw_ops, "ImmutableConst") and Path("/proc/self/fd").is_dir()


def publish(data: Any) -> None:
    """In a worker: open the examples for the closures to come."""
    for part in PARTS:
        source = Source(getattr(data, part))
        arrays = [] if source.arrays is None else tf.nest.flatten(source.arrays)  # the chief sends what is computed
        for array, descriptor in zip(arrays, _descriptors(part, len(arrays)), strict=True):
            _open(_file_of(array), descriptor)


# Converting Python into graphs, which nothing here needs, would leave files behind when a worker is killed.
@tf.autograph.experimental.do_not_convert
def dataset(part: str, examples: Examples) -> tf.data.Dataset:
    """For the chief to send: yields the whole part again and again, as the worker that runs it has published it."""

    arrays = tf.nest.flatten(examples)
    places = [
        (descriptor, tf.as_dtype(array.dtype), array.shape)
        for array, descriptor in zip(arrays, _descriptors(part, len(arrays)), strict=True)
    ]

    @tf.autograph.experimental.do_not_convert
    def read(_: Any) -> Examples:
        mapped: Examples = tf.nest.pack_sequence_as(examples, [_read(*place) for place in places])
        return mapped

    # Cached, the one element is yielded again and again without being copied.
    return tf.data.Dataset.from_tensors(0).map(read).cache().repeat()


def _read(descriptor: int, dtype: Any, shape: tuple[int, ...]) -> tf.Tensor:
    header = _HEADER // dtype.size
    flat = tf.raw_ops.ImmutableConst(
        dtype=dtype, shape=[header + int(np.prod(shape))], memory_region_name=f"/proc/self/fd/{descriptor}"
    )
    return tf.reshape(flat[header:], shape)


def _descriptors(part: str, arrays: int) -> range:
    """The descriptors of a part with this many arrays: the same in every process."""
    first = _FIRST_DESCRIPTOR + arrays * PARTS.index(part)
    return range(first, first + arrays)


def _open(opened: int, wanted: int) -> None:
    if Path(f"/proc/self/fd/{wanted}").exists():
        raise RunFailed(f"file descriptor {wanted} of this process is in use: start it with fewer open files")
    os.dup2(opened, wanted, inheritable=False)
    os.close(opened)


def _file_of(array: NDArray[Any]) -> int:
    if not isinstance(array, np.memmap):
        return _memory_file(array)
    if isinstance(array.base, mmap.mmap) and array.offset == _HEADER and isinstance(array.filename, str | Path):
        return os.open(array.filename, os.O_RDONLY)
    with tempfile.TemporaryFile() as file:
        _write(file.fileno(), array)
        return os.dup(file.fileno())


def _memory_file(array: NDArray[Any]) -> int:
    descriptor = os.memfd_create("velodrome-examples")
    _write(descriptor, array)
    return descriptor


def _write(descriptor: int, array: NDArray[Any]) -> None:
    os.write(descriptor, bytes(_HEADER))
    rows = max(1, _BLOCK // max(1, array[:1].nbytes))
    for first in range(0, len(array), rows):
        block: Any = np.ascontiguousarray(array[first : first + rows]).reshape(-1).view(np.uint8)
        left = memoryview(block)
        while len(left):
            left = left[os.write(descriptor, left) :]


#: The largest part that is sent once. TensorFlow sends it as one message, which may not exceed 2 GiB and takes up to
#: twice its size in the worker.
SENT_ONCE_BYTES = 256 << 20


def reads_itself(context: Context) -> bool:
    """Whether the workers of a job read the parts that fit into memory themselves. The same in all of its processes."""
    return context.job.implementation != "stock" and supported()


class WorkerData:
    """Where the closures of a chief find the examples of a data set."""

    def __init__(self, coordinator: Any, data: Any, *, published: bool) -> None:
        """`published`: the workers have opened their own examples."""
        self._coordinator, self._published = coordinator, published
        self._parts = {part: Source(getattr(data, part)) for part in PARTS}
        self._datasets: dict[str, Any] = {}
        #: The epoch that begins, counted from 1; set by the learner.
        self.epoch = 0

    def is_kept(self, part: str) -> bool:
        """Whether workers keep the part, so that closures need no more than indices."""
        source = self._parts[part]
        return source.in_memory and (self._published or source.bytes <= SENT_ONCE_BYTES)

    def source(self, part: str, indices: Indices) -> tuple[Any, Indices]:
        """What a closure reads its examples from (`examples_in`), and the indices of the examples in it."""
        if self.is_kept(part):
            if part not in self._datasets:
                self._datasets[part] = self._published_dataset(part) if self._published else self._send(part)
            return self._datasets[part], indices
        read = self._parts[part].read(indices, self.epoch if part == "train" else 0)
        return read, np.arange(len(indices), dtype=np.int64)

    def _published_dataset(self, part: str) -> Any:
        """An iterator in every worker that yields the whole part as the worker has published it."""
        make = tf.autograph.experimental.do_not_convert(partial(dataset, part, self._parts[part].arrays))
        return iter(self._coordinator.create_per_worker_dataset(make))

    def _send(self, part: str) -> Any:
        """An iterator in every worker that yields the whole part, again and again, without copying it."""
        # Made out here, the tensors are sent as they are; in the function they would become part of its graph, which
        # takes half a minute for 40 MB.
        tensors = self._parts[part].tensors()

        # Converting Python into graphs, which nothing here needs, would leave files behind when a worker is killed.
        @tf.autograph.experimental.do_not_convert
        def dataset() -> tf.data.Dataset:
            return tf.data.Dataset.from_tensors(tensors).cache().repeat()

        return iter(self._coordinator.create_per_worker_dataset(dataset))


def examples_in(source: Any) -> Examples:
    """The examples that a closure was given a source of, in its graph."""
    return Examples(*source) if isinstance(source, tuple) else next(source)
