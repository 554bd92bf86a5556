"""Horovod trains in environments of its own: several processes equal one, with either framework, and losses are told.

Building an environment takes minutes, so these tests run where it is there: see `tests/servers/horovod_environment.py`.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from velodrome.cluster import environments

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "servers")]
import horovod_environment  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
COMMAND = [sys.executable, "-m", "velodrome", "train", "--json"]
HOROVOD = ("--engine", "horovod")
Train = Callable[..., dict[str, Any]]


@pytest.fixture(params=["torch", "tensorflow"], scope="module")
def framework(request: pytest.FixtureRequest) -> Iterator[str]:
    if reason := horovod_environment.unavailable(request.param):
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(environments.FOLDER, str(horovod_environment.HOME))
        horovod_environment.prepare(request.param)
        yield request.param


@pytest.fixture
def torch_framework(framework: str) -> str:
    if framework != "torch":
        pytest.skip("only PyTorch's learner has this")
    return framework


@pytest.fixture
def train(tmp_path: Path, framework: str) -> Train:
    """Trains a job of the command line's words; its result, with the weights under "weights"."""

    def run(*words: object) -> dict[str, Any]:
        command = [*COMMAND, "--runs", str(tmp_path / "runs"), *map(str, words)]
        command += ["--framework", framework] if "horovod" in words else []
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        result["weights"] = load_file(Path(result["path"]) / "model" / "model.safetensors")
        return result

    return run


def _difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one["weights"].keys() == other["weights"].keys()
    return max(float(np.abs(one["weights"][name] - other["weights"][name]).max()) for name in one["weights"])


DENSE = ("--dataset", "digits", "--model", "dense-128", "--seed", 7, "--optimizer", "momentum", "--learning-rate",
         "0.05", "--batch-size", 97, "--steps", 20)
#: Every fourth step has one example, so all ranks but one have none; weights of convolutions have four dimensions.
UNEVEN = ("--dataset", "digits", "--model", "vgg-small", "--optimizer", "adam", "--batch-size", 431, "--steps", 6)


@pytest.mark.parametrize(("job", "dtype", "bar"), [
    (DENSE, "float64", 1e-9), (DENSE, "float32", 1e-5), (UNEVEN, "float64", 1e-9),
])
def test_two_and_three_processes_end_with_the_weights_of_one(
    train: Train, job: tuple[object, ...], dtype: str, bar: float
) -> None:
    one = train(*job, *HOROVOD, "--dtype", dtype)
    start = train(*job, *HOROVOD, "--dtype", dtype, "--steps", 1)
    assert _difference(one, start) > 1e-3, "nothing was learned"
    for workers in (2, 3):
        several = train(*job, *HOROVOD, "--dtype", dtype, "--strategy", "allreduce", "--workers", workers)
        assert _difference(one, several) < bar
        assert several["test"]["correct"] == one["test"]["correct"]
        assert several["test"]["total"] == 359
        assert several["steps"] == one["steps"]
        assert several["consistency"] == "bsp"


def test_it_learns_what_the_engine_of_the_framework_learns(train: Train, framework: str) -> None:
    weights = Path(train(*DENSE, *HOROVOD, "--steps", 1)["path"]) / "model" / "model.safetensors"
    ours = train(*DENSE, *HOROVOD, "--strategy", "allreduce", "--workers", 2, "--weights", weights)
    theirs = subprocess.run(
        [*COMMAND, "--runs", str(weights.parents[2]), *map(str, DENSE), "--engine", framework, "--weights", weights],
        capture_output=True, text=True, timeout=280, cwd=weights.parent,
    )
    assert theirs.returncode == 0, theirs.stderr
    result = json.loads(theirs.stdout.splitlines()[-1])
    assert result["test"]["correct"] == ours["test"]["correct"]
    assert result["test"]["loss"] == pytest.approx(ours["test"]["loss"], rel=1e-5)


def test_it_reaches_the_accuracy_of_the_others(train: Train) -> None:
    result = train("--dataset", "digits", *HOROVOD, "--strategy", "allreduce", "--workers", 2, "--epochs", 20)
    assert result["test"]["accuracy"] >= 0.93
    assert [entry["epoch"] for entry in result["history"]] == [*range(1, 21)]


def _activities(result: dict[str, Any]) -> list[str]:
    """Names of what happened in Horovod's timeline, in its order."""
    text = (Path(result["path"]) / "horovod-timeline.json").read_text().strip().rstrip(",")
    events = json.loads(text if text.endswith("]") else text + "]")
    return [event["name"] for event in events if event.get("name")]


def test_the_timeline_shows_the_first_steps_and_what_the_fusion_threshold_does(train: Train) -> None:
    job = (*DENSE, *HOROVOD, "--strategy", "allreduce", "--workers", 2)
    fused = _activities(train(*job, "--timeline-steps", 10))
    # Four parameters in ten of the twenty steps, and perhaps some of the next one.
    assert fused.count("ALLREDUCE") in range(40, 45)
    assert "MEMCPY_IN_FUSION_BUFFER" in fused
    alone = _activities(train(*job, "--timeline-steps", 10, "--fusion-threshold-mb", 0, "--cycle-time-ms", 0.5))
    assert "GLOO_ALLREDUCE" in alone
    assert "MEMCPY_IN_FUSION_BUFFER" not in alone
    none = train(*job, "--timeline-steps", 0)
    assert not (Path(none["path"]) / "horovod-timeline.json").exists()


