"""A process of a run is killed: the run ends with one sentence that names it, and nothing is left."""

from __future__ import annotations

import signal
import time

import pytest
from scene import LONG, Scene

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.usefixtures("warm")]

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("engine", "strategy", "role", "rank"),
    [
        pytest.param("torch", "ddp", "worker", 1, id="ddp-worker"),
        pytest.param("torch", "ddp", "worker", 0, id="ddp-chief", marks=slow),
        pytest.param("torch", "allreduce", "worker", 1, id="allreduce-worker"),
        pytest.param("torch", "allreduce", "worker", 0, id="allreduce-chief", marks=slow),
        pytest.param("torch", "single", "worker", 0, id="single", marks=slow),
        pytest.param("torch", "zero1", "worker", 1, id="zero1-worker", marks=slow),
        pytest.param("torch", "fsdp", "worker", 1, id="fsdp-worker", marks=slow),
        pytest.param("torch", "fsdp", "worker", 0, id="fsdp-chief", marks=slow),
        pytest.param("torch", "local-sgd", "worker", 1, id="local-sgd-worker", marks=slow),
        pytest.param("torch", "diloco", "worker", 1, id="diloco-worker", marks=slow),
        pytest.param("torch", "pipeline", "worker", 1, id="pipeline-worker", marks=slow),
        pytest.param("torch", "tensor", "worker", 1, id="tensor-worker", marks=slow),
        pytest.param("tensorflow", "multi-worker-mirrored", "worker", 1, id="multi-worker-mirrored-worker", marks=slow),
        pytest.param("tensorflow", "multi-worker-mirrored", "worker", 0, id="multi-worker-mirrored-chief", marks=slow),
        pytest.param("tensorflow", "allreduce", "worker", 1, id="tensorflow-allreduce-worker", marks=slow),
        pytest.param("tensorflow", "parameter-server", "worker", 1, id="parameter-server-worker", marks=slow),
        pytest.param("tensorflow", "parameter-server", "server", 0, id="parameter-server-server", marks=slow),
        pytest.param("tensorflow", "parameter-server", "chief", 0, id="parameter-server-chief", marks=slow),
    ],
)
def test_a_killed_process_is_named_and_ends_the_run(
    velodrome, scene: Scene, engine: str, strategy: str, role: str, rank: int
) -> None:
    killed = []

    def kill() -> None:
        scene.send(signal.SIGKILL, role, rank)()
        killed.append(time.monotonic())

    scene.when_training(kill)
    done = velodrome(*scene.words(engine, strategy, *LONG))
    assert done.code == 1, done.text
    assert time.monotonic() - killed[0] < 120  # and not at the stall timeout
    assert f"velodrome: {role} {rank} on 127.0.0.1 was ended by SIGKILL" in done.err
    result = scene.result()
    assert result["status"] == "failed"
    assert {key: result["error"][key] for key in ("role", "rank", "host")} == {
        "role": role, "rank": rank, "host": "127.0.0.1"
    }


@slow
def test_a_parameter_server_run_goes_on_without_a_worker_if_asked_to(velodrome, scene: Scene) -> None:
    scene.when_training(scene.send(signal.SIGKILL, "worker", 1))
    words = ("--keep-going", "--batch-size", 8, "--epochs", 30, "--no-checkpoints")
    done = velodrome(*scene.words("tensorflow", "parameter-server", *words), "--json")
    assert done.code == 0, done.text
    assert done.json()["status"] == "finished"
    assert done.json()["epochs"] == 30
    lost = [event for event in scene.events() if event["kind"] == "lost"]
    assert [(event["role"], event["rank"]) for event in lost] == [("worker", 1)]
    assert "worker 1 on 127.0.0.1 was ended by SIGKILL" in done.err
    assert "the run continues with 1 worker" in done.err


@slow
def test_with_nobody_left_keep_going_ends_too(velodrome, scene: Scene) -> None:
    scene.when_training(scene.send(signal.SIGKILL, "worker", 0))
    done = velodrome(*scene.words("tensorflow", "parameter-server", "--keep-going", *LONG, workers=1))
    assert done.code == 1, done.text
    assert "worker 0 on 127.0.0.1 was ended by SIGKILL" in done.err
