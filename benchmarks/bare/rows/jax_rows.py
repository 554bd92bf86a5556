"""JAX as its documentation shows it: one jitted step over the mesh of all processes, shardings of batches and weights,
Optax, and batches gathered from bytes in memory. `fsdp` divides every weight by its first axis."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "peers"))
from task import LEARNING_RATE, Clock, answer, read_task, take_core

task = read_task()
if task.workers > 1 and "RANK" not in os.environ:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{trial.getsockname()[1]}"
    started = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": str(rank), "COORDINATOR": address})
        for rank in range(task.workers)
    ]
    sys.exit(max(abs(process.wait()) for process in started))
rank = int(os.environ.get("RANK", "0"))
take_core(rank)
os.environ["NPROC"] = "1"

import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

jax.config.update("jax_platforms", "cpu")
if task.workers > 1:
    address = os.environ["COORDINATOR"]
    jax.distributed.initialize(
        address, task.workers, rank, coordinator_bind_address=address, heartbeat_timeout_seconds=3600
    )
mesh = jax.make_mesh((task.workers,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
everywhere, divided = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
laid_out = divided if task.strategy == "fsdp" else everywhere


def placed(value: np.ndarray) -> jax.Array:
    return jax.make_array_from_callback(value.shape, laid_out, lambda place: value[place])


generator = np.random.default_rng(1)
weights = [
    (placed((generator.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)),
     placed(np.zeros(shape[-1], np.float32)))
    for shape in ((784, 300), (300, 100), (100, 10))
]  # fmt: skip
optimizer = optax.adam(LEARNING_RATE)
state = jax.jit(optimizer.init)(weights)


def loss_of(weights, images, labels):
    hidden = images.reshape(len(images), -1).astype(jnp.float32) / 255
    for matrix, bias in weights[:-1]:
        hidden = jax.nn.relu(hidden @ matrix + bias)
    logits = hidden @ weights[-1][0] + weights[-1][1]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@partial(jax.jit, donate_argnums=(0, 1))
def step(weights, state, images, labels):
    gradients = jax.grad(loss_of)(weights, images, labels)
    updates, state = optimizer.update(gradients, state, weights)
    after = optax.apply_updates(weights, updates)
    return jax.lax.with_sharding_constraint(after, laid_out), state


with np.load(task.data, allow_pickle=False) as stored:
    images, labels = stored["images"], stored["labels"].astype(np.int32)
clock, steps_of_epoch = Clock(), len(labels) // task.batch
order, shuffle = np.zeros(0, np.int64), np.random.default_rng(1 + rank)
for number in range(task.steps):
    clock.before_step(number)
    place = number % steps_of_epoch
    if place == 0:
        order = shuffle.permutation(len(labels))
    chosen = order[place * task.batch : (place + 1) * task.batch]
    batch = (jax.make_array_from_process_local_data(divided, part[chosen]) for part in (images, labels))
    weights, state = step(weights, state, *batch)
jax.block_until_ready(weights)
if rank == 0:
    answer(clock.rate(task))
