"""What is seen of a model while it computes: whether workers are equivalent to one process, whether it scales its input
as bytes, which memory layout is faster, and what one training step takes, layer by layer.

In a step, one clock is passed from layer to layer: each interval belongs to the layer whose computation it follows, so
that the parts add up to the step. Forward passes are noticed by module hooks, backward passes by hooks on the gradients
of the outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import torch
from torch import nn

from velodrome.engines.torch.calling import WatchedCalls, generators_of, tensors_in, untouched
from velodrome.models.checks import (
    BATCH_NORMALISATION,
    RANDOM_NUMBERS,
    STATISTICS,
    Operation,
    is_for_bytes,
    of_process,
    read_states,
)
from velodrome.training.learner import Inspection

# -- forward passes on a copy of a user's model

#: The place of `training` among the arguments of `batch_norm`, of torch's and of torch.nn.functional's.
_TRAINING = 5


class _BatchStatistics(WatchedCalls):
    """Around a forward pass: whether a batch was normalised by its own statistics."""

    used = False

    def _see(self, function: Any, args: Sequence[Any], named: Mapping[str, Any], result: Any) -> None:
        if getattr(function, "__name__", "") == "batch_norm":
            self.used |= bool(named.get("training", args[_TRAINING] if len(args) > _TRAINING else False))


def differences_of(model: nn.Module, call: Callable[[nn.Module], object]) -> list[str]:
    """Why workers and one process differ; `call` calls a copy of the model as training does. Nothing where the model
    cannot be tried, which is reported elsewhere."""
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    try:
        with untouched(model) as tried, torch.no_grad(), _BatchStatistics() as normalised:
            generators = of_process() | generators_of(tried)
            drawn, buffers = read_states(generators), {name: each.clone() for name, each in tried.named_buffers()}
            call(tried.train())
            draws = read_states(generators) != drawn
            changed = [name for name, each in tried.named_buffers()
                       if name not in buffers or not torch.equal(each, buffers[name])]
    except Exception:
        return []
    # Batch and instance normalisation, by the buffers that both have.
    norms = [(name, each) for name, each in model.named_modules() if hasattr(each, "num_batches_tracked")]
    of_norms = {f"{name}.{kind}" for name, each in norms for kind, _ in each.named_buffers(recurse=False)}
    reasons = {BATCH_NORMALISATION: normalised.used, RANDOM_NUMBERS: draws,
             STATISTICS: any(name not in of_norms for name in changed)}
    return [reason for reason, holds in reasons.items() if holds]


_OPERATIONS: dict[Any, Operation] = {
    **dict.fromkeys(
        (torch.div, torch.divide, torch.true_divide, torch.Tensor.div, torch.Tensor.div_, torch.Tensor.divide,
         torch.Tensor.__truediv__, torch.Tensor.__itruediv__), "divide"),
    **dict.fromkeys(
        (torch.mul, torch.multiply, torch.Tensor.mul, torch.Tensor.mul_, torch.Tensor.multiply, torch.Tensor.__mul__,
         torch.Tensor.__rmul__, torch.Tensor.__imul__), "multiply"),
    **dict.fromkeys(
        (torch.sub, torch.subtract, torch.Tensor.sub, torch.Tensor.sub_, torch.Tensor.subtract, torch.Tensor.__sub__,
         torch.Tensor.__isub__), "subtract"),
}  # fmt: skip
#: What keeps the values of the input.
_SAME_VALUES = {
    torch.Tensor.float, torch.Tensor.to, torch.Tensor.type, torch.Tensor.contiguous, torch.Tensor.clone, torch.clone,
    torch.Tensor.view, torch.Tensor.reshape, torch.reshape, torch.Tensor.flatten, torch.flatten, torch.Tensor.permute,
    torch.permute, torch.Tensor.transpose, torch.transpose,
}


class _Watch(WatchedCalls):
    """Around a forward pass: whether the input, wherever it goes, is scaled as bytes are."""

    def __init__(self, images: torch.Tensor) -> None:
        super().__init__()
        self._inputs, self.scaled_as_bytes = [images], False

    def _see(self, function: Any, args: Sequence[Any], named: Mapping[str, Any], result: Any) -> None:
        of_input = bool(args) and any(args[0] is tensor for tensor in self._inputs)
        if of_input and len(args) > 1 and (operation := _OPERATIONS.get(function)):
            other = args[1]
            number = other.detach().cpu().numpy() if isinstance(other, torch.Tensor) else other
            self.scaled_as_bytes = self.scaled_as_bytes or is_for_bytes(operation, number)
        if of_input and function in _SAME_VALUES:
            self._inputs.append(result)


def expects_bytes(model: nn.Module, images: torch.Tensor) -> bool:
    """Whether a forward pass in evaluation begins with such arithmetic; False where it cannot be watched."""
    try:
        with torch.no_grad(), _Watch(images) as watch:
            model.eval()(images)
    except Exception:  # compiled code need not take a mode, and what the model raises is reported elsewhere
        return False
    return watch.scaled_as_bytes


#: Calls a model as training does, with inputs in this memory format, and returns what it computed.
Compute: TypeAlias = "Callable[[nn.Module, torch.memory_format], Any]"

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
#: What PyTorch says of `view` on a tensor that lies otherwise in memory.
_VIEW_FAILS = "view size is not compatible"
#: Two orders of summation differ by less, relative to the largest number.
_ROUNDING = 1e-4


def put_channels_last(name: str, model: nn.Module, compute: Compute) -> tuple[bool, tuple[str, ...]]:
    """Let the weights of a model's convolutions lie in memory with the channels last, as its inputs are to lie then.
    Returns whether it was done, and what the user should know.

    It is not done on a GPU, nor where the model, of which `compute` calls copies, fails with it or returns something
    else.
    """
    parameters = [*model.parameters()]
    if (
        not any(isinstance(module, _CONVOLUTIONS) for module in model.modules()) or hasattr(model, "_orig_mod")
        or any(parameter.device.type != "cpu" for parameter in parameters)
    ):
        return False, ()
    try:
        if not all(_is_same(model, compute, training=training) for training in (True, False)):
            return False, ()
    except Exception as error:
        note = (
            f"model {name!r} calls view(), so its convolutions keep the memory layout that is slower on CPUs: "
            "flatten() or reshape() in its place allows the faster one"
        )
        return False, (note,) if _VIEW_FAILS in str(error) else ()
    model.to(memory_format=torch.channels_last)
    for module in model.modules():
        if type(module) is nn.Flatten:
            module.register_forward_pre_hook(_keep_layout)
    return True, ()


def _keep_layout(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Before `nn.Flatten`: let the gradient come back in the layout of its input, in which the layers before it are
    fast. Without this `lenet5` takes 6 % longer."""
    images = inputs[0] if inputs else None
    if isinstance(images, torch.Tensor) and images.requires_grad and images.ndim == 4:
        images.register_hook(_channels_last)


