"""A Keras model seen as a pure function of one flat buffer of weights: its outputs, counts and gradient.

The model's own variables only say shapes and initial values. What trains lives in the learners, so the same model
works under every strategy, and none of Keras' variable wrapping takes part.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.data.splits import Splits
from velodrome.engines.tensorflow.deck import as_numbers
from velodrome.errors import BadRequest
from velodrome.models import keras_zoo
from velodrome.models.own import are_probabilities, builder_of, check_outputs, fits_data
from velodrome.models.zoo import is_own
from velodrome.spec.job import Job

_PROBE = 4
_SMALLEST_PROBABILITY = 1e-7
#: Keeps the random numbers of ranks apart: a prime far from small seeds.
_SEED_STRIDE = 7919


class Network:
    """A built model, checked against the data."""

    def __init__(self, job: Job, data: Splits) -> None:
        self.job, self.shape, self.classes, self.scale = job, data.input_shape, data.classes, data.scale
        self.dtype = tf.as_dtype(job.dtype)
        keras.config.set_floatx(job.dtype)
        keras.utils.set_random_seed(job.seed)
        self.model = self._built()
        images = as_numbers(tf.constant(data.train.images[:_PROBE]), self.scale, self.dtype)
        with fits_data(job.model, self.shape, building=False):
            outputs = self.model(images, training=False)
        check_outputs(job.model, tuple(getattr(outputs, "shape", ())), len(images), self.classes)
        self.probabilities = are_probabilities(np.asarray(outputs))
        self.trainable = list(self.model.trainable_variables)
        if not self.trainable:
            raise BadRequest(f"model {job.model!r} has no trainable weights: unfreeze a layer or add one")
        self.statistics = list(self.model.non_trainable_variables)
        self.shapes = [tuple(variable.shape) for variable in self.trainable]
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self._penalised = bool(self.model.losses)

    def _built(self) -> keras.Model:
        name = self.job.model
        if not is_own(name):
            return keras_zoo.build(name, input_shape=self.shape, classes=self.classes)
        with fits_data(name, self.shape, building=True):
            model = builder_of(name)(input_shape=self.shape, classes=self.classes, **self.job.model_args)
        if not isinstance(model, keras.Model):
            raise BadRequest(f"model {name!r} returned {type(model).__name__!r}: return a keras.Model")
        return model

    @property
    def parameters(self) -> int:
        return sum(self.sizes)

    def weights(self) -> NDArray[np.floating[Any]]:
        """The model's weights as one buffer."""
        return self.pack([np.asarray(variable) for variable in self.trainable])

    def pack(self, arrays: Sequence[NDArray[Any]]) -> NDArray[np.floating[Any]]:
        return np.concatenate([np.ravel(array) for array in arrays]).astype(self.job.dtype)

    def unpack(self, flat: tf.Tensor) -> list[tf.Tensor]:
        """The buffer as the weights of each layer."""
        parts = tf.split(flat, self.sizes) if len(self.sizes) > 1 else [flat]
        return [tf.reshape(part, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def initial_statistics(self, rank: int) -> list[NDArray[Any]]:
        """Initial values of what is not trained: moving statistics the same everywhere, random states of the rank."""
        return self.for_rank([np.asarray(variable) for variable in self.statistics], rank)

    def for_rank(self, values: Sequence[NDArray[Any]], rank: int) -> list[NDArray[Any]]:
        """Rank 0's values as another rank takes them: dropout must not drop the same units everywhere."""
        moved = []
        for variable, value in zip(self.statistics, values, strict=True):
            value = np.array(value)
            if rank and _is_random_state(variable):
                value.flat[0] += np.array(rank * _SEED_STRIDE).astype(value.dtype)
            moved.append(value)
        return moved

    def random_states(self) -> list[bool]:
        """Which of the statistics are states of random number generators."""
        return [_is_random_state(variable) for variable in self.statistics]

    def averaged(self, index: int) -> bool:
        """Whether a statistic has a mean over the workers: counters and random states have none."""
        return tf.as_dtype(self.statistics[index].dtype).is_floating

    def _losses(
        self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor], images: tf.Tensor, labels: tf.Tensor,
        *, training: bool,
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Loss of each example, whether each was right, the statistics after it, the model's own penalties."""
        cast = [tf.cast(value, variable.dtype) for value, variable in zip(weights, self.trainable, strict=True)]
        values = [*zip(self.trainable, cast, strict=True), *zip(self.statistics, statistics, strict=True)]
        # Keras' own stateless_call would bypass __call__, and with it what tells inner layers that this is training.
        with keras.StatelessScope(state_mapping=values, collect_losses=self._penalised) as scope:
            outputs = self.model(as_numbers(images, self.scale, self.dtype), training=training)
            penalties = list(self.model.losses) if self._penalised else []
        after = [scope.get_current_value(variable) for variable in self.statistics]
        outputs = tf.cast(outputs, self.dtype)
        logits = tf.math.log(tf.clip_by_value(outputs, _SMALLEST_PROBABILITY, 1.0)) if self.probabilities else outputs
        if self.probabilities:
            losses = -tf.gather(logits, labels, batch_dims=1)
        else:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        right = tf.equal(tf.argmax(logits, axis=-1), labels)
        return losses, right, after, penalties

    def gradient(
        self, sources: Any, weights: Any, statistics: Sequence[tf.Tensor], images: tf.Tensor, labels: tf.Tensor,
        real: tf.Tensor, batch: tf.Tensor,
    ) -> tuple[Any, list[tf.Tensor], tf.Tensor]:
        """Gradient with respect to `sources` of this share's part in a batch, the statistics after it, the counts.

        `weights` makes the layers' weights of the sources. A share that is not real contributes zero.
        """
        counted = tf.cast(real > 0, self.dtype)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            losses, right, after, penalties = self._losses(
                weights(sources), statistics, images, labels, training=True
            )
            loss = tf.reduce_sum(losses) * counted / tf.cast(batch, self.dtype)
            if penalties:
                own = tf.cast(real, self.dtype) / tf.cast(batch, self.dtype)
                loss += own * tf.cast(tf.add_n(penalties), self.dtype)
        gradient = tape.gradient(loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # Counters and random states go on even so: they must stay in step with the other ranks.
        kept = [
            tf.where(real > 0, new, old) if self.averaged(index) else new
            for index, (new, old) in enumerate(zip(after, statistics, strict=True))
        ]
        return gradient, kept, _tally(losses, right, real)

    def count(
        self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor], images: tf.Tensor, labels: tf.Tensor,
        real: tf.Tensor,
    ) -> tf.Tensor:
        """Correct, total and summed loss of examples, without training on them."""
        losses, right, _, _ = self._losses(weights, statistics, images, labels, training=False)
        return _tally(losses, right, real)

    def save(self, folder: Path, flat: NDArray[Any], statistics: Sequence[NDArray[Any]]) -> None:
        """A plain Keras model with trained weights, and what is needed to call it."""
        for variable, value in zip(self.trainable, np.split(flat, np.cumsum(self.sizes)[:-1]), strict=True):
            variable.assign(value.reshape(variable.shape))
        for variable, value in zip(self.statistics, statistics, strict=True):
            variable.assign(value)
        folder.mkdir(parents=True, exist_ok=True)
        described = {
            "file": self._write(folder), "model": self.job.model, "model_args": self.job.model_args,
            "input_shape": list(self.shape), "classes": self.classes, "dtype": self.job.dtype, "scale": self.scale,
            "outputs": "probabilities" if self.probabilities else "logits",
        }
        (folder / "model.json").write_text(json.dumps(described, indent=2) + "\n")

    def _write(self, folder: Path) -> str:
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


def _is_random_state(variable: keras.Variable) -> bool:
    return "seed_generator_state" in variable.path and tuple(variable.shape) == (2,)


def _tally(losses: tf.Tensor, right: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Counts as three float64 numbers."""
    seen = tf.stack([
        tf.reduce_sum(tf.cast(right, tf.float64)),
        tf.cast(tf.shape(losses)[0], tf.float64),
        tf.reduce_sum(tf.cast(losses, tf.float64)),
    ])
    return tf.where(real > 0, seen, tf.zeros_like(seen))
