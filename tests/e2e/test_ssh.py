"""Jobs on hosts over SSH, each with a real sshd: the weights of one machine, and every fault ends with one sentence."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from ssh_scene import Lasting, eventually, finished, left_on, none_left, restored

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import sshd

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(sshd.unavailable()), reason=sshd.unavailable() or "available"),
]
slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def as_new(hosts: sshd.Hosts) -> Iterator[None]:
    """Every test begins with hosts that work, and leaves no process on them."""
    restored(hosts)
    yield
    none_left(hosts)
    assert not [*hosts.disk.glob("velodrome/sessions/*")]
    for pid in hosts.controllers:
        eventually(lambda pid=pid: not [*Path("/tmp").glob(f"velodrome-ssh-{pid}-*/*")], 10)


def train(hosts: sshd.Hosts, runs: Path, name: str, *words: object) -> dict[str, Any]:
    code, out, errors = finished(hosts.velodrome("train", "--runs", runs, "--name", name, "--json", *words))
    assert code == 0, errors
    return json.loads(out.strip().splitlines()[-1])


@pytest.mark.quick("torch-allreduce-*")
@pytest.mark.parametrize(
    ("engine", "strategy", "more"),
    [
        ("torch", "ddp", ()),
        ("torch", "allreduce", ()),
        pytest.param("tensorflow", "allreduce", (), marks=slow),
        pytest.param("tensorflow", "multi-worker-mirrored", (), marks=slow),
    ],
)
def test_two_hosts_train_the_weights_of_one(
    hosts: sshd.Hosts, tmp_path: Path, engine: str, strategy: str, more: tuple[object, ...]
) -> None:
    job = ["--engine", engine, "--strategy", strategy, "--workers", 2, "--epochs", 2, "--optimizer", "sgd",
           "--learning-rate", 0.1, "--batch-size", 100, *more]
    here = train(hosts, tmp_path, "here", *job)
    there = train(hosts, tmp_path, "there", *job, "--on", "lab")
    assert [node["host"] for node in there["nodes"]] == hosts.names
    assert there["launcher"] == "ssh"
    assert {host["hostname"] for host in there["hosts"]} == set(hosts.names)
    assert weights_differ(tmp_path / "here", tmp_path / "there") < 1e-5
    assert there["test"]["correct"] == here["test"]["correct"]
    moved = 4 * there["parameters"] * there["steps"]
    assert all(node["network_bytes"]["out"] > moved / 2 for node in there["nodes"])
    for name in ("logs/worker-0.log", "logs/worker-1.log", "checkpoints/epoch-0002.safetensors"):
        assert (tmp_path / "there" / name).exists()
    assert [*(tmp_path / "there" / "tensorboard").glob("events*")]


def weights_differ(first: Path, second: Path) -> float:
    """The largest relative distance of two models' tensors."""
    files = [load_file(path / "checkpoints" / "epoch-0002.safetensors") for path in (first, second)]
    names = [name for name in files[0] if not name.startswith("generators")]
    one, other = ({name: file[name].astype("f8") for name in names} for file in files)
    norm = np.linalg.norm
    return max(float(norm(one[name] - other[name]) / (1e-12 + norm(one[name]))) for name in names)


@slow
@pytest.mark.parametrize(("engine", "strategy", "workers", "servers"), [
    ("tensorflow", "parameter-server", 1, 1), ("tensorflow", "single", 1, 0), ("tensorflow", "mirrored", 2, 0),
    ("tensorflow", "central-storage", 2, 0), ("torch", "single", 1, 0),
])
def test_every_other_strategy_trains_over_ssh(
    hosts: sshd.Hosts, tmp_path: Path, engine: str, strategy: str, workers: int, servers: int
) -> None:
    result = train(
        hosts, tmp_path, "there", "--engine", engine, "--strategy", strategy, "--workers", workers, "--epochs", 5,
        "--on", "lab", *(["--servers", servers] if servers else []),
    )
    assert result["status"] == "finished"
    assert {node["host"] for node in result["nodes"]} <= set(hosts.names)
    if servers:
        assert {node["host"] for node in result["nodes"]} == set(hosts.names)
    assert result["test"]["accuracy"] > 0.7


def test_a_key_that_is_refused_is_named_with_its_host(hosts: sshd.Hosts, tmp_path: Path) -> None:
    hosts.write_config(key="stranger")
    code, _, errors = finished(hosts.velodrome("train", "--on", "lab", "--workers", 2, "--strategy", "ddp", "--engine",
                                               "torch", "--runs", tmp_path))
    assert code == 2
    for name in hosts.names:
        assert f"host '{name}': it refuses our key (permission denied)" in errors
    assert not [*tmp_path.iterdir()]


