"""Which parameters no process has a gradient of, where `fully_shard` gives every process zeros for those."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.tensor import DTensor

from velodrome.engines.torch.ddp import reached_from
from velodrome.engines.torch.sharding import local


class Presence:
    """For each parameter, whether a loss of any process depends on it in a step.

    A process knows that of its own loss before the backward pass, and the answers of all are summed meanwhile.
    """

    def __init__(
        self, root: nn.Module, units: Iterable[nn.Module], trained: Sequence[nn.Parameter],
        group: distributed.ProcessGroup | None,
    ) -> None:
        """`root` was divided, with `units` that gather their weights by themselves, itself among them."""
        self._group = group
        numbers = {parameter: number for number, parameter in enumerate(trained)}
        self._places = [(module, name, numbers[parameter]) for module in root.modules()
                        for name, parameter in module._parameters.items() if parameter in numbers]
        #: The number of each parameter, by the whole one that the forward pass uses.
        self._numbers: dict[torch.Tensor, int] = {}
        self._mine, self._device = [0.0] * len(trained), local(trained[0]).device
        self._sent: tuple[torch.Tensor, Any] | None = None
        self._hooks = {unit: unit.register_forward_pre_hook(self._find_whole) for unit in units}

    def _find_whole(self, unit: nn.Module, inputs: Any) -> None:
        """Note the whole parameters: of this unit, all are gathered now. They stay the same objects in later calls."""
        for module, name, number in self._places:
            parameter = module._parameters[name]
            if parameter is not None and not isinstance(parameter, DTensor):
                self._numbers[parameter] = number
        self._hooks.pop(unit).remove()

    def add(self, loss: torch.Tensor) -> None:
        """Note what a loss of this process depends on."""
        for parameter in reached_from(loss):
            if (number := self._numbers.get(parameter)) is not None:
                self._mine[number] = 1.0

    def send(self) -> None:
        """Begin to sum what was noted since the last call; called in every process."""
        total, self._mine = torch.tensor(self._mine, device=self._device), [0.0] * len(self._mine)
        self._sent = total, distributed.all_reduce(total, group=self._group, async_op=True)

    def of_any(self) -> list[bool]:
        """For each parameter, whether any process has noted it."""
        assert self._sent is not None, "sent before"
        (total, work), self._sent = self._sent, None
        work.wait()
        return [count > 0 for count in total.tolist()]
