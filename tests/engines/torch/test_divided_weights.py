"""Strategies that divide weights, gradients or the optimizer's state over processes end with the weights of one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import Ran, each_once, finish, largest_difference, run, start, write_data, write_text

from velodrome.job.job import Job

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.integration
slow = pytest.mark.slow

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
DIVIDED = ["zero1", "fsdp"]
#: 90 examples in batches of 22: the last holds 2, fewer than 3 workers have, and no batch divides by 3.
BATCH = 22


def job(**changes) -> Job:
    base = {"model": "dense-128", "optimizer": "momentum", "dtype": "float64", "batch_size": BATCH}
    return Job(**(base | {"steps": 20, "epochs": 9} | changes))


def with_workers(wanted: Job, strategy: str, workers: int, **changes) -> Job:
    return wanted.model_copy(update={"strategy": strategy, "workers": workers, **changes})


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.fixture(scope="module")
def single(tmp_path_factory, data):
    """The run of one process alone for a job, made once."""
    return each_once(data, lambda: tmp_path_factory.mktemp("single"))


@pytest.mark.quick("*-adam-float64-3", "*-sgd-float32-2")
@pytest.mark.parametrize(("optimizer", "dtype", "workers"), [
    ("momentum", "float64", 2), ("sgd", "float32", 2), ("adam", "float64", 3),
    pytest.param("momentum", "float64", 3, marks=slow), pytest.param("adamw", "float32", 1, marks=slow),
])
@pytest.mark.parametrize("strategy", DIVIDED)
def test_workers_together_end_with_the_weights_of_one(single, data, tmp_path, strategy, workers, optimizer, dtype):
    wanted = job(optimizer=optimizer, dtype=dtype)
    ran, alone = run(with_workers(wanted, strategy, workers), data, tmp_path), single(wanted)
    assert largest_difference(ran.state, alone.state, "model.") < TOLERANCE[dtype]
    assert ran.result["test_answers"] == alone.result["test_answers"]
    assert ran.result["test"]["total"] == 31
    for mine, theirs in zip(ran.result["history"], alone.result["history"], strict=True):
        assert mine["train_accuracy"] == theirs["train_accuracy"]
        assert mine["validation_accuracy"] == theirs["validation_accuracy"]
    assert ran.result["parameters"] == alone.result["parameters"]


@slow
@pytest.mark.parametrize("strategy", DIVIDED)
def test_the_stock_form_ends_with_the_same_weights(single, data, tmp_path, strategy):
    wanted = job(optimizer="adam", clip_norm=0.05)
    ran = run(with_workers(wanted, strategy, 2, implementation="stock"), data, tmp_path)
    assert largest_difference(ran.state, single(wanted).state, "model.") < 1e-9
    assert ran.result["implementation"]["kind"] == "stock"


@pytest.mark.parametrize("strategy", DIVIDED)
def test_accumulation_clipping_averages_and_rates_are_those_of_one_process(single, data, tmp_path, strategy):
    wanted = job(accumulate=2, batch_size=11, clip_norm=0.05, ema=0.9, schedule="cosine", optimizer="adam")
    ran, alone = run(with_workers(wanted, strategy, 3), data, tmp_path), single(wanted)
    assert largest_difference(ran.state, alone.state, "model.") < 1e-9
    assert ran.result["test_answers"] == alone.result["test_answers"]
    mine, theirs = saved_weights(ran), saved_weights(alone)
    assert mine.keys() == theirs.keys()
    assert all(np.abs(mine[name] - theirs[name]).max() < 1e-9 for name in mine)


def saved_weights(ran: Ran) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(ran.folder / "model" / "model.safetensors")


@pytest.mark.quick("torch_nets:deep-*", "torch_nets:unused-*")
@pytest.mark.parametrize(("model", "arguments"), [
    ("torch_nets:deep", {}), ("torch_nets:attending", {}), ("torch_nets:unused", {}),
])
def test_models_of_users_are_divided_layer_by_layer(single, data, tmp_path, model, arguments):
    wanted = job(model=model, model_args=arguments, steps=6)
    ran = run(with_workers(wanted, "fsdp", 2), data, tmp_path)
    assert largest_difference(ran.state, single(wanted).state, "model.") < 1e-9
    mine, alone = saved_weights(ran), saved_weights(single(wanted))
    assert all(np.abs(mine[name] - alone[name]).max() < 1e-9 for name in alone)


def test_a_parameter_that_nothing_uses_stays_as_it_is(single, data, tmp_path):
    """Neither weight decay nor momentum moves it, nor gradients that are added up."""
    wanted = job(model="torch_nets:unused", optimizer="adamw", weight_decay=0.1, accumulate=2, steps=8)
    ran = run(with_workers(wanted, "fsdp", 2), data, tmp_path)
    assert (ran.state["model.idle"] == 1).all()
    assert largest_difference(ran.state, single(wanted).state, "model.") < 1e-9


@slow
@pytest.mark.parametrize("strategy", DIVIDED)
def test_convolutions_are_divided_too(strategy, tmp_path):
    data = write_data(tmp_path / "data.npz", shape=(16, 16, 3), examples=40)
    wanted = job(model="lenet5", batch_size=9, steps=8)
    alone = run(wanted, data, tmp_path / "single")
    ran = run(with_workers(wanted, strategy, 2), data, tmp_path / strategy)
    assert largest_difference(ran.state, alone.state, "model.") < 1e-9


@pytest.mark.parametrize("model", ["lstm-small", pytest.param("gpt-mini", marks=slow)])
@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("zero1", marks=slow)])
def test_language_models_are_divided_too(strategy, model, tmp_path):
    data = write_text(tmp_path / "text.npz")
    wanted = Job(model=model, dataset="ptb", batch_size=5, unroll=4, steps=20, epochs=2, dtype="float64",
                 optimizer="sgd", learning_rate=0.05)  # fmt: skip
    alone = run(wanted, data, tmp_path / "single")
    ran = run(with_workers(wanted, strategy, 2), data, tmp_path / strategy)
    assert largest_difference(ran.state, alone.state, "model.") < 1e-9


@pytest.mark.quick("fsdp-velodrome")
@pytest.mark.parametrize("implementation", ["velodrome", pytest.param("stock", marks=slow)])
@pytest.mark.parametrize("strategy", DIVIDED)
def test_a_resumed_run_ends_with_the_weights_of_an_undisturbed_one(data, tmp_path, strategy, implementation):
    wanted = job(optimizer="adam", strategy=strategy, workers=2, steps=None, epochs=4, dtype="float32", ema=0.9,
                 implementation=implementation)  # fmt: skip
    whole = run(wanted, data, tmp_path / "whole")
    run(wanted.model_copy(update={"epochs": 2}), data, tmp_path / "parts")
    parts = run(wanted, data, tmp_path / "parts", resume=True)
    assert largest_difference(whole.state, parts.state) == 0
    assert whole.result["test"] == parts.result["test"]


@slow
def test_an_optimizer_of_ones_own_steps_divided_weights_and_is_resumed(single, data, tmp_path):
    wanted = job(optimizer="torch_nets:rmsprop", steps=None, epochs=4)
    whole = run(with_workers(wanted, "fsdp", 2), data, tmp_path / "whole")
    assert largest_difference(whole.state, single(wanted).state, "model.") < 1e-9
    run(with_workers(wanted, "fsdp", 2, epochs=2), data, tmp_path / "parts")
    parts = run(with_workers(wanted, "fsdp", 2), data, tmp_path / "parts", resume=True)
    assert largest_difference(whole.state, parts.state) == 0


@pytest.mark.parametrize("strategy", DIVIDED)
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=slow)])
def test_the_survivor_of_a_killed_worker_ends_and_is_not_the_cause(data, tmp_path, strategy, victim):
    started = start(Job(strategy=strategy, workers=2, epochs=100_000, checkpoints=False), data, tmp_path)
    started[victim].wait_for('"progress"')
    started[victim].kill()
    survivor = finish(started, tmp_path).processes[1 - victim]
    assert survivor.code == 1, survivor.log
    assert survivor.of_kind("error")[-1]["cause"] == "peer"


def test_a_worker_without_anything_to_evaluate_is_refused(data, tmp_path):
    stored = dict(np.load(data))
    few = {name: values[:2] for name, values in stored.items() if name.startswith("validation")}
    np.savez(tmp_path / "few.npz", **{**stored, **few})
    ran = run(Job(strategy="fsdp", workers=3, epochs=1, batch_size=22), tmp_path / "few.npz", tmp_path, good=False)
    messages = {process.of_kind("error")[-1]["message"] for process in ran.processes if process.of_kind("error")}
    assert any("the validation part has 2 examples; use fewer workers" in message for message in messages)


class Tied(torch.nn.Module):
    """Large layers: one is used twice, one belongs to PyTorch's own attention, and one is used from outside."""

    def __init__(self) -> None:
        from torch import nn

        super().__init__()
        self.embedding = nn.Embedding(11000, 100)
        self.block = nn.TransformerEncoderLayer(100, 4, 6000, batch_first=True)
        self.inner = nn.Sequential(nn.Linear(100, 11000), nn.ReLU(), nn.Linear(11000, 95), nn.Linear(95, 100))
        self.outside = nn.Linear(100, 11000)
        self.head = nn.Linear(100, 11000)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        stream = self.inner(self.block(self.embedding(words)))
        return self.head(stream) + torch.nn.functional.linear(stream, self.outside.weight)


