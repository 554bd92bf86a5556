"""Training on images with labels under MXNet: batches by the epoch's order, evaluation with a confusion matrix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from numpy.typing import NDArray

from velodrome.data.examples import Gather
from velodrome.data.pixels import transform_of
from velodrome.engines.mxnet.learner import MxnetLearner, restore
from velodrome.errors import BadRequest
from velodrome.models import mxnet_zoo
from velodrome.tasks.counts import Counts
from velodrome.tasks.schedule import Schedule, evaluation_indices
from velodrome.transport.base import Transport
from velodrome.worker.context import Context
from velodrome.worker.learner import Part
from velodrome.worker.transport_learner import count_classified

EVALUATION_BATCH = 512


class Counting(gluon.HybridBlock):
    """The sum of a batch's losses, and how many of its images the network classifies correctly, as one vector."""

    def __init__(self, network: Any, dtype: str) -> None:
        super().__init__(prefix="")
        self.network, self._dtype = network, dtype

    def hybrid_forward(self, F: Any, images: Any, labels: Any) -> Any:  # noqa: N803 (Gluon's name)
        outputs = self.network(images)
        losses = -F.pick(F.log_softmax(outputs), labels)
        right = F.cast(F.argmax(outputs, axis=1), "float32") == labels
        return F.concat(*(F.reshape(F.sum(one), (1,)) for one in (losses, F.cast(right, self._dtype))), dim=0)


class ImageLearner(MxnetLearner):
    """Trains on the images of this worker's partition."""

    def __init__(self, context: Context, transport: Transport, store: Any) -> None:
        data, job = context.data, context.job
        if data.kind != "images":
            raise BadRequest(f"--dataset {job.dataset!r}: engine mxnet trains on images of bytes and on text; choose "
                             "another engine for it")
        self._data, self._transform = data, transform_of(job.pixels, data)
        self.pixels, self._dtype = self._transform.form, job.weights_dtype
        self._gather, self._labels = Gather(data.train.images), np.asarray(data.train.labels, np.float32)
        super().__init__(context, transport, store)

    def _shape(self) -> tuple[int, int, int]:
        height, width, channels = self._data.input_shape
        return channels, height, width

    def _build(self) -> Any:
        job = self._context.job
        return mxnet_zoo.build(job.model, self._shape(), self._data.classes, job.seed, job.weights_dtype)

    def _load(self, folder: Path) -> Any:
        return restore(self._build(), folder, self._context.job.weights_dtype)

    def begin_epoch(self, schedule: Schedule) -> None:
        rank = self._transport.rank if self._synchronous else 0
        self._partition = schedule.partition(rank)
        # Augmentation depends on seed, epoch and rank only, so that a resumed run draws what an undisturbed one does.
        self._generator = np.random.default_rng([self._context.job.seed, self.epoch, self._transport.rank])

    def _with_loss(self) -> Any:
        return Counting(self._network, self._dtype)

    def _images(self, images: NDArray[np.uint8], *, training: bool = False) -> Any:
        """Images (count, channels, height, width) as the network takes them."""
        numbers = self._transform(images, self._dtype).transpose(0, 3, 1, 2)
        if training and self._context.job.model in mxnet_zoo.AUGMENTED:
            numbers = mxnet_zoo.augment(numbers, self._generator)
        return mx.nd.array(np.ascontiguousarray(numbers), dtype=self._dtype)

    def _train_step(self, step: int) -> Callable[[], Counts]:
        indices = self._partition.step(step)
        # A worker without examples takes part with a gradient of zero, which one example times zero has.
        used = indices if len(indices) else np.zeros(1, np.int64)
        weight = min(1, len(indices)) / float(self._partition.batch[step])
        images, labels = self._images(self._gather(used), training=True), mx.nd.array(self._labels[used])
        with autograd.record():
            sums = self._counting(images, labels)
        autograd.backward([sums], [mx.nd.array([weight, 0.0], dtype=self._dtype)])

        def count() -> Counts:
            loss, right = sums.asnumpy().tolist()
            return Counts(len(indices), loss, {"correct": int(right)}) if len(indices) else Counts()

        return count

    def evaluate(self, part: Part) -> Counts:
        examples = getattr(self._data, part)
        mine = evaluation_indices(len(examples), self._transport.rank, self._transport.size)
        loss_sum, predicted = 0.0, np.empty(len(mine), np.int64)
        labels = np.asarray(examples.labels[mine], np.int64)
        for low in range(0, len(mine), EVALUATION_BATCH):
            chosen = slice(low, low + EVALUATION_BATCH)
            outputs = self._network(self._images(examples.images[mine[chosen]]))
            loss_sum += float(self._loss(outputs, mx.nd.array(labels[chosen])).sum().asscalar())
            predicted[chosen] = outputs.asnumpy().argmax(1)
            self._context.status.seen += 1
        return self.sum_counts(count_classified(
            self, part, examples, mine, predicted, loss_sum, self._data.classes, self.sum_vector
        ))

    def _description(self) -> dict[str, Any]:
        return {"input_shape": list(self._shape()), "classes": self._data.classes, "dataset": self._data.name,
                "outputs": "logits", **self._transform.description()}
