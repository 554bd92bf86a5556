"""The user's Keras model and loss, tried before training on the batches that they will get, in both modes.

Neither weights, statistics nor random numbers change. A model of byte images is traced for each size of batch and not
run: shapes that do not fit show there already. Others are run with their loss, in graphs for batches of any size, as
training traces them: so a loss without a gradient shows, and what a user's metrics count is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from velodrome.engines.tensorflow.feed import constants_of
from velodrome.engines.tensorflow.flat import Batch
from velodrome.engines.tensorflow.inspection import Activation, expects_bytes, last_activation
from velodrome.engines.tensorflow.objectives import ClassObjective, Objective, OutputObjective
from velodrome.models import own
from velodrome.models.checks import (
    are_probabilities,
    auxiliary_note,
    check_outputs,
    class_scores,
    has_auxiliary,
    preserved,
    probabilities_note,
    wrong_batch,
)
from velodrome.tasks.own import OwnTask
from velodrome.training.trial import Trial

if TYPE_CHECKING:
    from velodrome.engines.tensorflow.network import Network

#: Settings of `compile` that the job decides instead.
_SETTINGS = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics")
#: Methods that Keras' own training loop calls.
_METHODS = ("train_step", "test_step", "compute_loss", "compute_metrics")


@dataclass(frozen=True)
class Findings:
    """What a trial found out about a model."""

    #: What a classifier ends in while it is trained; None for logits, and for what is not recognised.
    activation: Activation | None = None
    #: Whether it returns probabilities in training, in evaluation.
    probabilities: tuple[bool, bool] = (False, False)
    #: Whether what went into its softmax can be recovered, in both modes.
    exact: bool = True
    #: The only batch that it takes; None if it takes any.
    only_batch: int | None = None
    #: Whether the scores are among several outputs, and whether auxiliary ones are among those in training.
    several: bool = False
    auxiliary: bool = False
    #: Whether the first thing it does with its input is meant for pixels from 0 to 255.
    byte_input: bool = False

    @classmethod
    def of_saved(cls, about: Mapping[str, Any]) -> Findings:
        """What evaluating a saved model needs to know, from its description."""
        evaluated = about.get("outputs") == "probabilities"
        return cls(probabilities=(evaluated, evaluated), only_batch=about.get("only_batch"))

    @property
    def outputs(self) -> str:
        """What the model returns in evaluation, in a word."""
        return "probabilities" if self.probabilities[1] else self.activation or "logits"

    def notes(self, name: str) -> tuple[str, ...]:
        """What the user should know, as sentences."""
        return (*self._about_ending(name), *([auxiliary_note(name)] if self.auxiliary else []))

    def _about_ending(self, name: str) -> tuple[str, ...]:
        if not self.exact:
            return (probabilities_note(name),)
        if self.activation == "sigmoid":
            return (
                f"model {name!r} ends in a sigmoid: the loss is the softmax cross-entropy of the sigmoid's input, as "
                "in Keras; its outputs are not class probabilities",
            )
        return ()


class KerasTrial(Trial):
    """Calls the model of a network, and its loss."""

    def __init__(self, network: Network, how_to_fix: str) -> None:
        """`how_to_fix` is what helps where only the smallest batch is too small."""
        super().__init__(network.job.model, network.task)
        self._network, self._how_to_fix = network, how_to_fix
        self._byte_input = False
        #: What the model returned in a graph, by the size of the batch and whether it trains.
        self._returned: dict[tuple[int, bool], Any] = {}

    def examine(self, outputs: Any, sizes: Sequence[int], evaluation_size: int) -> Findings:
        """What training needs to know of a model that returned these outputs for a full batch in evaluation.

        `sizes` are those of the batches, largest first. A model or loss that fails on one of them is refused.
        """
        objective, more = self._network.objective, dict[str, Any]()
        if self._network.task.classifies_images(self._network.data):
            more = self._try_sizes(outputs, sizes[0], sizes[-1], evaluation_size)
        else:
            if isinstance(objective, OutputObjective):
                self._check_shape(class_scores(outputs, tf.Tensor), tf.is_tensor, sizes[0], objective.shape)
            self._try_loss(sizes[0], sizes[-1], evaluation_size)
        if not isinstance(objective, ClassObjective):
            return Findings(**more)
        return self._ending(objective, class_scores(outputs, tf.Tensor), sizes[-1], more)

    # -- the model alone

    def _traced(self, size: int, *, training: bool) -> Any:
        """What the model returns in the graph of a batch."""
        if (size, training) in self._returned:
            return self._returned[size, training]

        def call(inputs: Any) -> None:
            with keras.StatelessScope():
                self._returned[size, training] = self._network.model(inputs, training=training)
            self._byte_input = tf.is_tensor(inputs) and expects_bytes(inputs)

        batch = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec([size, *tensor.shape[1:]], tensor.dtype), self._network.sample
        )
        with preserved():
            tf.function(call, autograph=False).get_concrete_function(batch)
        return self._returned[size, training]

    def _takes(self, size: int, *, training: bool) -> bool:
        try:
            self._traced(size, training=training)
        except Exception:
            return False
        return True

    def _try_sizes(self, outputs: Any, full: int, smallest: int, evaluation_size: int) -> dict[str, Any]:
        """Refuse a model of images that cannot be trained on full or smallest batches; what `Findings` needs of it."""
        data = self._network.data
        with own.fits_data(self._name, data.input_shape, building=False, batch=smallest, training=True):
            try:
                returned = self._traced(smallest, training=True)
            except Exception as error:
                if smallest == full or not self._takes(full, training=True):
                    raise
                raise wrong_batch(self._name, smallest, full, error, self._how_to_fix) from error
        check_outputs(self._name, returned, tf.Tensor, smallest, data.class_count, training=True)
        byte_input = self._byte_input
        # A model that takes batches of two sizes takes any.
        free = smallest < full or self._takes(evaluation_size, training=False)
        return {
            "only_batch": None if free else full, "byte_input": byte_input,
            "several": not (isinstance(returned, tf.Tensor) and isinstance(outputs, tf.Tensor)),
            "auxiliary": has_auxiliary(returned, tf.Tensor),
        }

    def _ending(self, objective: ClassObjective, outputs: tf.Tensor, size: int, more: dict[str, Any]) -> Findings:
        """Find out whether a classifier returns probabilities, and whether their logits can be recovered."""
        def activation(*, training: bool) -> Activation | None:
            returned = class_scores(self._traced(size, training=training), tf.Tensor)
            last = last_activation(returned, objective.shape[0])
            return last[0] if last else None

        trained = activation(training=True)
        evaluated = are_probabilities(objective.shaped(outputs).numpy())
        if not evaluated or trained is not None:
            return Findings(trained, (evaluated, evaluated), **more)
        with preserved(), keras.StatelessScope():
            returned = class_scores(self._network.model(self._network.sample, training=True), tf.Tensor)
        in_training = are_probabilities(objective.shaped(returned).numpy())
        exact = not in_training and activation(training=False) is not None
        return Findings(None, (in_training, True), exact, **more)

    # -- with its loss

    def _try_loss(self, full: int, smallest: int, evaluation_size: int) -> None:
        """Run model and loss on the sizes of batches that they will get; refuse them if one fails."""
        network = self._network
        if network.task.has_own_loss:
            # Outside a graph an error is raised by the line that causes it.
            with self._users_code(full, training=False), preserved(), keras.StatelessScope():
                network.objective.compute(network.inputs.batch(*network.rows(full)), {}, training=False)
        evaluate = self._loss_graph(full, training=False)
        train = self._loss_graph(full, training=True)
        self._try_first(evaluate, full, training=False)
        self._try_first(train, full, training=True)
        if smallest < full:
            try:
                self._run(train, smallest)
            except Exception as error:
                raise wrong_batch(self._name, smallest, full, error, self._how_to_fix) from error
        with self._users_code(evaluation_size, training=False):
            self._run(evaluate, evaluation_size)

    def _loss_graph(self, size: int, *, training: bool) -> Any:
        """The graph of loss, total, whether there is a gradient, and the user's counts by name."""
        network = self._network
        constants = constants_of(network.task, network.data, "train")

        def call(inputs: Any, targets: Any) -> tuple[Any, ...]:
            weights = [tf.convert_to_tensor(variable.value) for variable in network.trainable]
            statistics = [tf.convert_to_tensor(variable.value) for variable in network.statistics]
            number = tf.shape(tf.nest.flatten(inputs)[0], tf.int64)[0]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                batch = Batch(inputs, targets, number, number, constants)
                computed, _, _ = network.compute(weights, statistics, batch, training=training)
            gradients = tape.gradient(computed.loss, weights) if training else [computed.loss]
            connected = any(gradient is not None for gradient in gradients)
            # Gradients are returned to be computed: a shape may be wrong there only.
            sums = [tf.reduce_sum(tf.convert_to_tensor(each)) for each in gradients if each is not None]
            return computed.loss, computed.total, tf.constant(connected), network.objective.named, sums

        with self._users_code(size, training=training), preserved():
            return tf.function(call, autograph=False).get_concrete_function(*network.spec)

    def _run(self, graph: Any, size: int) -> tuple[float, float, bool, dict[str, float]]:
        with preserved():
            loss, total, connected, named, _ = graph(*self._network.rows(size))
        return float(loss), float(total), bool(connected), {name: float(value) for name, value in named.items()}

    def _try_first(self, graph: Any, size: int, *, training: bool) -> None:
        with self._users_code(size, training=training):
            loss, total, connected, named = self._run(graph, size)
        self._check_first(
            loss, size, has_gradient=connected or not training, no_gradient="what it returns does not depend on a "
            "weight of the model, or was stopped by tf.stop_gradient or a rounding",
        )
        task = self._task
        if isinstance(task, OwnTask):
            if total < 0 or total != round(total):
                raise task.refused_count(f"{total:g}")
            with self._users_code(size, training=training):
                task.learn(named, total, loss)


