"""Which GPU a process takes."""

from __future__ import annotations

import pytest

from velodrome.catalog.world import Member, World, numbered

pytestmark = pytest.mark.unit

GPUS = ["gpu 0", "gpu 1"]

ROWS = {
    "one worker per GPU": (["a", "a"], GPUS, [["gpu 0"], ["gpu 1"]]),
    "two hosts with two workers each": (["a", "a", "b", "b"], GPUS, [["gpu 0"], ["gpu 1"]] * 2),
    "ranks in turn over two hosts": (["a", "b", "a", "b"], GPUS, [["gpu 0"], ["gpu 0"], ["gpu 1"], ["gpu 1"]]),
    "more workers than GPUs: all on CPUs": (["a", "a", "a"], GPUS, [[], [], []]),
    "fewer GPUs on one host only": (["a", "b", "b"], GPUS[:1], [["gpu 0"], [], []]),
}


@pytest.mark.parametrize(("hosts", "gpus", "chosen"), ROWS.values(), ids=ROWS)
def test_a_worker_takes_the_gpu_of_its_local_rank(hosts: list[str], gpus: list[str], chosen: list[list[str]]) -> None:
    pytest.importorskip("tensorflow")
    from velodrome.engines.tensorflow.worker import gpu_of

    members = numbered(Member("worker", rank, host, 0) for rank, host in enumerate(hosts))
    assert [gpu_of(World(members, me), gpus) for me in members] == chosen


def test_servers_and_the_chief_leave_the_gpus_to_the_workers() -> None:
    pytest.importorskip("tensorflow")
    from velodrome.engines.tensorflow.worker import gpu_of

    members = numbered(Member(role, 0, "a", 0) for role in ("server", "worker", "chief"))
    assert [gpu_of(World(members, me), GPUS) for me in members] == [[], ["gpu 0"], []]
