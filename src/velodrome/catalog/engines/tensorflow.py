"""TensorFlow: what it offers. Imports no framework; the training side is `velodrome/engines/tensorflow`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from velodrome.catalog.base import MPI_NEEDS, Engine, Implementation, Need, Strategy, single
from velodrome.catalog.exchange import ASP
from velodrome.catalog.options import Option, Positive, Request
from velodrome.catalog.world import World, tensorflow
from velodrome.errors import BadRequest

MIN_SHARD_BYTES = Option[int | None](
    "min_shard_bytes", Positive | None, None,
    "for parameter-server: minimum size in bytes of the parts into which weights are split over the servers; by "
    "default 262144",
)


def _environment(strategy: Strategy, world: World) -> Mapping[str, str]:
    if strategy.name not in ("multi-worker-mirrored", "parameter-server"):
        return {}
    return tensorflow(world)


def _refuse_unsplit(job: Request) -> Mapping[str, Any]:
    """Nothing changes; refused where nothing is split."""
    if MIN_SHARD_BYTES.of(job) is not None and (job.implementation == "stock" or job.has_own_optimizer):
        what = "--implementation stock" if job.implementation == "stock" else "an optimizer of your own"
        raise BadRequest(f"--min-shard-bytes {MIN_SHARD_BYTES.of(job)}: {what} keeps every weight on one server, "
                         "because Keras optimizers do not support split variables; leave it out")
    return {}


# Parts of the strategies, as `velodrome engines` and results name them.
_AUTODIFF = "Keras layers and automatic differentiation"
_FLAT = "weights and gradient in one flat buffer, updated by TensorFlow's fused optimizer kernels (tf.raw_ops)"
_KERAS = "the Keras model's own variables, a Keras optimizer"
_STEPS = "many steps in one call of a tf.function"


def _synchronous(reduction: str, stock: str) -> Implementation:
    """The parts of a strategy that TensorFlow sums gradients for."""
    return Implementation(own=(_FLAT,), framework=(_AUTODIFF, reduction, _STEPS),
                          stock=(_AUTODIFF, _KERAS, stock, _STEPS))


ENGINE = Engine(
    name="tensorflow",
    description="TensorFlow with Keras 3 models",
    strategies=(
        single(Implementation(own=(_FLAT,), framework=(_AUTODIFF, _STEPS), stock=(_AUTODIFF, _KERAS, _STEPS)),
        ),
        Strategy(
            "mirrored", "MirroredStrategy: synchronous over several devices of one process",
            one_process=True, exchange="devices",
            implementation=_synchronous(
                "MirroredStrategy's all-reduce of the flat gradient",
                "MirroredStrategy's all-reduce of each weight's gradient, called by the optimizer",
            ),
        ),
        Strategy(
            "multi-worker-mirrored", "MultiWorkerMirroredStrategy: synchronous over processes, worker 0 is chief",
            listens=("worker",), exchange="all-reduce",
            implementation=_synchronous(
                "MultiWorkerMirroredStrategy's all-reduce of the flat gradient over gRPC",
                "MultiWorkerMirroredStrategy's all-reduce of each weight's gradient, called by the optimizer",
            ),
        ),
        Strategy(
            "parameter-server", "ParameterServerStrategy: asynchronous, weights on servers, a chief schedules the work",
            consistency=ASP, roles=("server", "worker", "chief"), options={MIN_SHARD_BYTES: None},
            complete=_refuse_unsplit,
            listens=("server", "worker", "chief"), exchange="servers",
            shards=("weights and optimizer state, over the servers",),
            implementation=Implementation(
                own=(f"{_FLAT}, split over the servers", "closures of several steps each, unrolled for small networks",
                     "workers that read their own data"),
                framework=(_AUTODIFF, "ParameterServerStrategy and its ClusterCoordinator"),
                stock=(_AUTODIFF, f"{_KERAS}, on the servers", "ClusterCoordinator with one step per closure",
                       "a dataset per worker"),
            ),
        ),
        Strategy(
            "central-storage", "CentralStorageStrategy: synchronous, weights on one device, computed on several",
            one_process=True, exchange="devices",
            implementation=_synchronous(
                "CentralStorageStrategy's reduction of the flat gradient to one device",
                "CentralStorageStrategy's reduction of each weight's gradient, called by the optimizer",
            ),
        ),
        Strategy(
            "allreduce", "synchronous, one flat gradient buffer summed by MPI: the fast path on CPU clusters",
            needs=MPI_NEEDS, listens=("worker",), exchange="all-reduce-in-memory",
            no_own_optimizer="keeps all weights in one flat buffer, which Keras optimizers do not support; choose "
            "multi-worker-mirrored",
            implementation=Implementation(
                own=(_FLAT, "the gradient summed by MPI in the tensor's own memory"), framework=(_AUTODIFF,),
            ),
        ),
        Strategy(
            "tpu", "TPUStrategy: synchronous over the cores of a TPU",
            one_process=True, hardware="a TPU",
        ),
    ),
    worker="velodrome.engines.tensorflow.worker",
    tasks=("arrays", "language-model"),
    memory_bytes=540 * 2**20,
    needs=(Need("tensorflow", 'pip install "velodrome[tensorflow]"'),),
    environment=_environment,
    weights_files=(".safetensors", ".keras", ".weights.h5"),
    packages=("tensorflow", "tensorflow-cpu", "keras"),
)
