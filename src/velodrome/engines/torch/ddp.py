"""`ddp`: PyTorch's own DistributedDataParallel over gloo (CPU) or NCCL (GPU)."""

from __future__ import annotations

import traceback
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from velodrome.engines.torch.compression import hook_of
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.optimizer import Gradients
from velodrome.engines.torch.process_group import ProcessGroup, translate_peer_errors
from velodrome.worker.context import Status

#: Where the code of DistributedDataParallel lies.
DDP_FILE = DistributedDataParallel.forward.__code__.co_filename


class _Participant(nn.Module):
    """What DistributedDataParallel wraps: the model and, called without inputs, a pass that adds nothing to gradients.

    A process without examples takes part in a step by that pass. With `may_skip`, the model may leave parameters
    without a gradient: DistributedDataParallel then looks for them in every step, and logs a warning where it finds
    none. It finds `spare`, which only the pass without inputs uses; so no parameter of the model is used by that.
    """

    def __init__(self, model: nn.Module, *, may_skip: bool) -> None:
        super().__init__()
        self.model = model
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.spare = nn.Parameter(torch.zeros_like(self._trained[0].flatten()[:1])) if may_skip else None

    def forward(self, *inputs: Any) -> Any:
        if inputs:
            return self.model(*inputs)
        used = self._trained if self.spare is None else [self.spare]
        return torch.stack([parameter.flatten()[:0].sum() for parameter in used]).sum()


class PeerAwareDdp(DistributedDataParallel):
    """DistributedDataParallel that raises `PeerLost` where its forward pass needs a process that has gone.

    It communicates there before the second step, when it arranges gradients anew, and where it broadcasts buffers. What
    the model itself raises stays as it is.
    """

    def forward(self, *inputs: Any, **named: Any) -> Any:
        try:
            return super().forward(*inputs, **named)
        except RuntimeError as error:
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            if frame.f_code.co_filename != DDP_FILE:
                raise
            with translate_peer_errors():
                raise


class _StockDdp(PeerAwareDdp):
    """DistributedDataParallel that broadcasts buffers in the forward pass, its default: there it waits for others."""

    def __init__(self, status: Status, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self._status = status

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self._status.waiting = True
        outputs = super().forward(*inputs, **named)
        self._status.waiting = False
        return outputs


class DdpLearner(TorchLearner):
    """Gradients are averaged by DistributedDataParallel while they are computed."""

    def _wrapped(self) -> nn.Module:
        self.loss_factor = float(self._transport.size)  # DDP divides by the number of processes
        # Newer versions have another name for broadcast_buffers.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers.*")
        assert isinstance(self._transport, ProcessGroup)
        may_skip = not self._network.from_zoo
        options: dict[str, Any] = {
            "device_ids": [self._device.index] if self._device.type == "cuda" else None,
            "process_group": self._transport.group,
            # Not a default, but a user's model that leaves a parameter unused could not be trained otherwise.
            "find_unused_parameters": may_skip,
        }
        model = _Participant(self._network.forward, may_skip=may_skip)
        if self._context.job.implementation == "stock":
            wrapped: PeerAwareDdp = _StockDdp(self._context.status, model, **options)
        else:
            wrapped = PeerAwareDdp(model, broadcast_buffers=False, gradient_as_bucket_view=True, **options)
        if self._context.job.compress is not None:
            wrapped.register_comm_hook(*hook_of(self._context.job.compress, self._transport))
        return wrapped

    def _will_add(self, more: bool) -> None:
        # What `no_sync` does around a forward pass.
        self.forward.require_backward_grad_sync = not more

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        status = self._context.status
        status.waiting = True  # most of the pass computes, but where it blocks it waits for others
        with translate_peer_errors():
            # A parameter that no process has a gradient of is left without one.
            gradients = self._local_gradients(self.forward() if loss is None else loss)
        status.waiting = False
        return gradients
