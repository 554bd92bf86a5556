"""Runs beside other programs are recognised, and said to be unreliable, in words that count them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from synthetic_races import result
from typed_judge import as_result
from velodrome.job.result import Result
from velodrome.judge.conditions import background_load, is_loaded, load_note, slowdown
from velodrome.judge.measures import BY_NAME

pytestmark = pytest.mark.unit


def host(name: str = "a", used: float | None = 0.0, cores: int = 2, seconds: float = 10.0) -> dict[str, Any]:
    about = {"hostname": name, "interpreter": "/opt/python", "versions": {}, "cores": cores, "memory_bytes": 2**34}
    cpu = {"busy": 2.0, "own": 1.0, "foreign": used, "seconds": seconds}
    return about if used is None else {**about, "cpu": cpu}


def run(*hosts: dict[str, Any], **fields: Any) -> Result:
    return as_result({**result(), "hosts": list(hosts), **fields})


def test_a_run_of_a_version_that_did_not_measure_it_has_no_foreign_load() -> None:
    for made in (as_result(result()), run(host(used=None)), run()):
        assert background_load(made) is None
        assert not is_loaded(made)
        assert load_note([made]) == ""


@pytest.mark.parametrize(
    ("used", "cores", "seconds", "matters"),
    [
        pytest.param(0.05, 2, 10.0, False, id="what any system uses"),
        pytest.param(0.9, 2, 10.0, True, id="a busy core of two"),
        pytest.param(0.9, 64, 10.0, False, id="a busy core of many"),
        pytest.param(0.2, 2, 0.3, False, id="a few clock ticks of a short run"),
        pytest.param(0.9, 2, 0.3, True, id="a busy core during a short run"),
    ],
)
def test_a_small_share_does_not_matter_and_neither_does_what_cannot_be_told_from_nothing(
    used: float, cores: int, seconds: float, matters: bool
) -> None:
    assert is_loaded(run(host(used=used, cores=cores, seconds=seconds))) is matters


def test_the_host_with_the_highest_share_counts() -> None:
    load = background_load(run(host("a", 0.9, cores=64), host("b", 0.8, cores=2), host("c", None)))
    assert load is not None
    assert (load.host, load.used, load.share, str(load)) == ("b", 0.8, 0.4, "0.8 of 2 cores")


def test_one_run_is_said_to_be_unreliable() -> None:
    assert load_note([run(host(used=0.9))]) == "other programs used 0.9 of 2 cores"
    assert load_note([run(host(used=0.3, cores=1))]).endswith("used 0.3 of 1 core")


def test_runs_are_counted() -> None:
    idle, busy = run(host()), run(host(used=0.9))
    assert load_note([idle, idle]) == ""
    assert load_note([*[idle] * 9, *[busy] * 3]) == "other programs used 0.9 of 2 cores during 3 of 12 runs"
    assert "used up to 1.4 of 2 cores during 2 of 2 runs" in load_note([busy, run(host(used=1.4))])


def test_of_several_hosts_the_loaded_one_is_named() -> None:
    assert load_note([run(host("a"), host("b", 1.0))])== "other programs used 1.0 of 2 cores of b"


@pytest.mark.parametrize(
    ("hosts", "ratio"),
    [
        pytest.param([host(used=0.05)], 1.0, id="what any system uses"),
        pytest.param([host(used=0.5)], 2.0, id="half of a core, and the run waited for it"),
        pytest.param([host("a", 0.25), host("b", 0.25)], 2.0, id="delays of hosts that follow one another"),
        pytest.param([host(used=1.7)], 100.0, id="a whole core and more: anything may be"),
    ],
)
def test_a_core_that_others_used_delayed_a_run_by_as_long_at_most(hosts: list[dict[str, Any]], ratio: float) -> None:
    assert math.exp(slowdown(run(*hosts))) == pytest.approx(ratio)


def test_emulated_hosts_share_the_cores_of_one_machine() -> None:
    made = run(host("a", 0.5), host("b", 0.5), launcher="emulated")
    assert math.exp(slowdown(made)) == pytest.approx(2.0)


def test_it_is_a_measure_of_a_run_like_the_others() -> None:
    measure = BY_NAME["foreign_cores"]
    assert measure.read(run(host("a", 0.5), host("b", 0.25), host("c", None))) == 0.75
    assert measure.read(as_result(result())) is None
