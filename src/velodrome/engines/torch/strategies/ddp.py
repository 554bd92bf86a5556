"""`ddp`: DistributedDataParallel of PyTorch over gloo (CPU) or NCCL (GPU), compressed if asked, in the wrappers of
other libraries, and with an optimizer that ZeroRedundancyOptimizer divides (`zero1`)."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from velodrome.catalog.engines.torch import COMPRESS, Compression
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.optimizer import Gradients, LibraryOptimizer, Optimizer, copy_by_name, torch_optimizer
from velodrome.engines.torch.process_group import ProcessGroup, translate_errors_of_collectives, translate_peer_errors
from velodrome.tasks.base import Counts
from velodrome.training.context import Context, Status

#: Where the code of DistributedDataParallel lies.
DDP_FILE = Path(DistributedDataParallel.forward.__code__.co_filename)


class Participant(nn.Module):
    """What DistributedDataParallel wraps: the model and, called without inputs, a pass that adds nothing to gradients.

    A process without examples takes part in a step by that pass. With `find_unused`, the model may leave parameters
    without a gradient, and DistributedDataParallel looks for them in every step and logs a warning where it finds
    none. It finds `spare`, which only the pass without inputs uses; so no parameter of the model is used by that.
    """

    def __init__(self, model: nn.Module, *, find_unused: bool = False, flags: bool = False) -> None:
        super().__init__()
        self.model = model
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        like = self._trained[0].detach().flatten()[:1]
        self.spare = nn.Parameter(torch.zeros_like(like)) if find_unused else None
        #: One number for each parameter, whose gradient tells which of them any process has a gradient of.
        self.flags = nn.Parameter(like.new_zeros(len(self._trained))) if flags else None

    def forward(self, *inputs: Any) -> Any:
        return self.model(*inputs) if inputs else nothing_of(self._trained if self.spare is None else [self.spare])


def nothing_of(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """Zero, whose gradient by each of the parameters is zero."""
    return torch.stack([parameter.flatten()[:0].sum() for parameter in parameters]).sum()


def reached_from(loss: torch.Tensor) -> set[torch.Tensor]:
    """The parameters that a loss depends on: `backward` gives a gradient to these."""
    stack = [loss.grad_fn]
    seen, reached = {*stack}, set()
    while stack:
        node = stack.pop()
        if node is None:
            continue
        if (parameter := getattr(node, "variable", None)) is not None:
            reached.add(parameter)
        for after, _ in node.next_functions:
            if after not in seen:
                seen.add(after)
                stack.append(after)
    return reached


def mark_waiting(ddp: nn.Module, status: Status) -> None:
    """Mark the forward pass of a DistributedDataParallel in which processes may wait for one another."""

    def wait(*_: Any) -> None:
        status.waiting = True

    def go(*_: Any) -> None:
        status.waiting = False

    ddp.register_forward_pre_hook(wait)
    ddp.register_forward_hook(go)


class DdpLearner(TorchLearner):
    """Gradients are averaged by DistributedDataParallel while they are computed.

    A user's model may leave parameters without a gradient, in some steps or processes. By itself,
    DistributedDataParallel asks all processes for such parameters in every step, which costs a small model a sixth of
    its speed. Here they get a gradient of zero, and the gradient of `flags`, which travels with the others, tells which
    of them no process has used.
    """

    _transport: ProcessGroup
    _flags: nn.Parameter | None = None

    def _wrapped(self) -> nn.Module:
        self.loss_factor = float(self._transport.size)  # DDP divides by the number of processes
        # Newer versions have another name for broadcast_buffers.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers.*")
        may_skip, job = not self._network.from_zoo, self._context.job
        compress = COMPRESS.of(job)
        # A compressed gradient is no exact flag.
        find_unused = may_skip and (job.implementation == "stock" or compress is not None)
        options: dict[str, Any] = {
            "device_ids": [self._device.index] if self._device.type == "cuda" else None,
            "process_group": self._transport.group,
            # Not a default, but a user's model that leaves a parameter unused could not be trained otherwise.
            "find_unused_parameters": find_unused,
        }
        if job.implementation != "stock":
            options |= {"broadcast_buffers": False, "gradient_as_bucket_view": True}
        model = Participant(self._network.module, find_unused=find_unused, flags=may_skip and not find_unused)
        self._flags = model.flags
        if self._flags is not None:
            self._all = torch.ones_like(self._flags)
        wrapped = DistributedDataParallel(model, **options)
        if job.implementation == "stock":  # by default it broadcasts buffers in the forward pass
            mark_waiting(wrapped, self._context.status)
        if compress is not None:
            wrapped.register_comm_hook(*hook_of(compress, self._transport))
        return wrapped

    def _will_add(self, more: bool) -> None:
        # What `no_sync` does around a forward pass.
        self.forward.require_backward_grad_sync = not more

    def train(self, first: int, last: int) -> Counts:
        # The forward pass communicates before the second step, when it arranges gradients anew, and where it broadcasts
        # buffers.
        with translate_errors_of_collectives(DDP_FILE):
            return super().train(first, last)

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        status = self._context.status
        status.waiting = True  # most of the pass computes, but where it blocks it waits for others
        with translate_peer_errors():
            # A parameter that no process has a gradient of is left without one.
            if self._flags is None:
                gradients = self._local_gradients(self.forward() if loss is None else loss)
            else:
                gradients = self._flagged_gradients(self._flags, loss)
        status.waiting = False
        return gradients

    def _flagged_gradients(self, flags: nn.Parameter, loss: torch.Tensor | None) -> Gradients:
        used = set() if loss is None else reached_from(loss)
        missing = [parameter for parameter in self._trained if parameter not in used]
        mine = self._all
        if missing:
            # Batches before this one may have left gradients that are to be added up.
            added = {parameter for parameter in missing if self._accumulate > 1 and parameter.grad is not None}
            mine = mine.new_tensor([float(parameter in used or parameter in added) for parameter in self._trained])
        if loss is None:
            loss = self.forward()
        elif missing:
            loss = loss + nothing_of(missing)
        flags.grad = None
        gradients = self._local_gradients(loss + torch.dot(flags, mine))
        assert flags.grad is not None
        present = flags.grad.tolist()
        return [gradient if there else None for gradient, there in zip(gradients, present, strict=True)]


#: Steps with whole gradients before PowerSGD begins: DistributedDataParallel arranges its buckets anew in the second,
#: and PyTorch's default of 1,000 would be longer than many jobs. A resumed run begins with them again.
POWERSGD_AFTER = 10


def hook_of(compress: str, transport: ProcessGroup) -> tuple[Any, Callable[..., Any]]:
    """What `register_comm_hook` takes: the hook's state and the hook."""
    chosen = Compression.parse(compress)
    group = transport.group or distributed.group.WORLD
    if chosen.kind == "powersgd":
        state = PowerSGDState(group, matrix_approximation_rank=chosen.rank, start_powerSGD_iter=POWERSGD_AFTER)
        return state, powerSGD_hook
    return group, default_hooks.fp16_compress_hook if chosen.kind == "fp16" else _bf16


