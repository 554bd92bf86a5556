"""A training script of your own for TensorFlow, with its peers in TF_CONFIG. Velodrome starts it on every worker:

COMMAND

`python FILE` runs it alone: velodrome.log() does nothing there. Race it over its own arguments and workers with

velodrome race --script FILE --engine tensorflow --vary script_args="--lr 0.1","--lr 0.01" --vary workers=1,2
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import velodrome

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=64, help="examples of all processes in a step")
options = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank, workers = strategy.cluster_resolver.task_id or 0, strategy.num_replicas_in_sync

# Read your own data here. These are points in 20 dimensions, of two classes.
points = np.random.default_rng(0).standard_normal((2000, 20), dtype=np.float32)
classes = (points[:, 0] + points[:, 1] > 0).astype(np.int64)
train, test = (points[:1600], classes[:1600]), (points[1600:], classes[1600:])

keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([
        keras.Input((20,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2),
    ])
    optimizer = keras.optimizers.SGD(options.lr)
    optimizer.build(model.trainable_variables)


def train_share(inputs, targets):
    """One worker's part of a step; the optimizer sums gradients over the workers."""
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(targets, model(inputs, training=True), from_logits=True)
        loss = tf.reduce_sum(losses) / options.batch
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


@tf.function
def train_step(inputs, targets):
    return strategy.reduce("sum", strategy.run(train_share, (inputs, targets)), axis=None)


step, share = 0, options.batch // workers
velodrome.log(step=step)  # training begins: what comes before counts as start-up
for epoch in range(options.epochs):
    order = np.random.default_rng(epoch).permutation(len(train[1]))
    for first in range(0, len(order) - options.batch + 1, options.batch):
        mine = order[first + rank * share : first + (rank + 1) * share]
        loss = train_step(tf.constant(train[0][mine]), tf.constant(train[1][mine]))
        step += 1
        # `examples` are those of this process in this step; throughput is computed from them.
        velodrome.log(step=step, examples=len(mine), epoch=epoch, loss=loss)

accuracy = float((np.argmax(model(test[0]), 1) == test[1]).mean())
velodrome.log(split="test", examples=len(test[1]), accuracy=accuracy)
print(f"test accuracy: {accuracy:.4f}")
