"""A launcher is chosen by name, refuses what it cannot do, and its group delivers all output before an end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from velodrome.catalog.world import Member
from velodrome.clusters import launchers, open_launcher
from velodrome.clusters.debug import DebugLauncher
from velodrome.clusters.emulated import EmulatedOptions
from velodrome.clusters.emulated.launcher import EmulatedLauncher
from velodrome.clusters.launcher import Exit, Launcher
from velodrome.clusters.local.launcher import LocalGroup
from velodrome.clusters.local.processes import ColdProcess
from velodrome.clusters.plan import Process
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import resolve

#: Creating emulated hosts takes processes, and root.
_MARKS = {"emulated": [pytest.mark.integration, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]}


@pytest.mark.parametrize("name", [
    pytest.param(launcher.name, marks=_MARKS.get(launcher.name, [])) for launcher in launchers()
    if launcher.here and not launcher.needs_options
])
def test_every_launcher_of_the_registry_has_its_name_and_finds_hosts_with_ports(name: str) -> None:
    with open_launcher(name) as launcher:
        made: Launcher = launcher
        job = resolve(Job(engine="torch", strategy="single"))
        made.check(job)
        allocation = made.allocate(job)
    assert made.name == name
    assert 1024 < allocation.port(allocation.hosts[0]) < 65536


def test_an_unknown_launcher_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadRequest, match="--on 'moon': no such launcher; choose one of local, debug"), \
            open_launcher("moon"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_emulated_refuses_a_host_that_it_will_not_have_before_it_creates_any() -> None:
    job = resolve(Job(engine="torch", strategy="ddp", workers=2))
    launcher = EmulatedLauncher(EmulatedOptions.model_validate({"place": {"worker:1": "node9"}}))
    with pytest.raises(BadRequest, match="no host 'node9'; choose from node1, node2"):
        launcher.check(job)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_emulated_counts_the_memory_of_the_processes_that_share_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("velodrome.clusters.emulated.launcher.lacking", lambda cluster, slows: [])
    job = resolve(Job(engine="torch", strategy="ddp", workers=2))
    options = EmulatedOptions.model_validate({"nodes": 2, "memory": "400m"})
    EmulatedLauncher(options).check(job)
    with pytest.raises(BadRequest, match=r"that 2 process\(es\) of this job need on a node"):
        EmulatedLauncher(options.pinned({"worker": "node1"})).check(job)


@pytest.mark.parametrize(("strategy", "fields", "processes"), [
    ("ddp", {"engine": "torch", "workers": 2}, 2),
    ("parameter-server", {"engine": "tensorflow", "workers": 1, "servers": 1}, 3),
])
def test_debug_refuses_more_than_one_process(strategy: str, fields: dict[str, object], processes: int) -> None:
    job = resolve(Job.model_validate({"strategy": strategy, **fields}))
    with pytest.raises(BadRequest, match=f"has {processes}; use --on local, or a strategy of one process"):
        DebugLauncher().check(job)


def test_debug_refuses_an_engine_of_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VELODROME_ENVIRONMENTS", str(tmp_path))
    python = tmp_path / "torch" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    with pytest.raises(BadRequest, match="in an environment of its own"):
        DebugLauncher().check(resolve(Job(engine="torch", strategy="single")))


@pytest.mark.parametrize(("returncode", "expected"), [
    (0, Exit(0, None, "exited with code 0 before it was finished")),
    (-11, Exit(None, "SIGSEGV", "was ended by SIGSEGV")),
])
def test_an_exit_is_a_code_or_a_signal(returncode: int, expected: Exit) -> None:
    assert Exit.from_returncode(returncode) == expected
    assert expected.is_success is (returncode == 0)


def shell(rank: int, script: str) -> ColdProcess:
    pipe = subprocess.PIPE
    popen = subprocess.Popen(["sh", "-c", script], stdin=pipe, stdout=pipe, start_new_session=True)
    return ColdProcess(Process(Member("worker", rank, "127.0.0.1", 0), 0, 0, {}), popen)


@pytest.mark.integration
def test_a_group_delivers_whole_lines_and_the_rest_of_a_process_that_died() -> None:
    group = LocalGroup("test-group")
    dying, living = shell(0, "printf 'one\\ntw'; sleep 0.3; printf 'o\\nhal'; kill -9 $$"), shell(1, "sleep 60")
    lines: list[tuple[int, str]] = []
    try:
        group.add(dying)
        group.add(living)
        deadline = time.monotonic() + 10
        while (end := group.exit_of(dying.process)) is None:
            assert time.monotonic() < deadline
            group.wait(0.2, lambda process, line: lines.append((process.rank, line)))
        assert end.signal == "SIGKILL"
        assert lines == [(0, "one"), (0, "two"), (0, "hal")]
        assert group.exit_of(living.process) is None
    finally:
        group.stop()
    assert living.popen.returncode == -9
    assert living.output.closed
