"""The tables that ship with Velodrome are scikit-learn's, divided by seed and standardised with the training rows."""

from __future__ import annotations

import numpy as np
import pytest

from velodrome.data import catalogue
from velodrome.job.job import Job
from velodrome.job.resolve import resolve

pytestmark = pytest.mark.unit


def _all(name: str, seed: int = 1):
    """The rows of all parts as published: what was done to the columns is undone."""
    data = catalogue.load_examples(name, seed=seed, validation=0.1)
    parts = (data.train, data.validation, data.test)
    features = np.concatenate([part.inputs["features"] for part in parts]).astype(np.float64)
    mean, deviation = (np.array([column[key] for column in data.columns["features"]]) for key in ("mean", "deviation"))
    return data, features * deviation + mean, np.concatenate([next(iter(part.targets.values())) for part in parts])


@pytest.mark.parametrize("name", ["diabetes", "breast-cancer"])
def test_each_row_of_scikit_learn_is_in_one_part(name):
    datasets = pytest.importorskip("sklearn.datasets")
    data, values, targets = _all(name)
    if name == "diabetes":
        theirs = datasets.load_diabetes(scaled=False)
        expected = theirs.target
    else:
        theirs = datasets.load_breast_cancer()
        expected = 1 - theirs.target
    spread = theirs.data.std(axis=0)
    # Each row's nearest one of scikit-learn's: none twice, and all but equal to it.
    apart = np.abs((values[:, None] - theirs.data[None]) / spread).max(axis=2)
    nearest = apart.argmin(axis=1)
    assert apart.min(axis=1).max() < 1e-5
    assert sorted(nearest) == list(range(len(theirs.data)))
    assert np.array_equal(targets, expected[nearest])
    about = catalogue.describe(name)
    assert [about.train, about.validation, about.test] == list(map(len, (data.train, data.validation, data.test)))
    assert about.input_shape == (values.shape[1],)
    assert {checked.state for checked in catalogue.verify(name)} == {"ok"}


def test_features_are_standardised_with_the_training_rows_alone():
    data, _, _ = _all("diabetes")
    train = data.train.inputs["features"].astype(np.float64)
    assert train.mean(axis=0) == pytest.approx(0, abs=1e-6)
    assert train.std(axis=0) == pytest.approx(1, abs=1e-6)
    assert np.abs(data.test.inputs["features"].mean(axis=0)).max() > 0.01
    assert [column["name"] for column in data.columns["features"]][:4] == ["age", "sex", "bmi", "bp"]


def test_a_seed_decides_the_parts_and_yes_and_no_keep_their_shares():
    first, again, other = (_all("breast-cancer", seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first.test.inputs["features"], again.test.inputs["features"])
    assert not np.array_equal(first.test.inputs["features"], other.test.inputs["features"])
    shares = [float(part.targets["malignant"].mean()) for part in (first.train, first.validation, first.test)]
    assert shares == pytest.approx([212 / 569] * 3, abs=0.02)


@pytest.mark.parametrize(("name", "task"), [("diabetes", "regression"), ("breast-cancer", "binary")])
def test_a_job_that_names_only_the_table_gets_its_task_and_a_model_for_it(name, task):
    job = resolve(Job(dataset=name))
    assert (job.task, job.model, job.batch_size, job.epochs) == (task, "mlp", 32, 40)
    assert resolve(Job(dataset=name, model="my_nets:build")).model == "my_nets:build"
