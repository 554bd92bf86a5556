"""Whatever reduces the gradients, a step is the step by their sum; here the processes are threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from velodrome.engines.torch.optimizer import FusedOptimizer, StockOptimizer, clip, squared_norm  # noqa: E402
from velodrome.engines.torch.reducers import AllReduceReducer, SharedMemoryReducer  # noqa: E402
from velodrome.spec.job import Job  # noqa: E402
from velodrome.transport.base import Transport  # noqa: E402

STEPS = 3
SHAPES = [(40, 5), (3,), (6, 2, 3, 3), (1,), (70, 7)]


class Group:
    """What the threads of a test share."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size, timeout=30)
        self.lock, self.memory, self.buffers = threading.Lock(), {}, [None] * size


class Threads(Transport):
    def __init__(self, group: Group, rank: int) -> None:
        self._group, self.rank, self.size = group, rank, group.size

    def barrier(self) -> None:
        self._group.barrier.wait()

    def all_reduce(self, buffer) -> None:
        self._group.buffers[self.rank] = buffer.copy()
        self.barrier()
        buffer[:] = sum(self._group.buffers)
        self.barrier()

    def shared(self, shape, dtype):
        with self._group.lock:
            return self._group.memory.setdefault("rows", np.zeros(shape, dtype))


def parameters() -> list[torch.nn.Parameter]:
    drawn = torch.Generator().manual_seed(1)
    made = [torch.nn.Parameter(torch.randn(shape, generator=drawn, dtype=torch.float64)) for shape in SHAPES]
    made[2].data = made[2].data.to(memory_format=torch.channels_last)
    return made


def gradients(step: int, rank: int) -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(100 * step + rank)
    made = [torch.randn(shape, generator=drawn, dtype=torch.float64) for shape in SHAPES]
    made[0] = made[0].t().contiguous().t()  # lies in memory otherwise than its parameter
    return made


def job(optimizer: str, kind: str = "") -> Job:
    implementation = "stock" if kind == "stock" else "velodrome"
    return Job(optimizer=optimizer, dtype="float64", learning_rate=0.1, implementation=implementation)


def alone(size: int, optimizer: str, idle: int | None, maximum: float | None) -> list[torch.Tensor]:
    """What one process makes of the reducer."""
    mine = parameters()
    stepping = FusedOptimizer(job(optimizer), list(mine))
    for step in range(STEPS):
        parts = [gradients(step, rank) for rank in range(size) if rank != idle]
        summed = [torch.empty_like(p).copy_(sum(each)) for p, each in zip(mine, zip(*parts, strict=True), strict=True)]
        if maximum:
            clip(summed, squared_norm(summed) ** 0.5, maximum)
        stepping.step(summed)
    return [parameter.detach() for parameter in mine]


def together(kind: str, size: int, optimizer: str, idle: int | None, maximum: float | None):
    group = Group(size)

    def work(rank: int):
        mine, transport, wanted = parameters(), Threads(group, rank), job(optimizer, kind)
        if kind == "shared-memory":
            memory = SharedMemoryReducer.allocate(transport, mine, wanted)
            reducer = SharedMemoryReducer(transport, mine, wanted, memory)
        else:
            reducer = AllReduceReducer(transport, mine, wanted)
        assert isinstance(reducer.optimizer, StockOptimizer if kind == "stock" else FusedOptimizer)
        for step in range(STEPS):
            reducer.write(None if rank == idle else gradients(step, rank))
            summed = reducer.reduce()
            if maximum:
                clip(summed, reducer.norm(summed), maximum)
            reducer.optimizer.step(summed)
            reducer.finish()
        return mine, reducer.optimizer.state()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, range(size)))


@pytest.mark.parametrize("maximum", [None, 0.5])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("kind", ["all-reduce", "shared-memory", "stock"])
def test_a_step_is_the_step_by_the_sum(kind, size, optimizer, maximum):
    expected = alone(size, optimizer, None, maximum)
    for mine, _ in together(kind, size, optimizer, None, maximum):
        for parameter, wanted in zip(mine, expected, strict=True):
            assert parameter.stride() == wanted.stride()
            assert torch.allclose(parameter, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["all-reduce", "shared-memory", "stock"])
@pytest.mark.parametrize("idle", [0, 2])
def test_a_process_without_gradients_adds_zeros(kind, idle):
    expected = alone(3, "adam", idle, None)
    for mine, _ in together(kind, 3, "adam", idle, None):
        assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(mine, expected, strict=True))


def test_every_process_has_the_whole_state_of_the_optimizer():
    states = [state for _, state in together("shared-memory", 3, "adam", None, None)]
    sent = together("all-reduce", 3, "adam", None, None)[0][1]
    for state in states:
        assert state.keys() == sent.keys()
        assert all(torch.allclose(state[name], sent[name], rtol=0, atol=1e-12) for name in sent)
