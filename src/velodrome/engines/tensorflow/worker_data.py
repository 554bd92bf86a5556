"""Where the closures of a chief find their examples: with the worker, sent to it once, or sent along with each closure.

Workers that can (`worker_files.py`) read a part that fits into memory themselves, and closures carry only indices. With
`--implementation stock`, or where they cannot, the chief sends a part of moderate size once, as a dataset that every
worker keeps, and the examples of a larger one along with each closure. A part that lies on disk because it does not fit
into memory is always sent along.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from velodrome.engines.tensorflow import worker_files
from velodrome.engines.tensorflow.examples import Examples, Source
from velodrome.tasks.schedule import Indices
from velodrome.worker.context import Context

#: The largest part that is sent once. TensorFlow sends it as one message, which may not exceed 2 GiB and takes up to
#: twice its size in the worker.
SENT_ONCE_BYTES = 256 << 20


def reads_itself(context: Context) -> bool:
    """Whether the workers of a job read the parts that fit into memory themselves. The same in all of its processes."""
    return context.job.implementation != "stock" and worker_files.supported()


class WorkerData:
    """Where the closures of a chief find the examples of a data set."""

    def __init__(self, coordinator: Any, data: Any, *, published: bool) -> None:
        """`published`: the workers have opened their own examples."""
        self._coordinator, self._published = coordinator, published
        self._parts = {part: Source(getattr(data, part), data.kind) for part in worker_files.PARTS}
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
        make = tf.autograph.experimental.do_not_convert(partial(worker_files.dataset, part, self._parts[part].arrays))
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
