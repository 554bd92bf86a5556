"""The parts of an emulated cluster that need no root: queues, the switch's timing, leftovers, accuracy in words."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from velodrome.clusters.emulated import EmulatedCluster, node, programs
from velodrome.clusters.emulated.launcher import EmulatedGroup
from velodrome.clusters.emulated.network import queues
from velodrome.clusters.emulated.node import Limits
from velodrome.clusters.launcher import Exit
from velodrome.clusters.local.launcher import LocalGroup
from velodrome.errors import BadRequest, VelodromeError
from velodrome.events.result import Cluster
from velodrome.judge.conditions import emulation_lines

pytestmark = pytest.mark.unit


def test_a_kernel_with_netem_delays_before_it_limits() -> None:
    delay, limit = queues(EmulatedCluster(bandwidth=1e8, latency=0.0005), "port1", latency=0.0005)
    assert " ".join(delay) == "tc qdisc add dev port1 root handle 1: netem delay 500us limit 100000"
    assert " ".join(limit).startswith("tc qdisc add dev port1 parent 1:1 handle 10: tbf rate 100000000bit burst 62500")
    assert queues(EmulatedCluster(), "eth0", latency=None) == []
    assert queues(EmulatedCluster(bandwidth=1e6), "eth0", latency=None)[0][5] == "root"


def packet(target: int, size: int = 1500) -> bytes:
    address = bytes(int(part, 16) for part in programs.hardware_address(target).split(":"))
    return bytes(10) + address + bytes(size - 6)


def delivered(one: programs.Switch, output: int) -> int:
    os.set_blocking(output, False)
    try:
        return len(os.read(output, 1 << 20))
    except BlockingIOError:
        return 0


def test_the_switch_hands_a_packet_over_when_it_is_due_and_not_before() -> None:
    output, tap = os.pipe()
    one = programs.Switch(0.01, 0.0, [tap, tap])
    one._accept(1, packet(2), 100.0)
    one.deliver(100.0099)
    assert delivered(one, output) == 0
    assert one.timeout(100.0) == pytest.approx(0.01)
    one.deliver(100.0101)
    assert delivered(one, output) == 1510
    one.command("lead 0.004")
    one._accept(1, packet(2), 200.0)
    one.deliver(200.0061)
    assert delivered(one, output) == 1510
    one.command("cut 2")
    one._accept(1, packet(2), 300.0)
    one.deliver(400.0)
    assert delivered(one, output) == 0
    one.command("mend 2")
    one._accept(1, packet(2), 500.0)
    one.deliver(501.0)
    assert delivered(one, output) == 1510
    os.close(output)
    os.close(tap)


def test_the_switch_limits_what_a_node_receives_and_drops_what_would_wait_too_long() -> None:
    one = programs.Switch(0.0, 1e6, [0, 0])
    for _ in range(100):  # 1.2 Mbit at 1 Mbit/s
        one._accept(1, packet(2), 0.0)
    last = max(due for due, *_ in one._due)
    assert last == pytest.approx(programs.QUEUE, rel=0.3)
    assert len(one._due) < 10


def test_leftovers_of_controllers_that_are_gone_are_removed_and_others_are_not(tmp_path: Path) -> None:
    groups, folders = tmp_path / "cgroup", tmp_path / "tmp"
    mine = groups / "cpu" / node.group_name("node1")
    other = groups / "cpu" / "velodrome-99999999-12-node1"
    reused = groups / "memory" / f"velodrome-{os.getpid()}-1-node1"
    foreign = groups / "cpu" / "velodrome-of-somebody"
    for folder in (mine, other, reused, foreign, folders / "velodrome-nodes-99999999-12-abc",
                   folders / f"{node.folder_prefix()}abc"):
        folder.mkdir(parents=True)
    removed = node.clean(groups, folders)
    assert len(removed) == 3
    assert mine.exists()
    assert foreign.exists()
    assert not other.exists()
    assert not reused.exists()
    assert [folder.name for folder in folders.iterdir()] == [f"{node.folder_prefix()}abc"]
    assert node.clean(groups, folders) == []


def test_a_kernel_without_a_controller_is_reported(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    with pytest.raises(BadRequest, match="this kernel cannot limit cpu; leave it out"):
        Limits(EmulatedCluster(cpu=0.5), ["node1"], tmp_path)
    with pytest.raises(BadRequest, match="this kernel cannot limit cpu"):
        Limits(EmulatedCluster(), ["node1"], tmp_path).prepare_slowing("node1")


@pytest.mark.parametrize("generation", [1, 2])
def test_limits_are_written_for_either_generation_of_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    made = tmp_path / ("cpu" if generation == 1 else ".") / node.group_name("node1")
    made.mkdir(parents=True)
    if generation == 1:
        files = {"quota": made / "cpu.cfs_quota_us", "period": made / "cpu.cfs_period_us"}
    else:
        (tmp_path / "cgroup.controllers").write_text("cpu memory")
        files = {"quota": made / "cpu.max"}
    for file in files.values():
        file.write_text("")
    monkeypatch.setattr("velodrome.clusters.emulated.node.remove_group", lambda folder: None)
    made_limits = Limits(EmulatedCluster(cpu=0.5), ["node1"], tmp_path)
    assert made_limits.limited_by == f"cgroup v{generation}"
    assert files["quota"].read_text().split()[0] == "50000"
    made_limits.slow("node1", 4.0, 2.0)
    assert files["quota"].read_text().split()[0] == "12500"
    made_limits.restore("node1")
    assert files["quota"].read_text().split()[0] == "50000"


def test_accuracy_is_reported_in_words() -> None:
    cluster: dict[str, object] = {
        "asked": {"bandwidth": 1e8, "latency": 0.0005}, "made_by": {"latency": "user space", "limits": "cgroup v1"},
        "measured": {"bandwidth": 9.5e7, "round_trip": 0.00148, "latency": 0.00074},
        "accuracy": {"bandwidth": 0.95, "latency": 1.48},
    }
    assert emulation_lines(Cluster.model_validate(cluster)) == [
        "bandwidth 100 Mbit/s asked for, 95 Mbit/s measured (-5 %)",
        "latency 0.5 ms asked for, by user space, 0.74 ms measured (+48 %); far from what was asked for",
        "CPU and memory are limited by cgroup v1",
    ]
    assert emulation_lines(None) == emulation_lines(Cluster()) == []
    older = {"asked": {"bandwidth": None}, "measured": {"bandwidth": 4e9, "round_trip": 2e-5}}
    assert emulation_lines(Cluster.model_validate(older))[0] == \
        "bandwidth 4 Gbit/s measured, without a limit"


def test_a_process_that_is_killed_later_is_not_blamed_on_the_memory_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / node.group_name("node1")
    made.mkdir()
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    (made / "memory.max").write_text("")
    counts = made / "memory.events"
    counts.write_text("oom 1\noom_kill 2\n")
    monkeypatch.setattr("velodrome.clusters.emulated.node.remove_group", lambda folder: None)
    made_limits = Limits(EmulatedCluster(memory=2**30), ["node1"], tmp_path)
    network = SimpleNamespace(nodes=[SimpleNamespace(name="node1", traffic=dict)])
    monkeypatch.setattr(LocalGroup, "__post_init__", lambda self: None)
    monkeypatch.setattr(LocalGroup, "exit_of", lambda self, process: Exit.from_returncode(-9))
    group = EmulatedGroup("token", limits=made_limits, network=network)  # type: ignore[arg-type]
    process = SimpleNamespace(host="node1")
    assert "killed from outside" in group.exit_of(process).cause  # type: ignore[arg-type, union-attr]
    counts.write_text("oom 2\noom_kill 3\n")
    assert "node1 ran out of the memory" in group.exit_of(process).cause  # type: ignore[arg-type, union-attr]


def test_a_machine_that_is_too_busy_to_emulate_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(words: list[str], timeout: float, **options: object) -> None:
        raise subprocess.TimeoutExpired(words, timeout)

    monkeypatch.setattr(subprocess, "run", never)
    with pytest.raises(VelodromeError, match=r"ip link set lo up: it did not end within 30 s; is this machine busy\?"):
        node._run(["nsenter", "--", "ip", "link", "set", "lo", "up"])
    monkeypatch.setattr(node, "_START_SECONDS", 0.1)
    slow = object.__new__(node.Node)
    slow._holder = holder = object.__new__(node.Helper)
    holder._failed = "node1 cannot be emulated"
    output, silent = os.pipe()
    with os.fdopen(output, "rb") as stream, os.fdopen(silent, "wb"):
        holder._popen = SimpleNamespace(stdout=stream, stderr=stream, kill=lambda: None)  # type: ignore[assignment]
        with pytest.raises(VelodromeError, match=r"node1 cannot be emulated: .* did not start within 0\.1 s"):
            slow.wait_until_ready()
