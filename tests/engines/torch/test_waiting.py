"""Threads that wait for one another spin on an idle machine, and sleep beside other programs."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from velodrome.engines.torch.worker import (
    CoreWatch,
    IdleThreads,
    openmp_library,
    should_sleep,
    sleeping_beside_other_programs,
)
from velodrome.machine import cores
from velodrome.training.sampler import CpuTime

pytestmark = pytest.mark.unit


class Scripted(CpuTime):
    """Reports what other programs used of two cores, one number for each look."""

    def __init__(self, *foreign: float | None) -> None:
        self._foreign = list(foreign)

    def since_last(self) -> dict[str, float] | None:
        used = self._foreign.pop(0)
        return None if used is None else {"seconds": 0.5, "busy": 0.5 * (used + 1.2), "own": 0.6, "controller": 0.0}


@pytest.fixture
def idle_threads() -> Iterator[IdleThreads]:
    library = openmp_library()
    if library is None or cores() < 2:
        pytest.skip("one core, or a PyTorch without GNU's OpenMP")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    idle = IdleThreads(library, 2)
    yield idle
    idle.stop()
    torch.set_num_threads(before)


def spinning() -> float:
    """CPU seconds that this process uses while it sleeps after two threads computed together."""
    used = []
    for _ in range(10):
        torch.ones(4_000_000).sum()
        before = time.process_time()
        time.sleep(0.02)
        used.append(time.process_time() - before)
    return statistics.median(used)


def ours() -> list[str]:
    """Names of the threads that were started for it."""
    return [thread.name for thread in threading.enumerate() if thread.name in ("velodrome-cores", "velodrome-idle")]


def test_with_threads_without_work_the_others_sleep_as_libgomp_documents(idle_threads: IdleThreads) -> None:
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        pytest.skip("the environment decides how threads wait")
    for _ in range(2):
        assert spinning() > 0.0005
        idle_threads.start()
        assert idle_threads.exist
        assert spinning() < 0.0005
        idle_threads.stop()
        assert not idle_threads.exist


def test_the_numbers_stay_the_same(idle_threads: IdleThreads) -> None:
    torch.manual_seed(1)
    left, right = torch.randn(500, 700), torch.randn(700, 300)
    before = left @ right, left.sum()
    idle_threads.start()
    assert torch.equal(left @ right, before[0])
    assert torch.equal(left.sum(), before[1])


@pytest.mark.parametrize(
    ("foreign", "sleeping", "expected"),
    [(0.0, False, False), (0.25, False, False), (0.5, False, True), (0.9, True, True), (0.25, True, True),
     (0.1, True, False)],
)
def test_a_load_between_the_limits_changes_nothing(foreign: float, sleeping: bool, expected: bool) -> None:
    assert should_sleep(foreign, sleeping) is expected


def test_a_process_changes_how_it_waits_when_other_programs_come_and_go(
    idle_threads: IdleThreads, capfd: pytest.CaptureFixture[str]
) -> None:
    watch = CoreWatch(idle_threads, Scripted(0.0, 0.7, 0.2, None, 0.0, 0.1))
    seen = []
    for _ in range(6):
        watch.look()
        seen.append(idle_threads.exist)
    assert seen == [False, True, True, True, False, False]
    assert capfd.readouterr().err.splitlines() == [
        "other programs use 0.7 of this process's cores: threads that wait sleep",
        "other programs use 0.0 of this process's cores: threads that wait spin again",
    ]


@pytest.mark.parametrize(("threads", "chosen"), [(1, None), (2, "OMP_WAIT_POLICY"), (2, "GOMP_SPINCOUNT")])
def test_one_thread_and_the_users_own_choice_are_left_alone(
    threads: int, chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chosen:
        monkeypatch.setenv(chosen, "passive" if chosen == "OMP_WAIT_POLICY" else "1000")
    with sleeping_beside_other_programs(threads):
        assert ours() == []


def test_nothing_is_left_of_the_watch(idle_threads: IdleThreads) -> None:
    with sleeping_beside_other_programs(2):
        assert ours() == ["velodrome-cores"]
    assert ours() == []
