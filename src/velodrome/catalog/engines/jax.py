"""JAX: what it offers. Imports no framework; the training side is `velodrome/engines/jax`."""

from __future__ import annotations

from velodrome.catalog.base import Engine, Implementation, Need, OwnEnvironment, Strategy, single
from velodrome.catalog.models import models_for

_BATCHES = "batches gathered from bytes in memory instead of a data loader"
_LOOP = "one compiled loop over the steps of a call, where the network has no convolutions"
_COUNTS = "counts summed over TCP"
_FRAMEWORK = ("jit, grad and lax of JAX", "Optax' optimizers")
_MESH = "jax.distributed and shard_map over gloo"
_PARTS = "weights as flat vectors of which each process has a part"

ENGINE = Engine(
    name="jax",
    description="JAX 0.10 with Optax, on CPUs",
    strategies=(
        single(Implementation(own=(_BATCHES, _LOOP), framework=_FRAMEWORK)),
        Strategy(
            "data-parallel", "one jit over the mesh of all processes: synchronous, gradients summed by psum (gloo)",
            listens=("worker",), exchange="all-reduce",
            implementation=Implementation(own=(_BATCHES, _LOOP, _COUNTS), framework=(*_FRAMEWORK, _MESH)),
        ),
        Strategy(
            "fsdp", "the same with weights and the optimizer's state divided over the processes; weights are gathered "
            "for each step, and gradients summed whole",
            listens=("worker",), exchange="all-reduce-and-gather",
            shards=("weights", "optimizer state"),
            implementation=Implementation(own=(_BATCHES, _LOOP, _COUNTS, _PARTS), framework=(*_FRAMEWORK, _MESH)),
        ),
    ),
    worker="velodrome.engines.jax.worker",
    memory_bytes=250 * 2**20,
    needs=(Need("jax", "velodrome engines install jax"),),
    packages=("jax", "jaxlib", "optax"),
    tasks=("classification", "language-model"),
    models=models_for("images", "text"),
    own_environment=OwnEnvironment(
        requirements="jax.txt", modules=("jax", "optax"), download_mb=150, disk_mb=660, minutes=1,
        pythons=("3.11", "3.12", "3.13"),
    ),
    without=("accumulate", "transform", "keep_going"),
    dtypes=("float32", "float64"),
    own_optimizers=False,
    takes=("images", "text"),
    exported_by="torch",
    forks=False,
    ipv6=False,
)
