"""PyTorch: what it offers. Imports no framework; the training side is `velodrome/engines/torch`."""

from __future__ import annotations

from collections.abc import Mapping

from velodrome.catalog.base import Engine, Implementation, Need, Strategy
from velodrome.catalog.transports import MPI_NEEDS
from velodrome.catalog.world import World


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
AUTOGRAD = "modules and autograd"
BATCHES = "batches gathered from bytes in memory instead of a DataLoader"
FUSED_OPTIMIZER = "the fused kernels of torch.optim called directly"
#: In place of the former, where PyTorch lacks them.
PLAIN_OPTIMIZER = "optimizer steps by public tensor functions"
STOCK_OPTIMIZER = "torch.optim"
PROCESS = ("freed memory kept for the next step, denormals flushed to zero, threads that sleep instead of spin beside "
            "other programs")
_REDUCTION = (
    "gradients summed in shared memory and the optimizer step divided among the processes of one host, or one flat "
    "gradient summed by MPI between hosts"
)
_DDP = "DistributedDataParallel over gloo or NCCL, buffers not broadcast, gradients as views of its buckets"
_STOCK_DDP = "DistributedDataParallel over gloo or NCCL with its defaults"
_FULLY_SHARD = "fully_shard over gloo or NCCL, layers of a million numbers and more each by itself"
_AVERAGE = "average_parameters of torch.distributed over gloo or NCCL"
_OUTER = "torch.optim.SGD as outer optimizer"
_ROUNDS = "rounds of DiLoCo"
_OTHER_RESULT = "they end with other weights than one process, by how seldom they synchronize: name them to race them"
_DIVIDES_MODEL = "they divide the model, which must have layers for that: name them to race them"
_EVERYTHING = ("weights", "gradients", "optimizer state")
_PIPELINE = "PipelineStage and Schedule1F1B or ScheduleGPipe over gloo or NCCL"
_CUT = "stages cut by measured time"
_TENSOR = "ColwiseParallel and RowwiseParallel over gloo or NCCL"
_PLAN = "a plan derived from the layers, LSTMs divided by units"
_ZERO = "ZeroRedundancyOptimizer over torch.optim"

