"""A process group of PyTorch over gloo (CPU) or NCCL (GPU): how processes join it, and how it serves as a transport."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as distributed
from numpy.typing import NDArray
from safetensors.numpy import load, save
from torch.distributed.device_mesh import DeviceMesh

from velodrome.catalog.engines.torch import Mesh
from velodrome.catalog.world import World
from velodrome.errors import PeerLost, RunFailed
from velodrome.training.context import Context
from velodrome.training.learner import State
from velodrome.transport.base import Transport
from velodrome.transport.sockets import address_towards, interface_of, listen_at

#: Collectives may block this long: the controller detects a stalled process, and knows which one it is.
COLLECTIVE_LIMIT = timedelta(days=7)
#: Worker 0 may start to wait later than the others: its start may take longer.
_GRACE_SECONDS = 30.0
#: Where PyTorch lies, and its code that communicates.
_TORCH = Path(torch.__file__).parent
_DISTRIBUTED = _TORCH / "distributed"
_LOST = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|socket|tcpstore|peer", re.IGNORECASE)


class Subgroup(Transport):
    """Some processes of a process group, or all, as a transport for what is not a gradient."""

    def __init__(self, group: distributed.ProcessGroup | None) -> None:
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self.group = group

    def all_reduce(self, buffer: NDArray[Any]) -> None:
        with translate_peer_errors():
            distributed.all_reduce(torch.from_numpy(buffer), group=self.group)

    def broadcast(self, buffer: NDArray[Any], root: int = 0) -> None:
        with translate_peer_errors():
            distributed.broadcast(torch.from_numpy(buffer), group=self.group, group_src=root)

    def barrier(self) -> None:
        self.all_reduce(np.zeros(1, np.float32))

    def close(self) -> None:
        """It ends with the group that it is a part of."""


class ProcessGroup(Subgroup):
    """The process group of a job."""

    def __init__(self, group: distributed.ProcessGroup | None, store: distributed.TCPStore) -> None:
        super().__init__(group)
        self._store = store

    def collect(self, data: bytes) -> list[bytes]:
        """The data of all processes by rank, in rank 0; nothing in the others."""
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(data)
        with translate_peer_errors():
            distributed.all_reduce(sizes, group=self.group)
            mine = torch.zeros(int(sizes.max()), dtype=torch.uint8)
            mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            gathered = [torch.empty_like(mine) for _ in range(self.size)] if self.rank == 0 else None
            distributed.gather(mine, gathered, dst=0, group=self.group)
        return [each[:size].numpy().tobytes() for each, size in zip(gathered or [], sizes.tolist(), strict=False)]

    def collect_states(self, prefix: str, mine: State) -> State:
        """The arrays of all processes, in rank 0, with the prefix and the rank of each before their names."""
        packed = enumerate(self.collect(save(mine)))
        return {f"{prefix}{rank}.{name}": array for rank, each in packed for name, array in load(each).items()}

    def bring(self, tensor: torch.Tensor, owner: int) -> torch.Tensor | None:
        """The owner's tensor, in rank 0, where one like it, perhaps without memory, says how large it is."""
        if owner == 0:
            return tensor.detach().cpu().contiguous().clone() if self.rank == 0 else None
        with translate_peer_errors():
            if self.rank == owner:
                distributed.send(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8), 0, group=self.group)
            if self.rank != 0:
                return None
            received = torch.empty(tensor.shape, dtype=tensor.dtype)
            distributed.recv(received.reshape(-1).view(torch.uint8), owner, group=self.group)
            return received

    def close(self) -> None:
        # Through the store, and the group itself ends with the process: closing gloo's connections while a peer closes
        # its own can block for ever, and so can a last collective.
        with translate_peer_errors():
            self._store.set(f"leaving/{self.rank}", "")
            self._store.wait([f"leaving/{other}" for other in range(self.size)], COLLECTIVE_LIMIT)
            self._store.set(f"left/{self.rank}", "")
            if self.rank == 0:  # the store is in this process
                self._store.wait([f"left/{other}" for other in range(self.size)], COLLECTIVE_LIMIT)


class Grid(NamedTuple):
    """The place of this process in a mesh: its group, which divides the model, and those of all groups that have the
    same part of it."""

    members: distributed.ProcessGroup
    peers: Subgroup
    mesh: DeviceMesh


def grid_of(mesh: Mesh, device: str) -> Grid:
    """The mesh of a job, whose processes are numbered group by group. Called in every process."""
    numbers = torch.arange(mesh.groups * mesh.members).view(mesh.groups, mesh.members)
    me = distributed.get_rank()
    rows = [distributed.new_group(row.tolist(), timeout=COLLECTIVE_LIMIT) for row in numbers]
    columns = [distributed.new_group(column.tolist(), timeout=COLLECTIVE_LIMIT) for column in numbers.t()]
    row, column = rows[me // mesh.members], columns[me % mesh.members]
    assert row is not None
    assert column is not None
    names = ("data", mesh.strategy)
    both = DeviceMesh.from_group([column, row], device, mesh=numbers, mesh_dim_names=names)
    return Grid(row, Subgroup(column), both)


@contextmanager
def translate_peer_errors() -> Iterator[None]:
    """Raise `PeerLost` where PyTorch raises its own error because another process has gone."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, distributed.DistError) or _LOST.search(str(error)):
            raise PeerLost(f"lost another worker: {str(error).strip().splitlines()[0]}") from error
        raise


@contextmanager
def translate_errors_of_collectives(*folders: Path) -> Iterator[None]:
    """The same around code that also calls the user's model: what that raises stays as it is. Code in
    `folders` communicates, besides PyTorch's own."""
    try:
        yield
    except RuntimeError as error:
        if not _raised_by_collective(error, (_DISTRIBUTED, *folders)):
            raise
        with translate_peer_errors():
            raise


def _raised_by_collective(error: RuntimeError, folders: Sequence[Path]) -> bool:
    """Whether the innermost code that is not PyTorch's general machinery is that which communicates."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename)
        if any(file.is_relative_to(folder) for folder in folders):
            return True
        if not file.is_relative_to(_TORCH):
            return False
    return False


def connect(context: Context, *, gpus: bool, trains_in_default: bool = False) -> ProcessGroup:
    """Join the job's process group, within the job's start timeout. Other libraries train in the default group."""
    world = context.world
    rank, size = world.me.rank, len(world.peers)
    host, port = world.peers[0].host, world.peers[0].port
    seconds = context.job.start_timeout
    limit = timedelta(seconds=seconds)
    interface = interface_of(address_towards(host, port))
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    # PyTorch's own store would listen on every interface.
    listener = listen_at(host, port, 1024) if rank == 0 else None
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
            "cpu:gloo,cuda:nccl" if gpus else "gloo", store=store, rank=rank, world_size=size,
            timeout=COLLECTIVE_LIMIT if trains_in_default else limit,
        )
        distributed.all_reduce(torch.zeros(1))  # connections are made by their first use
        if trains_in_default:
            return ProcessGroup(None, store)
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
