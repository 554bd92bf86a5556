"""A Keras model on arrays and its loss, tried before training on the batches that they will get, without a trace.

Graphs are traced as training traces them, for batches of any size, and run without changing weights, statistics or
random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from velodrome.engines.tensorflow.batches import constants_of
from velodrome.engines.tensorflow.flat import Batch
from velodrome.engines.tensorflow.objectives import ClassObjective, OutputObjective, OwnObjective
from velodrome.engines.tensorflow.softmax import last_activation
from velodrome.errors import BadRequest, UsersCodeFailed, VelodromeError
from velodrome.models import generators, own
from velodrome.models.checks import are_probabilities, class_scores, probabilities_note, wrong_batch
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.own import OwnTask

if TYPE_CHECKING:
    from velodrome.engines.tensorflow.array_network import ArrayNetwork


class ArrayTrial:
    """Traces and runs the loss of a network."""

    def __init__(self, network: ArrayNetwork, name: str, task: ExampleTask, *, way_out: str) -> None:
        self._network, self._name, self._task, self._way_out = network, name, task, way_out
        #: What the model returns in evaluation, in a word.
        self.returns = "logits"
        #: What the user should know, as sentences.
        self.notes: tuple[str, ...] = ()

    def examine(self, outputs: Any, sizes: Sequence[int], evaluation_size: int) -> None:
        """Try model and loss on the sizes of batches that they will get, largest first; refuse them if one fails.

        `outputs` is what the model returned for the largest one in evaluation.
        """
        full, smallest, objective = sizes[0], sizes[-1], self._network.objective
        if isinstance(objective, OutputObjective):
            self._check_outputs(outputs, full, objective.shape)
        if isinstance(objective, ClassObjective):
            self._find_probabilities(objective, outputs)
        if isinstance(objective, OwnObjective):
            self._call_eagerly(full)
        evaluate = self._traced(full, training=False)
        train = self._traced(full, training=True)
        self._try_first(evaluate, full, training=False)
        self._try_first(train, full, training=True)
        if smallest < full:
            try:
                self._run(train, smallest)
            except Exception as error:
                raise wrong_batch(self._name, smallest, full, error, self._way_out) from error
        with self._users_code(evaluation_size, training=False):
            self._run(evaluate, evaluation_size)

    def _call_eagerly(self, size: int) -> None:
        """Call the user's loss outside a graph, where an error is raised by the line that causes it."""
        network = self._network
        with self._users_code(size, training=False), generators.preserved(), network.untouched():
            network.objective.compute(network.fed(*network.rows(size)), {}, training=False)

    def _traced(self, size: int, *, training: bool) -> Any:
        """The graph of loss, total, whether there is a gradient, and the user's counts by name."""
        network = self._network
        constants = constants_of(self._task, network.data, "train")

        def call(inputs: Any, targets: Any) -> tuple[Any, ...]:
            weights = [tf.convert_to_tensor(variable.value) for variable in network.trainable]
            statistics = [tf.convert_to_tensor(variable.value) for variable in network.statistics]
            number = tf.shape(tf.nest.flatten(inputs)[0], tf.int64)[0]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                batch = Batch(inputs, targets, number, number, constants)
                computed, _, _ = network.compute(weights, statistics, batch, training=training)
            found = tape.gradient(computed.loss, weights) if training else [computed.loss]
            connected = any(gradient is not None for gradient in found)
            named = network.objective.named if isinstance(network.objective, OwnObjective) else {}
            # Gradients are returned to be computed: a shape may be wrong there only.
            sums = [tf.reduce_sum(tf.convert_to_tensor(each)) for each in found if each is not None]
            return computed.loss, computed.total, tf.constant(connected), named, sums

        with self._users_code(size, training=training), generators.preserved():
            return tf.function(call, autograph=False).get_concrete_function(*network.spec)

    def _run(self, graph: Any, size: int) -> tuple[float, float, bool, dict[str, float]]:
        with generators.preserved():
            loss, total, connected, named, _ = graph(*self._network.rows(size))
        return float(loss), float(total), bool(connected), {name: float(value) for name, value in named.items()}

    def _try_first(self, graph: Any, size: int, *, training: bool) -> None:
        with self._users_code(size, training=training):
            loss, total, connected, named = self._run(graph, size)
        task = self._task
        if training and not connected:
            own_loss = f"--task {task.name!r}: loss(){task.place('loss')}" if isinstance(task, OwnTask) else ""
            what = own_loss or f"model {self._name!r}"
            raise BadRequest(
                f"{what} has no gradient: what it returns does not depend on a weight of the model, or was stopped by "
                "tf.stop_gradient or a rounding"
            )
        if not np.isfinite(loss):
            raise BadRequest(
                f"the loss of a first batch of {size} examples is {loss}: look for a division by zero, a logarithm "
                "of zero, or numbers in the data that are not finite"
            )
        if isinstance(task, OwnTask):
            if total < 0 or total != round(total):
                raise BadRequest(
                    f"--task {task.name!r}: the count of loss() is {total:g}: return a whole number, how many the loss "
                    "is a sum over"
                )
            with self._users_code(size, training=training):
                task.learn(named, total, loss)

    @contextmanager
    def _users_code(self, size: int, *, training: bool) -> Iterator[None]:
        """Around a call of the user's loss or model: what it raises becomes one sentence with the user's traceback."""
        try:
            yield
        except VelodromeError:
            raise
        except Exception as error:
            when = "train" if training else "evaluate"
            what = f"--task {self._task.name!r}" if isinstance(self._task, OwnTask) else f"model {self._name!r}"
            raise UsersCodeFailed(
                f"{what} cannot {when} a first batch of {size} examples: {own.reason_of(error)}"
            ) from error

    def _check_outputs(self, outputs: Any, size: int, shape: tuple[int, ...]) -> None:
        if not tf.is_tensor(outputs):
            raise BadRequest(
                f"model {self._name!r} returns {type(outputs).__name__!r}, and one tensor of shape {(size, *shape)} is "
                f"needed for task {self._task.name!r}: return one, or name a task of your own"
            )
        numbers = size * int(np.prod(shape))
        if outputs.shape[:1] != (size,) or outputs.shape.num_elements() != numbers:
            alone = f" or {(size, 1)}" if not shape else ""
            raise BadRequest(
                f"model {self._name!r} answers with shape {tuple(outputs.shape)} for {size} examples; the target needs "
                f"{(size, *shape)}{alone}"
            )

    def _find_probabilities(self, objective: ClassObjective, outputs: tf.Tensor) -> None:
        """Find out whether a classifier returns probabilities, and whether their logits can be recovered."""
        if not are_probabilities(np.asarray(outputs)):
            return
        self.returns = "probabilities"
        exact = {mode: self._last_activation(objective.shape[0], training=mode) for mode in (False, True)}
        objective.probabilities = {mode: not found for mode, found in exact.items()}
        if not all(exact.values()):
            self.notes += (probabilities_note(self._name),)

    def _last_activation(self, classes: int, *, training: bool) -> bool:
        found = []
        network = self._network

        def call(inputs: Any, targets: Any) -> None:
            with network.untouched():
                called = network.model(network.fed(inputs, targets).x, training=training)
                returned = class_scores(called, tf.Tensor)
                found.append(last_activation(returned, classes) is not None)

        with generators.preserved(), self._users_code(0, training=training):
            tf.function(call, autograph=False).get_concrete_function(*network.spec)
        return found[0]