ENGINE = Engine(
    name="torch",
    description="PyTorch",
    strategies=(
        Strategy(
            "single", "one process, not distributed: what everything else is measured against",
            synchronous=True, consistency="none", max_workers=1, exchange="none",
            implementation=Implementation(
                own=(BATCHES, FUSED_OPTIMIZER, PROCESS), framework=(AUTOGRAD,),
                stock=(AUTOGRAD, STOCK_OPTIMIZER), kept=(BATCHES,),
            ),
        ),
        Strategy(
            "ddp", "DistributedDataParallel: synchronous, gradients averaged while they are computed "
            "(gloo on CPU, nccl on GPU)",
            synchronous=True, consistency="bsp", listens=("worker",), exchange="all-reduce", options={"compress": None},
            implementation=Implementation(
                own=(BATCHES, FUSED_OPTIMIZER, PROCESS),
                framework=(AUTOGRAD, _DDP), stock=(AUTOGRAD, _STOCK_DDP, STOCK_OPTIMIZER),
                kept=(BATCHES,),
            ),
        ),
        Strategy(
            "allreduce", "synchronous, one flat gradient buffer summed by MPI: the fast path on CPU clusters",
            synchronous=True, consistency="bsp", needs=MPI_NEEDS, listens=("worker",), exchange="all-reduce-in-memory",
            implementation=Implementation(
                own=(BATCHES, FUSED_OPTIMIZER, PROCESS, _REDUCTION),
                framework=(AUTOGRAD,),
                stock=(AUTOGRAD, STOCK_OPTIMIZER), kept=(BATCHES, "one flat gradient summed by MPI_Allreduce"),
            ),
        ),
        Strategy(
            "zero1", "DistributedDataParallel with ZeroRedundancyOptimizer: synchronous, each process keeps the "
            "optimizer's state of a part of the weights only (ZeRO stage 1)",
            synchronous=True, consistency="bsp", listens=("worker",), exchange="all-reduce-and-broadcast",
            shards=("optimizer state",),
            no_own_optimizer="makes the optimizer by itself; choose ddp or fsdp",
            implementation=Implementation(
                own=(BATCHES, PROCESS), framework=(AUTOGRAD, _DDP, _ZERO),
                stock=(AUTOGRAD, _STOCK_DDP, _ZERO), kept=(BATCHES,),
            ),
        ),
        Strategy(
            "fsdp", "fully_shard (FSDP2): synchronous, weights, gradients and the optimizer's state are divided over "
            "the processes, and a layer's weights are gathered when it computes (ZeRO stage 3)",
            synchronous=True, consistency="bsp", listens=("worker",), exchange="gather-and-scatter",
            shards=_EVERYTHING,
            options={"mesh": None},
            implementation=Implementation(
                own=(BATCHES, FUSED_OPTIMIZER, PROCESS), framework=(AUTOGRAD, _FULLY_SHARD),
                stock=(AUTOGRAD, _FULLY_SHARD, STOCK_OPTIMIZER), kept=(BATCHES,),
            ),
        ),
        Strategy(
            "local-sgd", "every process steps by its own gradients, and the weights of all are averaged every "
            "--sync-every steps",
            synchronous=True, consistency="periodic", listens=("worker",), exchange="periodic", exact=False,
            options={"sync_every": 8}, not_raced=_OTHER_RESULT,
            implementation=Implementation(
                own=(BATCHES, FUSED_OPTIMIZER, PROCESS), framework=(AUTOGRAD, _AVERAGE),
                stock=(AUTOGRAD, _AVERAGE, STOCK_OPTIMIZER), kept=(BATCHES,),
            ),
        ),
        Strategy(
            "diloco", "DiLoCo: every process trains by itself, by default with adamw; every --sync-every steps, the "
            "mean of their changes is one step of an outer SGD (rate 0.7, Nesterov momentum 0.9)",
            synchronous=True, consistency="periodic", listens=("worker",), exchange="periodic", exact=False,
            options={"sync_every": 50}, optimizer="adamw", needs_control=True, not_raced=_OTHER_RESULT,
            implementation=Implementation(
                own=(BATCHES, FUSED_OPTIMIZER, PROCESS, _ROUNDS), framework=(AUTOGRAD, _AVERAGE, _OUTER),
                stock=(AUTOGRAD, _AVERAGE, _OUTER, STOCK_OPTIMIZER), kept=(BATCHES, _ROUNDS),
            ),
        ),
        Strategy(
            "pipeline", "pipeline parallelism (torch.distributed.pipelining): each process has some of the layers, and "
            "micro-batches pass through all of them",
            synchronous=True, consistency="bsp", listens=("worker",), divides_batch=False, not_raced=_DIVIDES_MODEL,
            options={"pipeline_schedule": "1f1b", "micro_batches": None}, shards=("layers", *_EVERYTHING),
            dtypes=("float32", "float64"),  # micro-batches pass as the layers return them, without autocast
            not_tasks={"language-model": "the layers of a language model do not follow one another in one chain"},
            implementation=Implementation(
                own=(BATCHES, FUSED_OPTIMIZER, PROCESS, _CUT), framework=(AUTOGRAD, _PIPELINE),
                stock=(AUTOGRAD, _PIPELINE, STOCK_OPTIMIZER), kept=(BATCHES, _CUT),
            ),
        ),
        Strategy(
            "tensor", "tensor parallelism (parallelize_module): each process has a part of every dense layer, divided "
            "by columns and then by rows, of attention its heads and of an LSTM its units",
            synchronous=True, consistency="bsp", listens=("worker",), divides_batch=False, not_raced=_DIVIDES_MODEL,
            options={"mesh": None}, shards=_EVERYTHING,
            implementation=Implementation(
                own=(BATCHES, FUSED_OPTIMIZER, PROCESS, _PLAN), framework=(AUTOGRAD, _TENSOR),
                stock=(AUTOGRAD, _TENSOR, STOCK_OPTIMIZER), kept=(BATCHES, _PLAN),
            ),
        ),
    ),
    worker="velodrome.engines.torch.worker",
    memory_bytes=300 * 2**20,
    needs=(Need("torch", 'pip install "velodrome[torch]"'),),
    environment=_environment,
    packages=("torch",),
)


def wrapped_strategies(parts: str, library: str) -> tuple[Strategy, ...]:
    """`single` and `ddp` of a library that wraps models and optimizers of PyTorch by these parts of it."""
    wrapped = (AUTOGRAD, parts, STOCK_OPTIMIZER)
    beside = f"it is torch/ddp inside {library}: name it to race it"
    return (
        Strategy(
            "single", f"one process, model and optimizer wrapped by {library}",
            synchronous=True, consistency="none", max_workers=1, exchange="none", not_raced=beside,
            implementation=Implementation(own=(BATCHES, PROCESS), framework=wrapped, stock=wrapped, kept=(BATCHES,)),
        ),
        Strategy(
            "ddp", f"synchronous: {library} puts the model into DistributedDataParallel, with its defaults",
            synchronous=True, consistency="bsp", listens=("worker",), exchange="all-reduce", not_raced=beside,
            implementation=Implementation(
                own=(BATCHES, PROCESS), framework=(*wrapped, _STOCK_DDP), stock=(*wrapped, _STOCK_DDP),
                kept=(BATCHES,),
            ),
        ),
    )