def ignored_settings(name: str, model: keras.Model, objective: Objective) -> tuple[str, ...]:
    """Warnings, as sentences, about what a model brings for Keras' own training loop, which is not the one used."""
    of_classes = isinstance(objective, ClassObjective)
    used = "cross-entropy and accuracy" if of_classes else "the loss and the metrics of its task"
    settings = [setting for setting in _SETTINGS if _compiled_with(model).get(setting)]
    methods = [method for method in _METHODS if getattr(type(model), method) is not getattr(keras.Model, method)]
    notes = []
    if settings:
        notes.append(
            f"model {name!r} was compiled, and its {_listed(settings)} {_verb(settings)} ignored: the job's optimizer "
            f"and learning rate, {used} are used"
        )
    if methods:
        notes.append(
            f"model {name!r} has its own {_listed(methods)}, which {_verb(methods)} ignored: {used} are used"
        )
    return tuple(notes)


def _compiled_with(model: keras.Model) -> dict[str, Any]:
    if not model.compiled:
        return {}
    try:
        config: dict[str, Any] = model.get_compile_config()
    except Exception:  # a loss of the user's own need not be serialisable
        return {"optimizer": model.optimizer, "loss": model.loss, "metrics": model.metrics}
    return config


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _verb(names: list[str]) -> str:
    return "are" if len(names) > 1 else "is"
