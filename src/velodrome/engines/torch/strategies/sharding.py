"""What strategies share that divide tensors over the processes: which modules to divide, pieces put together again,
optimizer, norm, evaluation and state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from velodrome.catalog.engines.torch import Mesh
from velodrome.engines.torch.calling import WatchedCalls, tensors_in, untouched
from velodrome.engines.torch.fused_optimizer import FusedOptimizer, make_optimizer
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.model_file import from_arrays, to_arrays
from velodrome.engines.torch.optimizer import Gradients, Optimizer, squared_norm
from velodrome.engines.torch.process_group import Grid, grid_of, translate_errors_of_collectives
from velodrome.tasks.base import Counts
from velodrome.training.learner import Part, State

#: For every parameter, the modules inside of whose calls alone it is used.
Covers = Mapping[nn.Parameter, set[nn.Module]]
#: A module with at least this many numbers of its own is gathered and freed by itself; smaller ones together with what
#: is around them, because each of these costs two messages per step.
UNIT_NUMBERS = 1 << 20
#: Modules that are never called, and so cannot be gathered when they are.
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def units_of(root: nn.Module, covers: Covers | None = None) -> list[nn.Module]:
    """The modules below `root` whose weights are gathered and freed by themselves, inner ones first.

    With `covers`, only modules inside of whose calls their weights are used. Without, PyTorch's own layers are not
    looked into, because some use the weights of their parts without calling them, and embeddings are left out, because
    some models use their weights a second time. A module that shares weights with another one is not among them.
    """
    owners: dict[nn.Parameter, list[nn.Module]] = {}
    for module in root.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(parameter, []).append(module)
    taken: set[nn.Parameter] = set()
    units: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        if not _is_torch_layer(module):
            for child in module.children():
                visit(child)
        if module is root or isinstance(module, _CONTAINERS) or (covers is None and isinstance(module, nn.Embedding)):
            return
        own, inside = {*module.parameters()} - taken, {*module.modules()}
        shared = any(owner not in inside for parameter in own for owner in owners[parameter])
        covered = covers is None or all(module in covers[parameter] for parameter in own if parameter in covers)
        numbers = sum(parameter.numel() for parameter in own)
        if covered and not shared and module not in units and numbers >= UNIT_NUMBERS:
            taken.update(own)
            units.append(module)

    visit(root)
    return units


def _is_torch_layer(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.") and not isinstance(module, (nn.Sequential, *_CONTAINERS))


class _Uses(WatchedCalls):
    """Around a forward pass: for every parameter, the modules in whose calls it was used each time."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.covers: dict[nn.Parameter, set[nn.Module]] = {}
        self._active: list[nn.Module] = []
        self._known = {*model.parameters()}
        for module in model.modules():
            module.register_forward_pre_hook(lambda module, _: self._active.append(module))
            module.register_forward_hook(lambda *_: self._active.pop() and None, always_call=True)

    def _see(self, function: Any, args: Sequence[Any], named: Mapping[str, Any], result: Any) -> None:
        for each in tensors_in([*args, *named.values()]):
            if isinstance(each, nn.Parameter) and each in self._known:
                self.covers[each] = self.covers.get(each, {*self._active}) & {*self._active}


def covers_of(model: nn.Module, call: Callable[[nn.Module], object]) -> Covers | None:
    """For every parameter that a call uses, the modules inside of whose calls alone it is used; `call` calls a copy of
    the model as training does. None if it cannot be tried."""
    try:
        with untouched(model) as tried, torch.no_grad():
            if tried is model:
                return None
            with _Uses(tried.train()) as uses:
                call(tried)
            named, modules = dict(tried.named_parameters()), dict(tried.named_modules())
            names = {module: name for name, module in modules.items()}
            ours, of_us = dict(model.named_parameters()), dict(model.named_modules())
            return {ours[name]: {of_us[names[module]] for module in uses.covers[parameter] if module in names}
                    for name, parameter in named.items() if parameter in uses.covers}
    except Exception:
        return None


def shard(root: nn.Module, units: Iterable[nn.Module], mesh: DeviceMesh, *, may_skip: bool) -> list[FSDPModule]:
    """Divide the parameters of a module, and of units below it, over the processes of a mesh by `fully_shard`;
    gradients are summed. With `may_skip`, a step may leave parameters without a gradient."""
    for parameter in root.parameters():
        parameter.data = parameter.data.contiguous()  # channels-last weights cannot be divided
    for unit in units:
        fully_shard(unit, mesh=mesh)
    fully_shard(root, mesh=mesh)
    sharded = [module for module in root.modules() if isinstance(module, FSDPModule)]
    for each in sharded:
        each.set_force_sum_reduction_for_comms(True)  # gloo has no mean
        each.set_gradient_divide_factor(1.0)
        each.set_reduce_scatter_unused_params(may_skip, recurse=False)
    return sharded


def is_divided(tensor: torch.Tensor) -> bool:
    """Whether processes have different parts of a tensor."""
    return isinstance(tensor, DTensor) and any(each.is_shard() for each in tensor.placements)


