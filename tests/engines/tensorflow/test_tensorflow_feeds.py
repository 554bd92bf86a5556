"""What TensorFlow trains on: data set objects, streams and transformed examples, the same for any number of workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import NAMED, largest_difference, run

from velodrome.job.job import Job

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.integration


def job(dataset, **fields):
    model = "keras_nets:dense" if dataset == "images" else "keras_arrays:small"
    chosen = {"model": model, "optimizer": "momentum", "learning_rate": 0.01, "batch_size": 8, "epochs": 2, "seed": 5,
              "dtype": "float64", "engine": "tensorflow", **fields}
    return Job(dataset=f"own_sets:{dataset}", **chosen)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What was run, with its weights after training."""
    kept = {}

    def ran(wanted):
        key = wanted.model_dump_json()
        if key not in kept:
            kept[key] = run(wanted, NAMED, tmp_path_factory.mktemp("run"))
        return kept[key]

    return ran


SLOW = pytest.mark.slow


@pytest.mark.quick("images-multi-worker-mirrored-2")
@pytest.mark.parametrize(
    ("dataset", "strategy", "workers"),
    [
        ("images", "multi-worker-mirrored", 2), ("items", "allreduce", 2),
        pytest.param("items", "multi-worker-mirrored", 2, marks=SLOW),
        pytest.param("images", "allreduce", 3, marks=SLOW),
        pytest.param("images", "mirrored", 2, marks=SLOW),
    ],
)
def test_workers_see_the_transformed_examples_that_one_would_see(trained, dataset, strategy, workers):
    alone = trained(job(dataset, transform="own_sets:jitter"))
    together = trained(job(dataset, transform="own_sets:jitter", strategy=strategy, workers=workers))
    assert largest_difference(together.state, alone.state) < 1e-9
    assert together.result["test"] == pytest.approx(alone.result["test"])
    plain = trained(job(dataset))
    assert largest_difference(alone.state, plain.state) > 1e-4, "the transform changes what is learned"


def test_a_map_style_data_set_trains_as_its_arrays_do(trained):
    arrays, items = trained(job("arrays")), trained(job("items"))
    assert largest_difference(items.state, arrays.state) < 1e-12
    assert items.result["test"] == pytest.approx(arrays.result["test"])


def test_a_stream_is_sharded_and_says_what_is_not_promised(trained):
    alone, together = trained(job("stream")), trained(job("stream", strategy="allreduce", workers=2))
    warned = [event["message"] for process in together.processes for event in process.of_kind("warning")]
    assert sum("is a stream, which has no random access" in message for message in warned) == 1
    assert largest_difference(together.state, alone.state) < 1e-9, "it yields the same examples every time"
    assert together.result["test"]["total"] == 18


def test_parameter_server_workers_train_on_transformed_examples(tmp_path):
    server = {"strategy": "parameter-server", "workers": 1, "epochs": 1, "batch_scope": "per-worker"}
    ran = run(job("items", transform="own_sets:jitter", **server), NAMED, tmp_path / "items")
    assert ran.result["test"]["total"] == 18


def test_an_item_that_raises_ends_the_run_with_the_users_own_lines(tmp_path):
    ran = run(job("failing", epochs=3), NAMED, tmp_path, good=False)
    (error,) = ran.processes[0].of_kind("error")
    assert error["message"].endswith("of 90 failed: ValueError: this photo is gone")
    assert 'raise ValueError("this photo is gone")' in error["traceback"]
