"""The examples of one replica as TensorFlow takes them: index tensors for many steps, never an empty step.

A step without examples holds one real example that counts nothing, because TensorFlow's convolution gradient aborts
the process on an empty batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from velodrome.data.splits import Part
from velodrome.engines.tensorflow.flat import Batch
from velodrome.tasks.schedule import Partition, evaluation_indices

EVALUATION_BATCH = 500


class Deck(NamedTuple):
    """Step `s` takes ``indices[offsets[s]:offsets[s + 1]]``, of which `real[s]` count (all, or none)."""

    indices: tf.Tensor
    offsets: tf.Tensor
    real: tf.Tensor
    batch: tf.Tensor


class Pixels(NamedTuple):
    """Images and labels held as tensors: bytes, so that gathering a batch moves little."""

    images: tf.Tensor
    labels: tf.Tensor

    @classmethod
    def of(cls, part: Part) -> Pixels:
        return cls(tf.constant(part.images), tf.constant(part.labels, tf.int64))


class Hand(NamedTuple):
    """What a replica is given for many steps."""

    deck: Deck
    pixels: Pixels


def spec_of(shape: tuple[int, int, int]) -> Hand:
    return Hand(
        Deck(*(tf.TensorSpec([None], tf.int64) for _ in Deck._fields)),
        Pixels(tf.TensorSpec([None, *shape], tf.uint8), tf.TensorSpec([None], tf.int64)),
    )


def deck_of(partition: Partition) -> Deck:
    """A partition with its empty steps filled."""
    real = np.diff(partition.offsets)
    indices, offsets = partition.indices, partition.offsets
    if not real.all():
        indices = np.concatenate([partition.step(step) if real[step] else [0] for step in range(partition.steps)])
        offsets = np.concatenate([[0], np.cumsum(np.maximum(real, 1))])
    as_tensor = [tf.constant(values, tf.int64) for values in (indices, offsets, real, partition.batch)]
    return Deck(*as_tensor)


def evaluation_partition(examples: int, rank: int, workers: int) -> Partition:
    """The examples of a whole set that a replica evaluates, in steps of a fixed size and as many as the others have."""
    mine = evaluation_indices(examples, rank, workers)
    largest = -(-examples // workers)
    steps = -(-largest // EVALUATION_BATCH)
    offsets = np.minimum(np.arange(steps + 1, dtype=np.int64) * EVALUATION_BATCH, len(mine))
    return Partition(mine, offsets, np.diff(offsets))


def deal(hand: Hand, step: tf.Tensor) -> Batch:
    """Images and labels of a step."""
    deck, pixels = hand
    mine = deck.indices[deck.offsets[step] : deck.offsets[step + 1]]
    return Batch(tf.gather(pixels.images, mine), tf.gather(pixels.labels, mine), deck.real[step], deck.batch[step])


def as_numbers(images: tf.Tensor, scale: float, dtype: Any) -> tf.Tensor:
    """Bytes as numbers between 0 and 1."""
    return tf.cast(images, dtype) * tf.constant(scale, dtype)