def test_a_resumed_run_ends_like_an_undisturbed_one(train: Train, tmp_path: Path) -> None:
    job = ("--dataset", "digits", *HOROVOD, "--strategy", "allreduce", "--workers", 2, "--seed", 3)
    whole = train(*job, "--epochs", 4, "--name", "whole")
    part = Path(train(*job, "--epochs", 4, "--name", "part")["path"])
    (part / "result.json").unlink()
    for checkpoint in sorted((part / "checkpoints").iterdir())[1:]:
        checkpoint.unlink()
    resume = [sys.executable, "-m", "velodrome", "resume", "part", "--runs", str(part.parent), "--json"]
    done = subprocess.run(resume, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert _difference(whole, {"weights": load_file(part / "model" / "model.safetensors")}) < 1e-6


@pytest.mark.usefixtures("torch_framework")
@pytest.mark.parametrize("words", [("--accumulate", 3), ("--clip-norm", "0.1"), ("--optimizer", "adamw"),
                                   ("--implementation", "stock"), ("--ema", "0.9")])
def test_options_of_optimization_mean_the_same_to_several_processes(train: Train, words: tuple[object, ...]) -> None:
    job = (*DENSE, *HOROVOD, "--dtype", "float64", *words)
    assert _difference(train(*job), train(*job, "--strategy", "allreduce", "--workers", 3)) < 1e-9


@pytest.mark.usefixtures("torch_framework")
def test_a_parameter_that_no_process_used_is_left_as_it_is(train: Train, tmp_path: Path) -> None:
    (tmp_path / "partly.py").write_text('''
import torch

class Partly(torch.nn.Module):
    """Uses its second layer for every other batch only."""
    def __init__(self, inputs, classes):
        super().__init__()
        self.first, self.second = torch.nn.Linear(inputs, classes), torch.nn.Linear(inputs, classes)
        self.calls = 0

    def forward(self, images):
        flat = images.flatten(1)
        if not self.training:
            return self.first(flat)
        self.calls += 1
        return self.first(flat) + (self.second(flat) if self.calls % 2 else 0)

def build(input_shape, classes):
    channels, height, width = input_shape
    return Partly(channels * height * width, classes)
''')
    job = (*DENSE, *HOROVOD, "--model", "partly:build", "--dtype", "float64")
    assert _difference(train(*job), train(*job, "--strategy", "allreduce", "--workers", 2)) < 1e-9


@pytest.mark.parametrize(("number", "words"), [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGSTOP, "worker 1")])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies_or_stops_ends_the_run_by_name(
    tmp_path: Path, framework: str, number: signal.Signals, words: str, rank: int
) -> None:
    command = [*COMMAND, "--runs", str(tmp_path), "--name", "hurt", "--dataset", "digits", *HOROVOD, "--framework",
               framework, "--strategy", "allreduce", "--workers", "2", "--epochs", "5000", "--stall-timeout", "10"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        events = tmp_path / "hurt" / "events.jsonl"
        deadline = time.monotonic() + 120
        while not (events.exists() and '"progress"' in events.read_text()):
            assert running.poll() is None, running.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        workers = [_pid_of(tmp_path / "hurt", each) for each in (0, 1)]
        assert {address for pid in workers for address in _addresses(pid)} == {"127.0.0.1"}
        os.kill(workers[rank], number)
        _, errors = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 1
    assert f"worker {rank}" in errors
    assert words.replace("worker 1", f"worker {rank}") in errors
    assert not [pid for pid in workers if psutil.pid_exists(pid)]


def _pid_of(run: Path, rank: int) -> int:
    """The process that is a worker of the run in a folder."""
    for process in psutil.process_iter(["cmdline"]):
        given = dict(itertools.pairwise(process.info["cmdline"] or []))
        if (given.get("--folder"), given.get("--role"), given.get("--rank")) == (str(run), "worker", str(rank)):
            return int(process.pid)
    raise AssertionError(f"no worker {rank} of {run}")


def _addresses(pid: int) -> list[str]:
    """The addresses at which a process is connected or listens."""
    return [connection.laddr.ip for connection in psutil.Process(pid).net_connections(kind="tcp")]


def test_a_script_that_uses_horovod_runs_in_its_environment(tmp_path: Path, framework: str) -> None:
    (tmp_path / "sums.py").write_text(
        f"import horovod.{framework} as hvd\nimport {framework} as made\nhvd.init()\n"
        "total = hvd.allreduce(made.ones(3), op=hvd.Sum)\n"
        "print('sizes', hvd.size(), hvd.local_size(), hvd.cross_size(), 'sum', float(total[0]))\nhvd.shutdown()\n"
    )
    command = [*COMMAND, "--runs", str(tmp_path), "--name", "sums", "--script", "sums.py", *HOROVOD, "--framework",
               framework, "--workers", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert "sizes 3 3 1 sum 3.0" in (tmp_path / "sums" / "logs" / f"worker-{rank}.log").read_text()
