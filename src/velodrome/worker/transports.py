"""Connects a training process to its peers by a transport that belongs to no framework."""

from __future__ import annotations

import os

from velodrome.transport.mpi import MpiTransport
from velodrome.transport.rendezvous import Ranks
from velodrome.worker.context import Context


def connect_mpi(context: Context) -> MpiTransport:
    """Join the job's MPI ranks; when a peer is lost, report it and end the process."""

    def on_lost(message: str) -> None:
        try:
            context.events.emit("error", cause="peer", message=message, traceback=None)
        finally:  # who reads it may be gone, too
            os._exit(1)

    return MpiTransport(Ranks.of(context.world), context.job.start_timeout, on_lost)
