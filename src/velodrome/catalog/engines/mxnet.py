"""MXNet: what it offers. Imports no framework; the training side is `velodrome/engines/mxnet`."""

from __future__ import annotations

from collections.abc import Mapping

from velodrome.catalog.base import Engine, Implementation, Need, OwnEnvironment, Strategy, single
from velodrome.catalog.exchange import ASP, BSP
from velodrome.catalog.models import Residual, Transformer, models_for
from velodrome.catalog.world import World


def _environment(strategy: Strategy, world: World) -> Mapping[str, str]:
    """What MXNet's own launcher sets."""
    if strategy.name == "single":
        return {}
    scheduler = world.of_role("scheduler")[0]
    return {
        "DMLC_ROLE": world.me.role,
        "DMLC_PS_ROOT_URI": scheduler.host,
        "DMLC_PS_ROOT_PORT": str(scheduler.port),
        "DMLC_NUM_SERVER": str(len(world.of_role("server"))),
        "DMLC_NUM_WORKER": str(len(world.of_role("worker"))),
        "DMLC_NODE_HOST": world.me.host,
    }


_BATCHES = "batches gathered from bytes in memory instead of a DataLoader"
_FRAMEWORK = ("Gluon blocks and autograd", "gluon.Trainer and MXNet's optimizers")

ENGINE = Engine(
    name="mxnet",
    description="Apache MXNet 1.9.1 with Gluon, retired in 2023",
    strategies=(
        single(Implementation(own=(_BATCHES,), framework=_FRAMEWORK)),
        Strategy(
            "kvstore", "MXNet's parameter server: dist_sync, in which servers sum the gradients of every step (bsp), "
            "or dist_async, in which they apply each gradient as it comes (asp)",
            consistencies=(BSP, ASP), roles=("scheduler", "server", "worker"),
            servers_beside_workers=True, listens=("scheduler", "worker"), shards=("what the servers hold",),
            constant_rate=(ASP,),
            implementation=Implementation(
                own=(_BATCHES, "counts summed over TCP", "initial weights of the zoo"),
                framework=(*_FRAMEWORK, "KVStore over ps-lite"),
                stock=(*_FRAMEWORK, "KVStore over ps-lite", "initial weights as Module.fit draws them, uniform within "
                       "0.01"),
                kept=(_BATCHES, "counts summed over TCP"),
            ),
        ),
    ),
    worker="velodrome.engines.mxnet.worker",
    memory_bytes=180 * 2**20,
    needs=(Need("mxnet", "velodrome engines install mxnet"),),
    environment=_environment,
    packages=("mxnet", "numpy"),
    tasks=("classification", "language-model"),
    models=models_for("images", "text", without=(Residual, Transformer)),
    upstream="retired",
    own_environment=OwnEnvironment(
        requirements="mxnet.txt", modules=("mxnet",), download_mb=60, disk_mb=340, minutes=0.5, pythons=("3.11",),
    ),
    without=("accumulate", "ema", "label_smoothing", "weight_decay", "transform", "keep_going"),
    dtypes=("float32", "float64"),
    optimizers=("sgd", "momentum", "adam"),
    own_optimizers=False,
    takes=("images", "text"),
    exported_by="torch",
    forks=False,
    ipv6=False,
)
