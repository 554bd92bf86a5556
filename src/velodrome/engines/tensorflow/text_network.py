"""Language models as pure functions of one flat buffer of weights, with and without a state that steps carry.

The LSTM computes what the Keras model of the zoo computes, but multiplies the words of all time steps at once wherever
the recurrence allows it: before each LSTM layer and, where most of the time goes, before the softmax."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from velodrome import files
from velodrome.catalog.models import UNROLL
from velodrome.data.examples import Text
from velodrome.engines.tensorflow import model_file
from velodrome.engines.tensorflow.flat import Array, Batch, FlatModel, StepResult, set_number_format
from velodrome.job.job import Job
from velodrome.models import keras_zoo
from velodrome.models.model_files import VOCABULARY


class TextNetwork(FlatModel):
    """A built language model. Its statistics, if it has any, are the state of each row."""

    def __init__(self, job: Job, text: Text, saved: Path | None = None) -> None:
        """With `saved`, the model is loaded from that folder, to be evaluated."""
        set_number_format(job)
        keras.utils.set_random_seed(job.seed)
        if saved is None:
            super().__init__(job, keras_zoo.build_text(job.model, len(text.vocabulary), UNROLL.of(job)))
        else:
            super().__init__(job, model_file.load(saved, job.model))
        self.vocabulary, self._name = text.vocabulary, text.name

    @property
    @abstractmethod
    def state_units(self) -> list[int]:
        """The width of each tensor of the state that is carried from step to step; none for most networks."""

    def initial_statistics(self, rank: int) -> list[Array]:
        return self.initial_state(1)

    def initial_state(self, rows: int) -> list[Array]:
        """The state at the beginning of a text."""
        return [np.zeros((rows, units), self.job.weights_dtype) for units in self.state_units]

    @abstractmethod
    def _read(
        self, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], batch: Batch
    ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
        """The loss of every word, the state after the last one, and which words count, in the order of the losses."""

    def gradient(
        self, sources: Any, weights: Any, statistics: Sequence[tf.Tensor], batch: Batch
    ) -> tuple[Any, StepResult]:
        """The gradient of the losses summed over all words of a row, averaged over the rows of the batch."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            losses, after, _ = self._read(weights(sources), statistics, batch)
            loss = tf.reduce_sum(losses) / tf.cast(batch.batch, self.dtype)
        return tape.gradient(loss, sources), StepResult(_counts_of(losses, tf.ones_like(losses)), after)

    def count(self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor], batch: Batch) -> StepResult:
        losses, after, real = self._read(weights, statistics, batch)
        return StepResult(_counts_of(losses, real), after)

    def save(self, folder: Path, buffer: Array, statistics: Sequence[Array]) -> None:
        self._assign_weights(buffer)
        folder.mkdir(parents=True, exist_ok=True)
        words = json.dumps(self.vocabulary, ensure_ascii=False)
        files.write_text(folder / VOCABULARY, words + "\n", sync=False)
        model_file.save(folder, self.model, self.form, self._about())

    def _about(self) -> dict[str, Any]:
        about = {**super()._about(), "kind": "text", "dataset": self._name, "vocabulary": len(self.vocabulary),
                 "outputs": "logits"}
        return about if self.stateful else {**about, "context": UNROLL.of(self.job)}


class StatelessTextNetwork(TextNetwork):
    """A Keras model that reads the words of every step by themselves."""

    state_units: list[int] = []  # noqa: RUF012 (never changed)

    def _read(
        self, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], batch: Batch
    ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
        cast = [tf.cast(value, variable.dtype) for value, variable in zip(weights, self.trainable, strict=True)]
        with keras.StatelessScope(state_mapping=list(zip(self.trainable, cast, strict=True))):
            logits = tf.cast(self.model(batch.inputs, training=True), self.dtype)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch.targets, logits=logits)
        return losses, [], batch.real


def _counts_of(losses: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Number of words and their summed loss."""
    real = tf.cast(real, tf.float64)
    return tf.stack([tf.reduce_sum(real), tf.reduce_sum(tf.cast(losses, tf.float64) * real)])


def text_network(job: Job, text: Text, saved: Path | None = None) -> TextNetwork:
    """The job's language model with the weights that its seed decides, or the one that was saved in a folder."""
    return (LstmNetwork if job.model == "lstm-small" else StatelessTextNetwork)(job, text, saved)


class LstmNetwork(TextNetwork):
    """Its statistics are the state of each row: h and c of every layer."""

    stateful = True
    own_parts = ("LSTM layers with the input products of all time steps at once, instead of Keras' layers",)

    @property
    def units(self) -> list[int]:
        """Units of each LSTM layer: half of its weights belong to them."""
        return [shape[0] for shape in self.shapes[2:-2:3]]

    @property
    def state_units(self) -> list[int]:
        return [units for units in self.units for _ in range(2)]

    def _read(
        self, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], batch: Batch
    ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
        """Column by column, as the recurrence computes them."""
        embedding, *layers, kernel, bias = weights
        columns = batch.inputs.shape[1]
        now = tf.gather(embedding, tf.transpose(batch.inputs))
        after: list[tf.Tensor] = []
        for number in range(len(self.units)):
            weights_here, state_here = layers[3 * number : 3 * number + 3], state[2 * number : 2 * number + 2]
            now, *ended = _lstm(now, columns, weights_here, state_here)
            after += ended
        logits = tf.matmul(tf.reshape(now, [-1, self.units[-1]]), kernel) + bias
        targets, real = (tf.reshape(tf.transpose(each), [-1]) for each in (batch.targets, batch.real))
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits), after, real


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
