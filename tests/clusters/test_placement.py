"""Processes get the hosts that the policy and the pins ask for."""

from __future__ import annotations

from collections import Counter

import pytest

from velodrome.clusters.plan import Placement, make_plan, parse_pins, place
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import resolve, roles_of

NINE = [f"host{number}" for number in range(1, 10)]


def roles(workers: int, servers: int) -> list[tuple[str, int]]:
    return roles_of(resolve(Job.model_validate({
        "engine": "tensorflow", "strategy": "parameter-server", "workers": workers, "servers": servers,
    })))


def by_role(placed: list[str], processes: list[tuple[str, int]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for (role, _), host in zip(processes, placed, strict=True):
        found.setdefault(role, []).append(host)
    return found


def test_a_chief_six_workers_and_two_servers_get_nine_hosts_of_their_own() -> None:
    processes = roles(6, 2)
    assert len(processes) == 9
    for servers in ("spread", "apart"):
        assert sorted(place(processes, NINE, Placement("spread", servers))) == NINE  # type: ignore[arg-type]


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_the_small_compositions_have_servers_apart_from_workers(workers: int, servers: int) -> None:
    processes = roles(workers, servers)
    hosts = NINE[: workers + servers]
    found = by_role(place(processes, hosts, Placement("spread", "apart")), processes)
    assert not set(found["server"]) & set(found["worker"])
    assert len(set(found["server"])) == servers
    assert len(set(found["worker"])) == workers


@pytest.mark.parametrize(("pins", "workers", "servers"), [
    (["worker=c"], ["c", "c"], ["b"]),
    (["worker=b,c"], ["b", "c"], ["a"]),
    (["worker:1=c"], ["a", "c"], ["b"]),
    (["server=a"], ["b", "c"], ["a"]),
    (["server=a", "worker:0=a"], ["a", "b"], ["a"]),
])
def test_servers_stay_apart_from_pinned_workers(pins: list[str], workers: list[str], servers: list[str]) -> None:
    processes = [("worker", 0), ("worker", 1), ("server", 0)]
    placement = Placement("spread", "apart", parse_pins(pins))
    assert by_role(place(processes, ["a", "b", "c"], placement), processes) == {"worker": workers, "server": servers}


def test_servers_that_cannot_be_apart_are_refused() -> None:
    processes = [("worker", 0), ("worker", 1), ("server", 0)]
    with pytest.raises(BadRequest, match="need a host without a worker besides a, b, but there are 2;"):
        place(processes, ["a", "b"], Placement("spread", "apart", {"worker": "a,b"}))


def test_servers_beside_workers_take_no_host_of_their_own() -> None:
    processes = roles(2, 2)
    found = by_role(place(processes, NINE, Placement("spread", "beside")), processes)
    assert found["server"] == found["worker"]


def test_spread_balances_and_pack_fills_one_host_after_the_other() -> None:
    processes = [("worker", rank) for rank in range(6)]
    assert Counter(place(processes, NINE[:4], Placement("spread"))).most_common()[0][1] == 2
    assert place(processes, NINE[:4], Placement("pack", slots=4)) == ["host1"] * 4 + ["host2"] * 2
    assert place(processes, NINE[:2], Placement("pack"), {"host1": 1, "host2": 2}) == [
        "host1", "host2", "host2", "host1", "host2", "host2",
    ]


def test_pins_win_and_a_rank_wins_over_its_role() -> None:
    pins = parse_pins(["worker:1=host3", "server=host4", "worker=host1,host2"])
    processes = roles(2, 1)
    found = dict(zip(processes, place(processes, NINE[:4], Placement("spread", pins=pins)), strict=True))
    assert found["worker", 0] == "host1"
    assert found["worker", 1] == "host3"
    assert found["server", 0] == "host4"


@pytest.mark.parametrize(("word", "sentence"), [
    ("server", "--place 'server': write it as ROLE=HOST"),
    ("server:x=a", "write it as ROLE=HOST"),
    ("=a", "write it as ROLE=HOST"),
    ("server=,", "write it as ROLE=HOST"),
    ("worker:²=a", "write it as ROLE=HOST"),
])
def test_a_pin_that_cannot_be_read_is_quoted(word: str, sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        parse_pins([word])


@pytest.mark.parametrize(("pins", "sentence"), [
    ({"server": "moon"}, "no host 'moon'; choose from host1, host2"),
    ({"evaluator": "host1"}, "this job has no 'evaluator'; its roles are"),
    ({"worker:7": "host1"}, "this job has no 'worker:7'"),
])
def test_a_pin_to_nowhere_or_of_nobody_is_refused(pins: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        place(roles(2, 1), NINE[:2], Placement("spread", pins=pins))


def test_servers_apart_need_two_hosts() -> None:
    with pytest.raises(BadRequest, match="need at least two hosts, but there are 1"):
        place(roles(1, 1), NINE[:1], Placement("spread", "apart"))


def test_others_reach_a_host_at_its_address_and_people_know_it_by_its_name() -> None:
    job = resolve(Job.model_validate({"engine": "torch", "strategy": "ddp", "workers": 2}))
    plan = make_plan("a", job, ["lab1", "lab2"], placement=Placement("spread"),
                     addresses={"lab1": "10.0.0.1", "lab2": "10.0.0.2"})
    assert [process.host for process in plan.processes] == ["lab1", "lab2"]
    assert [member.host for member in plan.members] == ["10.0.0.1", "10.0.0.2"]
    assert plan.processes[1].environment["MASTER_ADDR"] == "10.0.0.1"
