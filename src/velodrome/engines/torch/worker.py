"""PyTorch in a training process: chooses the device, connects to the other processes, builds the learner and trains.

Below is what Velodrome sets beside PyTorch's own defaults: memory, denormals, how threads wait. OpenMP threads spin
while they wait for one another. That is fastest on an idle machine, but beside other programs a thread that shares its
core falls behind by whole time slices, and the spinning threads keep it from moving to their cores. Threads that always
sleep would cost a small network half of its throughput. So the process watches its cores and switches. The number of
threads, and so the weights, stays the same. An environment variable would come too late: a process that is forked from
a warm one has loaded OpenMP already.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from velodrome.catalog.world import World
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.network import task_of_job
from velodrome.machine import allowed_cores
from velodrome.training import loop
from velodrome.training.context import Context
from velodrome.training.sampler import CpuTime
from velodrome.transport.base import Alone, Transport

#: Joins the other processes, on GPUs or not: what sums counts between them, and the learner of the strategy.
Connect = Callable[[Context, bool], tuple[Transport, Callable[..., TorchLearner]]]


def train(context: Context, connect: Connect | None = None) -> None:
    """Train the job of the context to its end; `connect` is for engines that exchange gradients in another way."""
    if context.role == "server":
        from velodrome.engines.torch.strategies.server_store import serve

        serve(context)
        return
    with ExitStack() as stack:
        if context.job.implementation == "velodrome":
            keep_freed_memory()
            flush_denormals()
            stack.enter_context(sleeping_beside_other_programs(context.threads))
        torch.set_num_threads(context.threads)
        _train(context, connect or _connect)


def train_wrapped(context: Context, single: type[TorchLearner], ddp: type[TorchLearner]) -> None:
    """The same by learners of another library, which uses the process group that it finds."""

    def connect(context: Context, gpus: bool) -> tuple[Transport, type[TorchLearner]]:
        if context.job.strategy == "single":
            return Alone(), single
        from velodrome.engines.torch import process_group

        return process_group.connect(context, gpus=gpus, trains_in_default=True), ddp

    train(context, connect)


def _train(context: Context, connect: Connect) -> None:
    device = choose_device(context.world, torch.cuda.device_count())
    gpus = device.type == "cuda"
    if gpus:
        torch.cuda.set_device(device)

    def build(peers: tuple[Transport, Callable[..., TorchLearner]]) -> TorchLearner:
        transport, learner_class = peers
        return learner_class(context, task_of_job(context).network(device), transport, device)

    loop.train(context, partial(connect, context, gpus), build)


def choose_device(world: World, gpus: int) -> torch.device:
    """The GPU of this process's local rank if its host has one for each process, else the CPU."""
    return torch.device("cuda", world.me.local_rank) if gpus >= world.local_size else torch.device("cpu")


#: The modules of strategies that train in a process group of PyTorch, and their learners.
_IN_PROCESS_GROUP = {
    "ddp": ("ddp", "DdpLearner"), "zero1": ("ddp", "Zero1Learner"), "fsdp": ("fsdp", "FsdpLearner"),
    "tensor": ("tensor", "TensorLearner"), "pipeline": ("pipeline", "PipelineLearner"),
    "local-sgd": ("periodic", "LocalSgdLearner"), "diloco": ("periodic", "DilocoLearner"),
}


def _connect(context: Context, gpus: bool) -> tuple[Transport, Callable[..., TorchLearner]]:
    # Each strategy loads only what it needs: MPI may be missing where DDP runs.
    if context.job.strategy in _IN_PROCESS_GROUP:
        from velodrome.engines.torch.process_group import connect

        module, name = _IN_PROCESS_GROUP[context.job.strategy]
        learner_class: type[TorchLearner] = getattr(import_module(f"velodrome.engines.torch.strategies.{module}"), name)
        return connect(context, gpus=gpus), learner_class
    if context.job.strategy == "allreduce":
        from velodrome.engines.torch.strategies.allreduce import AllReduceLearner
        from velodrome.training.learner import connect_mpi

        return connect_mpi(context), AllReduceLearner
    if context.job.strategy == "parameter-server":
        from velodrome.engines.torch.strategies.parameter_server import connect_servers

        return connect_servers(context)
    return Alone(), TorchLearner


# -- memory, denormals, how threads wait

#: Names of malloc.h, with the bytes that are set; larger values of the first are refused.
_M_MMAP_THRESHOLD, _LARGEST_KEPT = -3, 32 << 20
_M_TRIM_THRESHOLD, _MOST_KEPT = -1, 512 << 20


