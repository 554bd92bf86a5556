"""The LSTM language model as a pure function of one flat buffer of weights, made to be fast on CPUs.

It computes what the Keras model of the zoo computes, but multiplies the words of all time steps at once wherever the
recurrence allows it: before each LSTM layer and, where most of the time goes, before the softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from velodrome.data.text import Text
from velodrome.engines.tensorflow.flat import Batch
from velodrome.engines.tensorflow.text_network import StatelessTextNetwork, TextNetwork
from velodrome.job.job import Job


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
