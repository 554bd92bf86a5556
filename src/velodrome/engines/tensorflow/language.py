"""The language model as a pure function of one flat buffer of weights, made to be fast on CPUs.

It computes what the Keras model of the zoo computes, with the words of all steps in one multiplication wherever nothing
has to wait: before each LSTM layer and, what most of the time goes into, before the softmax.
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
from velodrome.engines.tensorflow.flat import Array, Batch, FlatModel, Seen
from velodrome.models import keras_zoo
from velodrome.spec.job import Job


class LanguageNetwork(FlatModel):
    """A built language model. Its statistics are the state of each row: h and c of every layer."""

    carries = True

    def __init__(self, job: Job, text: Text) -> None:
        keras.config.set_floatx(job.dtype)
        keras.utils.set_random_seed(job.seed)
        super().__init__(job, keras_zoo.build_text(job.model, len(text.vocabulary)))
        self.vocabulary, self._name = text.vocabulary, text.name
        #: Units of each LSTM layer: half of its weights belong to them.
        self.units = [shape[0] for shape in self.shapes[2:-2:3]]

    def initial_statistics(self, rank: int) -> list[Array]:
        return self.fresh(1)

    def fresh(self, rows: int) -> list[Array]:
        """The state in which a text is begun."""
        return [np.zeros((rows, units), self.job.dtype) for units in self.units for _ in range(2)]

    def for_rank(self, values: Sequence[Array], rank: int) -> list[Array]:
        return [np.array(value) for value in values]

    def averaged(self, index: int) -> bool:
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
            now, *ended = _lstm(now, columns, layers[3 * number : 3 * number + 3], state[2 * number : 2 * number + 2])
            after += ended
        logits = tf.matmul(tf.reshape(now, [-1, self.units[-1]]), kernel) + bias
        targets = tf.reshape(tf.transpose(batch.targets), [-1])
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits), after

    def gradient(
        self, sources: Any, weights: Any, statistics: Sequence[tf.Tensor], batch: Batch
    ) -> tuple[Any, Seen]:
        """The gradient of the losses summed over all words of a row, and averaged over the rows of the batch."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            losses, after = self._read(weights(sources), statistics, batch)
            loss = tf.reduce_sum(losses) / tf.cast(batch.batch, self.dtype)
        return tape.gradient(loss, sources), Seen(_tally(losses, tf.ones_like(losses)), after)

    def count(self, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor], batch: Batch) -> Seen:
        losses, after = self._read(weights, statistics, batch)
        return Seen(_tally(losses, tf.reshape(tf.transpose(batch.real), [-1])), after)

    def save(self, folder: Path, buffer: Array, statistics: Sequence[Array]) -> None:
        self._put(buffer)
        folder.mkdir(parents=True, exist_ok=True)
        words = json.dumps(self.vocabulary, ensure_ascii=False)
        files.write_text(folder / "vocabulary.json", words + "\n", sync=False)
        told = {"kind": "text", "dataset": self._name, "vocabulary": len(self.vocabulary), "outputs": "logits"}
        self._write(folder, told)


def _lstm(
    inputs: tf.Tensor, columns: int, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """One layer over (columns, rows, width): what it says at each column, and its h and c after the last."""
    kernel, recurrent, bias = weights
    width, gates = kernel.shape
    said, cell = state
    waiting = tf.matmul(tf.reshape(inputs, [-1, width]), kernel) + bias
    outputs = []
    for fed in tf.unstack(tf.reshape(waiting, [columns, -1, gates]), columns):
        enter, forget, new, leave = tf.split(fed + tf.matmul(said, recurrent), 4, axis=1)
        cell = tf.sigmoid(forget) * cell + tf.sigmoid(enter) * tf.tanh(new)
        said = tf.sigmoid(leave) * tf.tanh(cell)
        outputs.append(said)
    return tf.stack(outputs), said, cell


def _tally(losses: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Number of words and their summed loss."""
    real = tf.cast(real, tf.float64)
    return tf.stack([tf.reduce_sum(real), tf.reduce_sum(tf.cast(losses, tf.float64) * real)])
