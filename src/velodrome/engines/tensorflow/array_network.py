"""A Keras model on named arrays as a pure function of one flat buffer of weights, with the objective of its task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from velodrome import files
from velodrome.catalog.models import is_own
from velodrome.data.examples import ExampleSet
from velodrome.engines.tensorflow import model_file
from velodrome.engines.tensorflow.array_inputs import ArrayInputs
from velodrome.engines.tensorflow.array_trial import ArrayTrial
from velodrome.engines.tensorflow.batches import EVALUATION_BATCH
from velodrome.engines.tensorflow.compiled import ignored_settings
from velodrome.engines.tensorflow.examples import Examples, Source
from velodrome.engines.tensorflow.flat import Array, Batch, StepResult, set_number_format
from velodrome.engines.tensorflow.keras_network import KerasNetwork
from velodrome.engines.tensorflow.objectives import Computed, objective_of
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.models import keras_zoo
from velodrome.models.checks import class_scores, other_size, way_out
from velodrome.models.own import arguments_for, builder_of, fits_data, wrong_framework
from velodrome.models.recipe import COLUMNS
from velodrome.tasks.counts import Batch as TaskBatch
from velodrome.tasks.examples import ExampleTask


class ArrayNetwork(KerasNetwork):
    """A built model, checked against the data and tried with its loss."""

    def __init__(self, job: Job, task: ExampleTask, data: ExampleSet, saved: Path | None = None) -> None:
        """With `saved`, the model is loaded from that folder, to be evaluated."""
        set_number_format(job)
        keras.utils.set_random_seed(job.seed)
        self._task, self.data = task, data
        self._inputs = ArrayInputs(job, data, tf.as_dtype(job.weights_dtype))
        self.pixel_form = self._inputs.pixels.form if self._inputs.pixels else None
        self._arguments = _arguments(job, task, data)
        model = self._built(job) if saved is None else model_file.load(saved, job.model, job.model_args)
        self._source = Source(data.train)
        sizes = [size or 1 for size in task.schedule(job, data, 1).in_parts(job.accumulate).sizes(job.steps)]
        self._sample = self._inputs.batch(*self.rows(sizes[0])).x
        with fits_data(job.model, data.input_shape, building=False, batch=sizes[0]):
            outputs = model(self._sample, training=False)
        super().__init__(job, model)
        self.objective = objective_of(task, model, data, self.dtype, smoothing=job.label_smoothing)
        self._returns = "logits"
        if is_own(job.model) or task.has_own_loss:
            trial = ArrayTrial(self, job.model, task, way_out=way_out(job, data))
            evaluated = other_size(data, job.workers, EVALUATION_BATCH, sizes[0])
            trial.examine(class_scores(outputs, tf.Tensor), sizes, evaluated)
            self._returns = trial.returns
            self.notes += trial.notes
        if is_own(job.model):
            self.notes += ignored_settings(job.model, model, "the loss and the metrics of its task")
        self.counted = task.counted
        self.has_answers, self.score_size = self.objective.has_answers, self.objective.score_size
        self.confusion_classes = self.objective.confusion_classes
        self.by_total = not self.objective.by_examples

    def _built(self, job: Job) -> keras.Model:
        if not is_own(job.model):
            shape, outputs = self.data.input_shape, self._task.outputs(self.data)
            return keras_zoo.build(job.model, input_shape=shape, classes=outputs)  # type: ignore[arg-type]
        with fits_data(job.model, self.data.input_shape, building=True, engine="tensorflow"):
            model = builder_of(job.model)(**self._arguments)
        if not isinstance(model, keras.Model):
            raise wrong_framework(job.model, model, "tensorflow")
        return model

    def rows(self, count: int) -> Examples:
        """So many training examples; they come round again where there are fewer."""
        return self._source.read(np.arange(count, dtype=np.int64) % len(self._source), epoch=1)

    def fed(self, inputs: Any, targets: Any) -> TaskBatch:
        """Rows as the task takes them, in a graph."""
        return self._inputs.batch(inputs, targets)

    def untouched(self) -> Any:
        """A scope in which the model computes with its present weights, and changes nothing."""
        return keras.StatelessScope()

    @property
    def spec(self) -> Examples:
        """Tensor specifications of any number of rows."""
        return self._source.spec

    def compute(
        self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor], batch: Batch, *, training: bool
    ) -> tuple[Computed, list[tf.Tensor], list[tf.Tensor]]:
        """What the objective computes of a batch, the statistics after it, the model's own penalties."""
        with self._with_values(weights, statistics) as scope:
            fed = self.fed(batch.inputs, batch.targets)
            computed = self.objective.compute(fed, batch.constants, training=training)
            penalties = list(self.model.losses) if self._penalised and training else []
        return computed, self._after(scope), penalties

    def gradient(
        self, sources: Any, weights: Any, statistics: Sequence[tf.Tensor], batch: Batch
    ) -> tuple[Any, StepResult]:
        """A batch that is not real contributes zero. With `by_total`, the gradient is that of the sum."""
        counted = tf.cast(batch.real > 0, self.dtype)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            computed, after, penalties = self.compute(weights(sources), statistics, batch, training=True)
            loss = computed.loss
            if penalties:
                loss += tf.cast(computed.total, self.dtype) * tf.cast(tf.add_n(penalties), self.dtype)
            loss *= counted
            if not self.by_total:
                loss /= tf.cast(batch.batch, self.dtype)
        gradient = tape.gradient(loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return gradient, StepResult(_counts_of(computed, batch.real), self._kept(after, statistics, batch.real))

    def count(self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor], batch: Batch) -> StepResult:
        computed, _, _ = self.compute(weights, statistics, batch, training=False)
        confusion = None
        if computed.confusion is not None:
            confusion = tf.where(batch.real > 0, computed.confusion, tf.zeros_like(computed.confusion))
        counts = _counts_of(computed, batch.real)
        return StepResult(counts, list(statistics), confusion, computed.right, computed.scores)

    def save(self, folder: Path, buffer: Array, statistics: Sequence[Array]) -> None:
        if self.data.columns:
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.data.columns, ensure_ascii=False, indent=2)
            files.write_text(folder / COLUMNS, text + "\n", sync=False)
        super().save(folder, buffer, statistics)

    def _about(self) -> dict[str, Any]:
        data, pixels = self.data, self._inputs.pixels
        return {
            **super()._about(), "kind": "arrays", "task": self._task.name, "dataset": data.name,
            "inputs": self._inputs.description(), "images": sorted(data.images), "classes": data.classes,
            "class_names": list(data.class_names), "input_shape": data.input_shape,
            "returns": self._task.outputs(data), "arguments": self._arguments,
            **(pixels.description() if pixels else {}), "outputs": self._returns, "only_batch": None,
        }


def _arguments(job: Job, task: ExampleTask, data: ExampleSet) -> dict[str, Any]:
    """What the user's function is called with."""
    if is_own(job.model):
        return arguments_for(builder_of(job.model), data.input_shape, task.outputs(data), job.model_args)
    if job.model_args:
        raise BadRequest(
            f"--model-arg {next(iter(job.model_args))!r}: model {job.model!r} of the zoo takes no arguments"
        )
    return {}


def _counts_of(computed: Computed, real: tf.Tensor) -> tf.Tensor:
    """The task's own sums, total and loss; zeros for a batch that is not real."""
    counts = tf.stack([*computed.sums, computed.total, tf.cast(computed.loss, tf.float64)])
    return tf.where(real > 0, counts, tf.zeros_like(counts))
