"""`ddp` of libraries that wrap PyTorch's modules: what Accelerate and Lightning Fabric share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from velodrome.engines.torch.ddp import DdpLearner, Participant, translated
from velodrome.worker.context import Status


class _Watched(nn.Module):
    """What another library made of a model in DistributedDataParallel: processes may wait in its forward pass."""

    def __init__(self, prepared: nn.Module, status: Status) -> None:
        super().__init__()
        self.prepared, self._status = prepared, status

    def forward(self, *inputs: Any) -> Any:
        self._status.waiting = True
        try:
            outputs = self.prepared(*inputs)
        except RuntimeError as error:
            with translated(error):
                raise
        self._status.waiting = False
        return outputs


class PreparedDdpLearner(DdpLearner):
    """DistributedDataParallel that another library puts around the model."""

    @abstractmethod
    def _prepared(self, model: nn.Module) -> nn.Module:
        """The model as the library wraps it."""

    def _wrapped(self) -> nn.Module:
        self.loss_factor = float(self._transport.size)  # DistributedDataParallel divides by the number of processes
        prepared = self._prepared(Participant(self._network.forward, find_unused=not self._network.from_zoo))
        (self._ddp,) = [module for module in prepared.modules() if isinstance(module, DistributedDataParallel)]
        return _Watched(prepared, self._context.status)

    def _will_add(self, more: bool) -> None:
        # What `no_sync` does around a forward pass.
        self._ddp.require_backward_grad_sync = not more
