"""Horovod with either framework: how its processes join, its options, its timeline and its end, and what a saved model
returns. The learners are in the worker module of each framework."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.catalog import segments
from velodrome.catalog.engines.horovod import COLLECTIVES, CYCLE_TIME, FUSION_THRESHOLD, TIMELINE_STEPS
from velodrome.errors import PeerLost, RunFailed, headline
from velodrome.training.actions import Named, fed_images
from velodrome.training.context import Context
from velodrome.transport.base import Ranks, StarTransport
from velodrome.transport.horovod_rendezvous import RendezvousServer, announce
from velodrome.transport.mpi import Rendezvous, join, leave, prepare_network
from velodrome.transport.rendezvous_server import announce as announce_pmi
from velodrome.transport.sockets import address_towards, interface_of

#: Where the timeline is stored in the folder of a run; `chrome://tracing` and Perfetto open it.
TIMELINE = "horovod-timeline.json"
#: Horovod's collectives may block this long: the controller finds a stalled process, and knows which one it is.
_GLOO_SECONDS = 7 * 24 * 3600


class HorovodTransport(StarTransport):
    """The processes after Horovod has started in each. It sums what is no gradient: counts, and what ranks agree on."""

    def __init__(self, context: Context, horovod: Any) -> None:
        """Join; `horovod` is the module of the framework, `horovod.torch` or `horovod.tensorflow`."""
        ranks = Ranks.of(context.world)
        super().__init__(ranks, context.job.start_timeout)
        self._horovod = horovod
        _set_options(context, ranks)
        # The port of the rendezvous is free again.
        self._mpi = join(ranks, context.job.start_timeout) if COLLECTIVES.of(context.job) == "mpi" else None
        if self._mpi is None:
            self._begin_over_gloo(ranks)
        else:
            self._begin_over_mpi(ranks, self._mpi, context.job.start_timeout)
        if (horovod.rank(), horovod.size()) != (ranks.rank, ranks.size):
            raise RunFailed(f"Horovod numbers this process {horovod.rank()} of {horovod.size()} instead of "
                            f"{ranks.rank} of {ranks.size}")
        self._timeline_steps = TIMELINE_STEPS.of(context.job) or 0
        if self._timeline_steps:
            horovod.start_timeline(str(context.folder.resolve() / TIMELINE))

    def _begin_over_gloo(self, ranks: Ranks) -> None:
        announce(ranks.host, ranks.port)
        server = RendezvousServer(ranks.host, ranks.port) if ranks.rank == 0 else None
        try:
            self.barrier()  # the server is there
            with translated():
                self._horovod.init()
            self.barrier()  # no process asks it any more
        finally:
            if server is not None:
                server.stop()

    def _begin_over_mpi(self, ranks: Ranks, rendezvous: Rendezvous, seconds: float) -> None:
        """Start MPICH inside Horovod: it finds the others at the rendezvous, without a launcher of its own."""
        if not self._horovod.mpi_built():
            raise RunFailed("Horovod was built without MPI here: velodrome engines install horovod --framework "
                            f"{'torch' if 'torch' in self._horovod.__name__ else 'tensorflow'}")
        announce_pmi(rendezvous.pmi, ranks.rank, ranks.size)
        prepare_network(ranks.hosts[ranks.rank])
        os.environ.update({"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"})
        already = segments.mapped()
        # MPI's own start has no time limit and keeps the interpreter's lock, so that no thread of ours could end it.
        faulthandler.dump_traceback_later(seconds, exit=True)
        with translated():
            self._horovod.init()
        faulthandler.cancel_dump_traceback_later()
        self.barrier()
        # All ranks have mapped it: without a name nothing is left behind, however a rank ends.
        segments.remove(segments.mapped() - already)

    def count_steps(self, done: int) -> None:
        """End the timeline after its steps; called with how many this process has made."""
        if self._timeline_steps and done >= self._timeline_steps:
            self._timeline_steps = 0
            self._horovod.stop_timeline()

    def close(self) -> None:
        self.barrier()  # a process that ends while another still trains would break that one
        self._horovod.shutdown()
        if self._mpi is not None:
            leave(self._mpi)
        super().close()


@contextmanager
def translated() -> Iterator[None]:
    """Raise `PeerLost` where Horovod reports an error, which it does when another process has gone."""
    try:
        yield
    except Exception as error:
        # TensorFlow raises its own errors for those of its operations.
        if type(error).__module__.startswith("horovod.") or "Horovod" in str(error):
            raise PeerLost(f"lost another worker: {headline(str(error))}") from error
        raise


def _set_options(context: Context, ranks: Ranks) -> None:
    """Set what Horovod reads from the environment when it starts, besides what the plan sets."""
    job = context.job
    fusion = FUSION_THRESHOLD.of(job)
    chosen: dict[str, Any] = {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": _GLOO_SECONDS,
        # It would report ranks that wait for others; the controller does, by name.
        "HOROVOD_STALL_CHECK_DISABLE": 1,
        "HOROVOD_TIMELINE": "DYNAMIC" if TIMELINE_STEPS.of(job) else None,
        "HOROVOD_FUSION_THRESHOLD": None if fusion is None else int(fusion * 2**20),
        "HOROVOD_CYCLE_TIME": CYCLE_TIME.of(job),
        "HOROVOD_GLOO_IFACE": interface_of(address_towards(ranks.host, ranks.port)),
    }
    os.environ.update({name: str(value) for name, value in chosen.items() if value is not None})


def outputs(saved: Path, about: Mapping[str, Any], inputs: Named) -> NDArray[Any]:
    """What the model of a folder returns for inputs as the data set stores them."""
    if about.get("framework") == "tensorflow":
        return _of_keras(saved, about, inputs)
    from velodrome.engines.torch import onnx_export

    return onnx_export.outputs(saved, about, inputs)


def _of_keras(saved: Path, about: Mapping[str, Any], inputs: Named) -> NDArray[Any]:
    import tensorflow as tf
    from safetensors.numpy import load_file

    from velodrome.models import keras_zoo

    dtype, stored = about["dtype"], load_file(saved / about["file"])
    tf.keras.backend.set_floatx(dtype)
    model = keras_zoo.build(about["model"], tuple(about["input_shape"]), about["classes"])
    for variable in model.weights:
        variable.assign(stored[variable.name.partition(":")[0]])
    return np.asarray(model(tf.constant(fed_images(about, inputs, dtype)), training=False), np.float32)
