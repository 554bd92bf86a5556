"""The network for tables trains with PyTorch on the tables that ship with Velodrome, under every strategy as in one
process, and learns what they hold.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import largest_difference, run
from driver_process import CATALOGUE

from velodrome.job.job import Job

torch = pytest.importorskip("torch")
pytest.importorskip("mpi4py")
pytestmark = pytest.mark.integration

LIMITS = {"float64": 1e-9, "float32": 1e-5}
LEAN = [("diabetes", "ddp", 2, "float64"), ("breast-cancer", "allreduce", 3, "float32")]
REST = [
    row for row in product(("diabetes", "breast-cancer"), ("ddp", "allreduce"), (1, 2, 3), LIMITS) if row not in LEAN
]
ROWS = [*LEAN, *(pytest.param(*row, marks=pytest.mark.slow) for row in REST)]


@pytest.fixture(scope="session")
def train(tmp_path_factory):
    done = {}

    def call(dataset, **asked):
        key = repr((dataset, sorted(asked.items())))
        if key not in done:
            usual = {"dataset": dataset, "epochs": 3, "optimizer": "sgd", "learning_rate": 1e-4, "seed": 3}
            done[key] = run(Job(**(usual | asked)), Path(CATALOGUE), tmp_path_factory.mktemp("run"))
        return done[key]

    return call


@pytest.mark.parametrize(("dataset", "strategy", "workers", "dtype"), ROWS)
def test_workers_together_end_with_the_weights_of_one(train, dataset, strategy, workers, dtype):
    alone, together = train(dataset, dtype=dtype), train(dataset, strategy=strategy, workers=workers, dtype=dtype)
    assert largest_difference(alone.state, together.state, "model.") < LIMITS[dtype]
    assert together.result["test"]["total"] == alone.result["test"]["total"]
    assert together.result["test"]["loss_sum"] == pytest.approx(alone.result["test"]["loss_sum"], rel=1e-5)


def test_the_recipe_learns_both_tables(train):
    """Better than a constant, and than guessing the more frequent answer."""
    usual = {"optimizer": "adam", "epochs": 40, "learning_rate": 0.003}
    measured = train("diabetes", **usual).result["test"]
    assert 1 - measured["squared_errors"] / measured["deviations"] > 0.3
    measured = train("breast-cancer", **usual).result["test"]
    assert measured["correct"] / measured["total"] > 0.9 > 357 / 569
