"""`ddp`: PyTorch's own DistributedDataParallel over gloo (CPU) or NCCL (GPU), and that process group as a transport."""

from __future__ import annotations

import errno
import os
import re
import socket
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
from velodrome.errors import PeerLost, PortTaken, RunFailed
from velodrome.offers.world import World
from velodrome.transport.base import Transport
from velodrome.transport.interfaces import address_towards, interface_of
from velodrome.worker.context import Context

#: Collectives may wait this long: who stalls is found by the controller, which knows more than a timeout does.
COLLECTIVE_LIMIT = timedelta(days=7)
#: Worker 0 started its clock later than the others, by as much as its start took longer.
_GRACE_SECONDS = 30.0
_LOST = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|socket|tcpstore|peer", re.IGNORECASE)


class ProcessGroup(Transport):
    """The default process group as a transport for what is not a gradient."""

    def __init__(self, rank: int, size: int, store: distributed.TCPStore) -> None:
        self.rank, self.size = rank, size
        self._store = store

    def all_reduce(self, buffer: NDArray[Any]) -> None:
        with losing_peers():
            distributed.all_reduce(torch.from_numpy(buffer))

    def broadcast(self, buffer: NDArray[Any], root: int = 0) -> None:
        with losing_peers():
            distributed.broadcast(torch.from_numpy(buffer), root)

    def barrier(self) -> None:
        with losing_peers():
            distributed.all_reduce(torch.zeros(1))

    def close(self) -> None:
        # By word of the store, and the group itself ends with the process: taking gloo's connections down while a peer
        # closes its own can wait for ever, and so can a last collective.
        with losing_peers():
            self._store.set(f"bye/{self.rank}", "")
            self._store.wait([f"bye/{other}" for other in range(self.size)], COLLECTIVE_LIMIT)
            self._store.set(f"gone/{self.rank}", "")
            if self.rank == 0:  # the store lives here
                self._store.wait([f"gone/{other}" for other in range(self.size)], COLLECTIVE_LIMIT)


@contextmanager
def losing_peers() -> Iterator[None]:
    """Around what talks to other processes: their loss is said as such."""
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
    _meet(store, world, seconds)
    with losing_peers():
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo", store=store, rank=rank, world_size=size, timeout=limit
        )
        distributed.all_reduce(torch.zeros(1))  # connections are made by their first use
    distributed.distributed_c10d._set_pg_timeout(COLLECTIVE_LIMIT)
    return ProcessGroup(rank, size, store)


def _meet(store: distributed.TCPStore, world: World, seconds: float) -> None:
    """Say hello; worker 0 waits for everybody and tells the others who is missing, so that all can name them."""
    rank, size = world.me.rank, len(world.peers)
    keys = [f"hello/{other}" for other in range(size)]
    try:
        store.set(keys[rank], "")
        if rank == 0:
            missing = "" if _arrive(store, keys, seconds) else _absent(store, keys)
            store.set("missing", missing)
        else:
            store.wait(["missing"], timedelta(seconds=seconds + _GRACE_SECONDS))
            missing = store.get("missing").decode()
        store.set(f"told/{rank}", "")
    except (distributed.DistError, RuntimeError) as error:
        raise PeerLost(f"lost {world.peers[0]} while waiting for the others") from error
    if missing:
        if rank == 0:  # the store lives here, and those who came must be able to read it
            _arrive(store, [f"told/{other}" for other in range(size) if str(other) not in missing.split(",")], 5)
        absent = ", ".join(str(world.peers[int(other)]) for other in missing.split(","))
        raise RunFailed(f"{absent} did not join within {seconds:g} s")


def _arrive(store: distributed.TCPStore, keys: list[str], seconds: float) -> bool:
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except (distributed.DistError, RuntimeError):
        return False
    return True


def _absent(store: distributed.TCPStore, keys: list[str]) -> str:
    return ",".join(str(other) for other, key in enumerate(keys) if not store.check([key]))


def _listen(host: str, port: int) -> socket.socket:
    """Bound by us, to this address only: PyTorch's own store would listen on every interface."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {port} on {host} is taken: choose another one") from error
        raise RunFailed(
            f"cannot listen on {host}:{port} ({error.strerror or error}): worker 0 must run on {host!r}"
        ) from error


class DdpLearner(TorchLearner):
    """Gradients are averaged by DistributedDataParallel while they are computed."""

    always_computes = True

    def _wrapped(self) -> nn.Module:
        self.loss_factor = float(self._transport.size)  # DDP divides by the number of processes
        # It warns where a user's model turns out to use all of its parameters in every step, and newer versions have
        # another name for broadcast_buffers.
        warnings.filterwarnings("ignore", message=".*find_unused_parameters=True was specified.*")
        warnings.filterwarnings("ignore", message=".*broadcast_buffers.*")
        return DistributedDataParallel(
            self._model,
            device_ids=[self._device.index] if self._device.type == "cuda" else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=not self._network.from_zoo,
        )

    def _gradients(self, loss: torch.Tensor | None) -> list[torch.Tensor]:
        assert loss is not None, "every process computes in every step"
        status = self._context.status
        status.waiting = True  # most of the pass computes, but where it stops it waits for others
        with losing_peers():
            gradients = self._local_gradients(loss)
        status.waiting = False
        return gradients