def test_an_unknown_host_key_is_never_accepted(hosts: sshd.Hosts, tmp_path: Path) -> None:
    hosts.write_config(known=hosts.names[:1])
    words = ["train", "--on", "lab", "--workers", 2, "--strategy", "ddp", "--engine", "torch", "--runs", tmp_path]
    code, _, errors = finished(hosts.velodrome(*words))
    assert code == 2
    unknown = f"host '{hosts.names[1]}': it has a host key that is not in known_hosts; run `ssh {hosts.names[1]}` once"
    assert unknown in errors
    assert hosts.names[0] not in errors
    assert len((hosts.home / "known").read_text().splitlines()) == 1


@slow
def test_a_changed_host_key_is_refused(hosts: sshd.Hosts, tmp_path: Path) -> None:
    known = (hosts.home / "known").read_text()
    other = " ".join((hosts.home / "stranger.pub").read_text().split()[:2])
    address = hosts.nodes[1].address
    (hosts.home / "known").write_text(re.sub(rf"{re.escape(address)} .*", f"{address} {other}", known))
    words = ["train", "--on", "lab", "--workers", 2, "--strategy", "ddp", "--engine", "torch", "--runs", tmp_path]
    code, _, errors = finished(hosts.velodrome(*words))
    assert code == 2
    assert f"host '{hosts.names[1]}': it has another host key than known_hosts" in errors


@slow
def test_a_host_without_sshd_and_one_without_a_name_are_named(hosts: sshd.Hosts, tmp_path: Path) -> None:
    hosts.write_clusters(hosts=[hosts.names[0], "no-such-host.invalid", hosts.controller.name])
    words = ["train", "--on", "lab", "--workers", 3, "--strategy", "ddp", "--engine", "torch", "--runs", tmp_path]
    code, _, errors = finished(hosts.velodrome(*words))
    assert code == 2
    assert "host 'no-such-host.invalid': it cannot be found: its name does not resolve" in errors
    assert f"host '{hosts.controller.name}': it refuses connections; see whether sshd is running there" in errors


@slow
def test_hosts_behind_a_jump_host_train(hosts: sshd.Hosts, tmp_path: Path) -> None:
    hosts.write_config(jump=hosts.names[1:])
    result = train(hosts, tmp_path, "a", "--engine", "torch", "--strategy", "ddp", "--workers", 2, "--epochs", 1,
                   "--on", "lab")
    assert [node["host"] for node in result["nodes"]] == hosts.names
    assert result["cluster"]["hosts"][hosts.names[1]]["address"] == hosts.nodes[1].address


def test_nothing_survives_kill_9_of_the_controller(hosts: sshd.Hosts, tmp_path: Path) -> None:
    job = Lasting(hosts, tmp_path)
    job.process.kill()
    job.process.communicate()
    for name in hosts.names:
        eventually(lambda name=name: not left_on(hosts, name), 20, lambda name=name: str(left_on(hosts, name)))
    eventually(lambda: not hosts.processes(hosts.controller.name), 20)


@slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named_with_its_host(hosts: sshd.Hosts, tmp_path: Path, rank: int) -> None:
    job = Lasting(hosts, tmp_path)
    os.kill(job.pid(hosts.names[rank], f"--rank {rank}"), signal.SIGKILL)
    assert job.failed().startswith(f"worker {rank} on {hosts.names[rank]} was ended by SIGKILL: it was killed")


@slow
def test_a_killed_agent_is_a_lost_host(hosts: sshd.Hosts, tmp_path: Path) -> None:
    job = Lasting(hosts, tmp_path)
    os.kill(job.agent(hosts.names[1]), signal.SIGKILL)
    message = job.failed()
    assert message == (f"worker 1 on {hosts.names[1]} was lost: host '{hosts.names[1]}' closed the connection, or its "
                       "agent was killed")


@slow
def test_a_stopped_rank_is_found_by_its_stack(hosts: sshd.Hosts, tmp_path: Path) -> None:
    job = Lasting(hosts, tmp_path, "--stall-timeout", 8)
    os.kill(job.pid(hosts.names[1], "--rank 1"), signal.SIGSTOP)
    assert job.failed().startswith(f"worker 1 on {hosts.names[1]} made no progress for 8 s (--stall-timeout)")
    assert "lasting.py" in (tmp_path / "long" / "logs" / "worker-1.stack.txt").read_text()


@slow
def test_a_host_that_reboots_is_named(hosts: sshd.Hosts, tmp_path: Path) -> None:
    job = Lasting(hosts, tmp_path)
    hosts.crash(hosts.names[1])
    try:
        message = job.failed()
    finally:
        hosts.start(hosts.names[1])
    assert message.startswith(f"worker 1 on {hosts.names[1]} was lost: host '{hosts.names[1]}' closed the connection")
    result = train(hosts, tmp_path, "again", "--engine", "torch", "--epochs", 1, "--on", "lab")
    assert result["status"] == "finished"