def _channels_last(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)


def _is_same(model: nn.Module, compute: Compute, *, training: bool) -> bool:
    """Whether a copy of a model computes the same in both layouts, from the same random numbers."""
    computed = []
    for layout in (torch.contiguous_format, torch.channels_last):
        with untouched(model) as tried, torch.set_grad_enabled(training):
            if tried is model:  # it cannot be copied
                return False
            outputs = [*tensors_in(compute(tried.to(memory_format=layout).train(training), layout))]
            if training:
                sum(each.sum() for each in outputs if each.requires_grad).backward()  # type: ignore[union-attr]
            computed.append([each.detach() for each in outputs])
    return len(computed[0]) == len(computed[1]) and all(map(_are_equal, *computed))


def _are_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape or first.stride() != second.stride() or not first.numel():
        return False
    if not first.is_floating_point():
        return torch.equal(first, second)
    return torch.allclose(first, second, rtol=_ROUNDING, atol=_ROUNDING * float(first.abs().max()))


# -- a training step

#: What belongs to no layer.
BATCH, LOSS, OPTIMIZER = "(batch)", "(loss, counts)", "(optimizer)"


class _Clock:
    """Attributes the time that passes to owners, one at a time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._owner, self._since = BATCH, time.perf_counter()

    def pass_to(self, owner: str) -> None:
        now = time.perf_counter()
        self.seconds[self._owner] = self.seconds.get(self._owner, 0.0) + now - self._since
        self._owner, self._since = owner, now

    def lap(self) -> None:
        """Attribute what has passed, and let the owner stay."""
        self.pass_to(self._owner)

    def end(self, owner: str) -> None:
        """Attribute what has passed since the last event to this owner."""
        self._owner = owner
        self.lap()


class _Layers:
    """Hooks on all modules of a model for one step."""

    def __init__(self, model: nn.Module) -> None:
        self.clock, self._stack = _Clock(), [LOSS]
        self.shapes: dict[str, list[int]] = {}
        self.order: list[str] = []
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            self._handles += [
                module.register_forward_pre_hook(self._entered(name or "(model)")),
                module.register_forward_hook(self._left(name or "(model)")),
            ]
        for parameter in model.parameters():
            if parameter.requires_grad:
                # After the last of these comes the optimizer.
                self._handles.append(parameter.register_post_accumulate_grad_hook(lambda _: self.clock.lap()))

    def _entered(self, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self._stack.append(name)
            if name not in self.order:
                self.order.append(name)
            self.clock.pass_to(name)

        return hook

    def _left(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
            tensors = list(tensors_in(outputs))
            self.shapes[name] = list(tensors[0].shape) if tensors else []
            for tensor in tensors:
                if tensor.requires_grad:
                    tensor.register_hook(lambda _: self.clock.pass_to(name))
            while self._stack.pop() != name:  # a module that raised inside did not come by here
                pass
            self.clock.pass_to(self._stack[-1])

        return hook

    def close(self) -> None:
        self.clock.end(OPTIMIZER)
        for handle in self._handles:
            handle.remove()


def inspect_step(model: nn.Module, state: Mapping[str, torch.Tensor], step: Callable[[], object]) -> Inspection:
    """Make a step of a model and return what it took; `state` is the optimizer's."""
    tensors = {id(each): each for each in [*model.parameters(), *model.buffers()]}
    kept = {each.untyped_storage().data_ptr() for each in tensors.values()}
    activations: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in kept:  # several views of one storage count once, and a slice counts as what it is
            activations[place] = max(activations.get(place, 0), tensor.nbytes)
        return tensor

    with ExitStack() as stack:
        layers = _Layers(model)
        stack.callback(layers.close)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor))
        step()
    return Inspection(
        weight_bytes=sum(each.nbytes for each in tensors.values()),
        gradient_bytes=sum(each.nbytes for each in model.parameters() if each.requires_grad),
        optimizer_bytes=sum(each.nbytes for each in state.values()),
        activation_bytes=sum(activations.values()),
        layers=_rows(model, layers),
    )


def _rows(model: nn.Module, layers: _Layers) -> list[dict[str, Any]]:
    """A row for each module that computes or has parameters of its own, then what belongs to no module."""
    modules = {name or "(model)": module for name, module in model.named_modules()}
    seen: set[int] = set()
    rows = []
    for name in [*layers.order, *(name for name in modules if name not in layers.order)]:
        module = modules[name]
        own = [each for each in module.parameters(recurse=False) if id(each) not in seen]
        seen.update(map(id, own))
        if own or not list(module.children()) or layers.clock.seconds.get(name, 0.0) > 0:
            rows.append({
                "name": name, "kind": type(module).__name__, "shape": layers.shapes.get(name, []),
                "parameters": sum(each.numel() for each in own), "seconds": layers.clock.seconds.get(name, 0.0),
            })
    return rows + [{"name": name, "seconds": layers.clock.seconds[name]}
                   for name in (BATCH, LOSS, OPTIMIZER) if name in layers.clock.seconds]
