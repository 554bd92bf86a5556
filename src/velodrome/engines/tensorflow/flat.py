"""A Keras model as a function of one flat buffer of weights: what all tasks have in common, and how it is saved.

The model's own variables only give shapes and initial values. The weights that train belong to the learners, so the
same model works under every strategy, without Keras' variable wrappers.
"""

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
from velodrome.engines.tensorflow import given_weights, model_file
from velodrome.engines.tensorflow.layout import Layout
from velodrome.job.job import Job
from velodrome.tasks.counts import Counts

Array = NDArray[Any]


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
        #: What keeps a weight within bounds after every update, as Keras' layers may have it; None for most.
        self._constraints = [variable.constraint for variable in self.trainable]
        if job.weights is not None:
            self.notes = (*self.notes, *given_weights.load(model, job.weights))

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
        """The state with which a stateful network begins an epoch or an evaluation of so many rows."""
        raise NotImplementedError

    def weights(self) -> Array:
        """The model's weights as one buffer."""
        return self.layout.pack(self._concatenated().astype(self.job.weights_dtype))

    def _concatenated(self) -> Array:
        return np.concatenate([np.ravel(np.asarray(variable)) for variable in self.trainable])

    @abstractmethod
    def initial_statistics(self, rank: int) -> list[Array]:
        """Statistics of an untrained model, as a rank starts with them."""

    @abstractmethod
    def statistics_for_rank(self, values: Sequence[Array], rank: int) -> list[Array]:
        """Rank 0's statistics, adapted to another rank."""

    @abstractmethod
    def is_averaged(self, index: int) -> bool:
        """Whether a statistic is averaged over the workers."""

    @abstractmethod
    def random_states(self) -> list[bool]:
        """Which of the statistics are states of random number generators."""

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

    def layer_rows(self) -> tuple[list[dict[str, Any]], int | None]:
        """What each layer takes (`events.models.Layer`) and the bytes of their outputs; nothing where it is unknown."""
        return [], None

    def reasons_outside_promise(self) -> list[str]:
        """Why several workers would not end with the weights of one."""
        return []

    def _about(self) -> dict[str, Any]:
        """What a saved model records of the job."""
        policy = {} if self.job.dtype == self.job.weights_dtype else {"policy": mixed_policy(self.job)}
        return {"engine": "tensorflow", "model": self.job.model, "model_args": self.job.model_args,
                "dtype": self.job.weights_dtype, **policy}


def mixed_policy(job: Job) -> str:
    """The name of Keras' policy for layers that compute in another format than that of their weights."""
    return f"mixed_{job.dtype}"


def set_number_format(job: Job) -> None:
    """Build the layers that follow in the job's number format.

    Both are set: Keras derives the policy of layers from its float type once, when the first layer is built.
    """
    keras.config.set_floatx(job.weights_dtype)
    keras.config.set_dtype_policy(job.weights_dtype if job.dtype == job.weights_dtype else mixed_policy(job))


def clip_by_norm(pieces: list[tf.Tensor], norm: float | None) -> list[tf.Tensor]:
    """The pieces of one gradient, scaled together so that its norm is at most `norm`."""
    if norm is None:
        return pieces
    largest = tf.constant(norm, pieces[0].dtype)
    present = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(piece)) for piece in pieces]))
    return [piece * (largest / tf.maximum(present, largest)) for piece in pieces]
