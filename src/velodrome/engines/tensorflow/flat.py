"""A Keras model's weights as one flat buffer: how it is taken apart and written down.

The model's own variables only say shapes and initial values. What trains lives in the learners, so the same model
works under every strategy, and none of Keras' variable wrapping takes part.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome import files
from velodrome.engines.tensorflow.layout import Layout
from velodrome.spec.job import Job
from velodrome.tasks.counts import Counts

Array = NDArray[Any]


class Batch(NamedTuple):
    """What a replica computes a step on; `real` tells what of it counts, `batch` what summed losses are divided by."""

    inputs: tf.Tensor
    targets: tf.Tensor
    real: tf.Tensor
    batch: tf.Tensor


class Seen(NamedTuple):
    """What looking at a batch brings, besides a gradient."""

    #: The task's own counts in its order, total and summed loss, in float64.
    tally: tf.Tensor
    #: Statistics, or the state of a language model, after it.
    after: list[tf.Tensor]
    #: Examples by class and answer, one after the other; None where nobody counts them.
    confusion: tf.Tensor | None = None


class FlatModel(ABC):
    """What networks of images and of texts have in common. Statistics are what changes without being trained."""

    #: Whether statistics are a state carried from step to step, one row for each row of a batch: see `fresh`.
    carries = False
    #: Classes whose confusion is counted, 0 for none.
    confused = 0
    #: Names of the task's own counts, which come first in a tally.
    counted: tuple[str, ...] = ()

    def __init__(self, job: Job, model: keras.Model) -> None:
        self.job, self.model, self.dtype = job, model, tf.as_dtype(job.dtype)
        self.trainable = list(model.trainable_variables)
        self.shapes = [tuple(variable.shape) for variable in self.trainable]
        self.layout = Layout(self.shapes)
        self.parameters = self.layout.parameters

    @property
    def tally_size(self) -> int:
        return len(self.counted) + 2

    def counts(self, tally: Array) -> Counts:
        return Counts.of(tally, self.counted)

    def fresh(self, rows: int) -> list[Array]:
        """The statistics with which an epoch or an evaluation of so many rows begins, where the network carries."""
        raise NotImplementedError

    def weights(self) -> Array:
        """The model's weights as one buffer."""
        return self.layout.pack(self._plain().astype(self.job.dtype))

    def _plain(self) -> Array:
        return np.concatenate([np.ravel(np.asarray(variable)) for variable in self.trainable])

    @abstractmethod
    def initial_statistics(self, rank: int) -> list[Array]:
        """Statistics of an untrained model, as a rank begins with them."""

    @abstractmethod
    def for_rank(self, values: Sequence[Array], rank: int) -> list[Array]:
        """Rank 0's statistics as another rank takes them."""

    @abstractmethod
    def averaged(self, index: int) -> bool:
        """Whether a statistic has a mean over the workers."""

    @abstractmethod
    def random_states(self) -> list[bool]:
        """Which of the statistics are states of random number generators."""

    @abstractmethod
    def gradient(
        self, sources: Any, weights: Any, statistics: Sequence[tf.Tensor], batch: Batch
    ) -> tuple[Any, Seen]:
        """Gradient with respect to `sources` of this share's part in a batch. `weights` makes the layers' weights."""

    @abstractmethod
    def count(self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor], batch: Batch) -> Seen:
        """The same look without training."""

    @abstractmethod
    def save(self, folder: Path, buffer: Array, statistics: Sequence[Array]) -> None:
        """A plain Keras model with trained weights, and what is needed to call it."""

    def _put(self, buffer: Array) -> None:
        plain, first = self.layout.unpack(buffer), 0
        for variable, shape in zip(self.trainable, self.shapes, strict=True):
            last = first + int(np.prod(shape))
            variable.assign(plain[first:last].reshape(shape))
            first = last

    def _write(self, folder: Path, described: dict[str, Any]) -> None:
        """The model, and beside it as JSON what it is."""
        folder.mkdir(parents=True, exist_ok=True)
        told = {"file": self._write_model(folder), "model": self.job.model, "model_args": self.job.model_args,
                "dtype": self.job.dtype, **described}
        files.write_text(folder / "model.json", json.dumps(told, indent=2) + "\n", sync=False)

    def _write_model(self, folder: Path) -> str:
        """The whole model or, if the user's classes cannot be described, the weights for one that is built again."""
        try:
            self.model.save(folder / "model.keras")
        except OSError:
            raise
        except Exception:
            (folder / "model.keras").unlink(missing_ok=True)
            self.model.save_weights(folder / "model.weights.h5")
            return "model.weights.h5"
        return "model.keras"


def clipped(pieces: list[tf.Tensor], norm: float | None) -> list[tf.Tensor]:
    """The pieces of one gradient, shortened together if it is longer than `norm`."""
    if norm is None:
        return pieces
    longest = tf.constant(norm, pieces[0].dtype)
    length = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(piece)) for piece in pieces]))
    return [piece * (longest / tf.maximum(length, longest)) for piece in pieces]
