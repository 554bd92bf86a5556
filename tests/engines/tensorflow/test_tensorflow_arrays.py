"""Tasks on arrays under TensorFlow: workers together train as one, evaluation counts each example once, models load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from driver import largest_difference, loading_code, run, write_arrays
from sklearn import metrics as sk

from velodrome.job.job import Job

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.integration

LIMITS = {"float64": 1e-9, "float32": 1e-5}
COUNT = 30 + 54
RANDOM = np.random.default_rng(3)
FEATURES = RANDOM.normal(size=(COUNT, 5)).astype(np.float32)
PRICES = (FEATURES @ RANDOM.normal(size=5) + 2).astype(np.float32)
CLASSES = (PRICES > 2).astype(np.int64) + (PRICES > 3)
YES = (PRICES > 2).astype(np.uint8)
LABELS = (FEATURES[:, :3] > 0.3).astype(np.uint8)
WORDS = RANDOM.integers(0, 20, (COUNT, 4)).astype(np.int32)

DATA = {
    "regression": ({"x": FEATURES}, {"y": PRICES}),
    "binary": ({"x": FEATURES}, {"y": YES}),
    "multi-label": ({"x": FEATURES}, {"y": LABELS}),
    "classification": ({"x": WORDS}, {"y": CLASSES}),
    "keras_arrays:Quantile": ({"x": FEATURES}, {"y": PRICES}),
    "keras_arrays:Masked": ({"x": FEATURES}, {"y": FEATURES[:, ::-1].copy()}),
    "keras_arrays:TwoTargets": ({"words": WORDS, "numbers": FEATURES}, {"price": PRICES, "kind": CLASSES % 2}),
}
MODELS = {
    "keras_arrays:TwoTargets": "keras_arrays:both", "regression": "keras_arrays:regularized",
    "classification": "keras_arrays:recurrent",
}


def job(task, **fields):
    """The learning rate is exact in float32, in which Keras optimizers hold it, and so is everything else of SGD."""
    chosen = {"model": MODELS.get(task, "keras_arrays:small"), "optimizer": "momentum", "learning_rate": 1 / 64,
              "batch_size": 7, "epochs": 2, "seed": 5, "dtype": "float64", "engine": "tensorflow",
              "start_timeout": 60, **fields}
    return Job(dataset="driven", task=task, **chosen)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    kept = {}

    def data(task, **more):
        key = f"{task} {more}"
        if key not in kept:
            kept[key] = write_arrays(tmp_path_factory.mktemp("data"), *DATA[task], **more)
        return kept[key]

    return data


@pytest.fixture(scope="module")
def single(written, tmp_path_factory):
    kept = {}

    def ran(wanted):
        key = wanted.model_dump_json()
        if key not in kept:
            kept[key] = run(wanted, written(wanted.task), tmp_path_factory.mktemp("single"))
        return kept[key]

    return ran


SYNCHRONOUS = [
    ("mirrored", 3, "velodrome"), ("central-storage", 3, "velodrome"), ("multi-worker-mirrored", 2, "velodrome"),
    ("allreduce", 3, "velodrome"), ("single", 1, "stock"), ("mirrored", 3, "stock"), ("central-storage", 3, "stock"),
    ("multi-worker-mirrored", 2, "stock"),
]
LEAN = [
    ("regression", "central-storage", 3, "velodrome", "float64"),
    ("binary", "mirrored", 3, "velodrome", "float64"),
    ("multi-label", "multi-worker-mirrored", 2, "velodrome", "float64"),
    ("classification", "allreduce", 3, "velodrome", "float64"),
    ("keras_arrays:Quantile", "mirrored", 3, "stock", "float64"),
    ("keras_arrays:Masked", "mirrored", 3, "velodrome", "float64"),
    ("keras_arrays:Masked", "allreduce", 3, "velodrome", "float64"),
    ("keras_arrays:Masked", "multi-worker-mirrored", 2, "stock", "float64"),
    ("keras_arrays:TwoTargets", "multi-worker-mirrored", 2, "velodrome", "float32"),
]
REST = [(task, *place, dtype) for task, place, dtype in product(DATA, SYNCHRONOUS, LIMITS)]
ROWS = [*LEAN, *(pytest.param(*row, marks=pytest.mark.slow) for row in REST if row not in LEAN)]


@pytest.mark.quick(
    "regression-central-storage-*", "classification-allreduce-*", "keras_arrays:Masked-mirrored-*",
    "keras_arrays:Masked-multi-worker-mirrored-2-stock-*",
)
@pytest.mark.parametrize(("task", "strategy", "workers", "form", "dtype"), ROWS)
def test_workers_together_end_with_the_weights_of_one(
    single, written, tmp_path, task, strategy, workers, form, dtype
):
    """30 examples in batches of 7 and 3 workers: the last step leaves a worker without examples."""
    wanted = job(task, dtype=dtype, optimizer="sgd" if form == "stock" else "momentum")
    together = wanted.model_copy(update={"strategy": strategy, "workers": workers, "implementation": form})
    ran, alone = run(together, written(task), tmp_path), single(wanted)
    assert largest_difference(ran.state, alone.state) < LIMITS[dtype]
    for name, value in alone.result["test"].items():
        if name != "metrics":
            assert ran.result["test"][name] == pytest.approx(value, rel=1e-6 if dtype == "float64" else 1e-3)
    for mine, theirs in zip(ran.result["history"], alone.result["history"], strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)
    assert ran.result["test_answers"] == alone.result["test_answers"]
    assert ran.result["confusion"] == alone.result["confusion"]


@pytest.mark.quick("keras_arrays:Masked-velodrome")
@pytest.mark.parametrize(("task", "form"), [
    ("multi-label", "velodrome"), ("keras_arrays:Masked", "velodrome"),
    *(pytest.param(task, form, marks=pytest.mark.slow) for task, form in product(DATA, ("velodrome", "stock"))
      if (task, form) not in [("multi-label", "velodrome"), ("keras_arrays:Masked", "velodrome")]),
])
def test_one_worker_of_a_parameter_server_ends_with_the_weights_of_one_process(single, written, tmp_path, task, form):
    wanted = job(task, optimizer="sgd" if form == "stock" else "momentum")
    served = wanted.model_copy(
        update={"strategy": "parameter-server", "workers": 1, "servers": 1, "implementation": form}
    )
    ran, alone = run(served, written(task), tmp_path), single(wanted)
    assert largest_difference(ran.state, alone.state) < 1e-9
    for name, value in alone.result["test"].items():
        if name != "metrics":
            assert ran.result["test"][name] == pytest.approx(value, rel=1e-6)
    assert ran.result["test_answers"] == alone.result["test_answers"]


def test_two_workers_of_a_parameter_server_count_every_example_once(written, tmp_path):
    wanted = job("regression", strategy="parameter-server", workers=2, servers=1)
    (chief,) = [one for one in run(wanted, written("regression"), tmp_path).processes if one.role == "chief"]
    assert [epoch["train"]["total"] for epoch in chief.of_kind("epoch")] == [30, 30]
    assert [epoch["validation"]["total"] for epoch in chief.of_kind("epoch")] == [23, 23]
    centred = PRICES[:30].astype(np.float64) - PRICES[:30].mean(dtype=np.float64)
    assert chief.of_kind("epoch")[0]["train"]["deviations"] == pytest.approx(np.square(centred).sum())


def outputs_of(ran, inputs, outputs):
    """What a trained model of two dense layers returns, computed in numpy."""
    weights, layers = ran.state["weights"].astype(np.float64), []
    hidden = (len(weights) - outputs) // (inputs.shape[1] + 1 + outputs)
    for shape in ((inputs.shape[1], hidden), (hidden,), (hidden, outputs), (outputs,)):
        layers.append(weights[: int(np.prod(shape))].reshape(shape))
        weights = weights[int(np.prod(shape)) :]
    first, first_bias, second, second_bias = layers
    return np.tanh(inputs @ first + first_bias) @ second + second_bias


def test_a_regression_is_evaluated_as_scikit_learn_does(single):
    ran = single(job("regression"))
    predicted, true = outputs_of(ran, FEATURES[-31:], 1)[:, 0], PRICES[-31:].astype(np.float64)
    test, history = ran.result["test"], ran.result["history"][-1]
    assert test["total"] == 31
    assert test["absolute_errors"] / 31 == pytest.approx(sk.mean_absolute_error(true, predicted))
    assert test["squared_errors"] / 31 == pytest.approx(sk.mean_squared_error(true, predicted))
    assert 1 - test["squared_errors"] / test["deviations"] == pytest.approx(sk.r2_score(true, predicted))
    assert history["validation_rmse"] == pytest.approx(history["validation_loss"] ** 0.5)
    kept = slice(-54, -31)
    predicted, true = outputs_of(ran, FEATURES[kept], 1)[:, 0], PRICES[kept].astype(np.float64)
    assert history["validation_r2"] == pytest.approx(sk.r2_score(true, predicted))


@pytest.mark.parametrize(("task", "true"), [("binary", YES), ("multi-label", LABELS)])
def test_yes_and_no_are_counted_as_scikit_learn_does(single, task, true):
    ran = single(job(task))
    width = true.reshape(COUNT, -1).shape[1]
    scores, truth = outputs_of(ran, FEATURES[-31:], width), true[-31:].reshape(31, -1)
    given, test = (scores > 0).astype(int), ran.result["test"]
    assert test["correct"] == round(sk.accuracy_score(truth, given) * 31)
    assert test["true_positives"] == (given & truth).sum()
    areas = [sk.roc_auc_score(truth[:, place], scores[:, place]) for place in range(width)]
    assert test["auc_sum"] == pytest.approx(sum(areas))
    last = ran.result["history"][-1]
    kept = slice(-54, -31)
    scores, truth = outputs_of(ran, FEATURES[kept], width), true[kept].reshape(23, -1)
    given = (scores > 0).astype(int)
    average = "micro" if width > 1 else "binary"
    assert last["validation_f1"] == pytest.approx(sk.f1_score(truth, given, average=average, zero_division=0))
    assert last["validation_roc_auc"] == pytest.approx(sk.roc_auc_score(truth, scores))
    assert last["train_roc_auc"] is None


def test_a_sigmoid_at_the_end_is_trained_by_what_goes_into_it(single):
    with_it = single(job("binary", model_args={"activation": "sigmoid"}))
    without = single(job("binary"))
    assert largest_difference(with_it.state, without.state) == 0
    assert with_it.result["test"] == without.result["test"]


def test_an_own_task_reports_its_metrics_and_which_decides(single):
    ran = single(job("keras_arrays:Quantile"))
    assert [(one["name"], one["better"]) for one in ran.result["metrics"]] == [
        ("coverage", "more"), ("width", "less"), ("loss", "less")
    ]
    test = ran.result["test"]
    predicted = outputs_of(ran, FEATURES[-31:], 1)[:, 0]
    assert test["covered"] == (PRICES[-31:] <= predicted).sum()
    assert test["width"] == pytest.approx(np.abs(predicted).sum())
    assert test["metrics"]["coverage"] == test["covered"] / test["total"]


def test_a_sum_and_a_count_are_divided_by_the_counts_of_all_workers(single):
    ran = single(job("keras_arrays:Masked"))
    assert ran.result["test"]["total"] == (FEATURES[-31:, ::-1][:, :3] > -0.5).sum()


@pytest.mark.parametrize(("task", "place"), [
    ("keras_arrays:TwoTargets", {}),
    *(pytest.param("regression", place, marks=pytest.mark.slow) for place in (
        {"strategy": "parameter-server", "workers": 1}, {"strategy": "multi-worker-mirrored", "workers": 2},
    )),
])
def test_arrays_on_disk_train_as_those_in_memory(single, written, tmp_path, task, place):
    wanted = job(task)
    ran = run(wanted.model_copy(update=place), written(task, files=True), tmp_path)
    assert largest_difference(ran.state, single(wanted).state) < 1e-9
    assert ran.result["test"]["total"] == 31


def test_a_resumed_run_ends_as_an_undisturbed_one(single, written, tmp_path):
    wanted, data = job("keras_arrays:Masked"), written("keras_arrays:Masked")
    run(wanted.model_copy(update={"epochs": 1}), data, tmp_path)
    ran = run(wanted, data, tmp_path, resume=True)
    assert largest_difference(ran.state, single(wanted).state) < 1e-12


LOAD = """
import json, os, re, sys
import numpy as np
from pathlib import Path
from velodrome.engines.tensorflow.model_file import load

