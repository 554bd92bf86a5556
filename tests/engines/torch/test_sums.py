"""However gradients become one step, it is the step by their sum; here the processes are threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from velodrome.engines.torch.optimizer import Optimizer, shorten, squares  # noqa: E402
from velodrome.engines.torch.reducers import Sent, Shared  # noqa: E402
from velodrome.spec.job import Job  # noqa: E402
from velodrome.transport.base import Transport  # noqa: E402

STEPS = 3
SHAPES = [(40, 5), (3,), (6, 2, 3, 3), (1,), (70, 7)]


class Meeting:
    """What the threads of a test share."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size, timeout=30)
        self.lock, self.memory, self.buffers = threading.Lock(), {}, [None] * size


class Threads(Transport):
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, meeting.size

    def barrier(self) -> None:
        self._meeting.barrier.wait()

    def all_reduce(self, buffer) -> None:
        self._meeting.buffers[self.rank] = buffer.copy()
        self.barrier()
        buffer[:] = sum(self._meeting.buffers)
        self.barrier()

    def shared(self, shape, dtype):
        with self._meeting.lock:
            return self._meeting.memory.setdefault("rows", np.zeros(shape, dtype))


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


def job(optimizer: str) -> Job:
    return Job(optimizer=optimizer, dtype="float64", learning_rate=0.1)


def alone(size: int, optimizer: str, idle: int | None, longest: float | None) -> list[torch.Tensor]:
    """What one process makes of the sums."""
    mine = parameters()
    stepping = Optimizer(job(optimizer), list(mine))
    for step in range(STEPS):
        parts = [gradients(step, rank) for rank in range(size) if rank != idle]
        summed = [torch.empty_like(p).copy_(sum(each)) for p, each in zip(mine, zip(*parts, strict=True), strict=True)]
        if longest:
            shorten(summed, squares(summed) ** 0.5, longest)
        stepping.step(summed)
    return [parameter.detach() for parameter in mine]


def together(kind: str, size: int, optimizer: str, idle: int | None, longest: float | None):
    meeting = Meeting(size)

    def work(rank: int):
        mine, transport, wanted = parameters(), Threads(meeting, rank), job(optimizer)
        if kind == "shared":
            sums = Shared(transport, mine, wanted, Shared.memory(transport, mine, wanted))
        else:
            sums = Sent(transport, mine, wanted)
        for step in range(STEPS):
            sums.write(None if rank == idle else gradients(step, rank))
            summed = sums.reduce()
            if longest:
                shorten(summed, sums.norm(summed), longest)
            sums.optimizer.step(summed)
            sums.finish()
        return mine, sums.optimizer.state()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, range(size)))


@pytest.mark.parametrize("longest", [None, 0.5])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("kind", ["sent", "shared"])
def test_a_step_is_the_step_by_the_sum(kind, size, optimizer, longest):
    expected = alone(size, optimizer, None, longest)
    for mine, _ in together(kind, size, optimizer, None, longest):
        for parameter, wanted in zip(mine, expected, strict=True):
            assert parameter.stride() == wanted.stride()
            assert torch.allclose(parameter, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["sent", "shared"])
@pytest.mark.parametrize("idle", [0, 2])
def test_a_process_without_gradients_adds_zeros(kind, idle):
    expected = alone(3, "adam", idle, None)
    for mine, _ in together(kind, 3, "adam", idle, None):
        assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(mine, expected, strict=True))


def test_every_process_knows_all_that_the_optimizer_remembers():
    states = [state for _, state in together("shared", 3, "adam", None, None)]
    sent = together("sent", 3, "adam", None, None)[0][1]
    for state in states:
        assert state.keys() == sent.keys()
        assert all(torch.allclose(state[name], sent[name], rtol=0, atol=1e-12) for name in sent)
