"""PyTorch's own way of every strategy, written by hand: data in memory as bytes, a fused optimizer, and the parts that
PyTorch's documentation shows. `allreduce`, which is Velodrome's own, is compared with DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable

from torch_batches import batches, start

task, rank = start()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from task import LEARNING_RATE, Clock, answer  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.model_averaging.utils import average_parameters  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: E402
from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # noqa: E402
from torch.distributed.tensor import Replicate  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch_model import build, loss_of  # noqa: E402

#: As Velodrome's defaults: steps between two averages of local-sgd and of diloco, diloco's outer optimizer, and the
#: micro-batches of a pipeline of two.
LOCAL, ROUND, MICRO_BATCHES, OUTER = 8, 50, 4, {"lr": 0.7, "momentum": 0.9, "nesterov": True}

if task.workers > 1:
    dist.init_process_group("gloo")
#: Where the model is divided, all processes compute the whole batch.
divides_model = task.strategy in ("pipeline", "tensor")
batch, seed = task.batch * (task.workers if divides_model else 1), 1 if divides_model else 1 + rank
model = build(task.model)
if task.model != "dense-300-100":
    model = model.to(memory_format=torch.channels_last)


def adam(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)


def stepping(module: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """One step of a module that computes the loss of a batch by itself."""
    take = batches(task, batch, seed)

    def step() -> None:
        inputs, targets = take()
        optimizer.zero_grad()
        loss_of(module(inputs), targets).backward()
        optimizer.step()

    return step


def averaging(every: int) -> Callable[[], None]:
    local, made, parameters = stepping(model, adam(model.parameters())), [0], list(model.parameters())
    outer = [parameter.detach().clone().requires_grad_() for parameter in parameters]
    outer_optimizer = torch.optim.SGD(outer, **OUTER)

    @torch.no_grad()
    def combine() -> None:
        if task.strategy == "local-sgd":
            average_parameters(iter(parameters), dist.group.WORLD)
            return
        changes = [before - now for before, now in zip(outer, parameters, strict=True)]
        average_parameters(iter(changes), dist.group.WORLD)
        for before, change in zip(outer, changes, strict=True):
            before.grad = change
        outer_optimizer.step()
        for before, now in zip(outer, parameters, strict=True):
            now.copy_(before)

    def step() -> None:
        local()
        made[0] += 1
        if made[0] % every == 0:
            combine()

    return step


def piped() -> Callable[[], None]:
    """Two stages, cut behind the first dense layer, which has nearly all of the work."""
    layers = list(model.children())
    mine = nn.Sequential(*(layers[:3] if rank == 0 else layers[3:]))
    stage = PipelineStage(mine, rank, task.workers, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=MICRO_BATCHES, loss_fn=loss_of)
    optimizer, take = adam(mine.parameters()), batches(task, batch, seed)

    def step() -> None:
        inputs, targets = take()
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=[])
        optimizer.step()

    return step


def tensor_parallel() -> Callable[[], None]:
    mesh = init_device_mesh("cpu", (task.workers,))
    parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel(),
                                     "5": ColwiseParallel(output_layouts=Replicate())})  # fmt: skip
    return stepping(model, adam(model.parameters()))


def chosen() -> Callable[[], None]:
    match task.strategy:
        case "single":
            return stepping(model, adam(model.parameters()))
        case "ddp" | "allreduce":
            return stepping(DistributedDataParallel(model, gradient_as_bucket_view=True), adam(model.parameters()))
        case "zero1":
            divided = ZeroRedundancyOptimizer(
                model.parameters(), optimizer_class=torch.optim.Adam, lr=LEARNING_RATE, fused=True
            )
            return stepping(DistributedDataParallel(model, gradient_as_bucket_view=True), divided)
        case "fsdp":
            fully_shard(model)
            return stepping(model, adam(model.parameters()))
        case "local-sgd":
            return averaging(LOCAL)
        case "diloco":
            return averaging(ROUND)
        case "pipeline":
            return piped()
        case "tensor":
            return tensor_parallel()
    raise SystemExit(f"no loop of strategy {task.strategy!r}")


train, clock = chosen(), Clock()
for number in range(task.steps):
    clock.before_step(number)
    train()
if rank == 0:
    answer(clock.rate(task))
