"""`ddp --compress`: gradients that are rounded or approximated before they are summed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import largest_difference, run, write_data

from velodrome.job.job import Job

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    return run(job(), data, tmp_path_factory.mktemp("whole"))


def job(**changes) -> Job:
    base = {"model": "dense-128", "optimizer": "sgd", "strategy": "ddp", "workers": 2, "batch_size": 22, "steps": 20}
    return Job(**(base | {"epochs": 9} | changes))


@pytest.mark.parametrize(("compress", "least", "most"), [
    ("fp16", 1e-8, 1e-3), ("bf16", 1e-6, 1e-2), ("powersgd:1", 1e-4, 0.2),
    pytest.param("powersgd:8", 1e-5, 0.1, marks=pytest.mark.slow),
])
def test_weights_differ_by_what_compression_loses(whole, data, tmp_path, compress, least, most):
    ran = run(job(compress=compress), data, tmp_path)
    assert least < largest_difference(ran.state, whole.state, "model.") < most
    assert ran.result["history"][-1]["train_loss"] < ran.result["history"][0]["train_loss"]


def test_the_first_steps_of_powersgd_have_whole_gradients(data, tmp_path):
    plain = run(job(steps=10), data, tmp_path / "plain")
    ran = run(job(steps=10, compress="powersgd:1"), data, tmp_path / "compressed")
    assert largest_difference(ran.state, plain.state, "model.") < 1e-6
