"""Plain JAX in one process, written by hand: what Velodrome's `jax/single` is measured against.

It has what such a loop has when somebody cared: data on the device as bytes, one jitted step whose buffers are donated,
Optax, and no value read back before the end. It runs in the environment of `velodrome engines install jax`.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))
from task import LEARNING_RATE, Clock, answer, read_task, take_core

task = read_task()
take_core(0)
os.environ["NPROC"] = "1"

import jax  # noqa: E402
import optax  # noqa: E402
from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402


def dense(weights, inputs):
    return inputs @ weights[0] + weights[1]


def pooled(images):
    return lax.reduce_window(images, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def convolved(weights, images):
    return lax.conv_general_dilated(images, weights[0], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def apply(weights, images):
    if task.model == "lenet5":
        for layer in weights[:2]:
            images = jnp.tanh(pooled(convolved(layer, images) + layer[1]))
        hidden = jnp.tanh(dense(weights[2], images.reshape(len(images), -1)))
        return dense(weights[3], hidden)
    hidden = images.reshape(len(images), -1)
    for layer in weights[:-1]:
        hidden = jax.nn.relu(dense(layer, hidden))
    return dense(weights[-1], hidden)


SHAPES = {
    "dense-300-100": ((784, 300), (300, 100), (100, 10)),
    "lenet5": ((5, 5, 1, 20), (5, 5, 20, 50), (800, 500), (500, 10)),
}
generator = np.random.default_rng(1)
weights = [
    (jnp.asarray(generator.standard_normal(shape) / np.prod(shape[:-1]) ** 0.5, jnp.float32), jnp.zeros(shape[-1]))
    for shape in SHAPES[task.model]
]
optimizer = optax.adam(LEARNING_RATE)
state = optimizer.init(weights)
with np.load(task.data, allow_pickle=False) as stored:
    images, labels = jnp.asarray(stored["images"]), jnp.asarray(stored["labels"], jnp.int32)


def loss_of(weights, images, labels):
    logits = apply(weights, images.astype(jnp.float32) / 255)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@partial(jax.jit, donate_argnums=(0, 1))
def step(weights, state, images, labels, chosen):
    gradients = jax.grad(loss_of)(weights, images[chosen], labels[chosen])
    updates, state = optimizer.update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state


clock, steps_of_epoch = Clock(), len(labels) // task.batch
order = np.zeros(0)
for number in range(task.steps):
    if number == 20:
        jax.block_until_ready(weights)
    clock.before_step(number)
    place = number % steps_of_epoch
    if place == 0:
        order = generator.permutation(len(labels)).astype(np.int32)
    weights, state = step(weights, state, images, labels, order[place * task.batch : (place + 1) * task.batch])
jax.block_until_ready(weights)
answer(clock.rate(task))
