"""A Keras model as a function of one flat buffer of weights: what all tasks have in common, and how it is saved.

The model's own variables only give shapes and initial values. The weights that train belong to the learners, so the
same model works under every strategy, without Keras' variable wrappers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.catalog.base import Strategy
from velodrome.engines.tensorflow import model_file
from velodrome.job.job import Job
from velodrome.models.checks import KINDS, Generator, Generators, of_model
from velodrome.tasks.base import Counts

Array = NDArray[Any]

#: Numbers in a row: 64 bytes of float32, 128 of float64.
_ROW = 16


class Layout:
    """Where each weight tensor of a model lies in the buffer."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self._shapes = list(shapes)
        self._sizes = [int(np.prod(shape)) for shape in shapes]
        numbers = range(len(self._sizes))
        self._aligned = [number for number in numbers if self._sizes[number] % _ROW == 0]
        self._unaligned = [number for number in numbers if self._sizes[number] % _ROW]
        self.parameters = sum(self._sizes)
        #: Zeros at the end.
        self._padding = -self.parameters % _ROW

    def pack(self, weights: Array) -> Array:
        """The buffer, from the concatenated weights in the model's order."""
        parts = np.split(weights, np.cumsum(self._sizes)[:-1])
        padding = np.zeros(self._padding, weights.dtype)
        return np.concatenate([*(parts[number] for number in [*self._aligned, *self._unaligned]), padding])

    def unpack(self, buffer: Array) -> Array:
        """The concatenated weights in the model's order, from the buffer."""
        order = [*self._aligned, *self._unaligned]
        parts = dict(zip(order, np.split(buffer, np.cumsum([self._sizes[number] for number in order])), strict=False))
        return np.concatenate([parts[number] for number in range(len(order))])

    def layers(self, buffer: tf.Tensor) -> list[tf.Tensor]:
        """Each layer's weights as views of the buffer, in a graph."""
        rows = [self._sizes[number] // _ROW for number in self._aligned]
        parts: dict[int, tf.Tensor] = {}
        if self._aligned:
            *aligned, buffer = tf.split(tf.reshape(buffer, [-1, _ROW]), [*rows, -1])
            parts |= dict(zip(self._aligned, aligned, strict=True))
        if self._unaligned:
            sizes = [self._sizes[number] for number in self._unaligned]
            unaligned = tf.split(tf.reshape(buffer, [-1]), [*sizes, self._padding])
            parts |= dict(zip(self._unaligned, unaligned, strict=False))
        return [tf.reshape(parts[number], shape) for number, shape in enumerate(self._shapes)]

    def buffer(self, layers: Sequence[tf.Tensor]) -> tf.Tensor:
        """The buffer from each layer's weights, in a graph."""
        parts = [tf.reshape(layers[number], [-1]) for number in [*self._aligned, *self._unaligned]]
        return tf.concat([*parts, tf.zeros([self._padding], parts[0].dtype)], 0)


class Batch(NamedTuple):
    """What a replica computes a step on. `real` tells which examples count; summed losses are divided by `batch`, the
    size of the batch over all replicas."""

    inputs: tf.Tensor
    targets: tf.Tensor
    real: tf.Tensor
    batch: tf.Tensor
    #: Tensors by name that the task needs beside the examples.
    constants: Any = ()


class StepResult(NamedTuple):
    """What a step on a batch computes besides a gradient."""

    #: The task's own counts in its order, total and summed loss, in float64.
    counts: tf.Tensor
    #: Statistics, or the state of a language model, after the batch.
    statistics: list[tf.Tensor]
    #: The flattened confusion matrix, true classes in rows; None where it is not counted.
    confusion: tf.Tensor | None = None
    #: Whether each example was classified correctly; None in training, and where no answer is right.
    right: tf.Tensor | None = None
    #: A row of numbers per example that an evaluation needs from all processes; None in training and elsewhere.
    scores: tf.Tensor | None = None


class FlatModel(ABC):
    """A network of any task. Its statistics are what changes in training without a gradient."""

    #: Whether statistics are a state carried from step to step, one row for each row of a batch (`initial_state`).
    stateful = False
    #: Classes of the confusion matrix; 0 if none is counted.
    confusion_classes = 0
    #: Whether an example is classified correctly or not.
    has_answers = False
    #: Numbers in a row of `StepResult.scores`; 0 if there are none.
    score_size = 0
    #: Whether gradients are those of a sum, which a step divides by what all replicas together have counted as total.
    by_total = False
    #: Names of the task's own counts, which come first in `StepResult.counts`.
    counted: tuple[str, ...] = ()
    #: What the network computes in place of Keras' layers, as results report it, in both forms of a strategy.
    own_parts: tuple[str, ...] = ()
    #: Pixel values fed to the model, as results record them; None for a text.
    pixel_form: str | None = None
    #: What the user should know about the model, as sentences.
    notes: tuple[str, ...] = ()
    #: How the model is saved.
    form = model_file.Form()

    def __init__(self, job: Job, model: keras.Model) -> None:
        self.job, self.model, self.dtype = job, model, tf.as_dtype(job.weights_dtype)
        self.trainable = list(model.trainable_variables)
        self.shapes = [tuple(variable.shape) for variable in self.trainable]
        self.layout = Layout(self.shapes)
        self.parameters = self.layout.parameters
        #: The constraint that a Keras layer applies to a weight after every update; None for most.
        self._constraints = [variable.constraint for variable in self.trainable]
        if job.weights is not None:
            self.notes = (*self.notes, *model_file.load_given(model, job.weights))

    @property
    def counts_size(self) -> int:
        return len(self.counted) + 2

    def counts(self, values: Array) -> Counts:
        return Counts.of(values, self.counted)

    def implementation(self, strategy: Strategy, path: str | None = None) -> dict[str, Any]:
        """What a result records of the parts that trained this network."""
        report = strategy.implementation.report(self.job.implementation, path)
        if self.job.has_own_optimizer:  # it takes the variables of Keras, as the stock form has them
            report = {**strategy.implementation.report("stock", path), "kind": self.job.implementation}
            report["framework"].append(f"your optimizer {self.job.optimizer}")
        return {**report, "own": [*report["own"], *self.own_parts]}

    @property
    def is_constrained(self) -> bool:
        return any(self._constraints)

    def constrain(self, weights: tf.Tensor) -> None:
        """Keep the buffer, a variable handle, within the bounds that layers set; in a graph, after an update."""
        if self.is_constrained:
            now = tf.raw_ops.ReadVariableOp(resource=weights, dtype=self.dtype)
            tf.raw_ops.AssignVariableOp(resource=weights, value=self.constrained(now))

    def constrained(self, buffer: tf.Tensor) -> tf.Tensor:
        """The buffer with the layers' constraints applied, in a graph."""
        layers = self.layout.layers(buffer)
        kept = [value if keep is None else keep(value) for value, keep in zip(layers, self._constraints, strict=True)]
        return self.layout.buffer(kept)

    def initial_state(self, rows: int) -> list[Array]:
        """The state with which a stateful network begins an epoch or an evaluation of this many rows."""
        raise NotImplementedError

    def weights(self) -> Array:
        """The model's weights as one buffer."""
        return self.layout.pack(self._concatenated().astype(self.job.weights_dtype))

    def _concatenated(self) -> Array:
        return np.concatenate([np.ravel(np.asarray(variable)) for variable in self.trainable])

    @abstractmethod
    def initial_statistics(self, rank: int) -> list[Array]:
        """Statistics of an untrained model, as a rank starts with them."""

    def statistics_for_rank(self, values: Sequence[Array], rank: int) -> list[Array]:
        """Rank 0's statistics, adapted to another rank."""
        return [np.array(value) for value in values]

    def is_averaged(self, index: int) -> bool:
        """Whether a statistic is averaged over the workers."""
        return False

    @abstractmethod
    def gradient(
        self, sources: Any, weights: Any, statistics: Sequence[tf.Tensor], batch: Batch
    ) -> tuple[Any, StepResult]:
        """The gradient of this replica's part of a batch with respect to `sources`, from which `weights` makes the
        layers' weights."""

    @abstractmethod
    def count(self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor], batch: Batch) -> StepResult:
        """The counts of a batch without training."""

    @abstractmethod
    def save(self, folder: Path, buffer: Array, statistics: Sequence[Array]) -> None:
        """Write a plain Keras model with trained weights, and what is needed to call it."""

    def _assign_weights(self, buffer: Array) -> None:
        weights, first = self.layout.unpack(buffer), 0
        for variable, shape in zip(self.trainable, self.shapes, strict=True):
            last = first + int(np.prod(shape))
            variable.assign(weights[first:last].reshape(shape))
            first = last

    def check_saving(self, folder: Path) -> tuple[str, ...]:
        """Find out, in a folder below `folder`, in which form the model can be saved and loaded; what the user should
        know about it, as sentences. A model of the zoo is known to be saved whole."""
        return ()

    def generators(self) -> Generators:
        """The random number generators of any kind that the model or one of its layers holds.

        The states of Keras' own generators are variables of the model. That of `tf.random.uniform` and its like is
        inside TensorFlow's kernels and cannot be saved.
        """
        return of_model(self.model, keras.layers.Layer, {**KINDS, tf.random.Generator: _of_tensorflow})

    def layer_rows(self) -> tuple[list[dict[str, Any]], int | None]:
        """What each layer takes (`events.models.Layer`) and the bytes of their outputs; nothing where it is unknown."""
        return [], None

    def reasons_against_equivalence(self) -> list[str]:
        """Why several workers would not end with the weights of one."""
        return []

    def _about(self) -> dict[str, Any]:
        """What a saved model records of the job."""
        policy = {} if self.job.dtype == self.job.weights_dtype else {"policy": mixed_policy(self.job)}
        return {"engine": "tensorflow", "model": self.job.model, "model_args": self.job.model_args,
                "dtype": self.job.weights_dtype, **policy}


