"""`pipeline` and `tensor` divide the model, not the batch: they end with the weights of one process."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import Ran, each_once, finish, largest_difference, run, start, write_arrays, write_data, write_text

from velodrome.job.job import Job

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.integration
slow = pytest.mark.slow

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
MODEL_PARALLEL = ["pipeline", "tensor"]


def job(**changes) -> Job:
    """90 examples in batches of 22: no batch divides by 3 or 4, and the last holds 2."""
    base = {"model": "dense-300-100", "optimizer": "momentum", "dtype": "float64", "batch_size": 22}
    return Job(**(base | {"steps": 20, "epochs": 9} | changes))


def with_workers(wanted: Job, strategy: str, workers: int, **changes) -> Job:
    return Job(**{**wanted.model_dump(exclude_unset=True), "strategy": strategy, "workers": workers, **changes})


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.fixture(scope="module")
def single(tmp_path_factory, data):
    """The run of one process alone for a job, made once."""
    return each_once(data, lambda: tmp_path_factory.mktemp("single"))


def check_same(ran: Ran, alone: Ran, tolerance: float) -> None:
    assert largest_difference(ran.state, alone.state, "model.") < tolerance
    assert ran.result["test_answers"] == alone.result["test_answers"]
    assert ran.result["test"]["total"] == 31
    assert ran.result["parameters"] == alone.result["parameters"]
    for mine, theirs in zip(ran.result["history"], alone.result["history"], strict=True):
        assert mine["train_accuracy"] == theirs["train_accuracy"]
        assert mine["validation_accuracy"] == theirs["validation_accuracy"]
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)
    mine, theirs = (load_file(each.folder / "model" / "model.safetensors") for each in (ran, alone))
    assert mine.keys() == theirs.keys()
    assert all(np.abs(mine[name] - theirs[name]).max() < tolerance for name in theirs)


@pytest.mark.quick("float64-tensor-3", "float64-pipeline-3", "float64-gpipe-3")
@pytest.mark.parametrize(("strategy", "workers", "changes"), [
    pytest.param("tensor", 2, {}, id="tensor-2"),
    pytest.param("tensor", 3, {}, id="tensor-3"),
    pytest.param("tensor", 2, {"implementation": "stock"}, id="tensor-stock", marks=slow),
    pytest.param("pipeline", 1, {}, id="pipeline-1", marks=slow),
    pytest.param("pipeline", 2, {}, id="pipeline-2"),
    pytest.param("pipeline", 3, {"micro_batches": 5}, id="pipeline-3"),
    pytest.param("pipeline", 3, {"micro_batches": 2, "pipeline_schedule": "gpipe"}, id="gpipe-3"),
    pytest.param("pipeline", 2, {"implementation": "stock"}, id="pipeline-stock", marks=slow),
])
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=slow)])
def test_workers_together_end_with_the_weights_of_one(single, data, tmp_path, strategy, workers, changes, dtype):
    wanted = job(dtype=dtype)
    ran = run(with_workers(wanted, strategy, workers, **changes), data, tmp_path)
    check_same(ran, single(wanted), TOLERANCE[dtype])


@pytest.mark.parametrize("strategy", MODEL_PARALLEL)
def test_accumulation_clipping_averages_and_rates_are_those_of_one_process(single, data, tmp_path, strategy):
    wanted = job(accumulate=2, batch_size=11, clip_norm=0.05, ema=0.9, schedule="cosine", optimizer="adam",
                 label_smoothing=0.1)  # fmt: skip
    ran = run(with_workers(wanted, strategy, 2), data, tmp_path)
    check_same(ran, single(wanted), 1e-9)


@slow
@pytest.mark.parametrize("strategy", MODEL_PARALLEL)
def test_convolutions_are_divided_or_kept(strategy, tmp_path):
    data = write_data(tmp_path / "data.npz", shape=(16, 16, 3), examples=40)
    wanted = job(model="lenet5", batch_size=9, steps=8)
    ran = run(with_workers(wanted, strategy, 2), data, tmp_path / strategy)
    check_same(ran, run(wanted, data, tmp_path / "single"), 1e-9)


@pytest.mark.parametrize(("model", "vocabulary", "workers"), [
    ("lstm-small", 30, 2), ("gpt-mini", 30, 2),
    pytest.param("lstm-small", 33, 4, marks=slow),  # nothing but the units of the LSTM can be divided by 4
])
def test_layers_of_language_models_are_divided(model, vocabulary, workers, tmp_path):
    data = write_text(tmp_path / "text.npz", vocabulary=vocabulary)
    wanted = Job(model=model, dataset="ptb", batch_size=5, unroll=4, steps=20, epochs=2, dtype="float64",
                 optimizer="sgd", learning_rate=0.05)  # fmt: skip
    alone = run(wanted, data, tmp_path / "single")
    ran = run(with_workers(wanted, "tensor", workers), data, tmp_path / "tensor")
    assert largest_difference(ran.state, alone.state, "model.") < 1e-9
    losses = (each.result["history"][-1]["validation_loss"] for each in (ran, alone))
    assert next(losses) == pytest.approx(next(losses), rel=1e-9)


@slow
@pytest.mark.parametrize("model", ["gpt-mini", "lstm-small"])
def test_a_divided_language_model_is_resumed(model, tmp_path):
    """Attention and LSTM have their rows in another order, which no checkpoint shows."""
    data = write_text(tmp_path / "text.npz")
    wanted = Job(model=model, dataset="ptb", batch_size=5, unroll=4, epochs=2, dtype="float64", optimizer="adam",
                 learning_rate=0.001, strategy="tensor", workers=2)  # fmt: skip
    whole = run(wanted, data, tmp_path / "whole")
    alone = run(with_workers(wanted, "single", 1), data, tmp_path / "single")
    assert largest_difference(whole.state, alone.state) < 1e-7, "the optimizer's state as well"
    run(wanted.model_copy(update={"epochs": 1}), data, tmp_path / "parts")
    parts = run(wanted, data, tmp_path / "parts", resume=True)
    assert largest_difference(whole.state, parts.state) == 0


def test_a_model_of_ones_own_is_divided_by_its_own_plan(single, data, tmp_path):
    wanted = job(model="torch_nets:planned", steps=8)
    ran = run(with_workers(wanted, "tensor", 2), data, tmp_path)
    check_same(ran, single(wanted), 1e-9)


@pytest.mark.parametrize("strategy", MODEL_PARALLEL)
@pytest.mark.parametrize("implementation", ["velodrome", pytest.param("stock", marks=slow)])
def test_a_resumed_run_ends_with_the_weights_of_an_undisturbed_one(data, tmp_path, strategy, implementation):
    wanted = job(optimizer="adam", strategy=strategy, workers=2, steps=None, epochs=4, dtype="float32", ema=0.9,
                 implementation=implementation)  # fmt: skip
    whole = run(wanted, data, tmp_path / "whole")
    # The same stages: they are cut by time, which may differ from one run to another, but not when one is resumed.
    run(wanted.model_copy(update={"epochs": 2}), data, tmp_path / "parts")
    parts = run(wanted, data, tmp_path / "parts", resume=True)
    assert largest_difference(whole.state, parts.state, "model.") < 1e-5
    assert whole.result["test"]["correct"] == parts.result["test"]["correct"]


@pytest.mark.parametrize("strategy", MODEL_PARALLEL)
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=slow)])
def test_the_survivor_of_a_killed_worker_ends_and_is_not_the_cause(data, tmp_path, strategy, victim):
    started = start(Job(strategy=strategy, workers=2, epochs=100_000, checkpoints=False), data, tmp_path)
    started[victim].wait_for('"progress"')
    started[victim].kill()
    survivor = finish(started, tmp_path).processes[1 - victim]
    assert survivor.code == 1, survivor.log
    assert survivor.of_kind("error")[-1]["cause"] == "peer"


@pytest.mark.parametrize(("fields", "words"), [
    ({"strategy": "pipeline", "model": "linear"}, "a layer with weights, but model 'linear' has 1; use fewer"),
    ({"strategy": "pipeline", "model": "torch_nets:odd"}, "is not an nn.Sequential"),
    ({"strategy": "pipeline", "model": "torch_nets:scaled"}, "has a forward or hooks of its own"),
    ({"strategy": "pipeline", "model": "torch_nets:sharing"}, "layers '3' and '5' of model 'torch_nets:sharing' share"),
    ({"strategy": "pipeline", "model": "torch_nets:aliased"}, "'first' of model 'torch_nets:aliased' is a tensor of"),
    ({"strategy": "pipeline", "model": "torch_nets:normalised", "batch_size": 4, "micro_batches": 4},
     "a micro-batch has 1; use fewer micro-batches or a larger batch"),
    ({"strategy": "tensor", "model": "torch_nets:scaled"}, "has no dense layers that 2 workers can divide evenly"),
    ({"strategy": "tensor", "model": "torch_nets:nested", "model_args": {"whole": False}}, "give the model a tensor"),
    ({"strategy": "pipeline", "model": "torch_nets:softmax"}, "must return logits"),
    ({"strategy": "pipeline", "model": "torch_nets:staged", "workers": 3}, "use 2 workers, or change them"),
    ({"strategy": "tensor", "model": "linear", "workers": 3}, "no dense layers that 3 workers can divide evenly"),
    ({"strategy": "tensor", "model": "torch_nets:planned", "workers": 3}, "has a width of 16"),
    ({"strategy": "tensor", "model": "torch_nets:planned", "model_args": {"style": "diagonal"}}, "'diagonal'"),
])
def test_a_model_that_cannot_be_divided_is_refused(data, tmp_path, fields, words):
    ran = run(Job(**({"workers": 2, "epochs": 1} | fields)), data, tmp_path, good=False)
    assert any(words in event["message"] for process in ran.processes for event in process.of_kind("error")), ran.logs


RANDOM = np.random.default_rng(1)
FEATURES = RANDOM.normal(size=(120, 5)).astype(np.float32)
PRICES = (FEATURES.sum(1, keepdims=True) + 3).astype(np.float32)
#: Targets by task.
ARRAYS = {
    "regression": PRICES, "binary": (PRICES[:, 0] > 3).astype(np.uint8),
    "multi-label": (FEATURES[:, :3] > 0.3).astype(np.uint8), "classification": np.digitize(PRICES[:, 0], (1, 4)),
    "array_nets:Distance": PRICES, "array_nets:Near": PRICES,
}


@pytest.mark.quick("regression-tensor", "array_nets:Near-pipeline")
@pytest.mark.parametrize("strategy", MODEL_PARALLEL)
@pytest.mark.parametrize("task", ["regression", "array_nets:Near", *(
    pytest.param(each, marks=slow) for each in ARRAYS if each not in ("regression", "array_nets:Near")
)])
def test_every_task_on_arrays_ends_with_the_weights_of_one(tmp_path, task, strategy):
    data = write_arrays(tmp_path, {"x": FEATURES}, {"y": ARRAYS[task]})
    wanted = job(model="array_nets:small", dataset="driven", task=task, steps=None, epochs=2, learning_rate=0.01)
    alone = run(wanted, data, tmp_path / "single")
    ran = run(with_workers(wanted, strategy, 2), data, tmp_path / strategy)
    assert largest_difference(ran.state, alone.state, "model.") < 1e-9
    for name, value in alone.result["test"].items():
        assert ran.result["test"][name] == pytest.approx(value, rel=1e-6)
    for mine, theirs in zip(ran.result["history"], alone.result["history"], strict=True):
        assert {name: value for name, value in mine.items() if name.startswith("train_") and "seconds" not in name} == (
            pytest.approx({name: theirs[name] for name in mine if name.startswith("train_") and "seconds" not in name}))


@pytest.mark.parametrize(("task", "words"), [
    ("array_nets:Quantile", "uses 'model.parameters', and no process has the whole model"),
    ("array_nets:Masked", "calls the model more than once for a batch"),
])
def test_a_loss_that_needs_more_than_one_pass_is_refused_by_a_pipeline(tmp_path, task, words):
    targets = PRICES[:, 0] if task.endswith("Quantile") else FEATURES
    data = write_arrays(tmp_path, {"x": FEATURES}, {"y": targets})
    wanted = Job(strategy="pipeline", workers=2, model="array_nets:small", dataset="driven", task=task, epochs=1)
    ran = run(wanted, data, tmp_path, good=False)
    assert any(words in event["message"] for each in ran.processes for event in each.of_kind("error")), ran.logs


@pytest.mark.parametrize(("model", "words"), [
    ("array_nets:ends_in_sigmoid", "must return logits"), ("array_nets:both", "the first stage takes one input"),
])
def test_what_cannot_pass_through_stages_is_refused(tmp_path, model, words):
    inputs = {"x": FEATURES} if model.endswith("sigmoid") else {
        "words": RANDOM.integers(0, 20, (120, 4)).astype(np.int32), "numbers": FEATURES}
    data = write_arrays(tmp_path, inputs, {"y": ARRAYS["binary"]})
    wanted = Job(strategy="pipeline", workers=2, model=model, dataset="driven", task="binary", epochs=1)
    ran = run(wanted, data, tmp_path, good=False)
    assert any(words in event["message"] for each in ran.processes for event in each.of_kind("error")), ran.logs


def test_batch_statistics_are_those_of_the_micro_batches(single, data, tmp_path):
    """With one micro-batch, those of one process: batches of 30 divide 90 examples."""
    wanted = job(model="torch_nets:normalised", batch_size=30, steps=9)
    ran = run(with_workers(wanted, "pipeline", 2, micro_batches=1, pipeline_schedule="gpipe"), data, tmp_path)
    assert "model.1.running_var" in ran.state
    assert largest_difference(ran.state, single(wanted).state, "model.") < 1e-9


@pytest.mark.quick("sharing-tensor", "repeating-pipeline", "normalising_twice-tensor")
@pytest.mark.parametrize(("model", "strategy"), [
    ("repeating", "pipeline"), ("repeating", "tensor"), ("normalising_twice", "tensor"), ("sharing", "tensor"),
    ("nested", "tensor"),
])
def test_layers_that_are_called_several_times_compute_the_same(single, data, tmp_path, model, strategy):
    wanted = job(model=f"torch_nets:{model}", steps=8)
    check_same(run(with_workers(wanted, strategy, 2), data, tmp_path), single(wanted), 1e-9)


def test_dropout_of_divided_layers_is_that_of_one_process(single, data, tmp_path):
    """All workers draw the same, and each drops its part."""
    wanted = job(model="torch_nets:dropping", steps=8)
    check_same(run(with_workers(wanted, "tensor", 2), data, tmp_path), single(wanted), 1e-9)


def test_dropout_of_one_stage_is_not_that_of_another(data, tmp_path):
    wanted = job(model="torch_nets:masked", strategy="pipeline", pipeline_schedule="gpipe", micro_batches=1, workers=2,
                 steps=2)  # fmt: skip
    state = run(wanted, data, tmp_path).state
    first, second = state["model.2.drawn"], state["model.4.drawn"]
    assert 16 < np.count_nonzero(first) < 48
    assert (first != second).any()


def test_a_tensor_of_the_chain_itself_stays_as_it_is(single, data, tmp_path):
    wanted = job(model="torch_nets:unused", optimizer="adamw", weight_decay=0.1, steps=8)
    ran = run(with_workers(wanted, "pipeline", 2), data, tmp_path)
    assert (ran.state["model.idle"] == 1).all()
    check_same(ran, single(wanted), 1e-9)


def test_layers_of_a_stage_may_pass_on_several_tensors(single, data, tmp_path):
    wanted = job(model="torch_nets:recurrent", steps=8)
    check_same(run(with_workers(wanted, "pipeline", 2), data, tmp_path), single(wanted), 1e-9)


def test_a_model_says_where_its_stages_begin(single, data, tmp_path):
    wanted = job(model="torch_nets:staged", steps=8)
    ran = run(with_workers(wanted, "pipeline", 2), data, tmp_path)
    check_same(ran, single(wanted), 1e-9)
    assert ran.result["implementation"]["path"] == "stages 0+1+2+3+4 | 5+6"


@pytest.mark.parametrize(("strategy", "mesh", "workers"), [
    ("tensor", "data=2,tensor=2", 4), ("fsdp", "data=2,fsdp=2", 4),
    pytest.param("tensor", "data=3,tensor=1", 3, marks=slow),
])
def test_groups_of_a_mesh_divide_the_batch_and_their_workers_the_model(
    single, data, tmp_path, strategy, mesh, workers
):
    """In the last step of an epoch, of 2 examples, one of three groups has none."""
    wanted = job(clip_norm=0.5, optimizer="adam")
    ran = run(with_workers(wanted, strategy, workers, mesh=mesh), data, tmp_path)
    check_same(ran, single(wanted), 1e-9)


def test_a_parameter_that_no_group_of_a_mesh_uses_stays_as_it_is(single, data, tmp_path):
    wanted = job(model="torch_nets:unused", optimizer="adamw", weight_decay=0.1, steps=8)
    ran = run(with_workers(wanted, "tensor", 4, mesh="data=2,tensor=2"), data, tmp_path)
    assert (ran.state["model.idle"] == 1).all()
    check_same(ran, single(wanted), 1e-9)


@slow
def test_a_job_on_a_mesh_is_resumed(data, tmp_path):
    wanted = job(strategy="tensor", mesh="data=2,tensor=2", workers=4, steps=None, epochs=2, implementation="stock")
    whole = run(wanted, data, tmp_path / "whole")
    run(wanted.model_copy(update={"epochs": 1}), data, tmp_path / "parts")
    parts = run(wanted, data, tmp_path / "parts", resume=True)
    assert largest_difference(whole.state, parts.state) == 0
