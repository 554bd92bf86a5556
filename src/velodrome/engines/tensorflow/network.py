"""A Keras model of images as a pure function of one flat buffer of weights: its outputs, counts and gradient."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from velodrome.catalog.models import is_own
from velodrome.data.examples import ExampleSet
from velodrome.engines.tensorflow import model_file
from velodrome.engines.tensorflow.batches import EVALUATION_BATCH
from velodrome.engines.tensorflow.compiled import ignored_settings
from velodrome.engines.tensorflow.flat import Batch, StepResult, set_number_format
from velodrome.engines.tensorflow.keras_network import KerasNetwork
from velodrome.engines.tensorflow.pixels import choose_transform, to_inputs
from velodrome.engines.tensorflow.softmax import before_activation, class_losses, logarithm
from velodrome.engines.tensorflow.trial import Findings, Trial
from velodrome.job.job import Job
from velodrome.models import keras_zoo
from velodrome.models.checks import byte_input_note, check_outputs, class_scores, other_size, way_out
from velodrome.models.own import builder_of, fits_data, wrong_framework
from velodrome.models.recipe import read_description
from velodrome.tasks.supervised import Classification

_MOST_CONFUSED = 100


class Network(KerasNetwork):
    """A built model, checked against the data."""

    counted = Classification.counted
    has_answers = True
    #: A model of the zoo returns logits, and takes any batch.
    _found = Findings()

    def __init__(self, job: Job, data: ExampleSet, saved: Path | None = None) -> None:
        """With `saved`, the model is loaded from that folder, to be evaluated."""
        self.shape, self.classes = data.input_shape, data.class_count
        set_number_format(job)
        keras.utils.set_random_seed(job.seed)
        model = self._built(job) if saved is None else model_file.load(saved, job.model, job.model_args)
        self.pixels, self.notes = choose_transform(job, model, data)
        self.pixel_form = self.pixels.form
        schedule = Classification().schedule(job, data, 1).in_parts(job.accumulate)
        sizes = [size or 1 for size in schedule.sizes(job.steps)]
        # The images come round again where there are fewer.
        chosen = data.train.images[np.arange(sizes[0]) % len(data.train)]
        images = to_inputs(tf.constant(chosen), self.pixels, tf.as_dtype(job.weights_dtype))
        with fits_data(job.model, self.shape, building=False, batch=len(images)):
            outputs = model(images, training=False)
        super().__init__(job, model)
        check_outputs(job.model, outputs, tf.Tensor, len(images), self.classes)
        self.confusion_classes = self.classes if self.classes <= _MOST_CONFUSED else 0
        self._sample = images
        if saved is not None:
            self.notes, self._found = (), Findings.of_saved(read_description(saved, job.model, job.model_args))
        elif is_own(job.model):
            self._found = Trial(job.model, model, self.shape, self.dtype).examine(
                images, outputs, self.classes, smallest=sizes[-1],
                evaluation_size=other_size(data, job.workers, EVALUATION_BATCH, sizes[0]), way_out=way_out(job, data),
            )
            if self._found.byte_input and self.pixels.form != "byte" and not self.notes:
                self.notes = (byte_input_note(job.model, self.pixels.form),)
            self.notes += (*ignored_settings(job.model, model), *self._found.notes(job.model))

    def _built(self, job: Job) -> keras.Model:
        name = job.model
        if not is_own(name):
            return keras_zoo.build(name, input_shape=self.shape, classes=self.classes)
        with fits_data(name, self.shape, building=True, engine="tensorflow"):
            model = builder_of(name)(input_shape=self.shape, classes=self.classes, **job.model_args)
        if not isinstance(model, keras.Model):
            raise wrong_framework(name, model, "tensorflow")
        return model

    def _losses(
        self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor], batch: Batch, *, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Loss and predicted class of each example, the statistics after the batch, the model's own penalties."""
        with self._with_values(weights, statistics) as scope:
            logits = self._logits(to_inputs(batch.inputs, self.pixels, self.dtype), training=training)
            penalties = list(self.model.losses) if self._penalised else []
        after = self._after(scope)
        losses = class_losses(batch.targets, logits, self.job.label_smoothing if training else 0.0)
        return losses, tf.argmax(logits, axis=-1), after, penalties

    def _logits(self, images: tf.Tensor, *, training: bool) -> tf.Tensor:
        """What the model returns, before its softmax if it ends in one."""
        only = self._found.only_batch
        if only is None:
            return self._called(images, training=training)
        if training:
            return self._called(tf.ensure_shape(images, [only, *self.shape]), training=True)
        count = tf.shape(images)[0]
        padded = tf.concat([images, tf.repeat(images[:1], -count % only, axis=0)], axis=0)
        parts = tf.reshape(padded, [-1, only, *self.shape])
        logits = tf.map_fn(lambda part: self._called(part, training=False), parts, fn_output_signature=self.dtype)
        return tf.reshape(logits, [-1, self.classes])[:count]

    def _called(self, images: tf.Tensor, *, training: bool) -> tf.Tensor:
        outputs = tf.cast(class_scores(self.model(images, training=training), tf.Tensor), self.dtype)
        logits = before_activation(outputs, self.classes)
        if logits is not None:
            return logits
        in_training, in_evaluation = self._found.probabilities
        return logarithm(outputs) if (in_training if training else in_evaluation) else outputs

    def gradient(
        self, sources: Any, weights: Any, statistics: Sequence[tf.Tensor], batch: Batch
    ) -> tuple[Any, StepResult]:
        """A batch that is not real contributes zero."""
        real, divisor = batch.real, tf.cast(batch.batch, self.dtype)
        counted = tf.cast(real > 0, self.dtype)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            losses, predicted, after, penalties = self._losses(weights(sources), statistics, batch, training=True)
            loss = tf.reduce_sum(losses) * counted / divisor
            if penalties:
                own = tf.cast(real, self.dtype) / divisor
                loss += own * tf.cast(tf.add_n(penalties), self.dtype)
        gradient = tape.gradient(loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        kept = self._kept(after, statistics, real)
        return gradient, StepResult(_counts_of(losses, tf.equal(predicted, batch.targets), real), kept)

    def count(self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor], batch: Batch) -> StepResult:
        losses, predicted, _, _ = self._losses(weights, statistics, batch, training=False)
        right = tf.equal(predicted, batch.targets)
        counts = _counts_of(losses, right, batch.real)
        confusion = None
        if self.confusion_classes:
            each = tf.fill(tf.shape(losses), tf.cast(batch.real > 0, tf.float64))
            place = batch.targets * self.classes + tf.cast(predicted, tf.int64)
            confusion = tf.math.unsorted_segment_sum(each, place, self.classes**2)
        return StepResult(counts, list(statistics), confusion, right)

    def _about(self) -> dict[str, Any]:
        return {
            **super()._about(), "input_shape": list(self.shape), "classes": self.classes, **self.pixels.description(),
            "outputs": self._found.outputs, "only_batch": self._found.only_batch, "several": self._found.several,
        }


def _counts_of(losses: tf.Tensor, right: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Counts as three float64 numbers."""
    counts = tf.stack([
        tf.reduce_sum(tf.cast(right, tf.float64)),
        tf.cast(tf.shape(losses)[0], tf.float64),
        tf.reduce_sum(tf.cast(losses, tf.float64)),
    ])
    return tf.where(real > 0, counts, tf.zeros_like(counts))
