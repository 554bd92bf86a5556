"""What one training step takes, layer by layer: time forward and backward, shapes, and what autograd keeps.

One clock is passed from layer to layer: each interval belongs to the layer whose computation it follows, so that the
parts add up to the step. Forward passes are noticed by module hooks, backward passes by hooks on the gradients of the
outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from velodrome.worker.learner import Inspection

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
            tensors = list(_tensors(outputs))
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


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """The tensors among what a module returned."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping | tuple | list):
        for each in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from _tensors(each)


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
