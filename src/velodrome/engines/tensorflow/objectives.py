"""What a model is trained by: batches as models and tasks take them, the summed loss of each task in TensorFlow's
graphs, and what is counted of a batch.

The loss of a model that ends in a softmax is computed from what goes into it: logits are exact where a probability
rounds to zero."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from velodrome.data.examples import ArrayField, ExampleSet
from velodrome.data.pixels import PixelTransform
from velodrome.engines.tensorflow.inspection import before_activation, before_sigmoid, to_inputs
from velodrome.models.checks import class_scores
from velodrome.tasks.base import Batch
from velodrome.tasks.correctness_bits import MAX_CONFUSION_CLASSES
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.own import OwnTask, described
from velodrome.tasks.supervised import Binary, MultiLabel, Regression


class GraphBatch(Batch):
    """A batch in a graph, which is made once for batches of any size."""

    def __len__(self) -> int:
        size = next(iter((*self.targets.values(), *self.inputs.values()))).shape[0]
        if size is None:
            raise TypeError(
                "len(batch) is not known while TensorFlow traces a graph for batches of any size: use "
                "tf.shape(batch.y)[0]"
            )
        return int(size)


class ExampleInputs:
    """Examples as a Keras model and a task take them, cast in the graph.

    Numbers with fractions are fed in the job's format, whole numbers as int32 or int64, bytes of images as `pixels`
    transforms them.
    """

    def __init__(self, data: ExampleSet, dtype: tf.DType, pixels: PixelTransform | None) -> None:
        self.pixels, self._dtype, self._data = pixels, dtype, data
        #: The format of every input, by name.
        self.formats = {field.name: self._format(field) for field in self._data.inputs}
        self._target_formats = {field.name: self._format(field) for field in self._data.targets}

    def _format(self, field: ArrayField) -> tf.DType:
        if not field.is_whole or field.dtype == "bool" or field.is_byte_image:
            return self._dtype
        return tf.int32 if field.dtype == "int32" else tf.int64

    def batch(self, inputs: Mapping[str, tf.Tensor], targets: Mapping[str, tf.Tensor]) -> GraphBatch:
        """Rows of the arrays as a batch, in the order in which the data names them."""
        fed = {}
        for field in self._data.inputs:
            if field.is_byte_image:
                assert self.pixels is not None, "bytes of images have a transform"
                fed[field.name] = to_inputs(inputs[field.name], self.pixels, self._dtype)
            else:
                fed[field.name] = tf.cast(inputs[field.name], self.formats[field.name])
        return GraphBatch(fed, {name: tf.cast(targets[name], form) for name, form in self._target_formats.items()})

    def description(self) -> dict[str, Any]:
        """Every input as a saved model records it."""
        return {
            field.name: {"shape": list(field.shape), "dtype": field.dtype, "fed": self.formats[field.name].name}
            for field in self._data.inputs
        }


def logarithm(probabilities: tf.Tensor) -> tf.Tensor:
    """Log-probabilities; the smallest number of the format stands for zero."""
    smallest = np.finfo(probabilities.dtype.as_numpy_dtype).tiny
    return tf.math.log(tf.maximum(probabilities, smallest))


def class_losses(labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
    """Cross-entropy of each example; with smoothing, that share of a label's weight is spread over all classes."""
    if not smoothing:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    classes = logits.shape[-1]
    weights = tf.one_hot(labels, classes, dtype=logits.dtype) * (1 - smoothing) + smoothing / classes
    return tf.nn.softmax_cross_entropy_with_logits(labels=weights, logits=logits)


