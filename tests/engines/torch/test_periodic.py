"""`local-sgd` and `diloco`: workers that train by themselves and combine their weights every few steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import diloco_reference
import numpy as np
import pytest
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import Ran, finish, largest_difference, run, start, write_arrays, write_data

from velodrome.job.job import Job

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.integration
slow = pytest.mark.slow

PERIODIC = ["local-sgd", "diloco"]
RECORDED = json.loads(diloco_reference.FIXTURE.read_text())


def job(**changes) -> Job:
    """90 examples in batches of 22: the last holds 2, so one of 3 workers has none in that step."""
    base = {"model": "dense-128", "optimizer": "sgd", "dtype": "float64", "batch_size": 22, "steps": 20, "epochs": 9}
    return Job(**(base | changes))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.mark.parametrize(("workers", "dtype"), [
    (2, "float64"), pytest.param(3, "float64", marks=slow), pytest.param(2, "float32", marks=slow)])
def test_local_sgd_after_every_step_is_ddp(data, tmp_path, workers, dtype):
    together = run(job(strategy="ddp", workers=workers, dtype=dtype), data, tmp_path / "ddp")
    averaged = run(job(strategy="local-sgd", sync_every=1, workers=workers, dtype=dtype), data, tmp_path / "local")
    assert largest_difference(weights(together), weights(averaged)) < {"float64": 1e-9, "float32": 1e-5}[dtype]
    assert averaged.result["test_answers"] == together.result["test_answers"]


@pytest.mark.parametrize("model", ["dense-128", pytest.param("torch_nets:unused", marks=slow)])
def test_weights_decay_in_a_worker_without_examples_as_in_the_others(data, tmp_path, model):
    wanted = {"model": model, "workers": 3, "weight_decay": 0.1, "steps": 10}
    together = run(job(strategy="ddp", **wanted), data, tmp_path / "ddp")
    averaged = run(job(strategy="local-sgd", sync_every=1, **wanted), data, tmp_path / "local")
    assert largest_difference(weights(together), weights(averaged)) < 1e-9


def weights(ran: Ran) -> dict[str, np.ndarray]:
    return {name: value for name, value in ran.state.items() if name.startswith("model.")}


def of_worker(ran: Ran, rank: int) -> dict[str, np.ndarray]:
    prefix = f"worker.{rank}.model."
    return {name.removeprefix(prefix): value for name, value in ran.state.items() if name.startswith(prefix)}


def test_workers_differ_within_a_round_and_agree_at_its_end(data, tmp_path):
    """10 steps: a round of 5 ends with the last one, one of 4 does not. What is saved is the mean in both."""
    apart = run(job(strategy="local-sgd", sync_every=4, workers=2, steps=10), data, tmp_path / "apart")
    agreed = run(job(strategy="local-sgd", sync_every=5, workers=2, steps=10), data, tmp_path / "agreed")
    assert largest_difference(of_worker(agreed, 0), of_worker(agreed, 1)) == 0
    first, second = of_worker(apart, 0), of_worker(apart, 1)
    assert largest_difference(first, second) > 1e-4
    for name, value in load_file(apart.folder / "model" / "model.safetensors").items():
        np.testing.assert_allclose(value, (first[name] + second[name]) / 2, rtol=0, atol=1e-12)


def test_a_sum_and_a_count_are_those_of_a_worker_within_a_round(tmp_path, monkeypatch):
    """Against PyTorch's own SGD on the examples of each worker; a last batch of 3 leaves one of the workers 1."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import array_nets

    from velodrome.tasks.schedule import by_data

    random = np.random.default_rng(1)
    inputs = random.normal(size=(31 + 54, 5))
    targets = inputs.sum(1, keepdims=True) + 3
    data = write_arrays(tmp_path, {"x": inputs}, {"y": targets})
    wanted = Job(model="array_nets:small", dataset="driven", task="array_nets:Near", strategy="local-sgd", workers=2,
                 sync_every=100, batch_size=7, epochs=1, dtype="float64", optimizer="sgd", learning_rate=0.01, seed=5)
    ran, images, prices = run(wanted, data, tmp_path / "run"), torch.from_numpy(inputs), torch.from_numpy(targets)
    for rank in range(2):
        torch.manual_seed(5)
        model = array_nets.small((5,), 1).double()
        partition, stepping = by_data(31, 7, 2, 5, 1).partition(rank), torch.optim.SGD(model.parameters(), 0.01)
        for rows in map(partition.step, range(partition.steps)):
            near = prices[rows, 0] < 4
            losses = (model(images[rows]) - prices[rows]).square().sum(1)
            stepping.zero_grad()
            ((losses * near).sum() / max(1, int(near.sum()))).backward()
            stepping.step()
        trained = {name: value.detach().numpy() for name, value in model.state_dict().items()}
        assert largest_difference(of_worker(ran, rank), trained) < 1e-9