@pytest.mark.unit
def test_layers_of_a_million_numbers_are_units_unless_their_weights_are_used_elsewhere():
    from velodrome.engines.torch.strategies.sharding import covers_of, units_of

    model = Tied()
    covers = covers_of(model, lambda copy: copy(torch.zeros(2, 3, dtype=torch.int64)))
    assert units_of(model, covers) == [model.block, model.inner[0], model.inner]
    assert model.outside in units_of(model), "without a trial, only embeddings and shared weights are left out"
    assert covers_of(model, lambda copy: copy("nonsense")) is None


@pytest.mark.unit
def test_all_processes_evaluate_the_same_number_of_batches():
    from velodrome.engines.torch.feed import Replica

    for examples in (1, 5, 512, 513, 1025, 1537):
        for size in (1, 2, 3):
            shares = [Replica(rank, size, torch.device("cpu"), True).evaluation_batches(examples, 256)
                     for rank in range(size)]
            assert len({len(offsets) for _, offsets in shares}) == 1
            assert sorted(np.concatenate([mine for mine, _ in shares])) == list(range(examples))
            for mine, offsets in shares:
                assert (offsets[0], offsets[-1]) == (0, len(mine))
                assert all(0 <= step <= 256 for step in np.diff(offsets))
                assert len(mine) == 0 or all(np.diff(offsets) > 0)
