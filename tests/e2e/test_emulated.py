"""Jobs on emulated hosts: the weights of one machine, each host's own traffic, limits that hold, and nothing left."""

from __future__ import annotations

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

from velodrome.cluster.emulated.limits import PREFIX, ROOT, Limits, clean
from velodrome.cluster.emulated.nodes import Network, missing_tools
from velodrome.cluster.emulated.request import EmulatedCluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
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
    no_namespace_of(os.getpid())


@pytest.mark.slow
def test_servers_workers_and_chief_have_a_host_each(velodrome: Any, runs: Path, no_strays: None) -> None:
    result = train(
        velodrome, runs, "ps", "--engine", "tensorflow", "--strategy", "parameter-server", "--workers", 2,
        "--servers", 1, "--epochs", 1, "--on", "emulated:nodes=4",
    )
    assert len({node["host"] for node in result["nodes"]}) == 4


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


def test_nothing_is_left_of_a_cluster_whose_controller_was_killed(scene: Scene) -> None:
    words = scene.words("torch", "ddp", *LONG, "--on", "emulated:nodes=2,cpu=0.5")
    controller = scene.start(*words)
    scene.until(training)
    ours = namespace_of(Path("/proc/self"))
    inside = [entry for entry in Path("/proc").glob("[0-9]*") if namespace_of(entry) not in (ours, "")]
    mine = [entry for entry in inside if parent_of(entry) == controller.pid]
    assert len(mine) >= 5  # three holders and two workers
    names = {namespace_of(entry) for entry in mine}
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    deadline = time.monotonic() + 20
    while any(namespace_of(entry) in names for entry in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline, "a process is left in a namespace of the cluster"
        time.sleep(0.1)
    assert groups_of(controller.pid), "the next command removes them"
    clean()
    assert not groups_of(controller.pid)


def groups_of(controller: int) -> list[Path]:
    return [*ROOT.glob(f"{PREFIX}{controller}-*"), *ROOT.glob(f"*/{PREFIX}{controller}-*")]


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
        assert limits.memory_exceeded("node1")
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
        for node in (*network.nodes, network.switch):
            shown = subprocess.run(node.enter(["tc", "qdisc"]), capture_output=True, text=True, check=True).stdout
            assert shown.count("tbf") == (2 if node is network.switch else 1)
            assert "rate 100Mbit" in shown
    finally:
        network.close()
