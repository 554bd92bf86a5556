"""A process hangs, in its start or in training: the one that hangs is named, not the one that waits for it."""

from __future__ import annotations

import re
import signal
import threading
import time
from pathlib import Path

import pytest
from scene import LONG, Scene

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

slow = pytest.mark.slow
#: Seconds without progress. A busy machine takes some to trace a model, in which nothing is said.
LIMIT = {"torch": 20, "tensorflow": 40}


def check_named(done, scene: Scene, name: str, seconds: int, option: str = "--stall-timeout") -> dict:
    """One sentence: who, where, which limit (unless a peer has noticed before), its last event. And its stack."""
    assert done.code == 1, done.text
    sentences = [line for line in done.err.splitlines() if line.startswith("velodrome:")]
    assert len(sentences) == 1, done.err
    what = rf"(did not connect within|made no progress for) {seconds} s \({option}\)|did not answer"
    assert re.match(rf"velodrome: {name} on 127\.0\.0\.1 ({what}): it", sentences[0]), sentences
    error = scene.result()["error"]
    assert (f"{error['role']} {error['rank']}", error["host"]) == (name, "127.0.0.1")
    assert f"stack of {name}:" in done.err
    assert error["stack"].startswith("Thread "), error["stack"]
    assert (scene.path / "logs" / f"{name.replace(' ', '-')}.stack.txt").stat().st_size > 100
    return error


@pytest.mark.parametrize(
    ("engine", "strategy", "fault"),
    [
        pytest.param("torch", "ddp", "sleep", id="ddp"),
        pytest.param("torch", "ddp", "sleep-evaluating", id="ddp-evaluating", marks=slow),
        pytest.param("torch", "allreduce", "sleep", id="allreduce", marks=slow),
        pytest.param("torch", "fsdp", "sleep", id="fsdp", marks=slow),
        pytest.param("torch", "local-sgd", "sleep", id="local-sgd", marks=slow),
        pytest.param("tensorflow", "multi-worker-mirrored", "sleep", id="multi-worker-mirrored", marks=slow),
        pytest.param("tensorflow", "allreduce", "sleep", id="tensorflow-allreduce", marks=slow),
    ],
)
def test_a_model_that_sleeps_for_ever_on_one_rank_is_found(
    velodrome, scene: Scene, engine: str, strategy: str, fault: str
) -> None:
    module = "faulty_nets" if engine == "torch" else "faulty_keras"
    words = ["--model", f"{module}:build", "--batch-size", 64, "--stall-timeout", LIMIT[engine]]
    words += [word for setting in (f"fault={fault}", "rank=1", "at=20") for word in ("--model-arg", setting)]
    done = velodrome(*scene.words(engine, strategy, *words))
    error = check_named(done, scene, "worker 1", LIMIT[engine])
    assert module in (scene.path / "logs" / "worker-1.stack.txt").read_text()
    assert error["cause"] == "stall"


@pytest.mark.parametrize(
    ("engine", "strategy", "role", "rank"),
    [
        pytest.param("torch", "ddp", "worker", 1, id="ddp", marks=slow),
        pytest.param("torch", "allreduce", "worker", 0, id="allreduce"),
        pytest.param("torch", "zero1", "worker", 1, id="zero1", marks=slow),
        pytest.param("torch", "fsdp", "worker", 1, id="fsdp", marks=slow),
        pytest.param("torch", "local-sgd", "worker", 0, id="local-sgd", marks=slow),
        pytest.param("torch", "diloco", "worker", 1, id="diloco", marks=slow),
        pytest.param("torch", "pipeline", "worker", 1, id="pipeline", marks=slow),
        pytest.param("torch", "tensor", "worker", 0, id="tensor", marks=slow),
        pytest.param("tensorflow", "multi-worker-mirrored", "worker", 1, id="multi-worker-mirrored", marks=slow),
        pytest.param("tensorflow", "parameter-server", "worker", 1, id="parameter-server-worker", marks=slow),
        pytest.param("tensorflow", "parameter-server", "server", 0, id="parameter-server-server", marks=slow),
        pytest.param("tensorflow", "parameter-server", "chief", 0, id="parameter-server-chief", marks=slow),
    ],
)
def test_a_process_that_was_stopped_is_found(
    velodrome, scene: Scene, engine: str, strategy: str, role: str, rank: int
) -> None:
    stopped = []

    def stop() -> None:
        scene.send(signal.SIGSTOP, role, rank)()
        stopped.append(time.monotonic())

    scene.when_training(stop)
    done = velodrome(*scene.words(engine, strategy, *LONG, "--stall-timeout", LIMIT[engine]))
    assert time.monotonic() - stopped[0] < LIMIT[engine] + 120
    error = check_named(done, scene, f"{role} {rank}", LIMIT[engine])
    assert error["message"].endswith("and its heartbeat stopped")