def _bf16(group, bucket):  # type: ignore[no-untyped-def]  # PyTorch compares annotations, and takes none at all
    """PyTorch's own hook by another name: by its own it is refused on CPUs, where gloo sums bfloat16 nevertheless."""
    return default_hooks.bf16_compress_hook(group, bucket)


class PreparedDdpLearner(DdpLearner):
    """DistributedDataParallel that another library puts around the model."""

    @abstractmethod
    def _prepared(self, model: nn.Module) -> nn.Module:
        """The model as the library wraps it."""

    def _wrapped(self) -> nn.Module:
        self.loss_factor = float(self._transport.size)  # DistributedDataParallel divides by the number of processes
        prepared = self._prepared(Participant(self._network.module, find_unused=not self._network.from_zoo))
        (self._ddp,) = [module for module in prepared.modules() if isinstance(module, DistributedDataParallel)]
        mark_waiting(self._ddp, self._context.status)
        return prepared

    def _will_add(self, more: bool) -> None:
        # What `no_sync` does around a forward pass.
        self._ddp.require_backward_grad_sync = not more


class ZeroOptimizer(LibraryOptimizer):
    """Each process steps the parameters that are its own, keeps state of no others, and sends them to all."""

    def __init__(self, context: Context, parameters: list[torch.nn.Parameter], transport: ProcessGroup) -> None:
        kind, settings = torch_optimizer(context.job)
        super().__init__(context.job, parameters, ZeroRedundancyOptimizer(
            parameters, optimizer_class=kind, process_group=transport.group, **settings
        ))
        self._context = context

    def _step(self, gradients: Gradients) -> None:
        with self._context.waiting(), translate_peer_errors():
            super()._step(gradients)

    def collect(self) -> None:
        """Bring the state of all parameters to rank 0; called in every process, before `state` there."""
        with translate_peer_errors():
            self._optimizer.consolidate_state_dict(to=0)

    def _own_state(self) -> dict[str, torch.Tensor]:
        held = self._optimizer.state_dict()["state"]
        return {
            f"{name}.{index}": value
            for index, kept in held.items() for name, value in kept.items() if isinstance(value, torch.Tensor)
        }

    def load(self, state: dict[str, torch.Tensor]) -> None:
        held: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in state.items():
            kept, _, index = name.rpartition(".")
            if kept and kept != "ema" and index.isdigit():
                held.setdefault(int(index), {})[kept] = value
        groups: list[dict[str, Any]] = [
            {**group, "params": list(range(len(self._parameters)))} for group in self._optimizer.param_groups
        ]
        self._optimizer.load_state_dict({"state": held, "param_groups": groups})
        copy_by_name(self.average_state(), state)


class Zero1Learner(DdpLearner):
    """Gradients are averaged as under `ddp`; the optimizer is divided."""

    def _make_optimizer(self) -> Optimizer:
        self._divided = ZeroOptimizer(self._context, self._trained, self._transport)
        return self._divided

    def collect_state(self) -> None:
        self._divided.collect()