@pytest.mark.parametrize("workers", [1, 2])
def test_diloco_takes_the_steps_that_numpy_takes(tmp_path, workers):
    """Two rounds and two steps of a third, against numbers that were computed without PyTorch."""
    pixels = np.array(diloco_reference.IMAGES, np.uint8).reshape(8, 1, 2, 1)
    labels = np.array(diloco_reference.LABELS)
    parts = {f"{part}_{name}": values for part in ("train", "validation", "test")
             for name, values in (("images", pixels), ("labels", labels))}  # fmt: skip
    np.savez(tmp_path / "data.npz", classes=2, scale=1 / 255, **parts)
    settings = diloco_reference.SETTINGS
    wanted = Job(
        model="torch_nets:counted", strategy="diloco", workers=workers, sync_every=settings["every"], dtype="float64",
        batch_size=settings["batch"], epochs=settings["epochs"], learning_rate=settings["rate"], seed=settings["seed"],
    )
    state, expected = run(wanted, tmp_path / "data.npz", tmp_path / "run").state, RECORDED[str(workers)]
    assert expected["steps"] == 8

    def found(*names: str) -> np.ndarray:
        weight, bias = (state[name] for name in names)
        return np.hstack([weight, bias[:, None]])

    for rank in range(workers):
        each = found(f"worker.{rank}.model.1.weight", f"worker.{rank}.model.1.bias")
        np.testing.assert_allclose(each, expected["workers"][rank], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found("model.1.weight", "model.1.bias"), expected["mean"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found("outer.0", "outer.1"), expected["outer"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        found("outer_momentum.0", "outer_momentum.1"), expected["momentum"], rtol=0, atol=1e-12
    )


@pytest.mark.unit
def test_the_recorded_steps_are_those_of_the_reference():
    for workers, expected in RECORDED.items():
        computed = diloco_reference.compute(int(workers))
        for name in ("outer", "momentum", "mean"):
            np.testing.assert_allclose(computed[name], expected[name], rtol=0, atol=1e-14)


@pytest.mark.parametrize("implementation", ["velodrome", pytest.param("stock", marks=slow)])
@pytest.mark.parametrize("strategy", PERIODIC)
def test_a_resumed_run_ends_with_the_weights_of_an_undisturbed_one(data, tmp_path, strategy, implementation):
    """In the middle of a round, with optimizers that remember and averages of their weights."""
    wanted = job(strategy=strategy, workers=2, sync_every=7, optimizer="adam", steps=None, epochs=4, ema=0.9,
                 implementation=implementation)  # fmt: skip
    whole = run(wanted, data, tmp_path / "whole")
    run(wanted.model_copy(update={"epochs": 2}), data, tmp_path / "parts")
    parts = run(wanted, data, tmp_path / "parts", resume=True)
    assert largest_difference(whole.state, parts.state) == 0
    assert whole.result["test"] == parts.result["test"]


@pytest.mark.parametrize("strategy", PERIODIC)
def test_batches_that_are_added_up_are_one_step_of_a_round(data, tmp_path, strategy):
    wanted = {"strategy": strategy, "workers": 2, "sync_every": 3, "steps": 9, "clip_norm": 0.5}
    added = run(job(batch_size=11, accumulate=2, **wanted), data, tmp_path / "added")
    whole = run(job(batch_size=22, **wanted), data, tmp_path / "whole")
    assert largest_difference(weights(added), weights(whole)) < 1e-9


@pytest.mark.parametrize("strategy", PERIODIC)
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=slow)])
def test_the_survivor_of_a_killed_worker_ends_and_is_not_the_cause(data, tmp_path, strategy, victim):
    started = start(Job(strategy=strategy, workers=2, epochs=100_000, checkpoints=False), data, tmp_path)
    started[victim].wait_for('"progress"')
    started[victim].kill()
    survivor = finish(started, tmp_path).processes[1 - victim]
    assert survivor.code == 1, survivor.log
    assert survivor.of_kind("error")[-1]["cause"] == "peer"
