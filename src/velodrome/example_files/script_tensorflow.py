"""A training script with TensorFlow's MultiWorkerMirroredStrategy, which reads its peers from TF_CONFIG.

velodrome train --script script_tensorflow.py --engine tensorflow --workers 2
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
parser.add_argument("--save", help="file for the weights of each rank, such as weights-{rank}.npy")
options = parser.parse_args()


def examples(count, seed):
    """Points in 20 dimensions, in four classes that a linear model can separate."""
    random = np.random.default_rng(seed)
    points = random.standard_normal((count, 20), dtype=np.float32)
    return points, (points @ np.random.default_rng(0).standard_normal((20, 4))).argmax(1)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank, workers = strategy.cluster_resolver.task_id or 0, strategy.num_replicas_in_sync
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(4)])
    optimizer = keras.optimizers.SGD(options.lr)
    optimizer.build(model.trainable_variables)
points, classes = examples(4000, 1)
share = options.batch // workers


def train_share(points, classes):
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(classes, model(points, training=True), from_logits=True)
        loss = tf.reduce_sum(losses) / options.batch
    # The optimizer sums gradients over the workers.
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


@tf.function
def train_step(points, classes):
    return strategy.reduce("sum", strategy.run(train_share, (points, classes)), axis=None)


@tf.function
def total(number):
    return strategy.reduce("sum", strategy.run(lambda: number), axis=None)


step = 0
velodrome.log(step=step)
for epoch in range(options.epochs):
    order = np.random.default_rng(epoch).permutation(len(points))
    for first in range(0, len(points) - options.batch + 1, options.batch):
        mine = order[first + rank * share : first + (rank + 1) * share]
        loss = train_step(tf.constant(points[mine]), tf.constant(classes[mine]))
        step += 1
        velodrome.log(step=step, examples=len(mine), epoch=epoch, loss=loss)
    if rank == 0:
        print(f"epoch {epoch + 1} loss: {float(loss):.4f}")

points, classes = examples(1000, 3)
correct = (np.argmax(model(points[rank::workers]), 1) == classes[rank::workers]).sum()
reached = float(total(tf.constant(float(correct)))) / len(points)
velodrome.log(split="test", examples=len(points), accuracy=reached)
if rank == 0:
    print(f"test accuracy: {reached:.4f}")
if options.save:
    np.save(options.save.format(rank=rank), np.concatenate([weight.numpy().ravel() for weight in model.weights]))
total(tf.constant(0.0))  # nobody leaves before all are done
