"""JAX in a training process: joins the other processes in one mesh, builds the learner and trains."""

from __future__ import annotations

import os

import jax
import numpy as np
from jax.sharding import Mesh

from velodrome.engines.jax.division import AXIS
from velodrome.engines.jax.learner import JaxLearner
from velodrome.engines.jax.tasks import ImageLearner, TextLearner
from velodrome.errors import PeerLost, headline
from velodrome.training import loop
from velodrome.training.context import Context
from velodrome.training.sampler import computing
from velodrome.transport.base import Alone, Ranks, StarTransport, Transport
from velodrome.transport.sockets import address_towards

#: Collectives may block this long: the controller finds a stalled process, and knows which one it is.
_LIMIT_SECONDS = 7 * 24 * 3600
_LIMITS = ("xla_cpu_collective_timeout_seconds", "xla_cpu_collective_call_terminate_timeout_seconds")


def train(context: Context) -> None:
    """Train the job of the context to its end."""
    _configure(context)

    def connect() -> tuple[Transport, Mesh]:
        transport = _connect(context)
        return transport, Mesh(np.array(jax.devices("cpu")), (AXIS,))

    def build(peers: tuple[Transport, Mesh]) -> JaxLearner:
        learner_class = TextLearner if context.data.kind == "text" else ImageLearner
        with computing(context.status):  # compiling takes seconds, on a busy machine many
            learner = learner_class(context, *peers)
            learner.prepare()
        return learner

    loop.train(context, connect, build)


def _configure(context: Context) -> None:
    """Set what JAX reads when its first device is made."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", context.job.dtype == "float64")
    os.environ["NPROC"] = str(context.threads)
    limits = (f"--{name}={_LIMIT_SECONDS}" for name in _LIMITS)
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *limits]).strip()


def _connect(context: Context) -> Transport:
    """What sums counts between the processes, after JAX has joined them; the learner needs nothing else of it."""
    if context.job.strategy == "single":
        return Alone()
    ranks, seconds = Ranks.of(context.world), context.job.start_timeout
    transport = JaxTransport(ranks, seconds)
    # The port of the rendezvous is free again.
    address = f"{ranks.host}:{ranks.port}"
    try:
        jax.distributed.initialize(
            address, ranks.size, ranks.rank, coordinator_bind_address=address, initialization_timeout=int(seconds),
            heartbeat_timeout_seconds=_LIMIT_SECONDS,
        )
        listen_at(address_towards(ranks.host, ranks.port))
        jax.devices()  # made here, by all together
    except RuntimeError as error:
        raise PeerLost(f"lost another worker while joining: {headline(str(error))}") from error
    return transport


def listen_at(address: str) -> bool:
    """Let collectives of CPUs listen at an address of this host; called before JAX makes its first device.

    JAX itself lets gloo listen at the address of the host's name, and has no option for it; the private function that
    makes its CPU client takes the collectives to use. Returns whether this JAX has what that takes: it trains without,
    too.
    """
    try:
        from jax._src import distributed, xla_bridge
        from jaxlib import _jax

        make_collectives, make_client = _jax.make_gloo_tcp_collectives, xla_bridge.make_cpu_client
        register = xla_bridge.register_backend_factory
    except (ImportError, AttributeError):
        return False

    def client() -> object:
        joined = distributed.global_state.client
        return make_client(make_collectives(distributed_client=joined, hostname=address))

    register("cpu", client, priority=0, fail_quietly=False)
    return True


class JaxTransport(StarTransport):
    """The processes after JAX has joined them. It sums what is no gradient: counts, and what ranks agree on."""

    def close(self) -> None:
        self.barrier()  # a process that ends while another still trains would break that one
        jax.distributed.shutdown()
        super().close()
