"""A launcher whose hosts are given to each run is short: here they are pods, each an agent in a child process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from velodrome.clusters.launcher import AllocationEnded, Launcher, Notice
from velodrome.clusters.remote import RemoteOptions
from velodrome.clusters.remote.allocated import AllocatedLauncher, HostJob, HostJobState, StillQueued
from velodrome.clusters.remote.channels import PipeChannel, agent_words
from velodrome.clusters.remote.link import HostError
from velodrome.job.job import Job
from velodrome.job.resolve import resolve

pytestmark = pytest.mark.integration

DDP = resolve(Job(engine="torch", strategy="ddp", workers=2))


class Pods(HostJob):
    """Two pods, which may be late, or evicted."""

    def __init__(self, *, late: bool, evicted: bool) -> None:
        self.nodes, self.late, self.evicted, self.released = ["pod-0", "pod-1"], late, evicted, False

    @property
    def state(self) -> HostJobState:
        return SimpleNamespace(is_over=self.released, is_ending=self.released)

    def raise_if_interrupted(self, *, now: bool = False) -> None:
        if self.evicted:
            raise AllocationEnded("the pods were evicted")

    def wait_until_running(self, seconds: float, notice: Notice) -> None:
        notice("waiting for 2 pods")
        if self.late:
            raise StillQueued("the pods are pending", "no node has room")

    def release(self) -> None:
        self.released = True


class PodLauncher(AllocatedLauncher):
    """The whole launcher."""

    name = "pods"
    scheduler = "The cluster"
    queue_seconds = 5.0
    late = evicted = broken = False

    def submit(self, job: Job, *, to_examine: bool = False) -> Pods:
        return Pods(late=self.late, evicted=self.evicted)

    def open_channel(self, host: str, session: str) -> PipeChannel:
        words = [sys.executable, *agent_words(session, self.options.silence, self.options.root)]
        return PipeChannel(["sh", "-c", "echo no such pod >&2; exit 3"] if self.broken else words)

    def part(self, hosts: Sequence[str]) -> Launcher:
        raise NotImplementedError


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[PodLauncher]:
    made = PodLauncher(RemoteOptions.model_validate({"root": str(tmp_path), "python": sys.executable}))
    yield made
    made.close()


def test_a_run_gets_hosts_with_agents_that_end_with_it(launcher: PodLauncher) -> None:
    notices: list[str] = []
    allocation = launcher.allocate(DDP, None, notices.append)
    assert allocation.hosts == ("pod-0", "pod-1")
    assert allocation.port("pod-1") > 0
    assert notices == ["waiting for 2 pods"]
    job, links = launcher.job, [*launcher.links.values()]
    pids = [channel._popen.pid for link in links if isinstance(channel := link._channel, PipeChannel)]
    launcher.close()
    assert job.state.is_over
    assert [link.lost for link in links] == ["'pod-0' was released", "'pod-1' was released"]
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_hosts_that_cannot_be_reached_are_named_and_those_that_were_evicted_interrupt_the_run(
    launcher: PodLauncher
) -> None:
    launcher.broken = True
    with pytest.raises(HostError, match="'pod-0' no such pod"):
        launcher.allocate(DDP)
    launcher.evicted = True
    with pytest.raises(AllocationEnded, match="the pods were evicted"):
        launcher.allocate(DDP)


def test_hosts_that_are_not_given_in_time_are_not_examined(launcher: PodLauncher) -> None:
    launcher.late = True
    (finding,) = launcher.examine(DDP).findings
    assert finding.level == "warning"
    assert finding.sentence == ("the nodes were not checked: The cluster gave none within 5 s (no node has room); try "
                                "again when nodes are idle")
    assert launcher.hosts() == []


def test_a_child_that_ignores_the_end_of_its_input_is_ended() -> None:
    channel = PipeChannel(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
    assert channel.read() == b"ready\n"
    began = time.monotonic()
    channel.close(0.2)
    assert time.monotonic() - began < 10
    with pytest.raises(ProcessLookupError):
        os.kill(channel._popen.pid, 0)
