"""Libraries around PyTorch: Hugging Face Accelerate, Lightning Fabric and DeepSpeed. No framework here.

Their training sides are `engines/accelerate.py`, `engines/fabric.py` and `engines/deepspeed.py`.
"""

from __future__ import annotations

from velodrome.catalog.base import Engine, Implementation, Need, Strategy
from velodrome.catalog.engines.torch import AUTOGRAD, BATCHES, PROCESS, STOCK_OPTIMIZER, wrapped_strategies
from velodrome.catalog.engines.torch import ENGINE as TORCH
from velodrome.catalog.exchange import Exchange

ACCELERATE = Engine(
    name="accelerate",
    description="Hugging Face Accelerate around PyTorch",
    strategies=wrapped_strategies("Accelerator.prepare and backward of Accelerate", "Accelerate"),
    worker="velodrome.engines.accelerate",
    memory_bytes=350 * 2**20,
    needs=(Need("accelerate", 'pip install "velodrome[accelerate]"'),),
    environment=TORCH.environment,
    packages=("accelerate", "torch"),
    tasks=TORCH.tasks,
    tasks_of="torch",
)

FABRIC = Engine(
    name="fabric",
    description="Lightning Fabric around PyTorch",
    strategies=wrapped_strategies("setup_module, setup_optimizers and backward of Fabric", "Fabric"),
    worker="velodrome.engines.fabric",
    memory_bytes=350 * 2**20,
    needs=(Need("lightning_fabric", 'pip install "velodrome[fabric]"'),),
    environment=TORCH.environment,
    packages=("lightning-fabric", "torch"),
    tasks=TORCH.tasks,
    tasks_of="torch",
)

_TRAINS = (AUTOGRAD, STOCK_OPTIMIZER)


def _stage(number: int, shards: tuple[str, ...], exchange: Exchange, words: str) -> Strategy:
    parts = (*_TRAINS, f"initialize, backward and step of DeepSpeed, ZeRO stage {number} over gloo or NCCL")
    return Strategy(
        f"zero{number}", f"ZeRO stage {number}: synchronous, {words}",
        listens=("worker",), exchange=exchange, shards=shards,
        no_own_optimizer="updates flattened parts of the weights, which your own optimizer may not support; choose "
                         "torch/fsdp",
        not_raced="it divides like torch/zero1 and torch/fsdp, with DeepSpeed's parts: name it to race it",
        implementation=Implementation(own=(BATCHES, PROCESS), framework=parts, stock=parts, kept=(BATCHES,)),
    )


DEEPSPEED = Engine(
    name="deepspeed",
    description="DeepSpeed around PyTorch",
    strategies=(
        _stage(1, ("optimizer state",), "all-reduce-and-broadcast",
               "each process keeps the optimizer's state of a part of the weights only"),
        _stage(2, ("gradients", "optimizer state"), "all-reduce-and-broadcast",
               "each process keeps gradients and the optimizer's state of a part of the weights only"),
        _stage(3, ("weights", "gradients", "optimizer state"), "gather-and-scatter",
               "weights, gradients and the optimizer's state are divided over the processes, and a layer's weights are "
               "gathered when it computes"),
    ),
    worker="velodrome.engines.deepspeed",
    memory_bytes=450 * 2**20,
    needs=(Need("deepspeed", 'pip install "velodrome[deepspeed]"'),),
    environment=TORCH.environment,
    packages=("deepspeed", "torch"),
    tasks=TORCH.tasks,
    tasks_of="torch",
    without=("ema",),
    dtypes=("float32", "bfloat16"),  # it steps float32 weights only
    own_optimizers=False,
)
