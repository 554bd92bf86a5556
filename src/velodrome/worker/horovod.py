"""The rendezvous of a script that uses Horovod: a store of keys over HTTP, which `horovodrun` would provide.

It listens on the port of rank 0, which a script that uses Horovod does not need otherwise, and only once the script
imports Horovod. The other ranks wait for it in the same place.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from typing import Any

from velodrome.catalog.world import World
from velodrome.errors import RunFailed
from velodrome.transport.horovod_rendezvous import RendezvousServer, announce


class _OnImport(MetaPathFinder):
    """Finds no module; calls `prepare` when Horovod is looked for."""

    def __init__(self, world: World, seconds: float) -> None:
        self._world, self._seconds = world, seconds
        self.prepared: RendezvousServer | None = None
        self._done = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name == "horovod" and not self._done:
            self._done = True
            first = self._world.peers[0]
            if self._world.me == first:
                self.prepared = RendezvousServer(first.host, first.port)
            else:
                wait_for(first.host, first.port, self._seconds)


def wait_for(host: str, port: int, seconds: float) -> None:
    """Wait until somebody listens there."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise RunFailed(f"rank 0 did not import Horovod within {seconds:g} s") from error
            time.sleep(0.05)
        else:
            return


@contextmanager
def rendezvous(world: World, seconds: float) -> Iterator[None]:
    """Provide the rendezvous to a script that imports Horovod during the block."""
    finder = _OnImport(world, seconds)
    announce(world.peers[0].host, world.peers[0].port)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.meta_path.remove(finder)
        if finder.prepared is not None:
            finder.prepared.stop()
