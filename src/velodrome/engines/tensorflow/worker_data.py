"""The images that parameter-server workers train on: sent to each worker once, or along with every closure.

Workers read no data themselves. The chief sends a part of moderate size once, as a dataset that every worker keeps, and
closures carry only indices. A part that is larger, or that lies on disk because it does not fit into memory, stays with
the chief, which sends the examples of each closure along. Only documented functions of TensorFlow take part: reading
mapped files through fixed file descriptors instead was no faster (dense-300-100, two workers, on a busy machine: 13,100
and 15,000 examples/s through descriptors, 13,700 this way).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from velodrome.data.gather import Gather
from velodrome.data.splits import Part, Splits
from velodrome.engines.tensorflow.batches import ExampleTensors
from velodrome.tasks.schedule import Indices

#: The largest part that is sent once. TensorFlow sends it as one message, which may not exceed 2 GiB and takes up to
#: twice its size in the worker.
SENT_ONCE_BYTES = 256 << 20


class WorkerData:
    """Where the closures of a chief find the examples of a data set."""

    def __init__(self, coordinator: Any, data: Splits) -> None:
        self._coordinator, self._data = coordinator, data
        self._datasets: dict[str, Any] = {}
        self._gathers: dict[str, Gather] = {}

    def is_sent_once(self, part: str) -> bool:
        images = self._part(part).images
        return not isinstance(images, np.memmap) and images.nbytes <= SENT_ONCE_BYTES

    def source(self, part: str, indices: Indices) -> tuple[Any, Indices]:
        """What a closure reads its examples from (`examples_of`), and the indices of the examples in it."""
        if self.is_sent_once(part):
            if part not in self._datasets:
                self._datasets[part] = self._send(self._part(part))
            return self._datasets[part], indices
        if part not in self._gathers:
            self._gathers[part] = Gather(self._part(part).images)
        images, labels = self._gathers[part](indices), np.asarray(self._part(part).labels).take(indices)
        sent = ExampleTensors(tf.constant(images), tf.constant(labels, tf.int64))
        return sent, np.arange(len(indices), dtype=np.int64)

    def _part(self, part: str) -> Part:
        found: Part = getattr(self._data, part)
        return found

    def _send(self, part: Part) -> Any:
        """An iterator in every worker that yields the whole part, again and again, without copying it."""
        # Made out here, the tensors are sent as they are; in the function they would become part of its graph, which
        # takes half a minute for 40 MB.
        tensors = ExampleTensors.of(part)

        # Converting Python into graphs, which nothing here needs, would leave files behind when a worker is killed.
        @tf.autograph.experimental.do_not_convert
        def dataset() -> tf.data.Dataset:
            return tf.data.Dataset.from_tensors(tensors).cache().repeat()

        return iter(self._coordinator.create_per_worker_dataset(dataset))


def examples_of(source: Any) -> ExampleTensors:
    """The examples that a closure was given a source of, in its graph."""
    return ExampleTensors(*source) if isinstance(source, tuple) else next(source)
