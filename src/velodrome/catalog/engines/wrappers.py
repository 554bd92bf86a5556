"""Libraries around PyTorch: Hugging Face Accelerate, Lightning Fabric and DeepSpeed. No framework here.

Their training sides are `engines/accelerate.py`, `engines/fabric.py` and `engines/deepspeed.py`.
"""

from __future__ import annotations

from typing import Any

from velodrome.catalog.base import Engine, Implementation, Need, Strategy
from velodrome.catalog.engines.torch import AUTOGRAD, BATCHES, PROCESS, STOCK_OPTIMIZER, wrapped_strategies
from velodrome.catalog.engines.torch import ENGINE as TORCH
from velodrome.catalog.exchange import Exchange


def _around_torch(
    name: str, library: str, package: str, megabytes: int, strategies: tuple[Strategy, ...], **own: Any
) -> Engine:
    """An engine that trains with PyTorch, in a library of this package around it."""
    return Engine(
        name=name, description=f"{library} around PyTorch", strategies=strategies, worker=f"velodrome.engines.{name}",
        memory_bytes=megabytes * 2**20,
        needs=(Need(package.replace("-", "_"), f'pip install "velodrome[{name}]"'),),
        environment=TORCH.environment, packages=(package, "torch"), tasks=TORCH.tasks, tasks_of="torch", **own,
    )


ACCELERATE = _around_torch(
    "accelerate", "Hugging Face Accelerate", "accelerate", 350,
    wrapped_strategies("Accelerator.prepare and backward of Accelerate", "Accelerate"),
)
FABRIC = _around_torch(
    "fabric", "Lightning Fabric", "lightning-fabric", 350,
    wrapped_strategies("setup_module, setup_optimizers and backward of Fabric", "Fabric"),
)

_TRAINS = (AUTOGRAD, STOCK_OPTIMIZER)


def _stage(number: int, shards: tuple[str, ...], exchange: Exchange, words: str) -> Strategy:
    parts = (*_TRAINS, f"initialize, backward and step of DeepSpeed, ZeRO stage {number} over gloo or NCCL")
    return Strategy(
        f"zero{number}", f"ZeRO stage {number}: synchronous, {words}",
        listens=("worker",), exchange=exchange, shards=shards,
        no_own_optimizer="steps flat parts of the weights, which yours was not made for; choose torch/fsdp",
        not_raced="it divides like torch/zero1 and torch/fsdp, with DeepSpeed's parts: name it to race it",
        implementation=Implementation(own=(BATCHES, PROCESS), framework=parts, stock=parts, kept=(BATCHES,)),
    )


DEEPSPEED = _around_torch(
    "deepspeed", "DeepSpeed", "deepspeed", 450, (
        _stage(1, ("optimizer state",), "all-reduce-and-broadcast",
               "each process keeps the optimizer's state of a part of the weights only"),
        _stage(2, ("gradients", "optimizer state"), "all-reduce-and-broadcast",
               "each process keeps gradients and the optimizer's state of a part of the weights only"),
        _stage(3, ("weights", "gradients", "optimizer state"), "gather-and-scatter",
               "weights, gradients and the optimizer's state are divided over the processes, and a layer's weights are "
               "gathered when it computes"),
    ),
    without=("ema",),
    dtypes=("float32", "bfloat16"),  # it steps float32 weights only
    own_optimizers=False,
)
