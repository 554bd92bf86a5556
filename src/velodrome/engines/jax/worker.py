"""JAX in a training process: joins the other processes, and trains on images with labels or on a text.

Images are batches by the epoch's order, in windows that are handed to the compiled loop. The rows of a text lie side
by side, and their state is carried from step to step."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh
from numpy.typing import NDArray

from velodrome.catalog.models import UNROLL
from velodrome.engines.jax.learner import Forward, JaxLearner
from velodrome.engines.jax.mesh import AXIS, Arrays, configure, connect_processes, in_all, in_each, local
from velodrome.models import jax_zoo
from velodrome.tasks.base import Counts
from velodrome.tasks.schedule import EVALUATION_ROWS, Schedule, TextSchedule, evaluation_rows
from velodrome.training import loop
from velodrome.training.context import Context
from velodrome.training.learner import EVALUATION_BATCH, Part
from velodrome.training.sampler import computing
from velodrome.transport.base import Transport

#: Bytes of images that are gathered at a time and handed to the compiled loop.
WINDOW_BYTES = 8 << 20


class ImageFeed(NamedTuple):
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
        data = context.data
        self._use_images(context)
        super().__init__(context, transport, mesh)
        self._labels = np.asarray(data.train.labels, np.int32)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="images")
        self._evaluate_batch = jax.jit(self._evaluate_step)
        largest = -(-max(len(data.validation), len(data.test), 1) // transport.size)
        #: Examples that are evaluated at a time, the same in all parts, because each number of them is compiled.
        self._evaluated_size = min(EVALUATION_BATCH, largest)

    def _build(self) -> jax_zoo.Network:
        job = self._context.job
        return jax_zoo.build(job.model, self._data.input_shape, self._data.classes, job.seed, job.weights_dtype)

    def _converted(self, images: jax.Array) -> jax.Array:
        """Bytes as the network takes them."""
        factor, offset = (jnp.asarray(array, self._dtype) for array in (self._transform.factor, self._transform.offset))
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
        self._feed = ImageFeed(*(
            in_each(mesh, np.asarray(array)[None])
            for array in (images, labels, self._counts[steps], self._key, np.int32(first))
        ))
        self._shared_feed = tuple(in_all(mesh, np.ascontiguousarray(array)) for array in self._shared[:, steps])
        self._number = number

    def _first_feed(self) -> tuple[Any, Any, Any]:
        self._open(0)
        return (), self._feed, self._shared_feed

    def train(self, first: int, last: int) -> Counts:
        results, trained = [], int(self._counts[first:last].sum())
        with self._waiting_for_others():
            while first < last:
                number = first // self._window
                if number != self._number:
                    self._open(number)
                before = number * self._window
                end = min(last, before + self._window)
                _, losses, right = self._run((), self._feed, self._shared_feed, first - before, end - before)
                results.append((losses, right))
                first = end
            loss = sum(float(np.asarray(local(losses), np.float64).sum()) for losses, _ in results)
            correct = sum(int(np.asarray(local(right)).sum()) for _, right in results)
        return Counts(trained, loss, {"correct": correct})

    def _loss(self, tensors: Arrays, carried: Any, feed: Any, step: jax.Array) -> tuple[jax.Array, Forward]:
        images, labels = feed.images[step], feed.labels[step]
        counted = (jnp.arange(len(labels)) < feed.counts[step]).astype(self._dtype)
        key = jax.random.fold_in(jax.random.wrap_key_data(feed.key), feed.first + step)
        logits, buffers = self._network.apply(tensors, self._converted(images), jax_zoo.Training(key, counted))
        losses = cross_entropy(logits, labels, self._context.job.label_smoothing)
        right = ((logits.argmax(1) == labels) & (counted > 0)).sum(dtype=jnp.int32)
        return (losses * counted).sum(), Forward(right, buffers, carried)

    # -- evaluation

    def _evaluate_step(self, tensors: Arrays, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits, _ = self._network.apply(tensors, self._converted(images), None)
        return cross_entropy(logits, labels), logits.argmax(1)

    def _prepare_evaluation(self) -> None:
        size = self._evaluated_size
        images = np.zeros((size, *self._data.input_shape), np.uint8)
        jax.block_until_ready(self._evaluate_batch(self._evaluated(), images, np.zeros(size, np.int32)))

    def evaluate(self, part: Part) -> Counts:
        tensors, size = self._evaluated(), self._evaluated_size

        def predict(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> tuple[float, NDArray[Any]]:
            # The last batch is filled up, because each size is compiled.
            filled = np.resize(images, (size, *images.shape[1:])), np.resize(labels, size).astype(np.int32)
            losses, answered = self._evaluate_batch(tensors, *filled)
            return float(np.asarray(losses, np.float64)[: len(labels)].sum()), np.asarray(answered)[: len(labels)]

        return self.evaluate_images(part, predict, size)

    def _description(self) -> dict[str, Any]:
        return self._image_description(self._data.input_shape)


def cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: float = 0.0) -> jax.Array:
    """The loss of each example; with a part of each label spread evenly over all classes."""
    chances = jax.nn.log_softmax(logits)
    losses = -jnp.take_along_axis(chances, labels[..., None], axis=-1)[..., 0]
    return losses if not smoothing else (1 - smoothing) * losses - smoothing * chances.mean(-1)


class TextFeed(NamedTuple):
    """The rows of this process, and 1 for each of them; rows that only fill up have 0."""

    rows: Any
    counted: Any


class TextLearner(JaxLearner):
    """Trains on the rows of a text that are this process's."""

    def __init__(self, context: Context, transport: Transport, mesh: Mesh) -> None:
        self._text, self._unroll = context.data, UNROLL.of(context.job)
        super().__init__(context, transport, mesh)
        self._evaluate_columns = jax.jit(self._evaluate_step)

    def _build(self) -> jax_zoo.TextNetwork:
        job = self._context.job
        return jax_zoo.build_text(job.model, len(self._text.vocabulary), UNROLL.of(job), job.seed, job.weights_dtype)

    # -- training

    def begin_epoch(self, schedule: TextSchedule) -> None:
        self._collected = None
        rows = schedule.rows(self._text.train, self._transport.rank)
        most = -(-schedule.batch // schedule.workers)
        filled = np.zeros((most, schedule.width + 1), np.int32)
        filled[: len(rows)] = rows
        counted = (np.arange(most) < len(rows)).astype(self._dtype)
        self._rows, mesh = len(rows), self._mesh
        self._feed = TextFeed(in_each(mesh, filled[None]), in_each(mesh, counted[None]))
        steps = schedule.steps
        self._shared = in_all(mesh, np.full(steps, schedule.batch, self._dtype)), in_all(mesh, self._rates_of(steps))
        state = self._network.initial_state(most)
        self._state_of_rows = jax.tree.map(lambda array: in_each(mesh, array[None]), state)

    def _first_feed(self) -> tuple[Any, Any, Any]:
        return self._state_of_rows, self._feed, self._shared

    def train(self, first: int, last: int) -> Counts:
        with self._waiting_for_others():
            self._state_of_rows, losses, _ = self._run(self._state_of_rows, self._feed, self._shared, first, last)
            loss = float(np.asarray(local(losses), np.float64).sum())
        return Counts(self._rows * self._unroll * (last - first), loss)

    def _loss(self, tensors: Arrays, carried: Any, feed: Any, step: jax.Array) -> tuple[jax.Array, Forward]:
        columns = lax.dynamic_slice_in_dim(feed.rows, step * self._unroll, self._unroll + 1, axis=1)
        logits, state = self._network.apply(tensors, columns[:, :-1], carried)
        losses = cross_entropy(logits, columns[:, 1:].T) * feed.counted
        # Truncated back-propagation: the state continues into the next step, the gradient does not.
        return losses.sum(), Forward(jnp.int32(0), {}, lax.stop_gradient(state))

    # -- evaluation

    def _evaluate_step(
        self, tensors: Arrays, words: jax.Array, targets: jax.Array, real: jax.Array, state: Any
    ) -> tuple[jax.Array, Any]:
        logits, state = self._network.apply(tensors, words, state)
        return cross_entropy(logits, targets.T) * real.T, state

    def _prepare_evaluation(self) -> None:
        rows, tensors = len(range(self._transport.rank, EVALUATION_ROWS, self._transport.size)), self._evaluated()
        if rows:
            words, real = np.zeros((rows, self._unroll), np.int32), np.zeros((rows, self._unroll), np.float32)
            state = self._network.initial_state(rows)
            jax.block_until_ready(self._evaluate_columns(tensors, words, words, real, state))

    def evaluate(self, part: Part) -> Counts:
        read = evaluation_rows(getattr(self._text, part), self._transport.rank, self._transport.size)
        loss, tensors = 0.0, self._evaluated()
        if len(read.inputs):
            state = self._network.initial_state(len(read.inputs))
            # Filled up to whole calls, so that the last one needs no compiling.
            fill = ((0, 0), (0, -read.inputs.shape[1] % self._unroll))
            inputs, targets, real = (np.pad(array, fill) for array in (read.inputs, read.targets, read.real))
            for first in range(0, inputs.shape[1], self._unroll):
                columns = slice(first, first + self._unroll)
                losses, state = self._evaluate_columns(
                    tensors, inputs[:, columns], targets[:, columns], real[:, columns], state
                )
                loss += float(np.asarray(losses, np.float64).sum())
                self._context.status.seen += 1
        return self.total(Counts(int(read.real.sum(dtype="float64")), loss))

    def _description(self) -> dict[str, Any]:
        return {} if self._network.initial_state(1) else {"context": self._unroll}


def train(context: Context) -> None:
    """Train the job of the context to its end."""
    configure(context)

    def connect() -> tuple[Transport, Mesh]:
        transport = connect_processes(context)
        return transport, Mesh(np.array(jax.devices("cpu")), (AXIS,))

    def build(peers: tuple[Transport, Mesh]) -> JaxLearner:
        learner_class = TextLearner if context.data.kind == "text" else ImageLearner
        with computing(context.status):  # compiling takes seconds, on a busy machine many
            learner = learner_class(context, *peers)
            learner.prepare()
        return learner

    loop.train(context, connect, build)
