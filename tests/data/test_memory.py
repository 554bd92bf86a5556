"""What memory is left: of the machine, of its container, of one process, and for one of several workers."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from velodrome import machine
from velodrome.catalog.world import Member, worlds
from velodrome.data import base
from velodrome.data.shards import data_set as shards


@pytest.fixture
def container(tmp_path, monkeypatch):
    """A container of 1000 MiB that has taken 400, a quarter of them pages of files."""
    limit, used, details = tmp_path / "max", tmp_path / "current", tmp_path / "stat"
    monkeypatch.setattr(machine, "_CGROUPS", ((limit, used, details),))
    limit.write_text(str(1000 << 20))
    used.write_text(str(400 << 20))
    details.write_text(f"anon 5\ninactive_file {100 << 20}\n")
    monkeypatch.delenv(shards.MEMORY_VARIABLE, raising=False)
    monkeypatch.setattr(base, "_workers_on_host", 1)
    return limit


def test_the_limit_of_a_container_counts_and_its_use(container):
    assert machine.available_memory() == 700 << 20
    container.write_text("max\n")
    assert machine.available_memory() > psutil.virtual_memory().available // 2


@pytest.mark.integration
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_the_limit_of_a_process_counts_and_its_use(limit):
    code = (
        "import resource; from velodrome.machine import process_memory;"
        f"resource.setrlimit(resource.{limit}, (2 << 30, 2 << 30)); print(process_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True)
    assert 0 < int(done.stdout) < 2 << 30


@pytest.mark.parametrize(
    ("members", "workers"),
    [
        ([("worker", host) for host in "abaca"], 3),
        ([("worker", "a"), ("server", "a")], 1),
        ([("server", "a"), ("server", "a")], 1),
    ],
)
def test_the_workers_of_a_machine_divide_what_a_set_may_take(container, members, workers):
    world = worlds([Member(role, rank, host, 0) for rank, (role, host) in enumerate(members)])[0]
    assert world.most_on_a_host("worker") == workers
    base.share_host(world.most_on_a_host("worker"))
    assert shards._budget() == (175 << 20) // workers


def test_a_process_without_a_job_shares_its_machine_with_nobody(container):
    assert shards._budget() == 175 << 20
