"""Which device a process takes, in a job over several hosts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from velodrome.catalog.world import Member, numbered, worlds  # noqa: E402
from velodrome.engines.torch.worker import choose_device  # noqa: E402

pytestmark = pytest.mark.unit

#: Two hosts with two processes each, ranks in turn over the hosts.
WORLDS = worlds(numbered(Member("worker", rank, f"10.0.0.{1 + rank % 2}", 9000 + rank) for rank in range(4)))


def test_processes_of_one_host_take_gpus_by_their_local_rank() -> None:
    assert [choose_device(world, 2) for world in WORLDS] == [torch.device("cuda", index) for index in (0, 0, 1, 1)]


@pytest.mark.parametrize("gpus", [0, 1])
def test_without_a_gpu_for_each_process_all_take_the_cpu(gpus: int) -> None:
    assert {choose_device(world, gpus) for world in WORLDS} == {torch.device("cpu")}