rows = dict(np.load("rows.npz"))
for folder in sys.argv[1:]:
    scope = {}
    exec(re.findall("```python\\n(.*?)```", open(folder + "/README.md").read(), re.DOTALL)[0], scope)
    about = json.load(open(folder + "/model.json"))
    names = about["inputs"]
    fed = {name: rows[name] for name in names}
    fed = fed if len(fed) > 1 else fed["x"]
    outputs = [np.asarray(model(fed)) for model in (scope["model"], load(Path(folder), about["model"]))]
    assert (outputs[0] == outputs[1]).all(), folder
    np.save(folder + "/outputs.npy", outputs[0])
"""


@pytest.mark.slow
def test_saved_models_load_again_in_a_fresh_process(single, written, tmp_path):
    """One is saved as a whole; Keras cannot do so with a subclass that does not describe itself."""
    whole = single(job("keras_arrays:Quantile"))
    weights = single(job("keras_arrays:TwoTargets"))
    np.savez(tmp_path / "rows.npz", x=FEATURES[:3], words=WORDS[:3], numbers=FEATURES[:3])
    for ran, file in ((whole, "model.keras"), (weights, "model.weights.h5")):
        about = json.loads((ran.folder / "model" / "model.json").read_text())
        assert (about["kind"], about["file"]) == ("arrays", file)
        assert "```python" in (ran.folder / "model" / "README.md").read_text()
        assert loading_code(ran.folder / "model")
    folders = [str(ran.folder / "model") for ran in (whole, weights)]
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *folders], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "PYTHONPATH": ":".join([str(Path(__file__).parent), *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    assert np.load(f"{folders[0]}/outputs.npy") == pytest.approx(outputs_of(whole, FEATURES[:3], 1), rel=1e-5)


@pytest.mark.parametrize(("task", "model", "words"), [
    ("keras_arrays:Scalar", "small", "loss() returned a single number for 7 examples: return one value per"),
    ("keras_arrays:Stopped", "small", "'keras_arrays:Stopped': loss() (keras_arrays.py, line"),
    ("keras_arrays:OfColumns", "small", "loss() returned a tensor of shape (5,) for 7 examples: return one value"),
    ("regression", "wrong_inside", "cannot take inputs of shape (5,) in a batch of 7:"),
    ("keras_arrays:WrongShapes", "small", "cannot evaluate a first batch of 7 examples:"),
    ("keras_arrays:Long", "small", "use tf.shape(batch.y)[0]"),
    ("keras_arrays:NanMetric", "small", "the metric 'coverage' of a first batch is not a finite number"),
    ("keras_arrays:NoLoss", "small", "'NoLoss' has no method 'loss': write loss(self, model, batch)"),
    ("regression", "too_wide", "answers with shape (7, 5) for 7 examples; the target needs (7,) or (7, 1)"),
])
def test_what_cannot_be_trained_is_refused_before_the_first_step(written, tmp_path, task, model, words):
    ran = run(job(task, model=f"keras_arrays:{model}"), written("keras_arrays:Quantile"), tmp_path, good=False)
    (error,) = ran.processes[0].of_kind("error")
    assert words in error["message"]
    assert ran.processes[0].code == 2
    assert not ran.processes[0].of_kind("progress")
    if "Wrong" in task:
        assert "return tf.reduce_sum(model(batch.x) @ batch.x, 1)" in error["traceback"]
    if "wrong" in model:
        assert "return tf.matmul(hidden, hidden)" in error["traceback"]


def test_a_functional_model_takes_its_inputs_by_name(written, tmp_path):
    wanted = job("keras_arrays:TwoTargets", model="keras_arrays:functional")
    ran = run(wanted, written("keras_arrays:TwoTargets"), tmp_path)
    assert ran.result["test"]["total"] == 31
