"""JAX by hand, by somebody who cared: `shard_map` over the mesh of all processes, Optax, donated buffers, data on the
device as bytes, and several steps in a call.

All gradients are summed as one vector. A `jit` with shardings, as the documentation shows it, makes a collective of
every weight, and on CPUs each takes milliseconds: two processes then train at a third of the speed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "peers"))
from task import LEARNING_RATE, WARMUP_STEPS, Clock, answer, read_task, take_core

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
from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from jax.flatten_util import ravel_pytree  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

STEPS_PER_CALL = 10
jax.config.update("jax_platforms", "cpu")
if task.workers > 1:
    address = os.environ["COORDINATOR"]
    jax.distributed.initialize(
        address, task.workers, rank, coordinator_bind_address=address, heartbeat_timeout_seconds=3600
    )
mesh = jax.make_mesh((task.workers,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
fsdp = task.strategy == "fsdp"
#: Of the weights and of what Adam keeps for them.
spec = P("data") if fsdp else P()


def placed(value: np.ndarray, spec: P) -> jax.Array:
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda place: value[place])


def over_all(function, in_specs, out_specs):
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


generator = np.random.default_rng(1)
layers = [
    ((generator.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32), np.zeros(shape[-1], np.float32))
    for shape in ((784, 300), (300, 100), (100, 10))
]
vector, restored = ravel_pytree(layers)
numbers = len(vector)
if fsdp:  # one vector, of which every process has a part
    weights = placed(np.pad(np.asarray(vector), (0, -numbers % task.workers)), spec)
else:
    weights = jax.tree.map(lambda value: placed(value, spec), layers)
optimizer = optax.adam(LEARNING_RATE)
state_specs = jax.tree.map(lambda one: spec if one.ndim else P(), jax.eval_shape(optimizer.init, weights))
state = jax.jit(over_all(optimizer.init, (spec,), state_specs))(weights)


def loss_of(layers, images, labels):
    hidden = images.reshape(len(images), -1).astype(jnp.float32) / 255
    for matrix, bias in layers[:-1]:
        hidden = jax.nn.relu(hidden @ matrix + bias)
    logits = hidden @ layers[-1][0] + layers[-1][1]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def gradients_of(weights, images, labels):
    """The mean over all processes; where weights are divided, this process's part of it."""
    if fsdp:
        whole = lax.all_gather(weights, "data", tiled=True)
        gradients = jax.grad(lambda every: loss_of(restored(every[:numbers]), images, labels))(whole)
        first = lax.axis_index("data") * len(weights)
        # Not `psum_scatter`, which gives wrong sums on CPUs (jax#40830).
        return lax.dynamic_slice_in_dim(lax.pmean(gradients, "data"), first, len(weights))
    gradients = jax.grad(loss_of)(weights, images, labels)
    if task.workers == 1:
        return gradients
    vector, layers_of = ravel_pytree(gradients)
    return layers_of(lax.pmean(vector, "data"))


def train(weights, state, images, labels, chosen):
    def step(trained, rows):
        weights, state = trained
        updates, state = optimizer.update(gradients_of(weights, images[rows], labels[rows]), state, weights)
        return (optax.apply_updates(weights, updates), state), None

    (weights, state), _ = lax.scan(step, (weights, state), chosen)
    return weights, state, jax.tree.leaves(weights)[0].ravel()[:1]


own_rows = P(None, "data")
steps = jax.jit(
    over_all(train, (spec, state_specs, P(), P(), own_rows), (spec, state_specs, P())), donate_argnums=(0, 1)
)
with np.load(task.data, allow_pickle=False) as stored:
    images, labels = placed(stored["images"], P()), placed(stored["labels"].astype(np.int32), P())
clock, rows_of_call = Clock(), STEPS_PER_CALL * task.batch
calls_of_epoch = len(labels) // rows_of_call
assert WARMUP_STEPS % STEPS_PER_CALL == task.steps % STEPS_PER_CALL == 0, "whole calls are timed"
order, shuffle = np.zeros(0, np.int32), np.random.default_rng(1 + rank)
before, done = jnp.ones(1), jnp.ones(1)
for number in range(0, task.steps, STEPS_PER_CALL):
    # Calls return before they are done: one may wait behind the one that computes, and no more.
    jax.block_until_ready(before)
    clock.before_step(number)
    place = number // STEPS_PER_CALL % calls_of_epoch
    if place == 0:
        order = shuffle.permutation(len(labels)).astype(np.int32)
    chosen = order[place * rows_of_call : (place + 1) * rows_of_call].reshape(STEPS_PER_CALL, task.batch)
    rows = jax.make_array_from_process_local_data(NamedSharding(mesh, own_rows), chosen)
    before = done
    weights, state, done = steps(weights, state, images, labels, rows)
jax.block_until_ready(weights)
if rank == 0:
    answer(clock.rate(task))