@slow
@pytest.mark.parametrize("first", ["hello", "resources"])
def test_a_process_that_is_stopped_during_its_import_is_found_before_the_start_timeout(
    velodrome, scene: Scene, first: str
) -> None:
    """Also before its first heartbeat, which comes a second after `hello`."""

    def importing(events: list[dict]) -> bool:
        return any(event["kind"] == first and event["rank"] == 1 for event in events)

    def stop() -> None:
        scene.until(importing)
        scene.send(signal.SIGSTOP, "worker", 1)()

    threading.Thread(target=stop, daemon=True).start()
    done = velodrome(*scene.words("torch", "ddp", "--start-timeout", 200, "--stall-timeout", LIMIT["torch"]))
    error = check_named(done, scene, "worker 1", LIMIT["torch"])
    assert re.search(r"in phase '(start|import)'", error["message"])
    assert error["message"].endswith("and its heartbeat stopped")


@pytest.mark.parametrize(
    ("engine", "strategy", "role", "rank"),
    [
        pytest.param("torch", "ddp", "worker", 1, id="ddp", marks=slow),
        pytest.param("torch", "ddp", "worker", 0, id="ddp-chief", marks=slow),
        pytest.param("torch", "allreduce", "worker", 1, id="allreduce", marks=slow),
        pytest.param("tensorflow", "multi-worker-mirrored", "worker", 1, id="multi-worker-mirrored", marks=slow),
        pytest.param("tensorflow", "parameter-server", "server", 0, id="parameter-server-server", marks=slow),
        pytest.param("tensorflow", "parameter-server", "worker", 1, id="parameter-server-worker", marks=slow),
        pytest.param("tensorflow", "parameter-server", "chief", 0, id="parameter-server-chief", marks=slow),
    ],
)
def test_a_process_that_never_comes_is_named(
    velodrome, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, strategy: str, role: str,
    rank: int,
) -> None:
    """Its Python hangs before it has begun, as it does on a file server that does not answer."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        f"if (os.environ.get('VELODROME_ROLE'), os.environ.get('VELODROME_RANK')) == ({role!r}, '{rank}'):\n"
        "    time.sleep(3600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    limit = 30 if engine == "torch" else 60
    done = velodrome(*scene.words(engine, strategy, "--start-timeout", limit))
    error = check_named(done, scene, f"{role} {rank}", limit, "--start-timeout")
    assert "it never reported anything" in error["message"]
    assert error["cause"] == "start"


@slow
def test_a_module_that_hangs_at_its_import_is_found(velodrome, scene: Scene, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "hanging_nets.py").write_text(
        "import os, time\n"
        "if os.environ['VELODROME_RANK'] == '1':\n    time.sleep(3600)\n"
        "from faulty_nets import build\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    done = velodrome(*scene.words("torch", "ddp", "--model", "hanging_nets:build", "--stall-timeout", LIMIT["torch"]))
    error = check_named(done, scene, "worker 1", LIMIT["torch"])
    assert "'phase build begin'" in error["message"]
    assert "hanging_nets.py:3" in error["stack"]
