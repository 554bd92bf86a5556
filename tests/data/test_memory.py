"""What memory is left: of the machine, of its container, of one process, and for one of several workers."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest

from velodrome.data import memory
from velodrome.data.shards import data_set as shards
from velodrome.variables import WORLD


@pytest.fixture
def container(tmp_path, monkeypatch):
    """A container of 1000 MiB that has taken 400, a quarter of them pages of files."""
    limit, used, details = tmp_path / "max", tmp_path / "current", tmp_path / "stat"
    monkeypatch.setattr(memory, "_CGROUPS", ((limit, used, details),))
    limit.write_text(str(1000 << 20))
    used.write_text(str(400 << 20))
    details.write_text(f"anon 5\ninactive_file {100 << 20}\n")
    for variable in (WORLD, shards.MEMORY_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    return limit


def test_the_limit_of_a_container_counts_and_its_use(container):
    assert memory.available_memory() == 700 << 20
    container.write_text("max\n")
    assert memory.available_memory() > psutil.virtual_memory().available // 2


@pytest.mark.integration
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_the_limit_of_a_process_counts_and_its_use(limit):
    code = (
        "import resource; from velodrome.data.memory import process_memory;"
        f"resource.setrlimit(resource.{limit}, (2 << 30, 2 << 30)); print(process_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert 0 < int(done.stdout) < 2 << 30


@pytest.mark.parametrize(
    ("world", "workers"),
    [
        (json.dumps([{"role": "worker", "host": host} for host in "abaca"]), 3),
        (json.dumps([{"role": "worker", "host": "a"}, {"role": "server", "host": "a"}]), 1),
        ("[]", 1),
        ("none", 1),
    ],
)
def test_the_workers_of_a_machine_divide_what_a_set_may_take(container, monkeypatch, world, workers):
    monkeypatch.setenv(WORLD, world)
    assert memory.workers_here() == workers
    assert shards._budget() == (175 << 20) // workers