class CalledModel:
    """The user's model as the user's loss calls it: in training or in evaluation, remembering what it returned last."""

    def __init__(self, model: keras.Model, *, training: bool) -> None:
        self._model, self._training = model, training
        self.returned: Any = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.returned = self._model(*arguments, **{"training": self._training, **named})
        return self.returned

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


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
        #: What the user's metrics counted of the batch that was traced last, by name; only of a task of the user's own.
        self.named: dict[str, tf.Tensor] = {}

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
        outputs = self.shaped(self._outputs(batch.x, training=training))
        losses = self._losses(outputs, batch.y, training=training)
        loss, size = tf.reduce_sum(losses), tf.cast(tf.shape(losses)[0], tf.float64)
        return self._counted(Computed(loss, size, ()), outputs, batch.y, constants, training=training)

    def _returned(self, inputs: Any, *, training: bool) -> tf.Tensor:
        """The scores among what the model returns."""
        return class_scores(self._model(inputs, training=training), tf.Tensor)

    def _outputs(self, inputs: Any, *, training: bool) -> tf.Tensor:
        """What the loss is computed from."""
        return tf.cast(self._returned(inputs, training=training), self._dtype)

    def shaped(self, outputs: tf.Tensor) -> tf.Tensor:
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
    #: Whether the model returns probabilities, in training and in evaluation.
    probabilities = (False, False)
    #: The only size of batch that the model takes; None if it takes any.
    only_batch: int | None = None

    def __init__(self, model: keras.Model, dtype: tf.DType, classes: int, smoothing: float = 0.0) -> None:
        super().__init__(model, dtype, (classes,))
        self._classes, self._smoothing = classes, smoothing
        self.confusion_classes = classes if classes <= MAX_CONFUSION_CLASSES else 0

    def _outputs(self, inputs: Any, *, training: bool) -> tf.Tensor:
        only = self.only_batch
        if only is None:
            return self._logits(inputs, training=training)
        if training:
            return self._logits(tf.ensure_shape(inputs, [only, *inputs.shape[1:]]), training=True)
        count = tf.shape(inputs)[0]
        padded = tf.concat([inputs, tf.repeat(inputs[:1], -count % only, axis=0)], axis=0)
        parts = tf.reshape(padded, [-1, only, *inputs.shape[1:]])
        logits = tf.map_fn(lambda part: self._logits(part, training=False), parts, fn_output_signature=self._dtype)
        return tf.reshape(logits, [-1, self._classes])[:count]

    def _logits(self, inputs: Any, *, training: bool) -> tf.Tensor:
        """What the model returns, or what goes into its softmax if it ends in one."""
        outputs = super()._outputs(inputs, training=training)
        logits = before_activation(outputs, self._classes)
        if logits is not None:
            return logits
        in_training, in_evaluation = self.probabilities
        return logarithm(outputs) if (in_training if training else in_evaluation) else outputs

    def _losses(self, outputs: tf.Tensor, targets: tf.Tensor, *, training: bool) -> tf.Tensor:
        return class_losses(targets, outputs, self._smoothing if training else 0.0)

    def _counted(
        self, computed: Computed, outputs: tf.Tensor, targets: tf.Tensor, constants: Any, *, training: bool
    ) -> Computed:
        predicted = tf.argmax(outputs, axis=-1)
        right = tf.equal(predicted, targets)
        counted = computed._replace(sums=[_sum(right)])
        if training:
            return counted
        confusion = None
        if self.confusion_classes:
            place = targets * self._classes + predicted
            confusion = tf.math.unsorted_segment_sum(tf.ones_like(place, tf.float64), place, self._classes**2)
        return counted._replace(right=right, confusion=confusion)


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

    def _outputs(self, inputs: Any, *, training: bool) -> tf.Tensor:
        return tf.cast(before_sigmoid(self._returned(inputs, training=training)), self._dtype)

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
        counted = computed._replace(sums=[_sum(right), hits, _sum(given) - hits, _sum(true) - hits, nothing, nothing])
        if training:
            return counted
        scores = tf.cast(tf.reshape(outputs, [-1, self._each]), tf.float64)
        return counted._replace(right=right, scores=scores)


class OwnObjective(Objective):
    """The user's loss."""

    def __init__(self, model: keras.Model, dtype: tf.DType, task: OwnTask) -> None:
        super().__init__(model, dtype)
        self._task = task

    def compute(self, batch: Batch, constants: Any, *, training: bool) -> Computed:
        model = CalledModel(self._model, training=training)
        returned = self._task.user.loss(model, batch)
        size = tf.shape(tf.nest.flatten(batch.x)[0])[0]
        # Sizes are known where the loss is called outside a graph.
        loss, count = self._task.loss_and_count(returned, tf.is_tensor, tf.get_static_value(size))
        self.by_examples = count is None
        total = tf.cast(size, tf.float64) if self.by_examples else self._number(count)
        self.named = {}
        if self._task.has_counts:
            counted = self._task.count(model.returned, batch, tf.is_tensor)
            self.named = {name: _as_number(value) for name, value in counted.items()}
        # Before the first batch is counted, the task does not know any names.
        sums = self._task.in_order(self.named) if self._task.counted else []
        return Computed(tf.cast(tf.reduce_sum(loss), self._dtype), total, sums)

    def _number(self, count: Any) -> tf.Tensor:
        if not (count.shape.num_elements() == 1 if tf.is_tensor(count) else isinstance(count, Real)):
            raise self._task.refused_count(described(count, tf.is_tensor))
        return _as_number(count)


def _as_number(value: Any) -> tf.Tensor:
    return tf.reshape(tf.cast(value, tf.float64), [])


def objective_of(
    task: ExampleTask, model: keras.Model, data: ExampleSet, dtype: tf.DType, smoothing: float = 0.0
) -> Objective:
    """The objective of a task for its data."""
    if isinstance(task, OwnTask):
        return OwnObjective(model, dtype, task)
    if isinstance(task, Regression | Binary | MultiLabel):
        kind = ErrorObjective if isinstance(task, Regression) else LabelObjective
        return kind(model, dtype, data.targets[0].shape)
    return ClassObjective(model, dtype, data.class_count, smoothing)


def _per_example(values: tf.Tensor) -> tf.Tensor:
    """Sums over all axes but the first."""
    return tf.reduce_sum(values, axis=list(range(1, values.shape.rank)))


def _sum(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(values, tf.float64))
