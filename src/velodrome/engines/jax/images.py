"""Training on images with labels under JAX: windows of batches by the epoch's order, evaluation with a confusion
matrix."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import Mesh
from numpy.typing import NDArray

from velodrome.data.examples import Gather
from velodrome.data.pixels import transform_of
from velodrome.engines.jax.division import Arrays, in_all, in_each, local
from velodrome.engines.jax.learner import JaxLearner, Made
from velodrome.errors import BadRequest
from velodrome.models import jax_zoo
from velodrome.tasks.counts import Counts
from velodrome.tasks.schedule import Schedule, evaluation_indices
from velodrome.transport.base import Transport
from velodrome.worker.context import Context
from velodrome.worker.learner import Part
from velodrome.worker.transport_learner import count_classified

EVALUATION_BATCH = 512
#: Bytes of images that are gathered at a time and handed to the compiled loop.
WINDOW_BYTES = 8 << 20


class Feed(NamedTuple):
    """Some steps of this process: images (steps, batch, …) as bytes, labels, and how many of each batch count."""

    images: Any
    labels: Any
    counts: Any
    #: Of the random numbers of the epoch, and the first step's number in it.
    key: Any
    first: Any


class ImageLearner(JaxLearner):
    """Trains on the images of this process's partition.

    A batch has as many examples in every step and process, so that one compiled loop serves them all: where one has
    fewer, it is filled up with examples that count nothing.
    """

    def __init__(self, context: Context, transport: Transport, mesh: Mesh) -> None:
        data, job = context.data, context.job
        if data.kind != "images":
            raise BadRequest(f"--dataset {job.dataset!r}: engine jax trains on images of bytes and on text; choose "
                             "engine torch or tensorflow for it")
        self._data, self._transform = data, transform_of(job.pixels, data)
        self.pixels = self._transform.form
        super().__init__(context, transport, mesh)
        self._gather = Gather(data.train.images)
        self._labels = np.asarray(data.train.labels, np.int32)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="images")
        self._evaluate_batch = jax.jit(self._look)
        largest = -(-max(len(data.validation), len(data.test), 1) // transport.size)
        #: Examples that are evaluated at a time, the same in all parts, because each number of them is compiled.
        self._evaluated_together = min(EVALUATION_BATCH, largest)

    def _build(self) -> jax_zoo.Network:
        job = self._context.job
        return jax_zoo.build(job.model, self._data.input_shape, self._data.classes, job.seed, job.weights_dtype)

    def _converted(self, images: jax.Array) -> jax.Array:
        """Bytes as the network takes them."""
        factor, offset = (jnp.asarray(one, self._dtype) for one in (self._transform.factor, self._transform.offset))
        return images.astype(self._dtype) * factor + offset

    # -- training

    def begin_epoch(self, schedule: Schedule) -> None:
        self._collected = None
        partition = schedule.partition(self._transport.rank)
        largest = max(schedule.batch_sizes)
        pixels = int(np.prod(self._data.input_shape))
        steps = partition.steps
        #: Steps that are handed to the compiled loop at a time.
        self._window = max(1, min(steps, WINDOW_BYTES // (largest * pixels)))
        whole = -(-steps // self._window) * self._window
        self._counts = np.zeros(whole, np.int32)
        self._counts[:steps] = np.diff(partition.offsets)
        self._table = np.zeros((whole, largest), np.int64)
        self._table[np.arange(largest) < self._counts[:, None]] = partition.indices
        batch = np.ones(whole, self._dtype)
        batch[:steps] = partition.batch
        self._shared = np.stack([batch, self._rates_of(whole)])
        # Random numbers depend on seed, epoch and rank only, so that a resumed run draws what an undisturbed one does.
        seed = np.random.SeedSequence([self._context.job.seed, self.epoch, self._transport.rank])
        self._key = seed.generate_state(2, np.uint32)
        self._next: Future[Any] = self._reader.submit(self._read, 0)
        self._number = -1

    def _read(self, number: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        """Images and labels of a window."""
        chosen = self._table[number * self._window : (number + 1) * self._window]
        images = self._gather(chosen.ravel()).reshape(*chosen.shape, *self._data.input_shape)
        return images, self._labels[chosen]

    def _open(self, number: int) -> None:
        """Hand a window to the device, and begin to read the next one."""
        images, labels = self._next.result()
        first, mesh = number * self._window, self._mesh
        if first + self._window < len(self._table):
            self._next = self._reader.submit(self._read, number + 1)
        steps = slice(first, first + self._window)
        self._feed = Feed(*(
            in_each(mesh, np.asarray(one)[None])
            for one in (images, labels, self._counts[steps], self._key, np.int32(first))
        ))
        self._shared_feed = tuple(in_all(mesh, np.ascontiguousarray(one)) for one in self._shared[:, steps])
        self._number = number

    def _first_feed(self) -> tuple[Any, Any, Any]:
        self._open(0)
        return (), self._feed, self._shared_feed

    def train(self, first: int, last: int) -> Counts:
        found, trained = [], int(self._counts[first:last].sum())
        with self._together():
            while first < last:
                number = first // self._window
                if number != self._number:
                    self._open(number)
                before = number * self._window
                end = min(last, before + self._window)
                _, losses, right = self._run((), self._feed, self._shared_feed, first - before, end - before)
                found.append((losses, right))
                first = end
            sums = [(np.asarray(local(one), np.float64).sum(), np.asarray(local(other)).sum()) for one, other in found]
        return Counts(trained, float(sum(loss for loss, _ in sums)), {"correct": int(sum(right for _, right in sums))})

    def _loss(self, tensors: Arrays, carried: Any, feed: Any, step: jax.Array) -> tuple[jax.Array, Made]:
        images, labels = feed.images[step], feed.labels[step]
        counted = (jnp.arange(len(labels)) < feed.counts[step]).astype(self._dtype)
        key = jax.random.fold_in(jax.random.wrap_key_data(feed.key), feed.first + step)
        logits, buffers = self._network.apply(tensors, self._converted(images), jax_zoo.Training(key, counted))
        losses = cross_entropy(logits, labels, self._context.job.label_smoothing)
        right = ((logits.argmax(1) == labels) & (counted > 0)).sum(dtype=jnp.int32)
        return (losses * counted).sum(), Made(right, buffers, carried)

    # -- evaluation

    def _look(self, tensors: Arrays, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits, _ = self._network.apply(tensors, self._converted(images), None)
        return cross_entropy(logits, labels), logits.argmax(1)

    def _prepare_evaluation(self) -> None:
        size = self._evaluated_together
        images = np.zeros((size, *self._data.input_shape), np.uint8)
        jax.block_until_ready(self._evaluate_batch(self._evaluated(), images, np.zeros(size, np.int32)))

    def evaluate(self, part: Part) -> Counts:
        examples, tensors = getattr(self._data, part), self._evaluated()
        mine = evaluation_indices(len(examples), self._transport.rank, self._transport.size)
        loss, predicted = 0.0, np.empty(len(mine), np.int64)
        size = self._evaluated_together
        for low in range(0, len(mine), size):
            chosen = mine[low : low + size]
            used = np.resize(chosen, size)  # the last batch is filled up
            labels = np.asarray(examples.labels[used], np.int32)
            losses, answered = self._evaluate_batch(tensors, examples.images[used], labels)
            loss += float(np.asarray(losses, np.float64)[: len(chosen)].sum())
            predicted[low : low + size] = np.asarray(answered)[: len(chosen)]
            self._context.status.seen += 1
        return self.total(count_classified(
            self, part, examples, mine, predicted, loss, self._data.classes, self._sum_vector
        ))

    def _description(self) -> dict[str, Any]:
        return {"input_shape": list(self._data.input_shape), "classes": self._data.classes, "dataset": self._data.name,
                "outputs": "logits", **self._transform.description()}


def cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: float = 0.0) -> jax.Array:
    """The loss of each example; with a part of each label spread evenly over all classes."""
    chances = jax.nn.log_softmax(logits)
    losses = -jnp.take_along_axis(chances, labels[..., None], axis=-1)[..., 0]
    return losses if not smoothing else (1 - smoothing) * losses - smoothing * chances.mean(-1)
