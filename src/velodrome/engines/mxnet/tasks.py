"""Training on images with labels and on a text under MXNet.

Images are batches by the epoch's order. The rows of a text lie side by side, and their state is carried from step to
step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from numpy.typing import NDArray

from velodrome.catalog.models import UNROLL
from velodrome.engines.mxnet.learner import MxnetLearner
from velodrome.job.job import Job
from velodrome.models import mxnet_zoo
from velodrome.tasks.base import Counts
from velodrome.tasks.correctness_bits import Evaluated
from velodrome.tasks.schedule import Schedule, TextSchedule, evaluation_rows
from velodrome.training.context import Context
from velodrome.training.learner import Part
from velodrome.transport.base import Transport


def _limit(job: Job) -> float | None:
    """Within what weights start: as MXNet itself would, or as the zoo describes."""
    return mxnet_zoo.MODULE_LIMIT if job.implementation == "stock" else None


class ImageLoss(gluon.HybridBlock):
    """The sum of a batch's losses, and how many of its images the network classifies correctly, as one vector."""

    def __init__(self, network: Any, dtype: str) -> None:
        super().__init__(prefix="")
        self.network, self._dtype = network, dtype

    def hybrid_forward(self, F: Any, images: Any, labels: Any) -> Any:  # noqa: N803 (Gluon's name)
        outputs = self.network(images)
        losses = -F.pick(F.log_softmax(outputs), labels)
        right = F.cast(F.argmax(outputs, axis=1), "float32") == labels
        return F.concat(*(F.reshape(F.sum(sums), (1,)) for sums in (losses, F.cast(right, self._dtype))), dim=0)


class ImageLearner(MxnetLearner):
    """Trains on the images of this worker's partition."""

    def __init__(self, context: Context, transport: Transport, store: Any) -> None:
        self._use_images(context)
        self._dtype, self._labels = context.job.weights_dtype, np.asarray(context.data.train.labels, np.float32)
        super().__init__(context, transport, store)

    def _shape(self) -> tuple[int, int, int]:
        height, width, channels = self._data.input_shape
        return channels, height, width

    def _build(self) -> Any:
        job = self._context.job
        shape, classes = self._shape(), self._data.classes
        return mxnet_zoo.build(job.model, shape, classes, job.seed, job.weights_dtype, _limit(job))

    def begin_epoch(self, schedule: Schedule) -> None:
        rank = self._transport.rank if self._synchronous else 0
        self._partition = schedule.partition(rank)
        # Augmentation depends on seed, epoch and rank only, so that a resumed run draws what an undisturbed one does.
        self._generator = np.random.default_rng([self._context.job.seed, self.epoch, self._transport.rank])

    def _with_loss(self) -> Any:
        return ImageLoss(self._network, self._dtype)

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
        def predict(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> tuple[float, NDArray[Any]]:
            outputs = self._network(self._images(images))
            return float(self._loss(outputs, mx.nd.array(labels)).sum().asscalar()), outputs.asnumpy().argmax(1)

        return self.evaluate_images(part, predict)

    def _description(self) -> dict[str, Any]:
        return self._image_description(self._shape())


class TextLoss(gluon.HybridBlock):
    """The sum of the losses of a batch of words, and the state after them."""

    def __init__(self, network: Any) -> None:
        super().__init__(prefix="")
        self.network = network

    def hybrid_forward(self, F: Any, words: Any, targets: Any, hidden: Any, cell: Any) -> Any:  # noqa: N803 (Gluon's name)
        logits, (hidden, cell) = self.network(words, hidden, cell)
        losses = -F.pick(F.log_softmax(F.reshape(logits, (-1, 0), reverse=True)), F.reshape(targets, -1))
        return F.reshape(F.sum(losses), (1,)), hidden, cell


class TextLearner(MxnetLearner):
    """Trains on the rows of a text that are this worker's."""

    def __init__(self, context: Context, transport: Transport, store: Any) -> None:
        self._text = context.data
        super().__init__(context, transport, store)

    def _build(self) -> Any:
        job = self._context.job
        words = len(self._text.vocabulary)
        return mxnet_zoo.build_text(job.model, words, job.seed, job.weights_dtype, _limit(job))

    def begin_epoch(self, schedule: TextSchedule) -> None:
        self._schedule = schedule
        self._rows = schedule.rows(self._text.train, self._transport.rank)
        self._state = self._network.initial_state(max(len(self._rows), 1), self._context.job.weights_dtype)

    def _with_loss(self) -> Any:
        return TextLoss(self._network)

    def _train_step(self, step: int) -> Callable[[], Counts]:
        unroll = self._schedule.unroll
        # Under asp a worker has rows of its own, and every n-th step of the epoch is its.
        number = step if self._synchronous else step // self._transport.size
        has_rows = len(self._rows) > 0
        rows = self._rows if has_rows else np.zeros((1, self._schedule.width + 1), np.int32)
        first = number * unroll
        words = mx.nd.array(rows[:, first : first + unroll].T)
        targets = mx.nd.array(rows[:, first + 1 : first + 1 + unroll].T)
        with autograd.record():
            loss, hidden, cell = self._counting(words, targets, *self._state)
        weight = mx.nd.array([has_rows / self._schedule.batch], dtype=self._context.job.weights_dtype)
        autograd.backward([loss], [weight])
        # Truncated back-propagation: the state continues into the next step, the gradient does not.
        self._state = [hidden.detach(), cell.detach()]

        def count() -> Counts:
            return Counts(rows.shape[0] * unroll, float(loss.asscalar())) if has_rows else Counts()

        return count

    def evaluate(self, part: Part) -> Counts:
        read = evaluation_rows(getattr(self._text, part), self._transport.rank, self._transport.size)
        unroll, loss_sum = UNROLL.of(self._context.job), 0.0
        if len(read.inputs):
            state = self._network.initial_state(len(read.inputs), self._context.job.weights_dtype)
            for first in range(0, read.inputs.shape[1], unroll):
                columns = slice(first, first + unroll)
                logits, state = self._network(mx.nd.array(read.inputs[:, columns].T), *state)
                targets = mx.nd.array(read.targets[:, columns].T).reshape(-1)
                losses = self._loss(logits.reshape((-1, 0), reverse=True), targets).asnumpy()
                loss_sum += float((losses.astype(np.float64) * read.real[:, columns].T.reshape(-1)).sum())
                self._context.status.seen += 1
        mine = Evaluated(Counts(int(read.real.sum(dtype="float64")), loss_sum))
        return self.sum_evaluated(mine, part, self._context, self.sum_vector)

    def _description(self) -> dict[str, Any]:
        return {}