@torch.no_grad()
def local(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """The part of a tensor that this process has, in the memory of the tensor itself; divided as `like`, if that is
    given and divided otherwise."""
    if isinstance(tensor, DTensor):
        if isinstance(like, DTensor) and like.placements != tensor.placements:
            tensor = tensor.redistribute(placements=like.placements)
        # Only the part is detached: a DTensor would be made anew, for each gradient of every step.
        tensor = tensor.to_local()
    return tensor.detach()


def pieced(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The tensor, divided as `like`, of which this process has this part."""
    if not isinstance(like, DTensor):
        return part
    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


@torch.no_grad()
def whole(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """All of a tensor, on the host; called in every process. A part that is no DTensor itself, but has the shape of
    this process's part of `like`, is divided as that."""
    if like is not None and not isinstance(tensor, DTensor) and tensor.shape == local(like).shape:
        tensor = pieced(tensor, like)
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
    return full.cpu().contiguous()


def distribute(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor that every process has, divided as `like`."""
    if not isinstance(like, DTensor):
        return value.to(like.device)
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def place(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copy a whole tensor that every process has into one that may be divided."""
    local(target).copy_(local(distribute(value, target)))


class DividedLearner(TorchLearner):
    """Parameters are DTensors, of which this process has a part; or plain tensors, which all have."""

    #: Parameters whose rows are in another order than the model's, with that order.
    _orders: dict[torch.Tensor, torch.Tensor] = {}  # noqa: RUF012 (replaced, never changed)

    #: Of how many groups, each of which has the whole model, this process is in one.
    _groups = 1

    def _enter_mesh(self) -> Grid | None:
        """The job's mesh, if it has one; called in every process."""
        mesh = Mesh.of(self._context.job)
        if mesh is None:
            return None
        self._groups = mesh.groups
        return grid_of(mesh, self._device.type)

    def _divided_optimizer(self) -> Optimizer:
        """The optimizer of the parameters as they are divided now."""
        self._trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        job = self._context.job
        if job.implementation == "stock" or job.has_own_optimizer:
            return make_optimizer(job, self._trained)
        return FusedOptimizer(job, [local(parameter) for parameter in self._trained])

    def _release(self) -> None:
        """Free what a forward pass keeps for a backward pass: called where none follows."""

    # -- training

    def train(self, first: int, last: int) -> Counts:
        with translate_errors_of_collectives():
            return super().train(first, last)

    def _backward(self, loss: torch.Tensor) -> None:
        with self._context.waiting():  # most of the pass computes, but where it blocks it waits for others
            super()._backward(loss)

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        assert loss is not None, "every process has examples"
        gradients = self._local_gradients(loss)
        if isinstance(self._optimizer, FusedOptimizer):
            return [None if gradient is None else local(gradient, like)
                    for gradient, like in zip(gradients, self._trained, strict=True)]
        return gradients

    def _norm(self, gradients: Gradients) -> float:
        """Parts of all processes count, and what each of them has once."""
        parts: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        for gradient, like in zip(gradients, self._trained, strict=True):
            if gradient is not None:
                (parts if is_divided(like) else others).append(local(gradient, like))
        (squares,) = self.sum_vector(np.array([squared_norm(parts)]))
        return float(squares / self._groups + squared_norm(others)) ** 0.5

    def evaluate(self, part: Part) -> Counts:
        with translate_errors_of_collectives():
            counts = super().evaluate(part)
        self._release()
        return counts

    # -- state

    def collect_model(self) -> None:
        self._release()
        for parameter in self._trained:
            parameter.grad = None  # the whole model needs the memory in rank 0
        with self._averaged():
            self._collected = self._put_together(dict(self._model.state_dict()), self._named)

    def collect_state(self) -> None:
        self._release()
        model = self._put_together(dict(self._model.state_dict()), self._named)
        optimizer = self._put_together(self._optimizer.state(), self._like)
        self._state = {**to_arrays("model.", model), **to_arrays("optimizer.", optimizer)}

    def _like(self, name: str) -> torch.Tensor | None:
        """The parameter that a part of the optimizer's state is divided like; None for what every process has."""
        kept, _, index = name.rpartition(".")
        return self._trained[int(index)] if kept and index.isdigit() else None

    def _named(self, name: str) -> torch.Tensor | None:
        """The parameter of the model with this name; None for a buffer."""
        return dict(self._model.named_parameters(remove_duplicate=False)).get(name)

    def _put_together(
        self, tensors: dict[str, Any], like: Callable[[str], torch.Tensor | None]
    ) -> dict[str, torch.Tensor]:
        """Whole tensors by name, in rank 0; nothing in the others, which take part. `like` finds the parameter that one
        is of."""
        collected = {}
        with translate_errors_of_collectives():
            for name, value in tensors.items():
                if isinstance(value, torch.Tensor):
                    parameter = like(name)
                    full = whole(value, parameter)
                    if self._transport.rank == 0:
                        full = full.clone() if full.data_ptr() == local(value).data_ptr() else full
                        collected[name] = self._ordered(full, parameter, back=True)
        return collected

    def _ordered(self, value: torch.Tensor, parameter: torch.Tensor | None, *, back: bool = False) -> torch.Tensor:
        """A whole tensor in the order that this strategy has its rows in, or `back` in the model's."""
        order = None if parameter is None or value.shape != parameter.shape else self._orders.get(parameter)
        return value if order is None else value[torch.argsort(order) if back else order]

    def load(self, state: State) -> None:
        self._release()
        for name, target in self._model.state_dict().items():
            if (key := f"model.{name}") in state:  # one at a time, which takes less memory
                place(target, self._ordered(torch.from_numpy(np.array(state[key])), self._named(name)))
        optimizer = from_arrays("optimizer.", state)
        self._optimizer.load({name: self._piece(name, value) for name, value in optimizer.items()})
        self._epochs = int(state["epochs"])

    def _piece(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """What this process has of a part of the optimizer's state."""
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        like = self._trained[numbers[0]] if numbers and not name.startswith("group.") else None
        if like is None or value.shape != like.shape:
            return value
        divided = distribute(self._ordered(value, like), like)
        return local(divided) if isinstance(self._optimizer, FusedOptimizer) else divided