@slow
def test_a_network_that_is_cut_for_five_seconds_is_survived(hosts: sshd.Hosts, tmp_path: Path) -> None:
    job = Lasting(hosts, tmp_path, silence=20)
    events = tmp_path / "long" / "events.jsonl"
    hosts.cut(hosts.names[1])
    time.sleep(5)
    hosts.heal(hosts.names[1])
    before = events.read_text().count('"rank":1')
    eventually(lambda: events.read_text().count('"rank":1') > before + 3, 60)
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGINT)
    assert finished(job.process)[0] == 130


@slow
def test_a_network_that_stays_cut_ends_the_run_on_both_sides_and_names_the_host(
    hosts: sshd.Hosts, tmp_path: Path
) -> None:
    job = Lasting(hosts, tmp_path, silence=6)
    hosts.cut(hosts.names[1])
    try:
        message = job.failed()
        assert re.fullmatch(
            rf"worker 1 on {hosts.names[1]} was lost: host '{hosts.names[1]}' has not answered for \d+ s: its network "
            "is cut, or it is down", message,
        )
        # Nobody can reach the host, and still nothing survives there.
        eventually(lambda: not [line for line in left_on(hosts, hosts.names[1]) if "velodrome" in line], 30)
    finally:
        hosts.heal(hosts.names[1])
    hosts.crash(hosts.names[1])  # an sshd that waits for its client to be heard again
    hosts.start(hosts.names[1])


@slow
def test_ctrl_c_ends_everything(hosts: sshd.Hosts, tmp_path: Path) -> None:
    job = Lasting(hosts, tmp_path)
    job.process.send_signal(signal.SIGINT)
    assert finished(job.process)[0] == 130
    assert json.loads((tmp_path / "long" / "result.json").read_text())["status"] == "interrupted"


@slow
def test_a_full_disk_of_a_host_refuses_a_job_and_fails_one_that_fills_it(hosts: sshd.Hosts, tmp_path: Path) -> None:
    name = hosts.names[1]
    words = ["train", "--on", "lab", "--script", "fill.py", "--engine", "torch", "--workers", 2, "--runs", tmp_path]
    (hosts.home / "fill.py").write_text(
        "import os, time\n"
        "with open(os.environ['VELODROME_FOLDER'] + '/big', 'wb') as stream:\n"
        "    for _ in range(100 if os.environ['RANK'] == '1' else 0):\n"
        "        stream.write(bytes(4 << 20)); stream.flush()\n"
        "time.sleep(1)\n"
    )
    hosts.write_clusters()
    code, _, errors = finished(hosts.velodrome(*words, "--name", "fills"))
    assert code == 1
    assert f"worker 1 on {name}" in errors
    assert "No space left on device" in errors
    hosts.node(name).run("sh", "-c", f"head -c 250M /dev/zero > {hosts.disk}/full")
    try:
        code, _, errors = finished(hosts.velodrome(*words, "--name", "full"))
    finally:
        hosts.node(name).run("rm", "-f", f"{hosts.disk}/full")
    assert code == 2
    assert re.search(rf"host '{name}': .* has .* left, but a run needs", errors)


@slow
def test_own_code_is_sent_once_and_an_interrupted_run_continues_on_other_hosts(
    hosts: sshd.Hosts, tmp_path: Path
) -> None:
    (tmp_path / "mynets.py").write_text(
        "import helper_4711\n\ndef net(input_shape, classes):\n    return helper_4711.made(input_shape, classes)\n"
    )
    (tmp_path / "helper_4711.py").write_text(
        "import math\nimport torch.nn as nn\n\n\ndef made(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))\n"
    )
    runs = tmp_path / "runs"
    job = ["train", "--model", "mynets:net", "--engine", "torch", "--strategy", "ddp", "--workers", 2, "--epochs", 400,
           "--on", "lab", "--runs", runs, "--name", "a"]
    process = hosts.velodrome(*job, cwd=tmp_path)
    eventually(lambda: [*runs.glob("a/checkpoints/*.safetensors")], 120,
               lambda: "" if process.poll() is None else str(finished(process)))
    hosts.crash(hosts.names[0])  # the chief's: what it wrote there is gone
    code, _, errors = finished(process)
    hosts.start(hosts.names[0])
    assert code == 1, errors
    hosts.write_clusters(hosts=hosts.names[::-1])
    code, out, errors = finished(hosts.velodrome("resume", "a", "--runs", runs, "--on", "lab", "--json", cwd=tmp_path))
    assert code == 0, errors
    result = json.loads(out.strip().splitlines()[-1])
    assert [node["host"] for node in result["nodes"]] == hosts.names[::-1]
    assert result["epochs"] == 400
