"""Jobs on emulated hosts: the weights of one machine, each host's own traffic, limits that hold, and nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from scene import LONG, Scene, training

from velodrome.clusters.emulated import EmulatedCluster
from velodrome.clusters.emulated.measure import measure
from velodrome.clusters.emulated.network import Bridge, Network, missing_tools
from velodrome.clusters.emulated.node import GROUPS, PREFIX, Limits

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or bool(missing_tools()),
        reason="emulated hosts need Linux, root, iproute2 and util-linux",
    ),
]
slow = pytest.mark.slow


def train(velodrome: Any, runs: Path, name: str, *words: object) -> dict[str, Any]:
    done = velodrome("train", "--runs", runs, "--name", name, "--json", *words)
    assert done.code == 0, done.text
    return done.json()


@pytest.mark.parametrize(
    ("engine", "strategy", "more"),
    [
        ("torch", "allreduce", ()),
        pytest.param("torch", "ddp", (), marks=slow),
        pytest.param("tensorflow", "allreduce", (), marks=slow),
        pytest.param("tensorflow", "multi-worker-mirrored", (), marks=slow),
    ],
)
def test_two_hosts_train_the_weights_of_one(
    velodrome: Any, runs: Path, no_strays: None, engine: str, strategy: str, more: tuple[object, ...]
) -> None:
    job = ["--engine", engine, "--strategy", strategy, "--workers", 2, "--epochs", 2, "--optimizer", "sgd", *more]
    here = train(velodrome, runs, "here", *job)
    there = train(velodrome, runs, "there", *job, "--on", "emulated:nodes=2,bandwidth=200mbit")
    assert [node["host"] for node in there["nodes"]] == ["node1", "node2"]
    assert there["launcher"] == "emulated"
    assert there["cluster"]["asked"]["bandwidth"] == 2e8
    assert there["cluster"]["measured"]["round_trip"] > 0
    for file in ("model.safetensors",) if engine == "torch" else ():
        one, other = (load_file(runs / name / "model" / file) for name in ("here", "there"))
        for name, value in one.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-5, atol=1e-6)
    assert there["test"]["correct"] == here["test"]["correct"]
    # Gradients crossed the network, and each host counted its own traffic.
    moved = 4 * there["parameters"] * there["steps"]
    for node in there["nodes"]:
        assert node["network_bytes"]["out"] > moved / 2
    for host in there["hosts"]:
        assert host["network_bytes"]["out"] > moved / 2
        assert host["network_bytes"]["in"] > moved / 2
    assert 0.7 < there["cluster"]["accuracy"]["bandwidth"] < 1.1
    no_namespace_of(os.getpid())


@pytest.mark.slow
def test_servers_workers_and_chief_have_a_host_each(velodrome: Any, runs: Path, no_strays: None) -> None:
    result = train(
        velodrome, runs, "ps", "--engine", "tensorflow", "--strategy", "parameter-server", "--workers", 2,
        "--servers", 1, "--epochs", 1, "--on", "emulated:nodes=4",
    )
    assert len({node["host"] for node in result["nodes"]}) == 4


@pytest.mark.slow
def test_the_processes_of_a_race_are_forked_and_then_move_onto_their_hosts(
    velodrome: Any, runs: Path, no_strays: None, idle: None
) -> None:
    done = velodrome(
        "race", "--runs", runs, "--name", "r", "--engine", "torch", "--strategy", "ddp", "--workers", 2, "--vary",
        "batch_size=50,100", "--no-baseline", "--epochs", 5, "--on", "emulated:nodes=2,cpu=0.4", "--json",
    )
    assert done.code == 0, done.text
    for path in (runs / "r").glob("*/result.json"):
        result = json.loads(path.read_text())
        assert [node["host"] for node in result["nodes"]] == ["node1", "node2"]
        assert sorted(host["hostname"] for host in result["hosts"]) == ["node1", "node2"]
        moved = 4 * result["parameters"] * result["steps"]
        for host in result["hosts"]:
            assert host["network_bytes"]["out"] > moved / 2
            assert host["cpu"]["own"] < 1.2  # both together, within their control groups
        # Nobody imported a framework.
        assert all(node["phases"]["import"] < 1.0 for node in result["nodes"])
    no_namespace_of(os.getpid())
    assert not groups_of(os.getpid())


def no_namespace_of(controller: int) -> None:
    """No child of a controller is left that holds a namespace."""
    children = [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if parent_of(entry) == controller]
    ours = namespace_of(Path("/proc/self"))
    for child in children:
        assert namespace_of(Path("/proc", str(child))) in (ours, "")


def parent_of(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_nothing_is_left_of_a_cluster_whose_controller_was_killed(velodrome: Any, scene: Scene) -> None:
    words = scene.words("torch", "ddp", *LONG, "--on", "emulated:nodes=2,cpu=0.5")
    controller = scene.start(*words)
    scene.until(training)
    ours = namespace_of(Path("/proc/self"))
    inside = [entry for entry in Path("/proc").glob("[0-9]*") if namespace_of(entry) not in (ours, "")]
    mine = [entry for entry in inside if parent_of(entry) == controller.pid]
    assert len(mine) >= 4  # two holders, and two workers
    names = {namespace_of(entry) for entry in mine}
    assert groups_of(controller.pid)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    deadline = time.monotonic() + 60
    while any(namespace_of(entry) in names for entry in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline, "a process is left in a namespace of the cluster"
        time.sleep(0.1)
    while groups_of(controller.pid):  # the next command removes them, whoever gives it
        assert time.monotonic() < deadline, "its control groups are left"
        assert velodrome("clusters", "clean", "--json").code == 0


def groups_of(controller: int) -> list[Path]:
    return [*GROUPS.glob(f"{PREFIX}{controller}-*"), *GROUPS.glob(f"*/{PREFIX}{controller}-*")]


def namespace_of(process: Path) -> str:
    try:
        return str((process / "ns" / "net").readlink())
    except OSError:
        return ""


def test_a_node_has_the_memory_and_cores_it_was_given() -> None:
    cluster = EmulatedCluster(nodes=1, memory=64 * 2**20, cpu=0.25)
    network, limits = Network(cluster), Limits(cluster, ["node1"])
    try:
        words = [sys.executable, "-c", "print(open('/proc/self/cgroup').read()); bytearray(256 << 20)"]
        done = subprocess.run(network["node1"].enter(limits.enter("node1", words)), capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL
        assert limits.memory_kills("node1") > 0
        quotas = [file.read_text() for folder in groups_of(os.getpid()) for file in folder.glob("cpu.*")
                  if file.name in ("cpu.max", "cpu.cfs_quota_us")]
        assert quotas
        assert int(quotas[0].split()[0]) == 25_000
    finally:
        network.close()
        limits.close()
    assert not groups_of(os.getpid())


def test_links_are_limited_in_both_directions() -> None:
    network = Network(EmulatedCluster(nodes=2, bandwidth=1e8))
    try:
        links = network.links
        assert isinstance(links, Bridge)
        for node in (*network.nodes, links.switch):
            shown = subprocess.run(node.enter(["tc", "qdisc"]), capture_output=True, text=True, check=True).stdout
            assert shown.count("tbf") == (2 if node is links.switch else 1)
            assert "rate 100Mbit" in shown
    finally:
        network.close()


def test_packets_take_the_time_that_was_asked_for_at_the_bandwidth_that_was_asked_for() -> None:
    cluster = EmulatedCluster(nodes=2, bandwidth=5e7, latency=0.01)
    network = Network(cluster)
    try:
        facts = measure(cluster, network)
    finally:
        network.close()
    assert facts["made_by"]["latency"] in ("netem", "user space")
    # A busy machine is late, and never early.
    assert 0.0095 < facts["measured"]["latency"] < 0.03
    assert 2.5e7 < facts["measured"]["bandwidth"] < 5.5e7


@pytest.mark.parametrize("latency", [None, 0.001])
def test_a_node_that_is_cut_off_hears_nothing_until_it_is_connected_again(latency: float | None) -> None:
    network = Network(EmulatedCluster(nodes=3, latency=latency))
    try:
        assert reaches(network, "node1", "node2")
        network.cut("node2")
        assert not reaches(network, "node1", "node2")
        assert reaches(network, "node1", "node3")
        network.mend("node2")
        assert reaches(network, "node1", "node2")
    finally:
        network.close()


def reaches(network: Network, source: str, target: str) -> bool:
    """Whether a connection to a port where nobody listens is refused, and not left without an answer."""
    script = (
        "import socket, sys\n"
        "try: socket.create_connection((sys.argv[1], 9), timeout=3)\n"
        "except ConnectionRefusedError: print('refused')\n"
        "except OSError: pass"
    )
    words = [sys.executable, "-I", "-S", "-c", script, network[target].address]
    return "refused" in subprocess.run(network[source].enter(words), capture_output=True, text=True).stdout


def test_faults_happen_and_a_synchronous_run_survives_those_that_end(
    velodrome: Any, runs: Path, no_strays: None
) -> None:
    result = train(
        velodrome, runs, "hurt", "--engine", "torch", "--strategy", "ddp", "--workers", 2, "--batch-size", 8,
        "--epochs", 6, "--no-checkpoints", "--on", "emulated:nodes=2,latency=0.5ms",
        "--fault", "partition node2 0.5s..1.5s", "--fault", "slow node1 4x from 1.6s", "--fault", "kill worker0 at 10m",
    )
    partition, slow = result["faults"]
    assert (partition["action"], partition["host"], slow["factor"]) == ("partition", "node2", 4.0)
    # Both moments are by the clock of training: a busy machine may be late for either.
    assert 0.3 < partition["end"] - partition["start"] < 20
    assert slow["end"] is None
    assert result["warnings"] == ["--fault 'kill worker0 at 10m' did not happen: training was over before"]
    assert not groups_of(os.getpid())
    kinds = [event["kind"] for event in events_of(runs / "hurt")]
    assert kinds.count("fault") == 3
    assert kinds.count("traffic") == 2


def events_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_partition_that_lasts_is_blamed_on_the_host_that_is_cut_off(velodrome: Any, runs: Path) -> None:
    done = velodrome(
        "train", "--runs", runs, "--name", "cut", "--engine", "torch", "--strategy", "ddp", "--workers", 3, *LONG,
        "--stall-timeout", 8, "--on", "emulated:nodes=3", "--fault", "partition node2 from 1s",
    )
    assert done.code == 1
    assert "worker 1 on node2 made no progress for 8 s" in done.err
    assert "node2 is cut off from the others" in done.err
