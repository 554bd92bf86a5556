"""PyTorch and the libraries around it (Hugging Face Accelerate, Lightning Fabric, DeepSpeed): what they offer.

Imports no framework; the training sides are `velodrome/engines/torch` and `engines/accelerate.py`, `fabric.py` and
`deepspeed.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from velodrome.catalog.base import MPI_NEEDS, Engine, Implementation, Need, Strategy, single
from velodrome.catalog.exchange import ASP, BSP, DSSP, NONE, PERIODIC, SSP, Exchange
from velodrome.catalog.options import Option, Positive, Request, parsed_by
from velodrome.catalog.world import World, torchrun
from velodrome.errors import BadRequest


class Compression(NamedTuple):
    """How gradients are compressed."""

    kind: Literal["fp16", "bf16", "powersgd"]
    #: Of the matrices that PowerSGD sends in place of a gradient.
    rank: int = 0

    @classmethod
    def parse(cls, text: str) -> Compression:
        """From `fp16`, `bf16` or `powersgd:RANK`."""
        kind, _, rank = text.partition(":")
        if text in ("fp16", "bf16"):
            return cls(text)  # type: ignore[arg-type]
        if kind == "powersgd" and rank.isascii() and rank.isdigit() and int(rank) > 0:
            return cls("powersgd", int(rank))
        raise ValueError(f"{text!r} is not a compression: choose fp16, bf16, or powersgd:RANK as powersgd:4")


class Mesh(NamedTuple):
    """Workers in groups: the groups divide a batch, and the workers of each group a model."""

    groups: int
    #: The strategy that divides the model, and among how many workers.
    strategy: str
    members: int

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """From `data=2,tensor=2`."""
        match = re.fullmatch(r"\s*data=(\d+)\s*,\s*([a-z][a-z0-9-]*)=(\d+)\s*", text)
        if match is None or not int(match[1]) or not int(match[3]):
            raise ValueError(f"{text!r} is not a mesh: write one such as data=2,tensor=2")
        return cls(int(match[1]), match[2], int(match[3]))

    @classmethod
    def of(cls, job: Request) -> Mesh | None:
        """The mesh of a job, None if all of its workers are one group."""
        text = MESH.of(job)
        return None if text is None else cls.parse(text)


SYNC_EVERY = Option[int | None](
    "sync_every", Positive | None, None, "for local-sgd and diloco: steps after which the workers combine their "
    "weights; by default 8 for local-sgd and 50 for diloco", after="framework",
)
COMPRESS = Option[str | None](
    "compress", parsed_by(Compression.parse) | None, None, "for ddp: how gradients are compressed before they are "
    "summed: fp16, bf16, or powersgd:RANK for matrices of that rank; by default they are not",
    after=SYNC_EVERY.name, exact=False,
)
MICRO_BATCHES = Option[int | None](
    "micro_batches", Positive | None, None, "for pipeline: parts of a batch that pass through the stages one after "
    "another; by default two for each worker, and at least 4", after=COMPRESS.name,
)
PIPELINE_SCHEDULE = Option[str | None](
    "pipeline_schedule", Literal["gpipe", "1f1b"] | None, None, "for pipeline: all forward passes before all backward "
    "passes (gpipe), or one backward pass after each forward pass as soon as possible, which keeps fewer activations "
    "(1f1b); by default 1f1b; --schedule takes these two names as well", after=MICRO_BATCHES.name, also="schedule",
)
MESH = Option[str | None](
    "mesh", parsed_by(Mesh.parse) | None, None,
    "for fsdp and tensor: several groups of workers, such as data=2,tensor=2: two groups divide the batch, and the "
    "two workers of each group divide the model; by default one group",
    after=PIPELINE_SCHEDULE.name,
)


def _micro_batches(job: Request) -> Mapping[str, Any]:
    """The number of micro-batches, by default two for each worker."""
    count = MICRO_BATCHES.of(job) or min(job.batch_size, max(4, 2 * job.workers))
    if count > job.batch_size:
        raise BadRequest(f"--micro-batches {count}: a batch of {job.batch_size} has fewer examples; choose fewer")
    if PIPELINE_SCHEDULE.of(job) == "1f1b" and count < job.workers:
        raise BadRequest(f"--micro-batches {count}: --pipeline-schedule 1f1b needs one for each of the {job.workers} "
                         "workers at least; choose more, or --pipeline-schedule gpipe")
    return {MICRO_BATCHES.name: count}


def _checked_mesh(job: Request) -> Mapping[str, Any]:
    mesh = Mesh.of(job)
    if mesh is None:
        return {}
    if mesh.strategy != job.strategy:
        right = f"data={mesh.groups},{job.strategy}={mesh.members}"
        raise BadRequest(f"--mesh {MESH.of(job)!r}: the strategy is {job.strategy}; write {right}")
    if mesh.groups * mesh.members != job.workers:
        raise BadRequest(f"--mesh {MESH.of(job)!r} has {mesh.groups * mesh.members} workers; use --workers "
                         f"{mesh.groups * mesh.members}, and not {job.workers}")
    return {}


def _served(job: Request) -> Mapping[str, Any]:
    if job.keep_going:
        raise BadRequest("--keep-going: the servers of torch/parameter-server wait for all of their workers; leave it "
                         "out, or choose tensorflow/parameter-server")
    return {}


def _compressed(job: Request) -> Mapping[str, Any] | None:
    text = COMPRESS.of(job)
    if text is None:
        return {}
    if Compression.parse(text).kind == "powersgd":
        return None
    return {"compressed": 2 / (8 if job.dtype == "float64" else 4)}


def _every_few_steps(job: Request) -> Mapping[str, Any]:
    return {"every": SYNC_EVERY.of(job) or 1}


def _groups(job: Request) -> int:
    mesh = Mesh.of(job)
    return 1 if mesh is None else mesh.groups


def _environment(strategy: Strategy, world: World) -> Mapping[str, str]:
    return {} if strategy.name == "single" else {**torchrun(world), "VELODROME_HOSTS": ",".join(world.hosts)}


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
_OTHER_RESULT = ("they synchronize only every few steps, and so end with other weights than one process: name them "
                 "to race them")
_DIVIDES_MODEL = "they divide the model, which needs suitable layers: name them to race them"
_EVERYTHING = ("weights", "gradients", "optimizer state")
_PIPELINE = "PipelineStage and Schedule1F1B or ScheduleGPipe over gloo or NCCL"
_CUT = "stages cut by measured time"
_TENSOR = "ColwiseParallel and RowwiseParallel over gloo or NCCL"
_PLAN = "a plan derived from the layers, LSTMs divided by units"
_ZERO = "ZeroRedundancyOptimizer over torch.optim"
_SERVERS = "servers that sum and apply flat gradients, and answer when the consistency model allows the next step"
_BY_SERVERS = "servers take cores from the workers on one machine: name it to race it"


def _parts(*framework: str, own: tuple[str, ...] = (), stock: tuple[str, ...] | None = None) -> Implementation:
    """The parts of a strategy beside those of most; its stock form has PyTorch's own optimizer, and the same parts of
    PyTorch unless it has others."""
    return Implementation(
        own=(BATCHES, FUSED_OPTIMIZER, PROCESS, *own), framework=(AUTOGRAD, *framework),
        stock=(AUTOGRAD, *(framework if stock is None else stock), STOCK_OPTIMIZER), kept=(BATCHES, *own),
    )


ENGINE = Engine(
    name="torch",
    description="PyTorch",
    strategies=(
        single(_parts()),
        Strategy(
            "ddp", "DistributedDataParallel: synchronous, gradients averaged while they are computed "
            "(gloo on CPU, nccl on GPU)",
            listens=("worker",), exchange="all-reduce", options={COMPRESS: None},
            exchanged=_compressed,
            implementation=_parts(_DDP, stock=(_STOCK_DDP,)),
        ),
        Strategy(
            "allreduce", "synchronous, one flat gradient buffer summed by MPI: the fast path on CPU clusters",
            needs=MPI_NEEDS, listens=("worker",), exchange="all-reduce-in-memory",
            implementation=Implementation(
                own=(BATCHES, FUSED_OPTIMIZER, PROCESS, _REDUCTION),
                framework=(AUTOGRAD,),
                stock=(AUTOGRAD, STOCK_OPTIMIZER), kept=(BATCHES, "one flat gradient summed by MPI_Allreduce"),
            ),
        ),
        Strategy(
            "zero1", "DistributedDataParallel with ZeroRedundancyOptimizer: synchronous, each process keeps the "
            "optimizer's state of a part of the weights only (ZeRO stage 1)",
            listens=("worker",), exchange="all-reduce-and-broadcast",
            shards=("optimizer state",),
            no_own_optimizer="creates the optimizer itself; choose ddp or fsdp",
            implementation=Implementation(
                own=(BATCHES, PROCESS), framework=(AUTOGRAD, _DDP, _ZERO),
                stock=(AUTOGRAD, _STOCK_DDP, _ZERO), kept=(BATCHES,),
            ),
        ),
        Strategy(
            "fsdp", "fully_shard (FSDP2): synchronous, weights, gradients and the optimizer's state are divided over "
            "the processes, and a layer's weights are gathered when it computes (ZeRO stage 3)",
            listens=("worker",), exchange="gather-and-scatter",
            shards=_EVERYTHING, options={MESH: None}, complete=_checked_mesh, groups=_groups,
            implementation=_parts(_FULLY_SHARD),
        ),
        Strategy(
            "local-sgd", "every process steps by its own gradients, and the weights of all are averaged every "
            "--sync-every steps",
            consistency=PERIODIC, listens=("worker",), exchange="periodic", exact=False,
            options={SYNC_EVERY: 8}, exchanged=_every_few_steps, not_raced=_OTHER_RESULT,
            implementation=_parts(_AVERAGE),
        ),
        Strategy(
            "diloco", "DiLoCo: every process trains by itself, by default with adamw; every --sync-every steps, the "
            "mean of their changes is one step of an outer SGD (rate 0.7, Nesterov momentum 0.9)",
            consistency=PERIODIC, listens=("worker",), exchange="periodic", exact=False,
            options={SYNC_EVERY: 50}, exchanged=_every_few_steps, optimizer="adamw", needs_control=True,
            not_raced=_OTHER_RESULT,
            implementation=_parts(_AVERAGE, _OUTER, own=(_ROUNDS,)),
        ),
        Strategy(
            "parameter-server", "servers hold weights and optimizer state, workers push gradients: in lock step (bsp), "
            "each by itself (asp), or at most some steps ahead of the slowest (ssp, dssp)",
            consistencies=(BSP, ASP, SSP, DSSP), roles=("server", "worker"), listens=("server", "worker"),
            exchange="servers", shards=("weights", "optimizer state"), complete=_served, not_raced=_BY_SERVERS,
            no_own_optimizer="has its servers step slices of the weights; choose ddp or fsdp",
            implementation=Implementation(
                own=(BATCHES, FUSED_OPTIMIZER, PROCESS, _SERVERS), framework=(AUTOGRAD,),
            ),
        ),
        Strategy(
            "pipeline", "pipeline parallelism (torch.distributed.pipelining): each process has some of the layers, and "
            "micro-batches pass through all of them",
            listens=("worker",), divides_batch=False, not_raced=_DIVIDES_MODEL,
            options={PIPELINE_SCHEDULE: "1f1b", MICRO_BATCHES: None}, complete=_micro_batches,
            shards=("layers", *_EVERYTHING),
            dtypes=("float32", "float64"),  # micro-batches pass as the layers return them, without autocast
            not_tasks={"language-model": "the layers of a language model do not follow one another in one chain"},
            implementation=_parts(_PIPELINE, own=(_CUT,)),
        ),
        Strategy(
            "tensor", "tensor parallelism (parallelize_module): each process has a part of every dense layer, divided "
            "by columns and then by rows, of attention its heads and of an LSTM its units",
            listens=("worker",), divides_batch=False, not_raced=_DIVIDES_MODEL,
            options={MESH: None}, complete=_checked_mesh, groups=_groups, shards=_EVERYTHING,
            implementation=_parts(_TENSOR, own=(_PLAN,)),
        ),
    ),
    worker="velodrome.engines.torch.worker",
    tasks=("arrays", "language-model"),
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
            consistency=NONE, max_workers=1, exchange="none", not_raced=beside,
            implementation=Implementation(own=(BATCHES, PROCESS), framework=wrapped, stock=wrapped, kept=(BATCHES,)),
        ),
        Strategy(
            "ddp", f"synchronous: {library} puts the model into DistributedDataParallel, with its defaults",
            listens=("worker",), exchange="all-reduce", not_raced=beside,
            implementation=Implementation(
                own=(BATCHES, PROCESS), framework=(*wrapped, _STOCK_DDP), stock=(*wrapped, _STOCK_DDP),
                kept=(BATCHES,),
            ),
        ),
    )


def _around_torch(
    name: str, library: str, package: str, megabytes: int, strategies: tuple[Strategy, ...], **own: Any
) -> Engine:
    """An engine that trains with PyTorch, in a library of this package around it."""
    return Engine(
        name=name, description=f"{library} around PyTorch", strategies=strategies, worker=f"velodrome.engines.{name}",
        memory_bytes=megabytes * 2**20,
        needs=(Need(package.replace("-", "_"), f'pip install "velodrome[{name}]"'),),
        environment=ENGINE.environment, packages=(package, "torch"), tasks=ENGINE.tasks, tasks_of="torch", **own,
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
        no_own_optimizer="updates flattened parts of the weights, which your own optimizer may not support; choose "
                         "torch/fsdp",
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
