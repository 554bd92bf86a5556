"""What a process uses of its host: CPU time, and progress by computing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from velodrome import machine
from velodrome.events.fields import CpuTime as CpuTimeFields
from velodrome.training import sampler
from velodrome.training.context import Status
from velodrome.training.host import claim_cores
from velodrome.training.sampler import CpuTime
from velodrome.variables import CONTROLLER

BURN = "import time\nwhile time.process_time() < {seconds}: pass\nprint(flush=True)\n{after}"
STAT = """cpu  900 0 900 0 0 0 0 0 0 0
cpu0 100 1 10 5000 700 3 4 2 50 0
cpu1 200 0 0 5000 0 0 0 0 0 0
cpu12 400 0 0 5000 0 0 0 0 0 0
intr 1 2 3
"""


def burn(seconds: float) -> float:
    """Use so much CPU time; what was used."""
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        pass
    return time.process_time() - begin


@pytest.mark.unit
def test_what_this_process_uses_is_its_own_and_the_hosts() -> None:
    counted = CpuTime()
    used = burn(0.3)
    times = counted.since_last()
    assert times is not None
    fields = CpuTimeFields.model_validate(times)
    assert used <= fields.own < used + 0.2
    assert fields.busy >= used - 0.1, "the system counts in hundredths of a second"
    assert fields.controller == 0.0
    again = counted.since_last()
    assert again is not None
    assert again["own"] < 0.1, "each call counts from the one before"


@pytest.mark.integration
@pytest.mark.parametrize("ended", [True, False])
def test_what_its_children_use_is_its_own_whether_they_ended_or_not(ended: bool) -> None:
    counted = CpuTime()
    code = BURN.format(seconds=0.3, after="" if ended else "time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        if ended:
            child.wait(30)
        times = counted.since_last()
        child.kill()
    assert times is not None
    assert times["own"] >= 0.28


@pytest.mark.integration
def test_what_its_controller_uses_belongs_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import os, sys\nsys.stdin.readline()\n{BURN.format(seconds=0.3, after='time.sleep(60)')}"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as controller:
        assert controller.stdin is not None
        assert controller.stdout is not None
        monkeypatch.setenv(CONTROLLER, str(controller.pid))
        counted = CpuTime()
        controller.stdin.write(b"\n")
        controller.stdin.flush()
        controller.stdout.readline()
        times = counted.since_last()
        controller.kill()
    assert times is not None
    assert times["controller"] >= 0.2


@pytest.mark.unit
@pytest.mark.parametrize("controller", ["", "no number", "4194303"])
def test_a_controller_that_is_elsewhere_counts_nothing(controller: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTROLLER, controller)
    times = CpuTime().since_last()
    assert times is not None
    assert times["controller"] == 0.0


@pytest.mark.unit
def test_only_the_cores_that_the_job_may_use_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    stat.write_text(STAT)
    monkeypatch.setattr(machine, "PROC_STAT", stat)
    monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path)
    ticks = os.sysconf("SC_CLK_TCK")
    assert machine.busy_seconds([0]) == pytest.approx(120 / ticks), "idle and waiting for a disk are not busy"
    assert machine.busy_seconds([1, 12]) == pytest.approx(600 / ticks)
    stat.unlink()
    assert machine.busy_seconds([0]) is None


@pytest.mark.unit
@pytest.mark.parametrize(
    ("files", "quota", "used"),
    [
        pytest.param({"cpu.max": "150000 100000", "cpu.stat": "usage_usec 2500000\nuser_usec 1"}, 1.5, 2.5, id="v2"),
        pytest.param({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n",
                      "cpuacct/cpuacct.usage": "2500000000\n"}, 1.5, 2.5, id="v1"),
        pytest.param({"cpu.max": "max 100000", "cpu.stat": "usage_usec 2500000"}, None, None, id="v2, no limit"),
        pytest.param({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, None, id="v1, no limit"),
        pytest.param({}, None, None, id="no container"),
    ],
)
def test_in_a_container_with_a_quota_the_container_is_the_host(
    files: dict[str, str], quota: float | None, used: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "stat").write_text(STAT)
    monkeypatch.setattr(machine, "PROC_STAT", tmp_path / "stat")
    monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(machine, "allowed_cores", lambda: list(range(8)))
    assert machine.core_quota() == quota
    assert machine.cores() == (8 if quota is None else 1)
    assert machine.busy_seconds([1]) == pytest.approx(used or 200 / os.sysconf("SC_CLK_TCK"))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("slot", "threads", "quota", "wanted", "pinned"),
    [
        pytest.param("0/1", None, None, 4, [0, 1, 2, 3], id="one process has all"),
        pytest.param("1/2", None, None, 2, [2, 3], id="two have half each"),
        pytest.param("3/4", None, None, 1, [3], id="one each"),
        pytest.param("5/6", None, None, 1, [1], id="more processes than cores take turns"),
        pytest.param("1/2", 1, None, 1, [1], id="as many threads as requested"),
        pytest.param("0/2", 4, None, 4, [0, 1, 2, 3], id="more threads than cores share all"),
        pytest.param("0/1", None, 2.5, 2, None, id="a quota is not a set of cores"),
        pytest.param("1/2", None, 2.5, 1, None, id="a quota is divided, too"),
        pytest.param("0/0", None, None, 1, None, id="a process that does not compute"),
    ],
)
def test_cores_are_divided_among_the_processes_of_a_host(
    slot: str, threads: int | None, quota: float | None, wanted: int, pinned: list[int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[list[int]] = []
    monkeypatch.setattr(machine, "core_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: chosen.append(cores))
    first, second = map(int, slot.split("/"))
    assert claim_cores(first, second, threads) == wanted
    assert chosen == ([] if pinned is None else [pinned])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "PERIOD", 0.05)


def test_one_that_computes_makes_progress() -> None:
    status, deadline = Status(), time.monotonic() + 60
    with sampler.computing(status):
        while not status.seen and time.monotonic() < deadline:
            sum(range(10_000))
    assert status.seen


def test_one_that_waits_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def idle() -> float:
        looks.append(time.monotonic())
        return 5.0

    monkeypatch.setattr(sampler, "own_seconds", idle)
    status, deadline = Status(), time.monotonic() + 60
    with sampler.computing(status):
        while len(looks) < 5 and time.monotonic() < deadline:
            time.sleep(0.02)
    assert len(looks) >= 5
    assert status.seen == 0
