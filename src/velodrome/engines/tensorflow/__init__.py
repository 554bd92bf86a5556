"""TensorFlow: what it offers. Imports no framework; the training loops are in `worker.py` and beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from velodrome.engines.base import Address, Engine, Need, Strategy
from velodrome.transport.describe import MPI_NEEDS, mpi_environment

#: TensorFlow's own names for our roles.
_TASKS = {"worker": "worker", "server": "ps", "chief": "chief"}


def _environment(strategy: Strategy, addresses: Sequence[Address], me: Address) -> Mapping[str, str]:
    if strategy.name == "allreduce":
        return mpi_environment(addresses, me)
    if strategy.name not in ("multi-worker-mirrored", "parameter-server"):
        return {}
    cluster: dict[str, list[str]] = {}
    for address in addresses:
        cluster.setdefault(_TASKS[address.role], []).append(f"{address.host}:{address.port}")
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": _TASKS[me.role], "index": me.rank}})}


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
