"""TensorFlow: what it offers. Imports no framework; the training side is `velodrome/engines/tensorflow`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from velodrome.offers.base import Engine, Need, Strategy
from velodrome.offers.transports import MPI_NEEDS
from velodrome.offers.world import World

#: TensorFlow's own names for our roles.
TASKS = {"worker": "worker", "server": "ps", "chief": "chief"}


def _environment(strategy: Strategy, world: World) -> Mapping[str, str]:
    if strategy.name not in ("multi-worker-mirrored", "parameter-server"):
        return {}
    cluster: dict[str, list[str]] = {}
    for member in world.members:
        cluster.setdefault(TASKS[member.role], []).append(member.address)
    task = {"type": TASKS[world.me.role], "index": world.me.rank}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


ENGINE = Engine(
    name="tensorflow",
    description="TensorFlow with Keras 3 models",
    strategies=(
        Strategy(
            "single", "one process, not distributed: what everything else is measured against",
            synchronous=True, consistency="none", max_workers=1,
        ),
        Strategy(
            "mirrored", "MirroredStrategy: synchronous over several devices of one process",
            synchronous=True, consistency="bsp", one_process=True,
        ),
        Strategy(
            "multi-worker-mirrored", "MultiWorkerMirroredStrategy: synchronous over processes, worker 0 is chief",
            synchronous=True, consistency="bsp", listens=("worker",),
        ),
        Strategy(
            "parameter-server", "ParameterServerStrategy: asynchronous, weights on servers, a chief hands out work",
            synchronous=False, consistency="asp", roles=("server", "worker", "chief"),
            listens=("server", "worker", "chief"),
        ),
        Strategy(
            "central-storage", "CentralStorageStrategy: synchronous, weights on one device, computed on several",
            synchronous=True, consistency="bsp", one_process=True,
        ),
        Strategy(
            "allreduce", "synchronous, one flat gradient buffer summed by MPI: the fast path on CPU clusters",
            synchronous=True, consistency="bsp", needs=MPI_NEEDS, listens=("worker",),
        ),
        Strategy(
            "tpu", "TPUStrategy: synchronous over the cores of a TPU",
            synchronous=True, consistency="bsp", one_process=True, hardware="a TPU",
        ),
    ),
    worker="velodrome.engines.tensorflow.worker",
    memory_bytes=540 * 2**20,
    needs=(Need("tensorflow", 'pip install "velodrome[tensorflow]"'),),
    environment=_environment,
    packages=("tensorflow", "tensorflow-cpu", "keras"),
)
