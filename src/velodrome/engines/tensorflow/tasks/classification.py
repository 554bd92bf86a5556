"""Classification under TensorFlow: byte images have a network of their own, all else is arrays."""

from __future__ import annotations

from velodrome.engines.tensorflow.flat import FlatModel
from velodrome.engines.tensorflow.tasks.arrays import ArrayTask
from velodrome.worker.context import Context


class ClassificationTask(ArrayTask):
    """Images with labels, or arrays."""

    def _network(self, context: Context) -> FlatModel:
        if context.data.kind != "images":
            return super()._network(context)
        from velodrome.engines.tensorflow.network import Network

        return Network(context.job, context.data, context.saved_model)


TASK = ClassificationTask()
