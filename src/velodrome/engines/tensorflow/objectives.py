"""What a batch of arrays is trained by: the summed loss of each task in TensorFlow's graphs, and what is counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from velodrome.data.examples import ExampleSet
from velodrome.engines.tensorflow.own_loss import CalledModel, count_of, sum_and_count
from velodrome.engines.tensorflow.softmax import before_activation, before_sigmoid, class_losses, logarithm
from velodrome.errors import BadRequest
from velodrome.models.checks import class_scores
from velodrome.tasks.counts import Batch
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.own import OwnTask
from velodrome.tasks.supervised import Binary, MultiLabel, Regression

#: A confusion matrix of more classes is unreadable and large.
MOST_CONFUSED = 100


class Computed(NamedTuple):
    """What an objective computes of a batch; sums are float64."""

    #: Summed over the batch, with its history.
    loss: tf.Tensor
    #: What the loss is a sum over.
    total: tf.Tensor
    #: In the order of the task's `counted`.
    sums: Sequence[tf.Tensor]
    right: tf.Tensor | None = None
    scores: tf.Tensor | None = None
    confusion: tf.Tensor | None = None


class Objective(ABC):
    """The loss of a task."""

    #: Whether the total is always the number of examples, so that the batch of all replicas is known beforehand.
    by_examples = True
    #: Whether an example is answered correctly or not.
    has_answers = False
    score_size = 0
    confusion_classes = 0

    def __init__(self, model: keras.Model, dtype: tf.DType) -> None:
        self._model, self._dtype = model, dtype

    @abstractmethod
    def compute(self, batch: Batch, constants: Any, *, training: bool) -> Computed:
        """Call the model on a batch, in a scope that holds its weights."""


class OutputObjective(Objective):
    """A loss of one tensor that the model returns."""

    def __init__(self, model: keras.Model, dtype: tf.DType, shape: tuple[int, ...]) -> None:
        """`shape` is that of the outputs for one example; others with as many numbers are reshaped."""
        super().__init__(model, dtype)
        self.shape, self._each = shape, max(1, int(np.prod(shape)))

    def compute(self, batch: Batch, constants: Any, *, training: bool) -> Computed:
        returned = class_scores(self._model(batch.x, training=training), tf.Tensor)
        outputs = self._shaped(self._outputs(returned, training=training))
        losses = self._losses(outputs, batch.y, training=training)
        loss, size = tf.reduce_sum(losses), tf.cast(tf.shape(losses)[0], tf.float64)
        return self._counted(Computed(loss, size, ()), outputs, batch.y, constants, training=training)

    def _outputs(self, returned: tf.Tensor, *, training: bool) -> tf.Tensor:
        """What the loss is computed from."""
        return tf.cast(returned, self._dtype)

    def _shaped(self, outputs: tf.Tensor) -> tf.Tensor:
        return outputs if outputs.shape[1:] == self.shape else tf.reshape(outputs, [-1, *self.shape])

    @abstractmethod
    def _losses(self, outputs: tf.Tensor, targets: tf.Tensor, *, training: bool) -> tf.Tensor:
        """One value per example."""

    @abstractmethod
    def _counted(
        self, computed: Computed, outputs: tf.Tensor, targets: tf.Tensor, constants: Any, *, training: bool
    ) -> Computed: ...


class ClassObjective(OutputObjective):
    """Cross-entropy of logits, or of what goes into the softmax that a model ends in."""

    has_answers = True
    #: Whether the model returns probabilities whose logits cannot be recovered, in evaluation and in training.
    probabilities: Mapping[bool, bool] = {False: False, True: False}

    def __init__(self, model: keras.Model, dtype: tf.DType, classes: int, smoothing: float = 0.0) -> None:
        super().__init__(model, dtype, (classes,))
        self._classes, self._smoothing = classes, smoothing
        self.confusion_classes = classes if classes <= MOST_CONFUSED else 0

    def _outputs(self, returned: tf.Tensor, *, training: bool) -> tf.Tensor:
        outputs = tf.cast(returned, self._dtype)
        logits = before_activation(outputs, self._classes)
        if logits is not None:
            return logits
        return logarithm(outputs) if self.probabilities[training] else outputs

    def _losses(self, outputs: tf.Tensor, targets: tf.Tensor, *, training: bool) -> tf.Tensor:
        return class_losses(targets, outputs, self._smoothing if training else 0.0)

    def _counted(
        self, computed: Computed, outputs: tf.Tensor, targets: tf.Tensor, constants: Any, *, training: bool
    ) -> Computed:
        predicted = tf.argmax(outputs, axis=-1)
        right = tf.equal(predicted, targets)
        found = computed._replace(sums=[_sum(right)])
        if training:
            return found
        confusion = None
        if self.confusion_classes:
            place = targets * self._classes + predicted
            confusion = tf.math.unsorted_segment_sum(tf.ones_like(place, tf.float64), place, self._classes**2)
        return found._replace(right=right, confusion=confusion)


class ErrorObjective(OutputObjective):
    """The squared error, averaged over the numbers of an example."""

    def _losses(self, outputs: tf.Tensor, targets: tf.Tensor, *, training: bool) -> tf.Tensor:
        return _per_example(tf.math.squared_difference(outputs, targets)) / self._each

    def _counted(
        self, computed: Computed, outputs: tf.Tensor, targets: tf.Tensor, constants: Any, *, training: bool
    ) -> Computed:
        numbers = tf.cast(targets, tf.float64)
        errors = tf.cast(outputs, tf.float64) - numbers
        sums = tf.abs(errors), tf.square(errors), tf.square(numbers - constants["centre"])
        return computed._replace(sums=[tf.reduce_sum(each) / self._each for each in sums])


class LabelObjective(OutputObjective):
    """Binary cross-entropy of logits, or of what goes into a last sigmoid, averaged over the labels of an example."""

    has_answers = True

    def __init__(self, model: keras.Model, dtype: tf.DType, shape: tuple[int, ...]) -> None:
        super().__init__(model, dtype, shape)
        self.score_size = self._each

    def _outputs(self, returned: tf.Tensor, *, training: bool) -> tf.Tensor:
        return tf.cast(before_sigmoid(returned), self._dtype)

    def _losses(self, outputs: tf.Tensor, targets: tf.Tensor, *, training: bool) -> tf.Tensor:
        labels = tf.cast(targets, self._dtype)
        return _per_example(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=outputs)) / self._each

    def _counted(
        self, computed: Computed, outputs: tf.Tensor, targets: tf.Tensor, constants: Any, *, training: bool
    ) -> Computed:
        given, true = (tf.reshape(each > 0, [-1, self._each]) for each in (outputs, targets))
        right = tf.reduce_all(tf.equal(given, true), axis=1)
        hits = _sum(given & true)
        # Areas under the curve are counted when the scores of all processes are there.
        nothing = tf.zeros([], tf.float64)
        found = computed._replace(sums=[_sum(right), hits, _sum(given) - hits, _sum(true) - hits, nothing, nothing])
        if training:
            return found
        scores = tf.cast(tf.reshape(outputs, [-1, self._each]), tf.float64)
        return found._replace(right=right, scores=scores)


class OwnObjective(Objective):
    """The user's loss."""

    def __init__(self, model: keras.Model, dtype: tf.DType, task: OwnTask) -> None:
        super().__init__(model, dtype)
        self._task = task
        #: What the user's metrics counted of the batch that was traced last, by name.
        self.named: dict[str, tf.Tensor] = {}

    def compute(self, batch: Batch, constants: Any, *, training: bool) -> Computed:
        model = CalledModel(self._model, training=training)
        returned = self._task.user.loss(model, batch)
        size = tf.shape(tf.nest.flatten(batch.x)[0])[0]
        loss, total, self.by_examples = sum_and_count(self._task.name, returned, size)
        self.named = count_of(self._task, model.returned, batch) if self._task.has_counts else {}
        return Computed(tf.cast(loss, self._dtype), total, self._ordered())

    def _ordered(self) -> list[tf.Tensor]:
        names = self._task.counted
        if names and {*names} != {*self.named}:
            raise BadRequest(
                f"--task {self._task.name!r}: metrics() counted {', '.join(names)} before, and now "
                f"{', '.join(self.named) or 'nothing'}: return the same counts for every batch"
            )
        return [self.named[name] for name in names]


def objective_of(
    task: ExampleTask, model: keras.Model, data: ExampleSet, dtype: tf.DType, smoothing: float = 0.0
) -> Objective:
    """The objective of a task for its data."""
    if isinstance(task, OwnTask):
        return OwnObjective(model, dtype, task)
    if isinstance(task, Regression):
        return ErrorObjective(model, dtype, data.targets[0].shape)
    if isinstance(task, Binary | MultiLabel):
        return LabelObjective(model, dtype, data.targets[0].shape)
    assert data.classes is not None, "classes were counted when it was loaded"
    return ClassObjective(model, dtype, data.classes, smoothing)


def _per_example(values: tf.Tensor) -> tf.Tensor:
    """Sums over all axes but the first."""
    return tf.reduce_sum(values, axis=list(range(1, values.shape.rank)))


def _sum(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(values, tf.float64))
