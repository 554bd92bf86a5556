"""MXNet in a training process: the scheduler and the servers serve, workers build their learner and train."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from velodrome.training.context import Context
from velodrome.transport.base import Alone, Ranks, StarTransport, Transport

if TYPE_CHECKING:
    from velodrome.engines.mxnet.learner import MxnetLearner


def train(context: Context) -> None:
    """Take this process's part in the job of the context."""
    _resolve_names()
    if context.role != "worker":
        _serve(context)
        return
    with context.events.phase("import"):
        import mxnet as mx

        from velodrome.engines.mxnet.tasks import ImageLearner, TextLearner
        from velodrome.training import loop

    def build(peers: tuple[Transport, object | None]) -> MxnetLearner:
        learner_class = TextLearner if context.data.kind == "text" else ImageLearner
        return learner_class(context, *peers)

    loop.train(context, lambda: _connect(context, mx), build)


def _resolve_names() -> None:
    """Let MXNet know hosts by their addresses: its sockets cannot be bound to a name."""
    for variable in ("DMLC_NODE_HOST", "DMLC_PS_ROOT_URI"):
        if host := os.environ.get(variable):
            with suppress(OSError):
                found = socket.getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
                os.environ[variable] = str(found[0][4][0])


def _serve(context: Context) -> None:
    """The scheduler or a server: importing MXNet in such a role serves until the workers are done, and then exits."""
    with context.events.phase("connect"), context.waiting():
        try:
            import mxnet  # noqa: F401
        except SystemExit as end:
            if end.code:
                raise
    sys.modules.pop("mxnet", None)


def _connect(context: Context, mx: object) -> tuple[Transport, object | None]:
    """What sums counts between workers, and MXNet's store for their gradients; none for a single process."""
    if context.job.strategy == "single":
        return Alone(), None
    transport = StarTransport(Ranks.of(context.world), context.job.start_timeout)
    kind = "dist_sync" if context.strategy.synchronous else "dist_async"
    return transport, mx.kv.create(kind)  # type: ignore[attr-defined]
