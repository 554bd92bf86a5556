"""PyTorch with Horovod in a training process: everything is the torch engine's but how gradients are averaged."""

from __future__ import annotations

import horovod.torch as hvd
import torch

from velodrome.engines.horovod import HorovodTransport, translated
from velodrome.engines.torch import worker
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.network import Network
from velodrome.engines.torch.optimizer import Gradients
from velodrome.training.context import Context
from velodrome.transport.base import Alone, Transport


def train(context: Context) -> None:
    """Train the job of the context to its end."""
    worker.train(context, _connect)


def _connect(context: Context, gpus: bool) -> tuple[Transport, type[TorchLearner]]:
    if context.job.strategy == "single":
        return Alone(), TorchLearner
    return HorovodTransport(context, hvd), HorovodLearner


class HorovodLearner(TorchLearner):
    """Gradients are averaged by the hooks of `hvd.DistributedOptimizer` while they are computed."""

    _transport: HorovodTransport

    def __init__(self, context: Context, network: Network, transport: Transport, device: torch.device) -> None:
        # Horovod takes tensors in the order of their dimensions only, and gradients lie in memory as weights do.
        for tensor in (*network.model.parameters(), *network.model.buffers()):
            tensor.data = tensor.data.contiguous()
        super().__init__(context, network, transport, device)
        self.loss_factor = float(transport.size)  # Horovod divides by the number of processes
        named = [(name, parameter) for name, parameter in self._model.named_parameters() if parameter.requires_grad]
        # Only its hooks and `synchronize` are used: the learner's own optimizer makes the steps.
        self._exchange = hvd.DistributedOptimizer(
            torch.optim.SGD(self._trained, lr=0.0), named_parameters=named,
            backward_passes_per_step=context.job.accumulate, op=hvd.Average,
        )
        self._may_skip, self._steps = not network.from_zoo and transport.size > 1, 0

    def _broadcast_model(self) -> None:
        with self._context.waiting(), translated():
            hvd.broadcast_parameters(self._model.state_dict(), root_rank=0)

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        status = self._context.status
        status.waiting = True  # most of the pass computes, but where it blocks it waits for others
        with translated():
            if loss is not None:
                self._local_gradients(loss)
            elif self._accumulate == 1:
                for parameter in self._trained:
                    parameter.grad = None
            present = self._sum_flags() if self._may_skip else None
            self._exchange.synchronize()  # sends zeros for a parameter without a gradient
        status.waiting = False
        if present is not None:
            for parameter, has_gradient in zip(self._trained, present, strict=True):
                if not has_gradient:
                    parameter.grad = None
        self._steps += 1
        self._transport.count_steps(self._steps)
        return [parameter.grad for parameter in self._trained]

    def _sum_flags(self) -> list[bool]:
        """For each parameter, whether any process has a gradient of it: one that none has is left as it is."""
        mine = torch.tensor([float(parameter.grad is not None) for parameter in self._trained])
        return [bool(total) for total in hvd.allreduce(mine, op=hvd.Sum, name="velodrome.present")]
