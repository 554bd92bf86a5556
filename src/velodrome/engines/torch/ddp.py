"""`ddp`: PyTorch's own DistributedDataParallel over gloo (CPU) or NCCL (GPU), and that process group as a transport."""

from __future__ import annotations

import errno
import os
import re
import socket
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.optimizer import Gradients
from velodrome.errors import PeerLost, PortTaken, RunFailed
from velodrome.offers.world import World
from velodrome.transport.base import Transport
from velodrome.transport.interfaces import address_towards, interface_of
from velodrome.worker.context import Context, Status

#: Collectives may block this long: a stalled process is found by the controller, which knows more than a timeout does.
COLLECTIVE_LIMIT = timedelta(days=7)
#: Worker 0 may start to wait later than the others: its start may take longer.
_GRACE_SECONDS = 30.0
#: Where the code of DistributedDataParallel lies.
DDP_FILE = DistributedDataParallel.forward.__code__.co_filename
_LOST = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|socket|tcpstore|peer", re.IGNORECASE)


class ProcessGroup(Transport):
    """A process group as a transport for what is not a gradient."""

    def __init__(self, group: distributed.ProcessGroup | None, store: distributed.TCPStore) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.group, self._store = group, store

    def all_reduce(self, buffer: NDArray[Any]) -> None:
        with translate_peer_errors():
            distributed.all_reduce(torch.from_numpy(buffer), group=self.group)

    def broadcast(self, buffer: NDArray[Any], root: int = 0) -> None:
        with translate_peer_errors():
            distributed.broadcast(torch.from_numpy(buffer), root, group=self.group)

    def barrier(self) -> None:
        with translate_peer_errors():
            distributed.all_reduce(torch.zeros(1), group=self.group)

    def close(self) -> None:
        # Through the store, and the group itself ends with the process: closing gloo's connections while a peer closes
        # its own can block for ever, and so can a last collective.
        with translate_peer_errors():
            self._store.set(f"leaving/{self.rank}", "")
            self._store.wait([f"leaving/{other}" for other in range(self.size)], COLLECTIVE_LIMIT)
            self._store.set(f"left/{self.rank}", "")
            if self.rank == 0:  # the store is in this process
                self._store.wait([f"left/{other}" for other in range(self.size)], COLLECTIVE_LIMIT)


@contextmanager
def translate_peer_errors() -> Iterator[None]:
    """Raise `PeerLost` where PyTorch raises its own error because another process has gone."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, distributed.DistError) or _LOST.search(str(error)):
            raise PeerLost(f"lost another worker: {str(error).strip().splitlines()[0]}") from error
        raise


def connect(context: Context, *, gpus: bool) -> ProcessGroup:
    """Join the job's process group, within the job's start timeout."""
    world = context.world
    rank, size = world.me.rank, len(world.peers)
    host, port = world.peers[0].host, world.peers[0].port
    seconds = context.job.start_timeout
    limit = timedelta(seconds=seconds)
    interface = interface_of(address_towards(host, port))
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    listener = _listen(host, port) if rank == 0 else None
    try:
        store = distributed.TCPStore(
            host, port, size, is_master=rank == 0, timeout=limit, wait_for_workers=False,
            master_listen_fd=None if listener is None else listener.detach(),
        )
    except (distributed.DistError, RuntimeError) as error:
        raise RunFailed(
            f"{world.peers[0]} did not join: nobody answered at {host}:{port} within {seconds:g} s"
        ) from error
    _rendezvous(store, world, seconds)
    with translate_peer_errors():
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo", store=store, rank=rank, world_size=size, timeout=limit
        )
        distributed.all_reduce(torch.zeros(1))  # connections are made by their first use
        # A group's timeout is set when it is made: the first one is limited by the job's start timeout, and the one
        # that trains by none.
        group = distributed.new_group(timeout=COLLECTIVE_LIMIT)
        distributed.all_reduce(torch.zeros(1), group=group)
    return ProcessGroup(group, store)


def _rendezvous(store: distributed.TCPStore, world: World, seconds: float) -> None:
    """Join; worker 0 waits for all others and publishes who is missing, so that every process can name them."""
    rank, size = world.me.rank, len(world.peers)
    keys = [f"joined/{other}" for other in range(size)]
    try:
        store.set(keys[rank], "")
        if rank == 0:
            missing = "" if _wait_for(store, keys, seconds) else _absent(store, keys)
            store.set("missing", missing)
        else:
            store.wait(["missing"], timedelta(seconds=seconds + _GRACE_SECONDS))
            missing = store.get("missing").decode()
        store.set(f"acknowledged/{rank}", "")
    except (distributed.DistError, RuntimeError) as error:
        raise PeerLost(f"lost {world.peers[0]} while waiting for the others") from error
    if missing:
        if rank == 0:  # the store is in this process, and those that joined must be able to read it
            present = [other for other in range(size) if str(other) not in missing.split(",")]
            _wait_for(store, [f"acknowledged/{other}" for other in present], 5)
        absent = ", ".join(str(world.peers[int(other)]) for other in missing.split(","))
        raise RunFailed(f"{absent} did not join within {seconds:g} s")


def _wait_for(store: distributed.TCPStore, keys: list[str], seconds: float) -> bool:
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except (distributed.DistError, RuntimeError):
        return False
    return True


def _absent(store: distributed.TCPStore, keys: list[str]) -> str:
    return ",".join(str(other) for other, key in enumerate(keys) if not store.check([key]))


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket on this address only: PyTorch's own store would listen on every interface."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {port} on {host} is taken: choose another one") from error
        raise RunFailed(
            f"cannot listen on {host}:{port} ({error.strerror or error}): worker 0 must run on {host!r}"
        ) from error


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
            return _StockDdp(self._context.status, model, **options)
        return PeerAwareDdp(model, broadcast_buffers=False, gradient_as_bucket_view=True, **options)

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
