"""Horovod: what it offers, with each framework. Imports none; the training side is `velodrome/engines/horovod`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from velodrome.catalog.base import Engine, Implementation, Need, OwnEnvironment, SourceBuild, Strategy, single
from velodrome.catalog.engines.torch import ENGINE as TORCH
from velodrome.catalog.models import Residual, models_for
from velodrome.catalog.options import Option
from velodrome.catalog.world import World, horovod


def _environment(strategy: Strategy, world: World) -> Mapping[str, str]:
    return {} if strategy.name == "single" else horovod(world)


#: Both are built; a job chooses one of them.
_GLOO_AND_MPI = {"HOROVOD_WITH_GLOO": "1", "HOROVOD_WITH_MPI": "1", "HOROVOD_CPU_OPERATIONS": "GLOO",
                 "HOROVOD_WITHOUT_MXNET": "1"}
_HOROVOD = "horovod==0.28.1"
FUSION_THRESHOLD = Option[float | None](
    "fusion_threshold_mb", Annotated[float, Field(ge=0, le=16_384)] | None, None,
    "for horovod: megabytes of gradients collected into one all-reduce; 0 sends each by itself; by default "
    "Horovod's own 128",
    after="keep_going", stored_after="on",
)
CYCLE_TIME = Option[float | None](
    "cycle_time_ms", Annotated[float, Field(gt=0, le=60_000)] | None, None,
    "for horovod: cycle time in milliseconds, after which Horovod checks again for gradients that are ready; by "
    "default Horovod's own 1", after=FUSION_THRESHOLD.name,
)
TIMELINE_STEPS = Option[int | None](
    "timeline_steps", Annotated[int, Field(ge=0, le=2**63 - 1)] | None, None,
    "for horovod: number of first steps whose timeline is saved with the run (`horovod-timeline.json`); by default "
    "20, but no more than throughput leaves out",
    after=CYCLE_TIME.name,
)
COLLECTIVES = Option[str | None](
    "collectives", Literal["gloo", "mpi"] | None, None, "for horovod: what carries gradients, gloo or mpi (MPICH); by "
    "default gloo", after=TIMELINE_STEPS.name,
)
_OPTIONS: Mapping[Option[Any], Any] = {
    FUSION_THRESHOLD: None, CYCLE_TIME: None, TIMELINE_STEPS: 20, COLLECTIVES: "gloo",
}
_COUNTS = "counts summed over TCP"


def _allreduce(implementation: Implementation) -> Strategy:
    return Strategy(
        "allreduce", "synchronous, gradients averaged by Horovod over Gloo or MPI while they are computed, several in "
        "one all-reduce", listens=("worker",), exchange="all-reduce", options=_OPTIONS, implementation=implementation,
    )


def _torch() -> Engine:
    single = next(strategy for strategy in TORCH.strategies if strategy.name == "single")
    parts = single.implementation
    exchange = "hvd.DistributedOptimizer over Gloo or MPI"
    return Engine(
        name="horovod",
        framework="torch",
        description="Horovod 0.28.1, with PyTorch",
        strategies=(
            single,
            _allreduce(Implementation(
                own=(*parts.own, _COUNTS), framework=(*parts.framework, exchange),
                stock=(*parts.stock, exchange), kept=(*parts.kept, _COUNTS),
            )),
        ),
        worker="velodrome.engines.horovod.torch_worker",
        memory_bytes=TORCH.memory_bytes,
        needs=(Need("horovod.torch", "velodrome engines install horovod --framework torch"),),
        environment=_environment,
        packages=("horovod", "torch"),
        tasks=TORCH.tasks,
        tasks_of="torch",
        upstream="dormant",
        own_environment=OwnEnvironment(
            requirements="horovod-torch.txt", modules=("torch", "horovod.torch"),
            download_mb=250, disk_mb=1100, minutes=5,
            builds=(SourceBuild(
                _HOROVOD, {**_GLOO_AND_MPI, "HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITHOUT_TENSORFLOW": "1"},
                {"-std=c++14": "-std=c++17"},
            ),),
        ),
        exported_by="torch",
        forks=False,
        ipv6=False,
    )


def _tensorflow() -> Engine:
    batches = "batches gathered from bytes in memory instead of tf.data"
    framework = ("Keras 2 models, tf.GradientTape and Keras' optimizers",)
    return Engine(
        name="horovod",
        framework="tensorflow",
        description="Horovod 0.28.1, with TensorFlow 2.15 and Keras 2",
        strategies=(
            single(Implementation(own=(batches,), framework=framework)),
            _allreduce(Implementation(
                own=(batches, _COUNTS), framework=(*framework, "hvd.DistributedGradientTape over Gloo or MPI"),
            )),
        ),
        worker="velodrome.engines.horovod.tensorflow_worker",
        memory_bytes=540 * 2**20,
        needs=(Need("horovod.tensorflow", "velodrome engines install horovod --framework tensorflow"),),
        environment=_environment,
        packages=("horovod", "tensorflow-cpu", "keras"),
        tasks=("classification",),
        models=models_for("images", without=(Residual,)),
        upstream="dormant",
        own_environment=OwnEnvironment(
            requirements="horovod-tensorflow.txt", modules=("tensorflow", "horovod.tensorflow"),
            download_mb=330, disk_mb=1300, minutes=4,
            builds=(SourceBuild(
                _HOROVOD, {**_GLOO_AND_MPI, "HOROVOD_WITH_TENSORFLOW": "1", "HOROVOD_WITHOUT_PYTORCH": "1"},
            ),),
        ),
        without=("accumulate", "ema", "label_smoothing", "weight_decay", "transform"),
        dtypes=("float32", "float64"),
        own_optimizers=False,
        takes=("images",),
        exported_by="tensorflow",
        forks=False,
        ipv6=False,
    )


ENGINE = (_torch(), _tensorflow())
