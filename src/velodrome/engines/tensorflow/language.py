"""The language model as a pure function of one flat buffer of weights, made to be fast on CPUs.

It computes what the Keras model of the zoo computes, but multiplies the words of all time steps at once wherever the
recurrence allows it: before each LSTM layer and, where most of the time goes, before the softmax.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from velodrome import files
from velodrome.data.text import Text
from velodrome.engines.tensorflow import model_file
from velodrome.engines.tensorflow.flat import Array, Batch, FlatModel, StepResult
from velodrome.models import keras_zoo
from velodrome.models.recipe import VOCABULARY
from velodrome.spec.job import Job


class LanguageNetwork(FlatModel):
    """A built language model. Its statistics are the state of each row: h and c of every layer."""

    stateful = True
    own_parts = ("LSTM layers with the input products of all time steps at once, instead of Keras' layers",)

    def __init__(self, job: Job, text: Text, saved: Path | None = None) -> None:
        """With `saved`, the model is loaded from that folder, to be evaluated."""
        keras.config.set_floatx(job.dtype)
        keras.utils.set_random_seed(job.seed)
        super().__init__(
            job, keras_zoo.build_text(job.model, len(text.vocabulary)) if saved is None else model_file.load(saved)
        )
        self.vocabulary, self._name = text.vocabulary, text.name
        #: Units of each LSTM layer: half of its weights belong to them.
        self.units = [shape[0] for shape in self.shapes[2:-2:3]]

    def initial_statistics(self, rank: int) -> list[Array]:
        return self.initial_state(1)

    def initial_state(self, rows: int) -> list[Array]:
        """The state at the beginning of a text."""
        return [np.zeros((rows, units), self.job.dtype) for units in self.units for _ in range(2)]

    def statistics_for_rank(self, values: Sequence[Array], rank: int) -> list[Array]:
        return [np.array(value) for value in values]

    def is_averaged(self, index: int) -> bool:
        return False

    def random_states(self) -> list[bool]:
        return [False] * (2 * len(self.units))

    def _read(
        self, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], batch: Batch
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The loss of every word, column by column, and the state after the last one."""
        embedding, *layers, kernel, bias = weights
        columns = batch.inputs.shape[1]
        now = tf.gather(embedding, tf.transpose(batch.inputs))
        after: list[tf.Tensor] = []
        for number in range(len(self.units)):
            weights_here, state_here = layers[3 * number : 3 * number + 3], state[2 * number : 2 * number + 2]
            now, *ended = _lstm(now, columns, weights_here, state_here)
            after += ended
        logits = tf.matmul(tf.reshape(now, [-1, self.units[-1]]), kernel) + bias
        targets = tf.reshape(tf.transpose(batch.targets), [-1])
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits), after

    def gradient(
        self, sources: Any, weights: Any, statistics: Sequence[tf.Tensor], batch: Batch
    ) -> tuple[Any, StepResult]:
        """The gradient of the losses summed over all words of a row, averaged over the rows of the batch."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            losses, after = self._read(weights(sources), statistics, batch)
            loss = tf.reduce_sum(losses) / tf.cast(batch.batch, self.dtype)
        return tape.gradient(loss, sources), StepResult(_counts_of(losses, tf.ones_like(losses)), after)

    def count(self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor], batch: Batch) -> StepResult:
        losses, after = self._read(weights, statistics, batch)
        return StepResult(_counts_of(losses, tf.reshape(tf.transpose(batch.real), [-1])), after)

    def save(self, folder: Path, buffer: Array, statistics: Sequence[Array]) -> None:
        self._assign_weights(buffer)
        folder.mkdir(parents=True, exist_ok=True)
        words = json.dumps(self.vocabulary, ensure_ascii=False)
        files.write_text(folder / VOCABULARY, words + "\n", sync=False)
        model_file.save(folder, self.model, self.form, self._about())

    def _about(self) -> dict[str, Any]:
        return {**super()._about(), "kind": "text", "dataset": self._name, "vocabulary": len(self.vocabulary),
                "outputs": "logits"}


def _lstm(
    inputs: tf.Tensor, columns: int, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """One layer over (columns, rows, width): its outputs at each column, and its h and c after the last."""
    kernel, recurrent, bias = weights
    width, gates = kernel.shape
    hidden, cell = state
    projected = tf.matmul(tf.reshape(inputs, [-1, width]), kernel) + bias
    outputs = []
    for column in tf.unstack(tf.reshape(projected, [columns, -1, gates]), columns):
        input_gate, forget_gate, candidate, output_gate = tf.split(column + tf.matmul(hidden, recurrent), 4, axis=1)
        cell = tf.sigmoid(forget_gate) * cell + tf.sigmoid(input_gate) * tf.tanh(candidate)
        hidden = tf.sigmoid(output_gate) * tf.tanh(cell)
        outputs.append(hidden)
    return tf.stack(outputs), hidden, cell


def _counts_of(losses: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Number of words and their summed loss."""
    real = tf.cast(real, tf.float64)
    return tf.stack([tf.reduce_sum(real), tf.reduce_sum(tf.cast(losses, tf.float64) * real)])
