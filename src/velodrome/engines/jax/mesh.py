"""The mesh of a job's processes: how they join it, how weights lie on it, whole in each or a part in each (`fsdp`), and
what they exchange.

Gradients are summed by `psum`, also where a process needs only its part of them: `psum_scatter` over gloo returned
wrong numbers in releases of 2026 (jax-ml/jax#40830), and ignores its time limit (#40831).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from velodrome.errors import PeerLost, headline
from velodrome.training.context import Context
from velodrome.transport.base import Alone, Ranks, StarTransport, Transport
from velodrome.transport.sockets import address_towards

#: The axis of the mesh: one device of each process.
AXIS = "workers"
#: Tensors with fewer numbers are exchanged together, because each exchange costs a message; larger ones by themselves,
#: because putting them side by side costs a copy.
ALONE = 1 << 20

Arrays = dict[str, jax.Array]
Values = dict[str, NDArray[Any]]


def in_each(mesh: Mesh, local: NDArray[Any]) -> jax.Array:
    """An array that is different in every process: its first axis goes through the processes."""
    shape = (mesh.size * local.shape[0], *local.shape[1:])
    mine = jax.device_put(local, mesh.local_devices[0])
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, P(AXIS)), [mine])


def in_all(mesh: Mesh, value: Any) -> jax.Array:
    """An array that is the same in every process."""
    array = np.asarray(value)
    mine = jax.device_put(array, mesh.local_devices[0])
    return jax.make_array_from_single_device_arrays(array.shape, NamedSharding(mesh, P()), [mine])


def local(array: jax.Array) -> jax.Array:
    """What this process has of an array."""
    return array.addressable_data(0)


def over(mesh: Mesh, function: Callable[..., Any], takes: Any, gives: Any) -> Callable[..., Any]:
    """A function that every process calls with its part of global arrays, as one of global arrays."""
    return jax.shard_map(function, mesh=mesh, in_specs=takes, out_specs=gives, check_vma=False)


class Division:
    """The tensors of a network on a mesh. Where they are divided, each is a flat vector, filled up with zeros to a
    multiple of the processes, of which every process has as many numbers."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], mesh: Mesh, *, divided: bool) -> None:
        self.mesh, self.divided = mesh, divided
        #: How its tensors lie on the mesh.
        self.spec = P(AXIS) if divided else P()
        self._shapes = dict(shapes)
        small = [name for name, shape in shapes.items() if math.prod(shape) < ALONE]
        large = [[name] for name in shapes if name not in small]
        #: Names of tensors that are exchanged in one message.
        self._groups = [*large, small] if small else large
        self._collect = jax.jit(over(mesh, self.whole, (self.spec,), P()))

    # -- called in every process with its own parts, inside `over`

    def whole(self, parts: Arrays) -> Arrays:
        """The whole tensors of which the processes have parts."""
        if not self.divided:
            return parts
        tensors: Arrays = {}
        for names in self._groups:
            rows = lax.all_gather(_joined([parts[name] for name in names]), AXIS)
            cuts = np.cumsum([len(parts[name]) for name in names])[:-1].tolist()
            for name, piece in zip(names, jnp.split(rows, cuts, axis=1), strict=True):
                shape = self._shapes[name]
                tensors[name] = piece.reshape(-1)[: math.prod(shape)].reshape(shape)
        return {name: tensors[name] for name in self._shapes}

    def summed(self, gradients: Arrays) -> Arrays:
        """The sum of the processes' gradients; where weights are divided, this process's part of it."""
        if self.mesh.size == 1 and not self.divided:
            return gradients
        sums: Arrays = {}
        for names in self._groups:
            rows = [self._rows(gradients[name], jnp) for name in names]
            total = lax.psum(_joined(rows, axis=1), AXIS)
            cuts = np.cumsum([row.shape[1] for row in rows])[:-1].tolist()
            mine = total[lax.axis_index(AXIS)] if self.divided else total[0]
            for name, piece in zip(names, jnp.split(mine, cuts), strict=True):
                sums[name] = piece if self.divided else piece.reshape(self._shapes[name])
        return {name: sums[name] for name in self._shapes}

    def norm(self, gradients: Arrays) -> jax.Array:
        """The norm of what `summed` returned, over all processes."""
        squares = jnp.stack([jnp.square(array).sum() for array in gradients.values()]).sum()
        return jnp.sqrt(lax.psum(squares, AXIS) if self.divided else squares)

    def _rows(self, tensor: Any, library: Any) -> Any:
        """A tensor as (processes, numbers of each), or as one row where it is not divided."""
        flat = tensor.reshape(-1)
        if not self.divided:
            return flat.reshape(1, -1)
        size = self.mesh.size
        return library.pad(flat, (0, -len(flat) % size)).reshape(size, -1)

    # -- called outside

    def place(self, values: Mapping[str, NDArray[Any]]) -> Arrays:
        """Whole tensors, which every process has, put onto the mesh."""
        if not self.divided:
            return {name: in_all(self.mesh, values[name]) for name in self._shapes}
        rank = self.mesh.local_mesh.devices.flat[0].process_index
        return {name: in_each(self.mesh, self._rows(values[name], np)[rank]) for name in self._shapes}

    def collect(self, parts: Arrays) -> Values:
        """The whole tensors, in the memory of this process; called in lockstep where they are divided."""
        whole = self._collect(parts) if self.divided else parts
        return {name: np.array(local(array)) for name, array in whole.items()}


def _joined(arrays: list[Any], axis: int = 0) -> jax.Array:
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis)


# -- joining

#: Collectives may block this long: the controller finds a stalled process, and knows which one it is.
_LIMIT_SECONDS = 7 * 24 * 3600
_LIMITS = ("xla_cpu_collective_timeout_seconds", "xla_cpu_collective_call_terminate_timeout_seconds")


def configure(context: Context) -> None:
    """Set what JAX reads when its first device is made."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", context.job.dtype == "float64")
    os.environ["NPROC"] = str(context.threads)
    limits = (f"--{name}={_LIMIT_SECONDS}" for name in _LIMITS)
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *limits]).strip()


def connect_processes(context: Context) -> Transport:
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
