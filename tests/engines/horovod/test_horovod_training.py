"""Horovod trains in environments of its own: several processes equal one, with either framework, and losses are told.

Building an environment takes minutes, so these tests run where it is there: see `tests/servers/horovod_environment.py`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from velodrome.clusters import environments

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "servers"), str(ROOT / "tests" / "engines")]
import horovod_environment  # noqa: E402
from command import COMMAND, DENSE, UNEVEN, Train, difference, errors_after_hurting, resumed_after, trainer, weights_of  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
HOROVOD = ("--engine", "horovod")


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
    run = trainer(tmp_path)
    return lambda *words: run(*words, *(["--framework", framework] if "horovod" in words else []))


@pytest.mark.parametrize(("job", "dtype", "bar"), [
    (DENSE, "float64", 1e-9), (DENSE, "float32", 1e-5), (UNEVEN, "float64", 1e-9),
])
def test_two_and_three_processes_end_with_the_weights_of_one(
    train: Train, job: tuple[object, ...], dtype: str, bar: float
) -> None:
    one = train(*job, *HOROVOD, "--dtype", dtype)
    start = train(*job, *HOROVOD, "--dtype", dtype, "--steps", 1)
    assert difference(one, start) > 1e-3, "nothing was learned"
    for workers in (2, 3):
        several = train(*job, *HOROVOD, "--dtype", dtype, "--strategy", "allreduce", "--workers", workers)
        assert difference(one, several) < bar
        assert several["test"]["correct"] == one["test"]["correct"]
        assert several["test"]["total"] == 359
        assert several["steps"] == one["steps"]
        assert several["consistency"] == "bsp"


def test_over_mpi_it_computes_what_it_computes_over_gloo(train: Train) -> None:
    """Slide of fruits-horovod, Distributed training: the distribution type is MPI."""
    several = (*DENSE, *HOROVOD, "--dtype", "float64", "--strategy", "allreduce", "--workers", 2)
    before = set(Path("/dev/shm").iterdir())
    over = [train(*several, "--collectives", kind) for kind in ("gloo", "mpi")]
    assert difference(*over) < 1e-12
    assert not {path for path in set(Path("/dev/shm").iterdir()) - before if path.name.startswith("mpich")}


def test_it_learns_what_the_engine_of_the_framework_learns(train: Train, framework: str) -> None:
    weights = weights_of(train(*DENSE, *HOROVOD, "--steps", 1))
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
    assert difference(whole, resumed_after(1, part)) < 1e-6


@pytest.mark.usefixtures("torch_framework")
@pytest.mark.parametrize("words", [("--accumulate", 3), ("--clip-norm", "0.1"), ("--optimizer", "adamw"),
                                   ("--implementation", "stock"), ("--ema", "0.9")])
def test_options_of_optimization_mean_the_same_to_several_processes(train: Train, words: tuple[object, ...]) -> None:
    job = (*DENSE, *HOROVOD, "--dtype", "float64", *words)
    assert difference(train(*job), train(*job, "--strategy", "allreduce", "--workers", 3)) < 1e-9


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
    assert difference(train(*job), train(*job, "--strategy", "allreduce", "--workers", 2)) < 1e-9


@pytest.mark.parametrize(("number", "words"), [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGSTOP, "worker 1")])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies_or_stops_ends_the_run_by_name(
    tmp_path: Path, framework: str, number: signal.Signals, words: str, rank: int
) -> None:
    errors = errors_after_hurting(tmp_path, rank, number, *HOROVOD, "--framework", framework, "--strategy", "allreduce",
                                  "--stall-timeout", 10)
    assert words.replace("worker 1", f"worker {rank}") in errors


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
