"""Jobs of a race at the same time: each on hosts of its own, one at a time on one machine, and all end together."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from velodrome.clusters.definitions import validated
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.local.launcher import LocalLauncher
from velodrome.clusters.slurm import commands
from velodrome.clusters.slurm.launcher import SlurmLauncher
from velodrome.clusters.ssh import SshOptions
from velodrome.clusters.ssh.launcher import SshLauncher
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.names import expand
from velodrome.job.race import Entry, parse_race
from velodrome.job.resolve import resolve
from velodrome.races.hosts import ParallelJobs, parallel_launchers

pytestmark = pytest.mark.unit


def job(workers: int) -> Job:
    return resolve(Job.model_validate({"engine": "torch", "strategy": "ddp", "workers": workers}))


def entries(count: int) -> list[Entry]:
    race = parse_race({"job": {"engine": "torch"}, "vary": {"batch_size": [8 * (n + 1) for n in range(count)]}})
    return expand(race)


def ssh(*hosts: str, pins: dict[str, str] | None = None, **more: Any) -> SshLauncher:
    return SshLauncher(validated(SshOptions, {"hosts": [*hosts], "place": pins or {}, **more}, "lab"))


def hosts_of(launchers: list[Launcher]) -> list[list[str]]:
    return [launcher.hosts() for launcher in launchers if isinstance(launcher, SshLauncher)]


def test_a_cluster_is_divided_by_what_its_largest_job_needs() -> None:
    cluster = ssh("a", "b", "c", "d", "e")
    assert hosts_of(parallel_launchers(cluster, [job(2), job(1)], None)) == [["a", "b"], ["c", "d"]]
    assert hosts_of(parallel_launchers(cluster, [job(1)] * 9, None)) == [["a"], ["b"], ["c"], ["d"], ["e"]]
    assert hosts_of(parallel_launchers(cluster, [job(1)] * 9, 2)) == [["a"], ["b"]]
    assert hosts_of(parallel_launchers(cluster, [job(2)], None)) == [["a", "b"]]  # no more launchers than jobs
    for jobs, parallel in (([job(3), job(1)], None), ([job(2)] * 2, 1)):
        assert parallel_launchers(cluster, jobs, parallel) == [cluster]
    pinned = ssh("a", "b", "c", "d", pins={"worker": "a"})
    assert parallel_launchers(pinned, [job(1)] * 2, None) == [pinned]


def test_one_machine_runs_one_job_at_a_time() -> None:
    here = LocalLauncher()
    assert parallel_launchers(here, [job(1)] * 4, None) == [here]
    with pytest.raises(BadRequest, match="--parallel 2: jobs on one machine would disturb each other"):
        parallel_launchers(here, [job(1)] * 4, 2)


def test_slurm_has_as_many_launchers_as_idle_nodes_have_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "idle_nodes", lambda partition: 5)
    launchers = parallel_launchers(SlurmLauncher(), [job(2)] * 3, None)
    assert len(launchers) == 2
    assert len(set(map(id, launchers))) == 2


def test_jobs_run_at_the_same_time_one_on_each_launcher() -> None:
    launchers: list[Any] = ["left", "right"]
    both, running, seen = threading.Barrier(2, timeout=20), set(), []
    lock = threading.Lock()

    def attempt(entry: Entry, launcher: Any) -> None:
        with lock:
            assert launcher not in running
            running.add(launcher)
            seen.append(entry.name)
        both.wait()  # two of them are there, or this fails
        with lock:
            running.discard(launcher)

    wanted = entries(4)
    ParallelJobs(launchers).run(wanted, attempt)
    assert sorted(seen) == sorted(entry.name for entry in wanted)


def test_an_interruption_ends_every_job() -> None:
    class FakeLauncher:
        def close(self) -> None:
            raise AssertionError("a job that can be ended needs no force")

    parallel = ParallelJobs([FakeLauncher(), FakeLauncher()])  # type: ignore[list-item]
    ended: list[str] = []

    def attempt(entry: Entry, launcher: Any) -> None:
        if entry.name == first:
            raise KeyboardInterrupt
        while (failure := parallel.stop()) is None:
            time.sleep(0.01)
        assert failure.cause == "interrupt"
        ended.append(entry.name)

    both = entries(2)
    first = both[0].name
    with pytest.raises(KeyboardInterrupt):
        parallel.run(both, attempt)
    assert ended == [both[1].name]
