"""Parameter servers with PyTorch: bsp ends with the weights of one process, the others keep their bounds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import each_once, largest_difference, run, write_data, write_text

from velodrome.job.job import Job

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.integration

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}


def job(**changes) -> Job:
    base = {"model": "dense-128", "optimizer": "momentum", "dtype": "float64", "batch_size": 22}
    return Job(**(base | {"steps": 20, "epochs": 9} | changes))


def served(wanted: Job, consistency: str = "bsp", **changes) -> Job:
    update = {"engine": "torch", "strategy": "parameter-server", "consistency": consistency, "workers": 3, "servers": 2}
    return wanted.model_copy(update=update | changes)


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.fixture(scope="session")
def single(tmp_path_factory, data):
    return each_once(data, lambda: tmp_path_factory.mktemp("single"))


@pytest.mark.quick("momentum-float64-2", "*-adamw-float32-3", "adamw-float32-3")
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_workers_in_lock_step_end_with_the_weights_of_one(single, data, tmp_path, optimizer, dtype, servers):
    wanted = job(optimizer=optimizer, dtype=dtype, weight_decay=0.01)
    ran, alone = run(served(wanted, servers=servers), data, tmp_path), single(wanted)
    assert largest_difference(ran.state, alone.state, "model.") < TOLERANCE[dtype]
    assert ran.result["test_answers"] == alone.result["test_answers"]
    for mine, theirs in zip(ran.result["history"], alone.result["history"], strict=True):
        assert mine["train_accuracy"] == theirs["train_accuracy"]
        assert mine["validation_accuracy"] == theirs["validation_accuracy"]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"clip_norm": 0.05}, id="clipping"),
        pytest.param({"ema": 0.9}, id="average"),
        pytest.param({"accumulate": 2}, id="accumulation"),
        pytest.param({"schedule": "cosine", "schedule_by": "step"}, id="schedule"),
        pytest.param({"model": "torch_nets:unused"}, id="unused parameters"),
        pytest.param({"model": "torch_nets:convolved"}, id="convolutions"),
    ],
)
def test_what_changes_a_step_does_so_as_in_one_process(single, data, tmp_path, changes):
    wanted = job(**changes)
    ran = run(served(wanted), data, tmp_path)
    assert largest_difference(ran.state, single(wanted).state, "model.") < 1e-9
    assert ran.result["test_answers"] == single(wanted).result["test_answers"]


@pytest.mark.parametrize("optimizer", ["adam"])
def test_a_resumed_run_ends_with_the_weights_of_an_undisturbed_one(data, tmp_path, optimizer):
    wanted = served(job(optimizer=optimizer, ema=0.9, steps=None, epochs=4, dtype="float32"))
    whole = run(wanted, data, tmp_path / "whole")
    run(wanted.model_copy(update={"epochs": 2}), data, tmp_path / "parts")
    parts = run(wanted, data, tmp_path / "parts", resume=True)
    assert largest_difference(whole.state, parts.state) == 0
    assert whole.result["test"] == parts.result["test"]


def test_a_text_in_lock_step_ends_with_the_weights_of_one(tmp_path):
    text = write_text(tmp_path / "text.npz")
    wanted = job(dataset="ptb", model="lstm-small", model_args={"units": 12, "layers": 1, "dropout": 0.0}, unroll=5,
                 batch_size=6, optimizer="sgd", steps=10)  # fmt: skip
    alone = run(wanted, text, tmp_path / "single")
    ran = run(served(wanted), text, tmp_path / "served")
    assert largest_difference(ran.state, alone.state, "model.") < 1e-9


@pytest.mark.quick("ssp:2", "dssp:1..3")
@pytest.mark.parametrize("consistency", ["asp", "ssp:0", "ssp:2", "dssp:1..3"])
def test_workers_by_themselves_train_on_every_example_once_and_learn(data, tmp_path, consistency):
    wanted = served(job(batch_size=6, steps=None, epochs=6, optimizer="adam", dtype="float32"), consistency)
    ran = run(wanted, data, tmp_path)
    assert ran.result["history"][-1]["train_loss"] < ran.result["history"][0]["train_loss"]
    (chief,) = [process for process in ran.processes if process.role == "worker" and process.rank == 0]
    assert [event["train"]["total"] for event in chief.of_kind("epoch")] == [90] * 6
    reported = chief.of_kind("staleness")
    assert [sum(event["ages"].values()) for event in reported] == [15] * 6
    bound = {"asp": 15, "ssp:0": 0, "ssp:2": 2, "dssp:1..3": 3}[consistency]
    assert max(event["lead"] for event in reported) <= bound
