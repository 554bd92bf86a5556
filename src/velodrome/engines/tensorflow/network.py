"""A Keras model on examples as a pure function of one flat buffer of weights: its loss, counts and gradient.

Byte images with a label each are examples with one input and one target; everything else has named arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from velodrome.catalog.models import is_own
from velodrome.data.examples import ExampleSet
from velodrome.engines.tensorflow import inspection, model_file
from velodrome.engines.tensorflow.feed import EVALUATION_BATCH, Examples, Source
from velodrome.engines.tensorflow.flat import Array, Batch, FlatModel, StepResult, set_number_format
from velodrome.engines.tensorflow.objectives import ClassObjective, Computed, ExampleInputs, objective_of
from velodrome.engines.tensorflow.trial import Findings, KerasTrial, ignored_settings
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.models import keras_zoo
from velodrome.models.checks import byte_input_note, check_outputs, how_to_fix, other_size, preserved
from velodrome.models.model_files import read_description
from velodrome.models.own import builder_of, building_arguments, fits_data, wrong_framework
from velodrome.tasks.examples import ExampleTask

#: Keeps the random numbers of ranks, and of closures, apart: a prime far from small seeds.
SEED_STRIDE = 7919


class Network(FlatModel):
    """A built model, checked against the data; a user's is tried with the loss of its task."""

    def __init__(self, job: Job, task: ExampleTask, data: ExampleSet, saved: Path | None = None) -> None:
        """With `saved`, the model is loaded from that folder, to be evaluated."""
        set_number_format(job)
        keras.utils.set_random_seed(job.seed)
        self.task, self.data = task, data
        self._arguments = building_arguments(
            job, data.input_shape, task.outputs(data), classifies_images=task.classifies_images(data)
        )
        model = self._built(job) if saved is None else model_file.load(saved, job.model, job.model_args)
        of_images = task.classifies_images(data)
        pixels, self.notes = inspection.choose_transform(job, model, data, classifies_images=of_images)
        self.pixel_form = pixels.form if pixels else None
        self.inputs = ExampleInputs(data, tf.as_dtype(job.weights_dtype), pixels)
        self._source = Source(data.train)
        sizes = [size or 1 for size in task.schedule(job, data, 1).in_parts(job.accumulate).sizes(job.steps)]
        #: What the model is called with to try it: to compare it with a saved one, and to see what its layers take.
        self.sample = self.inputs.batch(*self.rows(sizes[0])).x
        with fits_data(job.model, data.input_shape, building=False, batch=sizes[0]):
            outputs = model(self.sample, training=False)
        super().__init__(job, model)
        if not self.trainable:
            raise BadRequest(f"model {job.model!r} has no trainable weights: unfreeze a layer or add one")
        if of_images:
            check_outputs(job.model, outputs, tf.Tensor, sizes[0], data.class_count)
        self.statistics = list(model.non_trainable_variables)
        self._penalised = bool(model.losses)
        self.objective = objective_of(task, model, data, self.dtype, smoothing=job.label_smoothing)
        self._examine(outputs, sizes, saved)
        self.counted = task.counted
        self.has_answers, self.score_size = self.objective.has_answers, self.objective.score_size
        self.confusion_classes = self.objective.confusion_classes
        self.by_total = not self.objective.by_examples

    def _built(self, job: Job) -> keras.Model:
        if not is_own(job.model):
            shape, outputs = self.data.input_shape, self.task.outputs(self.data)
            return keras_zoo.build(job.model, input_shape=shape, classes=outputs)  # type: ignore[arg-type]
        with fits_data(job.model, self.data.input_shape, building=True, engine="tensorflow"):
            model = builder_of(job.model)(**self._arguments)
        if not isinstance(model, keras.Model):
            raise wrong_framework(job.model, model, "tensorflow")
        return model

    def _examine(self, outputs: Any, sizes: Sequence[int], saved: Path | None) -> None:
        """Find out what evaluation or training must know of a user's model that returned these outputs."""
        job, own = self.job, is_own(self.job.model)
        if (own and saved is None) or self.task.has_own_loss:
            evaluated = other_size(self.data, job.workers, EVALUATION_BATCH, sizes[0])
            findings = KerasTrial(self, how_to_fix(job, self.data)).examine(outputs, sizes, evaluated)
        elif saved is not None:
            findings = Findings.of_saved(read_description(saved, job.model, job.model_args))
        else:
            findings = Findings()
        self._findings = findings
        if isinstance(self.objective, ClassObjective):
            self.objective.probabilities, self.objective.only_batch = findings.probabilities, findings.only_batch
        if findings.byte_input and self.pixel_form != "byte" and not self.notes:
            self.notes = (byte_input_note(job.model, str(self.pixel_form)),)
        if own:
            self.notes += ignored_settings(job.model, self.model, self.objective)
        self.notes += findings.notes(job.model)

    # -- examples

    def rows(self, count: int) -> Examples:
        """`count` training examples, repeated if there are fewer."""
        return self._source.read(np.arange(count, dtype=np.int64) % len(self._source), epoch=1)

    @property
    def spec(self) -> Examples:
        """Tensor specifications of any number of rows."""
        return self._source.spec

    # -- what a graph computes

    def _with_values(self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor]) -> Any:
        """A scope in which the model computes with these values.

        Keras' own stateless_call would bypass __call__, which passes `training` on to inner layers.
        """
        cast = [tf.cast(value, variable.dtype) for value, variable in zip(weights, self.trainable, strict=True)]
        values = [*zip(self.trainable, cast, strict=True), *zip(self.statistics, statistics, strict=True)]
        scope = keras.StatelessScope(state_mapping=values, collect_losses=self._penalised)
        scope.given = [scope.get_current_value(variable) for variable in self.trainable]
        return scope

    def _after(self, scope: Any) -> list[tf.Tensor]:
        """The statistics after what the model computed in a scope. A call that changes weights is refused: they would
        be changed for that call only, and evaluation would compute with others than training did."""
        for variable, given in zip(self.trainable, scope.given, strict=True):
            if scope.get_current_value(variable) is not given:
                raise BadRequest(
                    f"model {self.job.model!r} changes its trainable weight {variable.path!r} when it is called, as "
                    "keras.layers.SpectralNormalization does, and such changes are not kept here: leave that layer "
                    "out, or compute with the changed weight without assigning it"
                )
        return [scope.get_current_value(variable) for variable in self.statistics]

    def compute(
        self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor], batch: Batch, *, training: bool
    ) -> tuple[Computed, list[tf.Tensor], list[tf.Tensor]]:
        """What the objective computes of a batch, the statistics after it, the model's own penalties."""
        with self._with_values(weights, statistics) as scope:
            examples = self.inputs.batch(batch.inputs, batch.targets)
            computed = self.objective.compute(examples, batch.constants, training=training)
            penalties = list(self.model.losses) if self._penalised and training else []
        return computed, self._after(scope), penalties

    def gradient(
        self, sources: Any, weights: Any, statistics: Sequence[tf.Tensor], batch: Batch
    ) -> tuple[Any, StepResult]:
        """A batch that is not real contributes zero. With `by_total`, the gradient is that of the sum."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            computed, after, penalties = self.compute(weights(sources), statistics, batch, training=True)
            loss = computed.loss
            if penalties:
                loss += tf.cast(computed.total, self.dtype) * tf.cast(tf.add_n(penalties), self.dtype)
            loss *= tf.cast(batch.real > 0, self.dtype)
            if not self.by_total:
                loss /= tf.cast(batch.batch, self.dtype)
        gradient = tape.gradient(loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # Counters and random states change in any case, to stay equal to those of other ranks; all other statistics
        # only if the step had examples.
        kept = [
            tf.where(batch.real > 0, new, old) if self.is_averaged(index) else new
            for index, (new, old) in enumerate(zip(after, statistics, strict=True))
        ]
        return gradient, StepResult(_counts_of(computed, batch.real), kept)

    def count(self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor], batch: Batch) -> StepResult:
        computed, _, _ = self.compute(weights, statistics, batch, training=False)
        confusion = None
        if computed.confusion is not None:
            confusion = tf.where(batch.real > 0, computed.confusion, tf.zeros_like(computed.confusion))
        counts = _counts_of(computed, batch.real)
        return StepResult(counts, list(statistics), confusion, computed.right, computed.scores)

    # -- statistics

    def initial_statistics(self, rank: int) -> list[Array]:
        """Initial values of what is not trained: moving statistics the same everywhere, random states of the rank."""
        return self.statistics_for_rank([np.asarray(variable) for variable in self.statistics], rank)

    def statistics_for_rank(self, values: Sequence[Array], rank: int) -> list[Array]:
        """Random states differ by rank, so that dropout does not drop the same units everywhere."""
        moved = []
        for variable, value in zip(self.statistics, values, strict=True):
            value = np.array(value)
            if rank and _is_random_state(variable):
                value.flat[0] += np.array(rank * SEED_STRIDE).astype(value.dtype)
            moved.append(value)
        return moved

    def random_states(self) -> list[bool]:
        return [_is_random_state(variable) for variable in self.statistics]

    def is_averaged(self, index: int) -> bool:
        """Counters and random states are not averaged."""
        return tf.as_dtype(self.statistics[index].dtype).is_floating

    # -- what is reported and saved

    def layer_rows(self) -> tuple[list[dict[str, Any]], int | None]:
        with preserved():
            return inspection.layers_of(self.model, self.sample)

    def reasons_against_equivalence(self) -> list[str]:
        return inspection.reasons_of(self.model, tf.nest.map_structure(tf.TensorSpec.from_tensor, self.sample))

    def check_saving(self, folder: Path) -> tuple[str, ...]:
        if not is_own(self.job.model):
            return ()
        self.form, notes = model_file.choose_form(self.job.model, self.model, self._about(), self.sample, folder)
        return notes

    def save(self, folder: Path, buffer: Array, statistics: Sequence[Array]) -> None:
        self._assign_weights(buffer)
        for variable, value in zip(self.statistics, statistics, strict=True):
            variable.assign(value)
        model_file.save(folder, self.model, self.form, self._about())

    def _about(self) -> dict[str, Any]:
        data, pixels, findings = self.data, self.inputs.pixels, self._findings
        return {
            **super()._about(), **(pixels.description() if pixels else {}), "outputs": findings.outputs,
            "only_batch": findings.only_batch, "several": findings.several,
            **self.task.saved_fields(data, data.input_shape, self.inputs.description(), self._arguments),
        }


def _is_random_state(variable: keras.Variable) -> bool:
    return "seed_generator_state" in variable.path and tuple(variable.shape) == (2,)


def _counts_of(computed: Computed, real: tf.Tensor) -> tf.Tensor:
    """The task's own sums, total and loss; zeros for a batch that is not real."""
    counts = tf.stack([*computed.sums, computed.total, tf.cast(computed.loss, tf.float64)])
    return tf.where(real > 0, counts, tf.zeros_like(counts))
