"""PyTorch: what it offers. Imports no framework; the training side is `velodrome/engines/torch`."""

from __future__ import annotations

from collections.abc import Mapping

from velodrome.offers.base import Engine, Implementation, Need, Strategy
from velodrome.offers.transports import MPI_NEEDS
from velodrome.offers.world import World


def _environment(strategy: Strategy, world: World) -> Mapping[str, str]:
    """What `torchrun` sets."""
    if strategy.name == "single":
        return {}
    first = world.peers[0]
    return {
        "MASTER_ADDR": first.host,
        "MASTER_PORT": str(first.port),
        "WORLD_SIZE": str(len(world.peers)),
        "RANK": str(world.me.rank),
        "LOCAL_RANK": str(world.me.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_size),
        "VELODROME_HOSTS": ",".join(world.hosts),
    }


# Parts of the strategies, as `velodrome engines` and results name them.
_AUTOGRAD = "modules and autograd"
_BATCHES = "batches gathered from bytes in memory instead of a DataLoader"
FUSED_OPTIMIZER = "the fused kernels of torch.optim called directly"
#: In place of the former, where PyTorch lacks them.
PLAIN_OPTIMIZER = "optimizer steps by public tensor functions"
STOCK_OPTIMIZER = "torch.optim"
_PROCESS = ("freed memory kept for the next step, denormals flushed to zero, threads that sleep instead of spin beside "
            "other programs")
_REDUCTION = (
    "gradients summed in shared memory and the optimizer step divided among the processes of one host, or one flat "
    "gradient summed by MPI between hosts"
)

ENGINE = Engine(
    name="torch",
    description="PyTorch",
    strategies=(
        Strategy(
            "single", "one process, not distributed: what everything else is measured against",
            synchronous=True, consistency="none", max_workers=1, exchange="none",
            implementation=Implementation(
                own=(_BATCHES, FUSED_OPTIMIZER, _PROCESS), framework=(_AUTOGRAD,),
                stock=(_AUTOGRAD, STOCK_OPTIMIZER), kept=(_BATCHES,),
            ),
        ),
        Strategy(
            "ddp", "DistributedDataParallel: synchronous, gradients averaged while they are computed "
            "(gloo on CPU, nccl on GPU)",
            synchronous=True, consistency="bsp", listens=("worker",), exchange="all-reduce",
            implementation=Implementation(
                own=(_BATCHES, FUSED_OPTIMIZER, _PROCESS),
                framework=(_AUTOGRAD, "DistributedDataParallel over gloo or NCCL, buffers not broadcast, gradients as "
                           "views of its buckets"),
                stock=(_AUTOGRAD, "DistributedDataParallel over gloo or NCCL with its defaults", STOCK_OPTIMIZER),
                kept=(_BATCHES,),
            ),
        ),
        Strategy(
            "allreduce", "synchronous, one flat gradient buffer summed by MPI: the fast path on CPU clusters",
            synchronous=True, consistency="bsp", needs=MPI_NEEDS, listens=("worker",), exchange="all-reduce-in-memory",
            implementation=Implementation(
                own=(_BATCHES, FUSED_OPTIMIZER, _PROCESS, _REDUCTION),
                framework=(_AUTOGRAD,),
                stock=(_AUTOGRAD, STOCK_OPTIMIZER), kept=(_BATCHES, "one flat gradient summed by MPI_Allreduce"),
            ),
        ),
    ),
    worker="velodrome.engines.torch.worker",
    memory_bytes=300 * 2**20,
    needs=(Need("torch", 'pip install "velodrome[torch]"'),),
    environment=_environment,
    packages=("torch",),
)