def keep_freed_memory() -> bool:
    """Let the C library keep what a step frees for the next one, instead of returning pages and faulting in new ones;
    returns whether it does.

    A step of lenet5 with 128 examples (one thread, two runs on a busy machine) takes 1,500 to 2,700 page faults
    without it, which cost 4 to 8 of 45 ms of CPU, and next to none with it; of dense-300-100, 0.04 to 0.24 of 3.7 ms.
    """
    if sys.platform != "linux":
        return False
    with suppress(OSError, AttributeError):  # a C library other than GNU's has no `mallopt`
        library = ctypes.CDLL(None)
        settings = ((_M_MMAP_THRESHOLD, _LARGEST_KEPT), (_M_TRIM_THRESHOLD, _MOST_KEPT))
        results = [library.mallopt(name, value) for name, value in settings]
        return results == [1, 1]
    return False


def flush_denormals() -> bool:
    """Let the processor flush denormals to zero, which it computes with many times slower; whether it does.

    The optimizer's state of a gradient that stays zero decays into them. Threads that start later inherit it.
    """
    return torch.set_flush_denormal(True)


#: Seconds between checks of the cores.
INTERVAL = 0.5
#: Cores in use by other programs from which on threads sleep, and below which they spin again. Less than this costs
#: less than sleeping does.
CROWDED, FREE = 0.3, 0.15
#: The cores that the OpenMP library found when it was loaded, which is when this module is imported.
_CORES_AT_IMPORT = len(allowed_cores())


def should_sleep(background: float, sleeping: bool) -> bool:
    """Whether threads should sleep while they wait, when other programs use `background` of the process's cores."""
    return background > (FREE if sleeping else CROWDED)


def openmp_library() -> ctypes.CDLL | None:
    """GNU's OpenMP library as PyTorch loaded it; None if it uses another one."""
    with suppress(OSError, StopIteration, AttributeError):
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        paths = dict.fromkeys(line[line.index("/") :] for line in maps if "/libgomp" in line)
        # Other packages may bring a copy of their own.
        path = next((path for path in paths if "/torch/" in path), None) or next(iter(paths))
        library = ctypes.CDLL(path)
        return library if library.GOMP_parallel else None
    return None


class IdleThreads:
    """So many OpenMP threads without work that there are more threads than cores, beside those that compute."""

    def __init__(self, library: ctypes.CDLL, computing: int) -> None:
        self._library = library
        # The one that starts them is among them, and OpenMP does not count it.
        self._count = max(2, _CORES_AT_IMPORT - computing + 2)
        self._thread: threading.Thread | None = None
        self._done = threading.Event()

    @property
    def exist(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Start them; returns when they are there."""
        self._done, ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(self._done, ready), name="velodrome-idle", daemon=True)
        self._thread.start()
        ready.wait()

    def _hold(self, done: threading.Event, ready: threading.Event) -> None:
        # Threads belong to the one that started them: they last as long as it does. Each calls free(NULL).
        self._library.GOMP_parallel(ctypes.CDLL(None).free, None, self._count, 0)
        ready.set()
        done.wait()

    def stop(self) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join()
            self._thread = None


class CoreWatch(threading.Thread):
    """Looks every half second whether other programs use this process's cores; accordingly, threads sleep or spin."""

    def __init__(self, idle_threads: IdleThreads, cpu_time: CpuTime) -> None:
        super().__init__(name="velodrome-cores", daemon=True)
        self._idle_threads, self._cpu_time = idle_threads, cpu_time
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(INTERVAL):
            self.look()

    def look(self) -> None:
        times, sleeping = self._cpu_time.since_last(), self._idle_threads.exist
        if times is None or times["seconds"] <= 0:
            return
        background = (times["busy"] - times["own"]) / times["seconds"]
        if should_sleep(background, sleeping) == sleeping:
            return
        how = "spin again" if sleeping else "sleep"
        with suppress(OSError):  # the disk that holds the log may be full
            sys.stderr.write(f"other programs use {max(0.0, background):.1f} of this process's cores: threads that "
                             f"wait {how}\n")
            sys.stderr.flush()
        if sleeping:
            self._idle_threads.stop()
        else:
            self._idle_threads.start()

    def stop(self) -> None:
        self._done.set()
        self.join()
        self._idle_threads.stop()


@contextmanager
def sleeping_beside_other_programs(threads: int) -> Iterator[None]:
    """Let the threads of this process sleep while they wait, whenever other programs use its cores."""
    chosen = any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"))
    library = openmp_library() if threads > 1 and not chosen else None
    if library is None:
        yield
        return
    # Counts the cores that this process is pinned to.
    watch = CoreWatch(IdleThreads(library, threads), CpuTime())
    watch.start()
    try:
        yield
    finally:
        watch.stop()
