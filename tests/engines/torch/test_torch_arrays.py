"""Tasks on arrays under PyTorch: workers together train as one, evaluation counts each example once, models load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as sk

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import largest_difference, loading_code, run, write_arrays

from velodrome.job.job import Job

pytest.importorskip("torch")
pytest.importorskip("mpi4py")
pytestmark = pytest.mark.integration

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
COUNT = 30 + 54
RANDOM = np.random.default_rng(3)
FEATURES = RANDOM.normal(size=(COUNT, 5)).astype(np.float32)
PRICES = (FEATURES @ RANDOM.normal(size=5) + 100).astype(np.float32)
CLASSES = (PRICES > 100).astype(np.int64) + (PRICES > 101)
YES = (PRICES > 100).astype(np.uint8)
LABELS = (FEATURES[:, :3] > 0.3).astype(np.uint8)
WORDS = RANDOM.integers(0, 20, (COUNT, 4)).astype(np.int32)


def features(**targets):
    return {"inputs": {"x": FEATURES}, "targets": targets}


DATA = {
    "regression": features(y=PRICES),
    "binary": features(y=YES),
    "multi-label": features(y=LABELS),
    "classification": features(y=CLASSES),
    "array_nets:Quantile": features(y=PRICES),
    "array_nets:Masked": features(y=FEATURES[:, ::-1].copy()),
    "array_nets:TwoTargets": {
        "inputs": {"words": WORDS, "numbers": FEATURES}, "targets": {"price": PRICES, "kind": CLASSES % 2},
    },
}
MODELS = {"array_nets:TwoTargets": "array_nets:both"}


def job(task, **fields):
    chosen = {"model": MODELS.get(task, "array_nets:small"), "optimizer": "momentum", "learning_rate": 0.002,
              "batch_size": 7, "epochs": 2, "seed": 5, "dtype": "float64", "engine": "torch", **fields}
    return Job(dataset="driven", task=task, **chosen)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    def written(task, **more):
        return write_arrays(tmp_path_factory.mktemp("data"), **DATA[task], **more)

    return written


@pytest.fixture(scope="module")
def single(data, tmp_path_factory):
    kept = {}

    def ran(wanted):
        key = wanted.model_dump_json()
        if key not in kept:
            kept[key] = run(wanted, data(wanted.task), tmp_path_factory.mktemp("single"))
        return kept[key]

    return ran


STRATEGIES = [
    ("ddp", 2, "velodrome"), ("allreduce", 3, "velodrome"),
    *(pytest.param(*each, marks=pytest.mark.slow) for each in (
        ("ddp", 3, "velodrome"), ("allreduce", 2, "velodrome"), ("allreduce", 2, "stock"), ("single", 1, "stock"),
        ("ddp", 2, "stock"), ("zero1", 2, "velodrome"), ("fsdp", 2, "velodrome"), ("fsdp", 3, "velodrome"),
    )),
]


@pytest.mark.quick("*-allreduce-*", "regression-ddp-*", "array_nets:TwoTargets-ddp-*")
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("strategy", "workers", "form"), STRATEGIES)
@pytest.mark.parametrize("task", DATA)
def test_workers_together_end_with_the_weights_of_one(single, data, tmp_path, task, strategy, workers, form, dtype):
    """30 examples in batches of 7 and 3 workers: the last step leaves a worker without examples."""
    wanted = job(task, dtype=dtype)
    together = wanted.model_copy(update={"strategy": strategy, "workers": workers, "implementation": form})
    ran, alone = run(together, data(task), tmp_path), single(wanted)
    assert largest_difference(ran.state, alone.state, "model.") < TOLERANCE[dtype]
    for name, value in alone.result["test"].items():
        assert ran.result["test"][name] == pytest.approx(value, rel=1e-6 if dtype == "float64" else 1e-3)
    for mine, theirs in zip(ran.result["history"], alone.result["history"], strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)
    assert ran.result["test_answers"] == alone.result["test_answers"]


@pytest.mark.parametrize("changing", ["ChangedOutputs", "ChangedInputs"])
def test_metrics_may_change_what_the_gradient_needs(data, tmp_path, changing):
    """They are counted before the backward pass, unless they do."""
    given = data("regression")
    plain, changed = (
        run(job(f"array_nets:{name}", learning_rate=1e-6), given, tmp_path / name) for name in ("Product", changing)
    )
    assert largest_difference(changed.state, plain.state, "model.") == 0
    assert changed.result["test"] == plain.result["test"]


def outputs_of(ran, inputs):
    """What the trained model returns, computed in numpy."""
    state = {name.removeprefix("model."): value for name, value in ran.state.items() if name.startswith("model.")}
    hidden = np.tanh(inputs @ state["1.weight"].T + state["1.bias"])
    return hidden @ state["3.weight"].T + state["3.bias"]


def test_a_regression_is_evaluated_as_scikit_learn_does(single):
    ran = single(job("regression"))
    predicted, true = outputs_of(ran, FEATURES[-31:])[:, 0], PRICES[-31:].astype(np.float64)
    test, history = ran.result["test"], ran.result["history"][-1]
    assert test["total"] == 31
    assert test["absolute_errors"] / 31 == pytest.approx(sk.mean_absolute_error(true, predicted))
    assert test["squared_errors"] / 31 == pytest.approx(sk.mean_squared_error(true, predicted))
    assert 1 - test["squared_errors"] / test["deviations"] == pytest.approx(sk.r2_score(true, predicted))
    assert set(history) >= {"validation_mae", "validation_rmse", "validation_r2", "train_mae", "validation_loss"}
    assert history["validation_rmse"] == pytest.approx(history["validation_loss"] ** 0.5)


@pytest.mark.parametrize(("task", "true", "model"), [
    ("binary", YES, "array_nets:small"), ("multi-label", LABELS, "array_nets:small"),
    ("binary", YES, "array_nets:ends_in_sigmoid"),
])
def test_yes_and_no_are_counted_as_scikit_learn_does(single, task, true, model):
    ran = single(job(task, model=model, epochs=4, learning_rate=0.1))
    state = ran.state
    if model.endswith("sigmoid"):  # what the model returns goes through a sigmoid, and the loss takes its input
        ran = single(job(task, epochs=4, learning_rate=0.1))
        assert {name.replace("model.0.", "model.") for name in state} == {*ran.state}
    scores, truth = outputs_of(ran, FEATURES[-31:]), true[-31:].reshape(31, -1)
    given = (scores > 0).astype(int)
    event = ran.result["test"]
    expected = {
        "correct": sk.accuracy_score(truth, given) * 31,
        "true_positives": (given & truth).sum(), "auc_sum": sum(
            sk.roc_auc_score(truth[:, place], scores[:, place]) for place in range(truth.shape[1])),
    }
    for name, value in expected.items():
        assert event[name] == pytest.approx(value)
    last = ran.result["history"][-1]
    kept = slice(-54, -31)
    scores, truth = outputs_of(ran, FEATURES[kept]), true[kept].reshape(23, -1)
    given = (scores > 0).astype(int)
    average = "micro" if truth.shape[1] > 1 else "binary"
    assert last["validation_f1"] == pytest.approx(sk.f1_score(truth, given, average=average))
    assert last["validation_precision"] == pytest.approx((given & truth).sum() / given.sum())
    assert last["validation_recall"] == pytest.approx((given & truth).sum() / truth.sum())
    assert last["validation_roc_auc"] == pytest.approx(sk.roc_auc_score(truth, scores))
    assert last["train_roc_auc"] is None


def test_a_sigmoid_at_the_end_is_trained_by_what_goes_into_it(single):
    with_it, without = (single(job("binary", model=f"array_nets:{name}")) for name in ("ends_in_sigmoid", "small"))
    assert with_it.result["test"] == without.result["test"]


def test_an_own_task_reports_its_metrics_and_which_decides(single):
    ran = single(job("array_nets:Quantile", target="coverage>=0.999999"))
    assert [(one["name"], one["better"]) for one in ran.result["metrics"]] == [
        ("coverage", "more"), ("width", "less"), ("loss", "less")
    ]
    test = ran.result["test"]
    assert test["metrics"]["coverage"] == test["covered"] / test["total"]
    predicted = outputs_of(ran, FEATURES[-31:])[:, 0]
    assert test["covered"] == (PRICES[-31:] <= predicted).sum()
    assert {"train_coverage", "validation_coverage", "validation_width"} <= {*ran.result["history"][0]}


def test_a_sum_and_a_count_are_divided_by_the_counts_of_all_workers(single):
    ran = single(job("array_nets:Masked"))
    there = (FEATURES[-31:, ::-1][:, :3] > -0.5).sum()
    assert ran.result["test"]["total"] == there


@pytest.mark.parametrize("task", ["regression", pytest.param("array_nets:Masked", marks=pytest.mark.slow)])
def test_arrays_on_disk_train_as_those_in_memory(single, data, tmp_path, task):
    wanted = job(task)
    ran = run(wanted, data(task, files=True), tmp_path)
    assert largest_difference(ran.state, single(wanted).state, "model.") == 0


def test_a_resumed_run_ends_as_an_undisturbed_one(single, data, tmp_path):
    wanted = job("array_nets:TwoTargets", epochs=3)
    run(wanted.model_copy(update={"epochs": 1}), data("array_nets:TwoTargets"), tmp_path)
    ran = run(wanted, data("array_nets:TwoTargets"), tmp_path, resume=True)
    whole = single(wanted)
    assert largest_difference(ran.state, whole.state, "model.") == 0
    assert ran.result["test"] == whole.result["test"]


@pytest.mark.parametrize("task", ["array_nets:TwoTargets", pytest.param("regression", marks=pytest.mark.slow)])
def test_a_saved_model_loads_again_by_its_readme_and_by_its_description(single, tmp_path, task):
    ran = single(job(task))
    folder = ran.folder / "model"
    about = json.loads((folder / "model.json").read_text())
    assert (about["kind"], about["task"]) == ("arrays", task)
    names = {"words": WORDS[:3].astype(np.int64), "numbers": FEATURES[:3].astype(np.float64)}
    np.savez(tmp_path / "rows.npz", **(names if "Two" in task else {"x": FEATURES[:3].astype(np.float64)}))
    code = "\n".join([
        "import numpy as np", "import torch", "from pathlib import Path",
        "rows = {name: torch.from_numpy(array) for name, array in np.load('rows.npz').items()}",
        "rows = rows if len(rows) > 1 else rows['x']", loading_code(folder), "first = model(rows).tolist()",
        "from velodrome.engines.torch.model_file import load",
        f"again = load(Path({str(folder)!r}), {about['model']!r})(rows).tolist()",
        "print(first == again, first)",
    ])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=280, check=False,
        env={**os.environ, "PYTHONPATH": ":".join([str(Path(__file__).parent), *sys.path])},
    )
    assert done.stdout.startswith("True"), done.stderr
    if task == "regression":
        assert np.allclose(json.loads(done.stdout.partition(" ")[2]), outputs_of(ran, FEATURES[:3]), rtol=1e-9)


@pytest.mark.parametrize(("task", "model", "words"), [
    ("array_nets:Scalar", "array_nets:small", "loss() returned a single number for 7 examples: return one value per"),
    ("array_nets:Detached", "array_nets:small", "'array_nets:Detached': loss() (array_nets.py, line"),
    ("array_nets:WrongShapes", "array_nets:small", "cannot evaluate a first batch of 7 examples: mat1 and mat2 shapes"),
    ("array_nets:NanMetric", "array_nets:small", "of a first batch is not a finite number: look for a "
     "division by zero, or a logarithm of zero, in metrics() (array_nets.py, line"),
    ("array_nets:MissingKey", "array_nets:small", "a first batch of 7 examples: KeyError: 'price' (array_"),
    ("array_nets:NoLoss", "array_nets:small", "'NoLoss' has no method 'loss': write loss(self, model, batch)"),
    ("array_nets:UnknownMetric", "array_nets:small", "'better' names 'bleu', and its metrics are loss, coverage"),
    ("array_nets:Nobody", "array_nets:small", "module 'array_nets' has no 'Nobody'"),
    ("regression", "array_nets:wrong_inside", "cannot evaluate a first batch of 7 examples: mat1"),
    ("regression", "array_nets:too_wide", "answers with shape (7, 5) for 7 examples; the target needs (7,) or (7, 1)"),
])
def test_what_cannot_be_trained_is_refused_before_the_first_step(data, tmp_path, task, model, words):
    ran = run(job(task, model=model), data("array_nets:Quantile"), tmp_path, good=False)
    (error,) = ran.processes[0].of_kind("error")
    assert words in error["message"]
    assert ran.processes[0].code == 2
    assert not ran.processes[0].of_kind("progress")
    if "Wrong" in task:
        assert "return (model(batch.x) @ batch.x).sum(1)" in error["traceback"]
    if "wrong" in model:
        assert "return self.second(hidden)" in error["traceback"]


def test_integers_for_a_layer_that_takes_floats_are_refused_with_the_way_out(tmp_path):
    given = write_arrays(tmp_path, inputs={"x": WORDS.astype(np.int64)}, targets={"y": PRICES})
    ran = run(job("regression"), given, tmp_path, good=False)
    (error,) = ran.processes[0].of_kind("error")
    assert error["message"].endswith(
        "; whole numbers of the data are fed as integers: make floats of those that are no indices"
    )


def test_counts_of_numpys_types_count_as_pytorchs(single, data, tmp_path):
    ran = run(job("array_nets:CountingInNumPy"), data("array_nets:Quantile"), tmp_path)
    for name, value in single(job("array_nets:Quantile")).result["test"]["metrics"].items():
        assert ran.result["test"]["metrics"][name] == pytest.approx(value, rel=1e-6)


def test_a_target_on_an_unknown_metric_of_an_own_task_is_refused(data, tmp_path):
    ran = run(job("array_nets:Quantile", target="bleu>=30"), data("array_nets:Quantile"), tmp_path, good=False)
    (error,) = ran.processes[0].of_kind("error")
    assert "has no metric 'bleu'; choose coverage or width or loss" in error["message"]


def test_batch_normalisation_trains_on_a_last_batch_of_one_example(data, tmp_path):
    ran = run(job("regression", model="array_nets:normalised", batch_size=29), data("regression"), tmp_path)
    assert ran.result["test"]["total"] == 31
