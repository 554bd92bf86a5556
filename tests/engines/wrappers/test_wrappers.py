"""Libraries that wrap PyTorch's modules, Accelerate and Lightning Fabric, train what PyTorch trains without them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from command import errors_after_hurting, trainer
from driver import Ran, finish, largest_difference, run, start, write_text

from velodrome.job.job import Job

pytest.importorskip("torch")
MODULES = {"accelerate": "accelerate", "fabric": "lightning_fabric"}
Alone = Callable[[Job], Ran]


@pytest.fixture(params=[*MODULES], scope="module")
def engine(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(MODULES[request.param])
    return str(request.param)


def job(**changes: Any) -> Job:
    """90 examples in batches of 22: the last holds 2, fewer than 3 workers have, and no batch divides by 3."""
    base = {"engine": "torch", "model": "dense-128", "optimizer": "momentum", "dtype": "float64", "batch_size": 22}
    return Job(**(base | {"steps": 20, "epochs": 9} | changes))


def distributed(wanted: Job, engine: str, workers: int) -> Job:
    return wanted.model_copy(update={"engine": engine, "strategy": "ddp", "workers": workers})


@pytest.mark.quick("*-3")
@pytest.mark.integration
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_together_end_with_the_weights_of_one_process_of_pytorch(
    alone: Alone, data: Path, tmp_path: Path, engine: str, workers: int
) -> None:
    one = alone(job())
    ran = run(distributed(job(), engine, workers), data, tmp_path)
    assert largest_difference(ran.state, one.state, "model.") < 1e-9
    assert ran.result["test"]["correct"] == one.result["test"]["correct"]
    assert ran.result["test_answers"] == one.result["test_answers"]
    assert ran.result["steps"] == 20


@pytest.mark.integration
def test_one_process_ends_with_the_weights_of_pytorch(alone: Alone, data: Path, tmp_path: Path, engine: str) -> None:
    ran = run(job(engine=engine), data, tmp_path)
    assert largest_difference(ran.state, alone(job()).state, "model.") < 1e-9
    assert "torch.optim" in ran.result["implementation"]["framework"]


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("changes", [
    {"accumulate": 3}, {"clip_norm": 0.1}, {"ema": 0.9}, {"optimizer": "adamw"}, {"implementation": "stock"},
    {"schedule": "cosine"}, {"model": "torch_nets:unused"}, {"optimizer": "torch_nets:make_optimizer"},
    {"dtype": "float32", "model": "vgg-small"},
], ids=lambda changes: "-".join(map(str, changes.values())))
def test_options_and_models_of_ones_own_mean_what_they_mean_to_pytorch(
    alone: Alone, data: Path, tmp_path: Path, engine: str, changes: dict[str, Any]
) -> None:
    wanted = job(**changes)
    ran = run(distributed(wanted, engine, 2), data, tmp_path)
    bar = 1e-5 if wanted.dtype == "float32" else 1e-9
    assert largest_difference(ran.state, alone(wanted).state, "model.") < bar


@pytest.mark.integration
@pytest.mark.slow
def test_a_language_model_trains_as_under_pytorch(tmp_path: Path, engine: str) -> None:
    text = write_text(tmp_path / "text.npz")
    wanted = job(model="lstm-small", optimizer="sgd", batch_size=5, unroll=7, steps=6)
    one = run(wanted, text, tmp_path / "one")
    two = run(distributed(wanted, engine, 2), text, tmp_path / "two")
    assert largest_difference(two.state, one.state, "model.") < 1e-9


@pytest.mark.integration
@pytest.mark.slow
def test_a_resumed_run_ends_like_an_undisturbed_one(data: Path, tmp_path: Path, engine: str) -> None:
    wanted = distributed(job(optimizer="adam", steps=None, epochs=4), engine, 2)
    whole = run(wanted, data, tmp_path / "whole")
    run(wanted.model_copy(update={"epochs": 2}), data, tmp_path / "part")
    resumed = run(wanted, data, tmp_path / "part", resume=True)
    assert largest_difference(resumed.state, whole.state, "model.") < 1e-9


@pytest.mark.integration
def test_a_process_that_loses_another_one_reports_a_lost_peer(data: Path, tmp_path: Path, engine: str) -> None:
    started = start(distributed(job(steps=None, epochs=100000), engine, 2), data, tmp_path)
    started[0].wait_for('"epoch"')
    started[1].kill()
    ran = finish(started, tmp_path, seconds=120)
    (error,) = ran.processes[0].of_kind("error")
    assert error["cause"] == "peer"
    assert error["message"].startswith("lost another worker")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize(("number", "words"), [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGSTOP, "worker")])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies_or_stops_ends_the_run_by_name(
    tmp_path: Path, engine: str, number: signal.Signals, words: str, rank: int
) -> None:
    errors = errors_after_hurting(
        tmp_path, rank, number, "--engine", engine, "--strategy", "ddp", "--stall-timeout", 60, seconds=240
    )
    assert words in errors


@pytest.mark.e2e
@pytest.mark.slow
def test_it_reaches_the_accuracy_of_the_others(tmp_path: Path, engine: str) -> None:
    result = trainer(tmp_path)(
        "--dataset", "digits", "--engine", engine, "--strategy", "ddp", "--workers", 2, "--epochs", 20
    )
    assert result["test"]["accuracy"] >= 0.93
