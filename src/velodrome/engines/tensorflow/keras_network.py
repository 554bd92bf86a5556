"""A Keras model of a user or of the zoo as a pure function of its weights and statistics: what its tasks share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from velodrome.catalog.models import is_own
from velodrome.engines.tensorflow import model_file
from velodrome.engines.tensorflow.flat import Array, FlatModel
from velodrome.engines.tensorflow.inspection import layers_of, reasons_of
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.models import generators

#: Keeps the random numbers of ranks apart: a prime far from small seeds.
_SEED_STRIDE = 7919


class KerasNetwork(FlatModel):
    """A built model that has been called once, so that all of its variables exist."""

    #: What the model is called with to try it: to compare it with a saved one, and to see what its layers take.
    _sample: Any

    def __init__(self, job: Job, model: keras.Model) -> None:
        super().__init__(job, model)
        if not self.trainable:
            raise BadRequest(f"model {job.model!r} has no trainable weights: unfreeze a layer or add one")
        self.statistics = list(model.non_trainable_variables)
        self._penalised = bool(model.losses)

    def initial_statistics(self, rank: int) -> list[Array]:
        """Initial values of what is not trained: moving statistics the same everywhere, random states of the rank."""
        return self.statistics_for_rank([np.asarray(variable) for variable in self.statistics], rank)

    def statistics_for_rank(self, values: Sequence[Array], rank: int) -> list[Array]:
        """Random states differ by rank, so that dropout does not drop the same units everywhere."""
        moved = []
        for variable, value in zip(self.statistics, values, strict=True):
            value = np.array(value)
            if rank and _is_random_state(variable):
                value.flat[0] += np.array(rank * _SEED_STRIDE).astype(value.dtype)
            moved.append(value)
        return moved

    def random_states(self) -> list[bool]:
        return [_is_random_state(variable) for variable in self.statistics]

    def is_averaged(self, index: int) -> bool:
        """Counters and random states are not averaged."""
        return tf.as_dtype(self.statistics[index].dtype).is_floating

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

    def _kept(
        self, after: Sequence[tf.Tensor], before: Sequence[tf.Tensor], real: tf.Tensor
    ) -> list[tf.Tensor]:
        """The statistics after a step. Counters and random states change in any case, to stay equal to those of other
        ranks; all others only if the step had examples."""
        return [
            tf.where(real > 0, new, old) if self.is_averaged(index) else new
            for index, (new, old) in enumerate(zip(after, before, strict=True))
        ]

    def layer_rows(self) -> tuple[list[dict[str, Any]], int | None]:
        with generators.preserved():
            return layers_of(self.model, self._sample)

    def reasons_outside_promise(self) -> list[str]:
        return reasons_of(self.model, tf.nest.map_structure(tf.TensorSpec.from_tensor, self._sample))

    def save(self, folder: Path, buffer: Array, statistics: Sequence[Array]) -> None:
        self._assign_weights(buffer)
        for variable, value in zip(self.statistics, statistics, strict=True):
            variable.assign(value)
        model_file.save(folder, self.model, self.form, self._about())

    def check_saving(self, folder: Path) -> tuple[str, ...]:
        if not is_own(self.job.model):
            return ()
        self.form, notes = model_file.choose_form(self.job.model, self.model, self._about(), self._sample, folder)
        return notes


def _is_random_state(variable: keras.Variable) -> bool:
    return "seed_generator_state" in variable.path and tuple(variable.shape) == (2,)
