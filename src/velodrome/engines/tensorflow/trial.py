"""The user's Keras model, tried before training on the batches that it will get: in both modes, and without a trace.

Graphs of each size of batch are traced and not run: shapes that do not fit show there already, and neither weights,
statistics nor random numbers change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from velodrome.engines.tensorflow.byte_input import expects_bytes
from velodrome.engines.tensorflow.softmax import Activation, last_activation
from velodrome.models import generators
from velodrome.models.checks import (
    are_probabilities,
    auxiliary_note,
    check_outputs,
    class_scores,
    has_auxiliary,
    probabilities_note,
    wrong_batch,
)
from velodrome.models.own import fits_data


@dataclass(frozen=True)
class Findings:
    """What a trial found out about a model."""

    #: What it ends in while it is trained; None for logits, and for what is not recognised.
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
                f"model {name!r} ends in a sigmoid: the loss is the cross-entropy of a softmax over what goes into it, "
                "as in Keras; what it returns are no probabilities of the classes",
            )
        return ()


class Trial:
    """Calls a model on images of the job's shape."""

    def __init__(self, name: str, model: keras.Model, shape: tuple[int, int, int], dtype: tf.DType) -> None:
        self._name, self._model, self._shape, self._dtype = name, model, shape, dtype
        self._byte_input = False

    def _traced(self, size: int, *, training: bool) -> Any:
        """What the model returns in the graph of a batch."""
        found = []

        def call(images: tf.Tensor) -> None:
            with keras.StatelessScope():
                found.append(self._model(images, training=training))
            self._byte_input = expects_bytes(images)

        with generators.preserved():
            batch = tf.TensorSpec([size, *self._shape], self._dtype)
            tf.function(call, autograph=False).get_concrete_function(batch)
        return found[0]

    def _takes(self, size: int, *, training: bool) -> bool:
        try:
            self._traced(size, training=training)
        except Exception:
            return False
        return True

    def examine(
        self, images: tf.Tensor, outputs: Any, classes: int, *, smallest: int, evaluation_size: int, way_out: str
    ) -> Findings:
        """What training needs to know of a model that returned these outputs for a full batch in evaluation.

        A model that cannot be trained on such a batch or on the smallest one is refused; `way_out` is what helps where
        only the smallest is too small.
        """
        full = len(images)
        with fits_data(self._name, self._shape, building=False, batch=smallest, training=True):
            try:
                returned = self._traced(smallest, training=True)
            except Exception as error:
                if smallest == full or not self._takes(full, training=True):
                    raise
                raise wrong_batch(self._name, smallest, full, error, way_out) from error
        trained = check_outputs(self._name, returned, tf.Tensor, smallest, classes, training=True)
        more = {"several": not (isinstance(returned, tf.Tensor) and isinstance(outputs, tf.Tensor)),
                "auxiliary": has_auxiliary(returned, tf.Tensor), "byte_input": self._byte_input}
        # A model that takes batches of two sizes takes any.
        free = smallest < full or self._takes(evaluation_size, training=False)
        only, found = None if free else full, last_activation(trained, classes)
        evaluated = are_probabilities(class_scores(outputs, tf.Tensor).numpy())
        if not evaluated or found is not None:
            return Findings(found[0] if found else None, (evaluated, evaluated), only_batch=only, **more)
        in_training = self._returns_probabilities(images)
        in_evaluation = last_activation(class_scores(self._traced(smallest, training=False), tf.Tensor), classes)
        return Findings(None, (in_training, True), in_evaluation is not None and not in_training, only, **more)

    def _returns_probabilities(self, images: tf.Tensor) -> bool:
        """Whether a model whose activation is not recognised returns probabilities in training, found by a call."""
        with generators.preserved(), keras.StatelessScope():
            return are_probabilities(class_scores(self._model(images, training=True), tf.Tensor).numpy())
