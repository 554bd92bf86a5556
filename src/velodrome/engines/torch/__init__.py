"""PyTorch: what it offers. Imports no framework; the training loop is in `worker.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from velodrome.engines.base import Address, Engine, Need, Strategy
from velodrome.transport.describe import MPI_NEEDS, mpi_environment


def _environment(strategy: Strategy, addresses: Sequence[Address], me: Address) -> Mapping[str, str]:
    if strategy.name == "allreduce":
        return mpi_environment(addresses, me)
    if strategy.name == "single":
        return {}
    first = addresses[0]
    return {
        "MASTER_ADDR": first.host,
        "MASTER_PORT": str(first.port),
        "WORLD_SIZE": str(len(addresses)),
        "RANK": str(me.rank),
        "LOCAL_RANK": str(sum(other.host == me.host and other.rank < me.rank for other in addresses)),
        "VELODROME_HOSTS": ",".join(address.host for address in addresses),
    }


ENGINE = Engine(
    name="torch",
    description="PyTorch",
    strategies=(
        Strategy(
            "single", "one process, not distributed: what everything else is measured against",
            synchronous=True, consistency="none", max_workers=1,
        ),
        Strategy(
            "ddp", "DistributedDataParallel: synchronous, gradients averaged while they are computed "
            "(gloo on CPU, nccl on GPU)",
            synchronous=True, consistency="bsp", listens=("worker",),
        ),
        Strategy(
            "allreduce", "synchronous, one flat gradient buffer summed by MPI: the fast path on CPU clusters",
            synchronous=True, consistency="bsp", needs=MPI_NEEDS, listens=("worker",),
        ),
    ),
    worker="velodrome.engines.torch.worker",
    memory_bytes=300 * 2**20,
    needs=(Need("torch", 'pip install "velodrome[torch]"'),),
    environment=_environment,
    packages=("torch",),
)
