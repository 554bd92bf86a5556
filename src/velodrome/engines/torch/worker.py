"""PyTorch in a training process: chooses the device, connects to the other processes, builds the learner and trains."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module

import torch

from velodrome.catalog.world import World
from velodrome.engines.torch import tuning
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.tasks import task_of_job
from velodrome.training import loop
from velodrome.training.context import Context
from velodrome.transport.base import Alone, Transport

#: Joins the other processes, on GPUs or not: what sums counts between them, and the learner of the strategy.
Connect = Callable[[Context, bool], tuple[Transport, type[TorchLearner]]]


def train(context: Context, connect: Connect | None = None) -> None:
    """Train the job of the context to its end; `connect` is for engines that exchange gradients in another way."""
    with ExitStack() as stack:
        if context.job.implementation == "velodrome":
            tuning.keep_freed_memory()
            tuning.flush_denormals()
            stack.enter_context(tuning.sleeping_beside_other_programs(context.threads))
        torch.set_num_threads(context.threads)
        _train(context, connect or _connect)


def train_wrapped(context: Context, single: type[TorchLearner], ddp: type[TorchLearner]) -> None:
    """The same by learners of another library, which uses the process group that it finds."""

    def connect(context: Context, gpus: bool) -> tuple[Transport, type[TorchLearner]]:
        if context.job.strategy == "single":
            return Alone(), single
        from velodrome.engines.torch import process_group

        return process_group.connect(context, gpus=gpus, trains_in_default=True), ddp

    train(context, connect)


def _train(context: Context, connect: Connect) -> None:
    device = choose_device(context.world, torch.cuda.device_count())
    gpus = device.type == "cuda"
    if gpus:
        torch.cuda.set_device(device)

    def build(peers: tuple[Transport, type[TorchLearner]]) -> TorchLearner:
        transport, learner_class = peers
        return learner_class(context, task_of_job(context).network(device), transport, device)

    loop.train(context, partial(connect, context, gpus), build)


def choose_device(world: World, gpus: int) -> torch.device:
    """The GPU of this process's local rank if its host has one for each process, else the CPU."""
    return torch.device("cuda", world.me.local_rank) if gpus >= world.local_size else torch.device("cpu")


#: The modules of strategies that train in a process group of PyTorch, and their learners.
_IN_PROCESS_GROUP = {
    "ddp": ("ddp", "DdpLearner"), "zero1": ("ddp", "Zero1Learner"), "fsdp": ("fsdp", "FsdpLearner"),
    "tensor": ("tensor", "TensorLearner"), "pipeline": ("pipeline", "PipelineLearner"),
    "local-sgd": ("periodic", "LocalSgdLearner"), "diloco": ("periodic", "DilocoLearner"),
}


def _connect(context: Context, gpus: bool) -> tuple[Transport, type[TorchLearner]]:
    # Each strategy loads only what it needs: MPI may be missing where DDP runs.
    if context.job.strategy in _IN_PROCESS_GROUP:
        from velodrome.engines.torch.process_group import connect

        module, name = _IN_PROCESS_GROUP[context.job.strategy]
        learner_class: type[TorchLearner] = getattr(import_module(f"velodrome.engines.torch.strategies.{module}"), name)
        return connect(context, gpus=gpus), learner_class
    if context.job.strategy == "allreduce":
        from velodrome.engines.torch.strategies.allreduce import AllReduceLearner
        from velodrome.training.learner import connect_mpi

        return connect_mpi(context), AllReduceLearner
    return Alone(), TorchLearner