def _of_tensorflow(generator: tf.random.Generator) -> Generator:
    return Generator(lambda: np.asarray(generator.state), generator.state.assign)


def mixed_policy(job: Job) -> str:
    """The name of Keras' policy for layers that compute in another format than that of their weights."""
    return f"mixed_{job.dtype}"


def set_number_format(job: Job) -> None:
    """Build the layers that follow in the job's number format.

    Both are set: Keras derives the policy of layers from its float type once, when the first layer is built.
    """
    keras.config.set_floatx(job.weights_dtype)
    keras.config.set_dtype_policy(job.weights_dtype if job.dtype == job.weights_dtype else mixed_policy(job))


def gradient_in_parts(
    network: FlatModel, sources: Any, weights: Any, statistics: Sequence[tf.Tensor], batch: Batch
) -> tuple[Any, StepResult]:
    """What `network.gradient` returns for a batch, computed on as many parts of it as the job asks for."""
    if network.job.accumulate == 1:
        return network.gradient(sources, weights, statistics, batch)
    rows = tf.shape(tf.nest.flatten(batch.inputs)[0], tf.int64)[0]
    parts = tf.minimum(tf.constant(network.job.accumulate, tf.int64), rows)  # none of them is empty
    held = list(statistics)

    def body(part: tf.Tensor, counts: tf.Tensor, total: list[tf.Tensor], state: list[tf.Tensor]) -> tuple[Any, ...]:
        low, high = part * rows // parts, (part + 1) * rows // parts
        here = [value[low:high] for value in state] if network.stateful else state
        inner = tf.nest.map_structure(tf.identity, sources)
        gradient, result = network.gradient(inner, weights, here, _part_of(batch, low, high))
        dense = [tf.convert_to_tensor(piece) for piece in tf.nest.flatten(gradient)]
        after = result.statistics
        if network.stateful:
            after = [
                tf.concat([old[:low], new, old[high:]], 0) for old, new in zip(state, result.statistics, strict=True)
            ]
        added = [so_far + piece for so_far, piece in zip(total, dense, strict=True)]
        return part + 1, counts + result.counts, added, after

    nothing = [tf.zeros_like(source) for source in tf.nest.flatten(sources)]
    start = tf.constant(0, tf.int64), tf.zeros([network.counts_size], tf.float64), nothing, held
    shapes = tf.nest.map_structure(lambda value: value.shape, start)
    if network.stateful:
        shapes = *shapes[:3], [tf.TensorShape([None, *value.shape[1:]]) for value in held]
    _, counts, total, state = tf.while_loop(
        lambda part, *_: part < parts, body, start, shape_invariants=shapes, parallel_iterations=1
    )
    return tf.nest.pack_sequence_as(sources, total), StepResult(counts, list(state))


def _part_of(batch: Batch, low: tf.Tensor, high: tf.Tensor) -> Batch:
    """Some of a batch's examples; losses are divided by the size of the whole."""
    inputs, targets = (
        tf.nest.map_structure(lambda value: value[low:high], values) for values in (batch.inputs, batch.targets)
    )
    if batch.real.shape.rank == 0:  # all examples count, or none does
        real = tf.where(batch.real > 0, tf.cast(high - low, batch.real.dtype), tf.zeros_like(batch.real))
    else:
        real = batch.real[low:high]
    return batch._replace(inputs=inputs, targets=targets, real=real)
