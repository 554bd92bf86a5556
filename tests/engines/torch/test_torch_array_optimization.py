"""Optimization of tasks on arrays: batches that are added up, smoothed labels and bfloat16."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import largest_difference, run, write_arrays

from velodrome.job.job import Job

torch = pytest.importorskip("torch")
pytest.importorskip("mpi4py")
pytestmark = pytest.mark.integration

RANDOM = np.random.default_rng(3)
FEATURES = RANDOM.normal(size=(84, 5)).astype(np.float32)
PRICES = (FEATURES @ RANDOM.normal(size=5)).astype(np.float32)
TARGETS = {
    "regression": PRICES, "classification": (PRICES > 0).astype(np.int64) + (PRICES > 1), "array_nets:Quantile": PRICES,
    "array_nets:Masked": FEATURES[:, ::-1].copy(),
}


def ran(task: str, folder: Path, *, good: bool = True, **changes):
    folder.mkdir()
    data = write_arrays(folder, {"x": FEATURES}, {"y": TARGETS[task]})
    usual = {"model": "array_nets:small", "optimizer": "adamw", "schedule": "cosine", "warmup": "2", "ema": 0.9,
             "learning_rate": 0.01, "batch_size": 8, "epochs": 2, "seed": 5, "dtype": "float64", "engine": "torch"}
    return run(Job(dataset="driven", task=task, **usual | changes), data, folder / "run", good=good)


@pytest.mark.parametrize(("task", "more"), [
    ("classification", {"label_smoothing": 0.2}), ("array_nets:Quantile", {}),
    pytest.param("regression", {}, marks=pytest.mark.slow),
])
def test_smaller_batches_that_are_added_up_are_the_larger_batch(task, more, tmp_path) -> None:
    alone = ran(task, tmp_path / "alone", **more)
    together = ran(task, tmp_path / "ddp", batch_size=4, accumulate=2, strategy="ddp", workers=2, **more)
    assert largest_difference(alone.state, together.state, "model.") < 1e-9
    assert together.result["test"]["loss_sum"] == pytest.approx(alone.result["test"]["loss_sum"], abs=1e-9)


def test_a_loss_with_a_count_of_its_own_is_not_added_up(tmp_path) -> None:
    (process,) = ran("array_nets:Masked", tmp_path / "run", good=False, accumulate=2).processes
    assert process.code == 2
    assert "the count of all batches is not known" in process.of_kind("error")[0]["message"]


def test_labels_are_smoothed_in_training_only(tmp_path) -> None:
    asked = {"steps": 1, "epochs": 1, "learning_rate": 1e-12}
    plain = ran("classification", tmp_path / "plain", **asked)
    smooth = ran("classification", tmp_path / "smooth", **asked, label_smoothing=0.2)
    assert smooth.result["test"]["loss_sum"] == pytest.approx(plain.result["test"]["loss_sum"], abs=1e-9)
    before, after = (each.result["history"][0]["train_loss"] for each in (plain, smooth))
    assert abs(before - after) > 1e-3


def test_bfloat16_is_close_to_float32(tmp_path) -> None:
    exact = ran("regression", tmp_path / "exact", dtype="float32", optimizer="sgd")
    mixed = ran("regression", tmp_path / "mixed", dtype="bfloat16", optimizer="sgd")
    assert 1e-7 < largest_difference(exact.state, mixed.state, "model.") < 0.01
