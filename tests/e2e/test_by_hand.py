"""A job that people start on every machine by what `velodrome plan` prints runs to its end without a controller."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from scene import LONG, START_SECONDS, Scene

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

slow = pytest.mark.slow
LOOPBACK = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


def plan(velodrome, scene: Scene, hosts: list[str], engine: str, strategy: str, *more: object) -> list[dict[str, Any]]:
    """One worker a host."""
    words = ["--engine", engine, "--strategy", strategy, "--workers", len(hosts), "--hosts", ",".join(hosts), *more]
    done = velodrome("plan", *words, "--python", sys.executable, "--runs", scene.runs, "--name", scene.name, "--json")
    assert done.code == 0, done.text
    return done.json()["processes"]


def carry_out(scene: Scene, processes: list[dict[str, Any]], prefix: dict[str, list[str]]) -> dict[str, str]:
    """Start each line as a person does, the last one first; what each process said. All must end by themselves."""
    started = {}
    for process in reversed(processes):
        command = [*prefix.get(process["host"], []), "bash", "-c", process["command"]]
        name = f"{process['role']} {process['rank']}"
        started[name] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    scene.started += started.values()
    said = {name: popen.communicate(timeout=280)[0] for name, popen in started.items()}
    for name, popen in started.items():
        assert popen.returncode == 0, f"{name}:\n{said[name]}"
    return said


@pytest.mark.parametrize(
    ("engine", "strategy"),
    [
        pytest.param("torch", "ddp", id="ddp", marks=slow),
        pytest.param("torch", "allreduce", id="allreduce", marks=slow),
        pytest.param("tensorflow", "multi-worker-mirrored", id="multi-worker-mirrored", marks=slow),
        pytest.param("tensorflow", "parameter-server", id="parameter-server", marks=slow),
        pytest.param("tensorflow", "allreduce", id="tensorflow-allreduce", marks=slow),
    ],
)
def test_a_plan_typed_by_hand_on_three_addresses_trains(velodrome, scene: Scene, engine: str, strategy: str) -> None:
    processes = plan(velodrome, scene, LOOPBACK, engine, strategy, "--epochs", 2)
    said = carry_out(scene, processes, {})
    result = scene.result()
    assert (result["status"], result["epochs"], result["workers"]) == ("finished", 2, 3)
    assert result["test"]["total"] == 359
    workers = [node for node in result["nodes"] if node["role"] == "worker"]
    assert [node["host"] for node in workers] == LOOPBACK
    assert all(node["memory_bytes"]["max"] for node in result["nodes"])
    chief = "chief 0" if strategy == "parameter-server" else "worker 0"
    assert "epoch 2: train accuracy" in said[chief]
    assert f"the result is in {scene.path / 'result.json'}" in said[chief]
    assert (scene.path / "model").is_dir()
    rows = velodrome("runs", "list", "--runs", scene.runs, "--json").json()
    assert [(row["run"], row["status"]) for row in rows] == [("a", "finished")]

    again = subprocess.run(["bash", "-c", processes[-1]["command"]], capture_output=True, text=True, timeout=280)
    assert again.returncode == 2
    assert "holds a run already, and none is ever overwritten" in again.stderr


def test_a_failure_by_hand_is_told_on_every_machine(velodrome, scene: Scene) -> None:
    model = ("--model", "faulty_nets:build", "--model-arg", "fault=raise", "--model-arg", "rank=0")
    processes = plan(velodrome, scene, LOOPBACK[:2], "torch", "ddp", *model)
    started = [
        subprocess.Popen(["bash", "-c", process["command"]], stderr=subprocess.PIPE, text=True) for process in processes
    ]
    scene.started += started
    said = [popen.communicate(timeout=280)[1] for popen in started]
    assert [popen.returncode for popen in started] == [1, 1]
    assert "worker 0: error: ValueError: the user's own mistake" in said[0]
    assert "worker 1: error: lost another worker" in said[1]
    result = scene.result()
    assert result["status"] == "failed"
    assert result["error"]["message"] == "worker 0 on 127.0.0.1: ValueError: the user's own mistake"


def test_ctrl_c_ends_a_part_and_its_chief_records_the_interruption(velodrome, scene: Scene) -> None:
    (process,) = plan(velodrome, scene, LOOPBACK[:1], "torch", "ddp", *LONG)
    started = scene.start_line(process["command"])
    events = scene.path / "events-worker-0.jsonl"
    deadline = time.monotonic() + START_SECONDS
    while not (events.exists() and '"progress"' in events.read_text()):
        assert started.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    text, _ = started.communicate(timeout=280)
    assert started.returncode == 130, text
    assert "worker 0: error: interrupted by Ctrl-C" in text
    assert scene.result()["status"] == "interrupted"
    assert scene.result()["error"]["message"] == "worker 0 on 127.0.0.1: interrupted by Ctrl-C"


def test_a_line_without_its_environment_is_refused(scene: Scene) -> None:
    words = ["-m", "velodrome.run.manual", "--run", "a", "--role", "worker", "--rank", "0", "--folder", str(scene.path)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=280)
    assert (done.returncode, scene.path.exists()) == (2, False)
    assert "VELODROME_JOB is not set: paste the whole line that `velodrome plan` printed" in done.stderr


@slow
@pytest.mark.parametrize(
    ("engine", "strategy"),
    [("torch", "ddp"), ("torch", "allreduce"), ("tensorflow", "multi-worker-mirrored"),
     ("tensorflow", "parameter-server")],
)
def test_who_does_not_come_by_hand_is_named_by_those_who_wait(
    velodrome, scene: Scene, engine: str, strategy: str
) -> None:
    processes = plan(velodrome, scene, LOOPBACK[:2], engine, strategy, "--start-timeout", 15)
    there = [process for process in processes if (process["role"], process["rank"]) != ("worker", 1)]
    started = [
        subprocess.Popen(["bash", "-c", process["command"]], stderr=subprocess.PIPE, text=True) for process in there
    ]
    scene.started += started
    said = [popen.communicate(timeout=280)[1] for popen in started]
    assert [popen.returncode for popen in started] == [1] * len(there), said
    errors = [line for text in said for line in text.splitlines() if ": error: " in line]
    assert any("worker 1" in line and "127.0.0.2" in line for line in errors), errors
    assert scene.result()["status"] == "failed"


def test_a_plan_for_people_names_every_host_and_is_ready_to_paste(velodrome, scene: Scene) -> None:
    done = velodrome("plan", "--strategy", "ddp", "--workers", 2, "--hosts", "10.0.0.1, 10.0.0.2", "--name", "a")
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line for line in lines if line.startswith("#")] == [
        "# on 10.0.0.1", "# worker 0", "# on 10.0.0.2", "# worker 1"
    ]
    commands = [line for line in lines if line.startswith("VELODROME_SECRET=")]
    worlds = [shlex.split(command) for command in commands]
    hosts = [[member["host"] for member in json.loads(setting.removeprefix("VELODROME_WORLD="))]
             for words in worlds for setting in words if setting.startswith("VELODROME_WORLD=")]
    assert hosts == [["10.0.0.1", "10.0.0.2"]] * 2
    assert all("MASTER_ADDR=10.0.0.1" in command and "-m velodrome.run.manual" in command for command in commands)


@pytest.mark.parametrize(("words", "sentence"), [
    (["--hosts", " , "], "name at least one host"), (["--port", 70000], "--port 70000"),
])
def test_a_plan_without_hosts_or_ports_is_refused(velodrome, words: list[object], sentence: str) -> None:
    done = velodrome("plan", "--strategy", "ddp", *words)
    assert done.code == 2
    assert sentence in done.err


class Machines:
    """Network namespaces joined by a bridge: as near to three machines as one can be."""

    def __init__(self, number: int) -> None:
        self._id = f"vd{os.getpid()}"
        self.hosts = [f"10.77.0.{index + 1}" for index in range(number)]
        self._names = [f"{self._id}-{index}" for index in range(number)]
        self.prefix = {
            host: ["ip", "netns", "exec", name] for host, name in zip(self.hosts, self._names, strict=True)
        }

    def make(self) -> None:
        switch = f"{self._id}-s"
        self._ip("netns", "add", switch)
        self._ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        self._ip("-n", switch, "link", "set", "bridge", "up")
        for index, (name, host) in enumerate(zip(self._names, self.hosts, strict=True)):
            self._ip("netns", "add", name)
            self._ip("-n", switch, "link", "add", f"port{index}", "type", "veth", "peer", "name", "eth0", "netns", name)
            self._ip("-n", switch, "link", "set", f"port{index}", "master", "bridge", "up")
            self._ip("-n", name, "address", "add", f"{host}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self._ip("-n", name, "link", "set", device, "up")

    def remove(self) -> None:
        for name in [*self._names, f"{self._id}-s"]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def machines() -> Iterator[Machines]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    made = Machines(3)
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    yield made
    made.remove()


@pytest.mark.parametrize(
    ("engine", "strategy"),
    [
        pytest.param("torch", "ddp", id="ddp", marks=slow),
        pytest.param("torch", "allreduce", id="allreduce"),
        pytest.param("tensorflow", "multi-worker-mirrored", id="multi-worker-mirrored", marks=slow),
        pytest.param("tensorflow", "parameter-server", id="parameter-server", marks=slow),
    ],
)
def test_a_plan_typed_by_hand_on_three_machines_trains_over_their_network(
    velodrome, scene: Scene, machines: Machines, engine: str, strategy: str
) -> None:
    processes = plan(velodrome, scene, machines.hosts, engine, strategy, "--epochs", 2)
    carry_out(scene, processes, machines.prefix)
    result = scene.result()
    assert (result["status"], result["epochs"]) == ("finished", 2)
    workers = [node for node in result["nodes"] if node["role"] == "worker"]
    assert [node["host"] for node in workers] == machines.hosts
    # An asynchronous worker may have had little to do, but between them they did not talk over loopback.
    sent = [node["network_bytes"]["out"] for node in workers]
    assert sum(sent) > 100_000, sent
    assert min(sent) > 0, sent
