"""`--implementation stock`: Keras' own variables and optimizers end with the weights of the other form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from driver import largest_difference

from velodrome.errors import BadRequest
from velodrome.job.resolve import resolve

ROWS = [
    ("single", 1, "adam"), ("mirrored", 2, "momentum"), ("central-storage", 2, "sgd"),
    ("multi-worker-mirrored", 2, "momentum"),
    *(pytest.param(strategy, 2, "adam", marks=pytest.mark.slow)
      for strategy in ("mirrored", "central-storage", "multi-worker-mirrored")),
]


@pytest.mark.quick("mirrored-2-momentum", "multi-worker-mirrored-2-momentum", "central-storage-2-sgd")
@pytest.mark.integration
@pytest.mark.parametrize(("strategy", "workers", "optimizer"), ROWS)
def test_stock_replicas_end_with_the_weights_of_one_process(
    train: Any, strategy: str, workers: int, optimizer: str
) -> None:
    alone = train(strategy="single", optimizer=optimizer, dtype="float32")
    stock = train(strategy=strategy, workers=workers, optimizer=optimizer, dtype="float32", implementation="stock")
    assert stock.state["iterations"] == 20
    assert largest_difference(alone.state, stock.state) < 1e-5
    assert stock.result["test"]["correct"] == alone.result["test"]["correct"]
    assert stock.result["test_answers"] == alone.result["test_answers"]
    reported = stock.result["implementation"]
    assert reported["kind"] == "stock"
    assert any("Keras optimizer" in part for part in reported["framework"])


@pytest.mark.integration
@pytest.mark.parametrize("workers", [1, 2])
def test_stock_replicas_clip_the_summed_gradient(train: Any, workers: int) -> None:
    asked = {"optimizer": "sgd", "learning_rate": 1.0, "steps": 1, "epochs": 1, "dtype": "float64", "clip_norm": 0.01}
    alone = train(strategy="single", **asked)
    stock = train(strategy="mirrored", workers=workers, implementation="stock", **asked)
    assert np.abs(stock.state["weights"] - alone.state["weights"]).max() < 1e-9


@pytest.mark.integration
@pytest.mark.parametrize("optimizer", ["momentum", pytest.param("adam", marks=pytest.mark.slow)])
def test_one_worker_of_a_stock_parameter_server_ends_with_the_weights_of_one_process(
    train: Any, optimizer: str
) -> None:
    # Adam divides by the size of a gradient, also where that is nothing but rounding: float32 cannot tell.
    dtype, limit = ("float64", 1e-9) if optimizer == "adam" else ("float32", 1e-5)
    asked = {"model": "keras_nets:wide", "optimizer": optimizer, "dtype": dtype, "learning_rate": 0.01}
    alone = train(strategy="single", **asked)
    served = train(strategy="parameter-server", workers=1, servers=2, implementation="stock", **asked)
    assert largest_difference(alone.state, served.state) < limit
    assert served.result["implementation"]["kind"] == "stock"
    assert served.result["test_answers"] == alone.result["test_answers"]


@pytest.mark.integration
def test_two_workers_of_a_stock_parameter_server_see_every_example_once_an_epoch(train: Any) -> None:
    ran = train(strategy="parameter-server", workers=2, servers=1, batch_size=7, optimizer="sgd", epochs=3,
                implementation="stock")
    (chief,) = [process for process in ran.processes if process.role == "chief"]
    assert [epoch["train"]["total"] for epoch in chief.of_kind("epoch")] == [91, 91, 91]
    assert [event["updates"] for event in chief.of_kind("staleness")] == [13, 13, 13]


@pytest.mark.slow
@pytest.mark.integration
def test_a_resumed_stock_run_ends_with_the_weights_of_an_undisturbed_one(train: Any, tmp_path: Any) -> None:
    place = {"strategy": "mirrored", "workers": 2, "optimizer": "adam", "implementation": "stock"}
    whole = train(**place, epochs=3)
    train(**place, epochs=2, folder=tmp_path)
    resumed = train(**place, epochs=3, folder=tmp_path, resume=True)
    assert largest_difference(whole.state, resumed.state) < 1e-12


@pytest.mark.integration
def test_allreduce_reports_that_mpi_carried_the_gradients(train: Any) -> None:
    result = train(strategy="allreduce", workers=2, optimizer="sgd", dtype="float32").result
    assert result["implementation"]["path"] == "mpi"


@pytest.mark.unit
def test_allreduce_has_no_stock_form(make_job: Any) -> None:
    with pytest.raises(BadRequest, match="allreduce has no stock form"):
        resolve(make_job(strategy="allreduce", workers=2, implementation="stock"))
