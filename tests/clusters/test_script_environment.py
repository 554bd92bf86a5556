"""What the processes of a script find in their environment."""

from __future__ import annotations

import json

from velodrome.catalog.world import Member, World, numbered, script_environment
from velodrome.clusters.plan import make_plan
from velodrome.job.job import Job
from velodrome.job.resolve import resolve

MEMBERS = numbered(Member("worker", rank, host, 4000 + rank) for rank, host in enumerate("abab"))


def of_rank(rank: int) -> dict[str, str]:
    return dict(script_environment(World(MEMBERS, MEMBERS[rank])))


def test_a_rank_finds_what_torchrun_sets() -> None:
    found = of_rank(3)
    assert {name: found[name] for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")} == {
        "MASTER_ADDR": "a", "MASTER_PORT": "4000", "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}
    assert (found["LOCAL_WORLD_SIZE"], found["GROUP_RANK"], found["GROUP_WORLD_SIZE"]) == ("2", "1", "2")
    assert found["TORCHELASTIC_RUN_ID"]  # by which Lightning knows that it has not to start processes


def test_a_rank_finds_its_place_in_tensorflows_cluster() -> None:
    assert json.loads(of_rank(2)["TF_CONFIG"]) == {
        "cluster": {"worker": ["a:4000", "b:4001", "a:4002", "b:4003"]}, "task": {"type": "worker", "index": 2}}


def test_a_rank_finds_its_place_in_horovods_grid() -> None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    assert [of_rank(3)[f"HOROVOD_{name}"] for name in names] == ["3", "4", "1", "2", "1", "2"]
    assert [of_rank(0)[f"HOROVOD_{name}"] for name in names] == ["0", "4", "0", "2", "0", "2"]


def test_a_plan_gives_every_worker_of_a_script_a_port_of_its_own() -> None:
    plan = make_plan("a", resolve(Job(script="train.py", workers=3, engine="tensorflow")))
    assert len({process.member.port for process in plan.processes}) == 3
    assert [process.environment["RANK"] for process in plan.processes] == ["0", "1", "2"]
