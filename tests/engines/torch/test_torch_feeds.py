"""What PyTorch trains on: data set objects, streams and transformed examples, the same for any number of workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import NAMED, largest_difference, run

from velodrome.job.job import Job

pytest.importorskip("torch")
pytestmark = pytest.mark.integration


def job(dataset, **fields):
    model = "torch_nets:logits" if dataset == "images" else "array_nets:small"
    chosen = {"model": model, "optimizer": "momentum", "learning_rate": 0.01, "batch_size": 8, "epochs": 2, "seed": 5,
              "dtype": "float64", "engine": "torch", **fields}
    return Job(dataset=f"own_sets:{dataset}", **chosen)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Weights after training, and what was run."""
    kept = {}

    def ran(wanted):
        key = wanted.model_dump_json()
        if key not in kept:
            kept[key] = run(wanted, NAMED, tmp_path_factory.mktemp("run"))
        return kept[key]

    return ran


@pytest.mark.parametrize("dataset", ["images", "items"])
@pytest.mark.parametrize(
    ("strategy", "workers"), [("ddp", 2), pytest.param("allreduce", 3, marks=pytest.mark.slow)]
)
def test_workers_see_the_transformed_examples_that_one_would_see(trained, dataset, strategy, workers):
    alone = trained(job(dataset, transform="own_sets:jitter"))
    together = trained(job(dataset, transform="own_sets:jitter", strategy=strategy, workers=workers))
    assert largest_difference(together.state, alone.state, "model.") < 1e-9
    assert together.result["test"] == pytest.approx(alone.result["test"])
    plain = trained(job(dataset))
    assert largest_difference(alone.state, plain.state, "model.") > 1e-4, "the transform changes what is learned"


def test_a_map_style_data_set_trains_as_its_arrays_do(trained):
    arrays, items = trained(job("arrays")), trained(job("items"))
    assert largest_difference(items.state, arrays.state, "model.") == 0
    assert items.result["test"] == arrays.result["test"]
    together = trained(job("items", strategy="allreduce", workers=2))
    assert largest_difference(together.state, arrays.state, "model.") < 1e-9


def test_a_stream_is_sharded_and_says_what_is_not_promised(trained):
    alone, together = trained(job("stream")), trained(job("stream", strategy="ddp", workers=2))
    warned = [event["message"] for process in together.processes for event in process.of_kind("warning")]
    assert sum("is a stream, which has no random access" in message for message in warned) == 1
    assert largest_difference(together.state, alone.state, "model.") < 1e-9, "it yields the same examples every time"
    assert together.result["test"]["total"] == 18


def test_an_item_that_raises_ends_the_run_with_the_users_own_lines(tmp_path):
    ran = run(job("failing", epochs=3), NAMED, tmp_path, good=False)
    (error,) = ran.processes[0].of_kind("error")
    assert error["message"].startswith("--dataset 'own_sets:failing': reading item ")
    assert error["message"].endswith("of 90 failed: ValueError: this photo is gone")
    assert 'raise ValueError("this photo is gone")' in error["traceback"]
    assert error["cause"] == "user"
