"""TensorFlow 2.15 and Keras 2 with Horovod in a training process, as Horovod's own examples train a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.horovod import HorovodTransport, translated
from velodrome.engines.tensorflow.inspection import to_inputs
from velodrome.job.job import Job
from velodrome.job.optimization import ADAM_BETAS, MOMENTUM
from velodrome.models import keras_zoo
from velodrome.tasks.base import Counts
from velodrome.tasks.schedule import Schedule
from velodrome.training import loop
from velodrome.training.context import Context
from velodrome.training.learner import WEIGHTS, Part, State, Values, ZooLearner
from velodrome.transport.base import Alone, Transport


class KerasLearner(ZooLearner):
    """One process's copy of the network, trained by a `tf.GradientTape` and an optimizer of Keras."""

    engine = "horovod"

    def __init__(self, context: Context, transport: Transport) -> None:
        super().__init__(context, transport)
        job, data = context.job, context.data
        self._use_images(context)
        self._dtype = tf.as_dtype(job.weights_dtype)
        tf.keras.backend.set_floatx(job.weights_dtype)
        tf.keras.utils.set_random_seed(job.seed)
        self._model = keras_zoo.build(job.model, data.input_shape, data.classes)
        self._named = {variable.name.partition(":")[0]: variable for variable in self._model.variables}
        self.parameters = sum(int(np.prod(variable.shape)) for variable in self._model.trainable_variables)
        shapes = {name: tuple(variable.shape) for name, variable in self._named.items()}
        for name, value in self.initial_values(shapes).items():
            self._named[name].assign(value)
        self._optimizer = _optimizer_of(job)
        self._optimizer.build(self._model.trainable_variables)
        image = [None, *data.input_shape]
        number, labels = tf.TensorSpec([], self._dtype), tf.TensorSpec([None], tf.int64)
        self._labels = np.asarray(data.train.labels, np.int64)
        # The concrete function: its arguments always have the same types, and need not be checked in every step.
        self._step = tf.function(
            self._train_step, [tf.TensorSpec(image, tf.uint8), labels, number, number, number]
        ).get_concrete_function()
        self._number = lru_cache(16)(partial(tf.constant, dtype=self._dtype))
        self._look = tf.function(self._evaluate_batch, [tf.TensorSpec(image, tf.uint8), labels])

    # -- what distribution changes

    def _gradients(self, tape: tf.GradientTape, loss: tf.Tensor) -> list[tf.Tensor]:
        """The gradients of all processes' loss."""
        return tape.gradient(loss, self._model.trainable_variables)

    # -- the graph

    def _losses(self, images: tf.Tensor, labels: tf.Tensor, *, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Loss of each example, and its logits."""
        logits = self._model(to_inputs(images, self._transform, self._dtype), training=training)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), logits

    def _train_step(
        self, images: tf.Tensor, labels: tf.Tensor, real: tf.Tensor, batch: tf.Tensor, rate: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            losses, logits = self._losses(images, labels, training=True)
            summed = tf.reduce_sum(losses) * real
            loss = summed / batch
        gradients = self._gradients(tape, loss)
        if self._context.job.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._context.job.clip_norm)
        self._optimizer.learning_rate.assign(tf.cast(rate, self._optimizer.learning_rate.dtype))
        self._optimizer.apply_gradients(zip(gradients, self._model.trainable_variables, strict=True))
        return summed, tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.int64))

    def _evaluate_batch(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        losses, logits = self._losses(images, labels, training=False)
        return tf.reduce_sum(tf.cast(losses, tf.float64)), tf.argmax(logits, 1)

    # -- training

    def begin_epoch(self, schedule: Schedule) -> None:
        self._partition = schedule.partition(self._transport.rank)

    def train(self, first: int, last: int) -> Counts:
        steps = []
        for step in range(first, last):
            mine = self._partition.step(step)
            # A process without examples takes part with a gradient of zero, which one example times zero has.
            used = mine if len(mine) else np.zeros(1, np.int64)
            loss, right = self._made_step(
                self._gather(used), self._labels[used], float(len(mine) > 0), float(self._partition.batch[step]),
                float(self._rates[min(step, len(self._rates) - 1)]),
            )
            if len(mine):
                steps.append((len(mine), loss, right))
        return sum((Counts(count, float(loss), {"correct": int(right)}) for count, loss, right in steps), Counts())

    def _made_step(self, images: Any, labels: Any, *numbers: float) -> tuple[tf.Tensor, tf.Tensor]:
        return self._step(tf.constant(images), tf.constant(labels), *map(self._number, numbers))

    def evaluate(self, part: Part) -> Counts:
        def predict(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> tuple[float, Any]:
            losses, answered = self._look(images, labels)
            return float(losses), answered

        return self.evaluate_images(part, predict)

    # -- what is stored

    def state(self) -> State:
        slots = {f"optimizer.{number}": slot.numpy() for number, slot in enumerate(self._optimizer.variables)}
        return {**self._saved_tensors(), **slots}

    def load(self, state: State) -> None:
        for name, variable in self._named.items():
            variable.assign(state[name])
        for number, slot in enumerate(self._optimizer.variables):
            slot.assign(state[f"optimizer.{number}"])

    def _saved_tensors(self) -> Values:
        return {name: variable.numpy() for name, variable in self._named.items()}

    def _description(self) -> dict[str, Any]:
        return {"framework": "tensorflow", **self._image_description(self._data.input_shape)}

    def _readme(self, about: Mapping[str, Any], folder: Path) -> str:
        shape, classes = tuple(about["input_shape"]), about["classes"]
        return "\n".join([
            f"# Model `{about['model']}`, trained by Velodrome", "",
            f"`{WEIGHTS}` holds its weights under the names that Keras gives them, such as `dense/kernel`; `--engine "
            "tensorflow --weights` starts from them. With Keras 2 or 3 and Velodrome:", "",
            "```python", "from safetensors.numpy import load_file", "from velodrome.models.keras_zoo import build", "",
            f"model = build({about['model']!r}, {shape}, {classes})", f"weights = load_file({WEIGHTS!r})",
            "for variable in model.variables:", '    name = getattr(variable, "path", variable.name).partition(":")[0]',
            f"    variable.assign(weights[name.removeprefix({about['model'] + '/'!r})])", "```", "",
        ])


class HorovodKerasLearner(KerasLearner):
    """Gradients are averaged by `hvd.DistributedGradientTape`."""

    def __init__(self, context: Context, transport: HorovodTransport) -> None:
        self._session, self._steps = transport, 0
        super().__init__(context, transport)
        with context.waiting(), translated():
            hvd.broadcast_variables(self._model.variables, root_rank=0)

    def _gradients(self, tape: tf.GradientTape, loss: tf.Tensor) -> list[tf.Tensor]:
        shared = hvd.DistributedGradientTape(tape, op=hvd.Average)
        # Horovod divides by the number of processes.
        gradients = shared.gradient(loss, self._model.trainable_variables)
        return [gradient * tf.cast(self._transport.size, gradient.dtype) for gradient in gradients]

    def _made_step(self, images: Any, labels: Any, *numbers: float) -> tuple[tf.Tensor, tf.Tensor]:
        status = self._context.status
        status.waiting = True  # most of the step computes, but where it blocks it waits for others
        with translated():
            made = super()._made_step(images, labels, *numbers)
        status.waiting = False
        self._steps += 1
        self._session.count_steps(self._steps)
        return made


def _optimizer_of(job: Job) -> Any:
    optimizers = tf.keras.optimizers
    if job.optimizer in ("sgd", "momentum"):
        momentum = MOMENTUM if job.optimizer == "momentum" else 0.0
        return optimizers.SGD(job.rate, momentum=momentum, nesterov=job.nesterov)
    betas = {"beta_1": ADAM_BETAS[0], "beta_2": ADAM_BETAS[1]}
    if job.optimizer == "adamw":
        return optimizers.AdamW(job.rate, weight_decay=job.decay_of_weights, **betas)
    return optimizers.Adam(job.rate, **betas)


def train(context: Context) -> None:
    """Train the job of the context to its end."""
    tf.config.threading.set_intra_op_parallelism_threads(context.threads)
    tf.config.threading.set_inter_op_parallelism_threads(context.threads)

    def connect() -> Transport:
        return Alone() if context.job.strategy == "single" else HorovodTransport(context, hvd)

    def build(transport: Transport) -> KerasLearner:
        if isinstance(transport, HorovodTransport):
            return HorovodKerasLearner(context, transport)
        return KerasLearner(context, transport)

    loop.train(context, connect, build)
