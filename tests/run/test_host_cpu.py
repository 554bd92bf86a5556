"""What a run and other programs used of a host's cores, from heartbeats that come at different moments."""

from __future__ import annotations

import pytest

from velodrome.events import to_event
from velodrome.events.models import ResourcesEvent
from velodrome.run.samples import CpuSeries, host_cpu

pytestmark = pytest.mark.unit


def series(start: float, samples: list[tuple[float, float, float, float]]) -> CpuSeries:
    """The heartbeats of a process from a moment on: seconds, and the rates of busy, own and controller in cores."""
    found, time = CpuSeries(), start
    for seconds, *rates in samples:
        time += seconds
        amounts = dict(zip(("busy", "own", "controller"), (rate * seconds for rate in rates), strict=True))
        event = to_event({"time": time, "role": "worker", "rank": 0, "kind": "resources", "cpu_percent": 1.0,
                          "memory_bytes": 1, "network": {"in": 0, "out": 0, "loopback": 0},
                          "cpu_time": {"seconds": seconds, **amounts}})
        assert isinstance(event, ResourcesEvent)
        assert event.cpu_time is not None
        found.add(event.time, event.cpu_time)
    return found


def test_what_is_not_the_runs_own_is_foreign() -> None:
    found = host_cpu([series(0.0, [(1.0, 2.0, 1.1, 0.0)] * 4)])
    assert found is not None
    assert (found.busy, found.own, found.foreign, found.seconds) == (2.0, 1.1, 0.9, 4.0)


def test_the_processes_of_a_host_add_up_and_their_controller_counts_once() -> None:
    found = host_cpu([series(0.0, [(1.0, 2.0, 0.8, 0.1)] * 3), series(0.0, [(0.5, 2.0, 0.7, 0.1)] * 6)])
    assert found is not None
    assert (found.busy, found.own, found.foreign) == (2.0, 1.6, 0.4)


def test_a_rank_that_spins_while_it_waits_is_not_foreign() -> None:
    spinning = series(0.0, [(1.0, 2.0, 1.0, 0.0)] * 2)
    found = host_cpu([spinning, spinning])
    assert found is not None
    assert found.foreign == 0.0


def test_only_the_time_in_which_all_were_alive_counts() -> None:
    early = series(0.0, [(1.0, 1.0, 1.0, 0.0), (1.0, 2.0, 1.0, 0.0), (1.0, 2.0, 1.0, 0.0)])
    # It starts half a second after the other, whose heartbeat counts by the part that lies in common.
    late = series(0.5, [(1.5, 1.75, 1.0, 0.0), (1.0, 2.0, 1.0, 0.0), (1.0, 2.0, 0.0, 0.0)])
    found = host_cpu([early, late])
    assert found is not None
    assert found.seconds == 2.5
    assert found.own == 2.0
    assert found.busy == pytest.approx((0.5 + 2 + 2 + 1.75 * 1.5 + 2) / 2 / 2.5, abs=1e-3)


def test_clock_ticks_never_make_it_negative() -> None:
    found = host_cpu([series(0.0, [(1.0, 0.98, 1.0, 0.01)])])
    assert found is not None
    assert found.foreign == 0.0


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param([], id="no process"),
        pytest.param([CpuSeries()], id="no sample"),
        pytest.param([series(0.0, [(1.0, 1.0, 1.0, 0.0)]), series(2.0, [(1.0, 1.0, 1.0, 0.0)])], id="never together"),
    ],
)
def test_without_a_common_time_nothing_is_known(processes: list[CpuSeries]) -> None:
    assert host_cpu(processes) is None


def test_processes_on_other_hosts_of_the_same_machine_are_not_foreign() -> None:
    mine, beside = series(0.0, [(1.0, 2.0, 0.5, 0.1)] * 3), series(0.0, [(1.0, 2.0, 0.4, 0.1)] * 3)
    found = host_cpu([mine], [beside, beside])
    assert found is not None
    assert (found.own, found.foreign) == (1.4, 0.6)
