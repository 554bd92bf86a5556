"""Synchronous training with PyTorch ends with the weights of one process alone, whatever the number of workers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import each_once, largest_difference, run, write_data

from velodrome.catalog.engines.torch import FUSED_OPTIMIZER, PLAIN_OPTIMIZER
from velodrome.job.job import Job
from velodrome.tasks.correctness_bits import decode
from velodrome.training import checkpoint

torch = pytest.importorskip("torch")
pytest.importorskip("mpi4py")
pytestmark = pytest.mark.integration

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
#: 90 examples in batches of 22: the last holds 2, fewer than 3 workers have, and no batch divides by 3 or 4.
BATCH = 22


def job(**changes) -> Job:
    base = {"model": "dense-128", "optimizer": "momentum", "dtype": "float64", "batch_size": BATCH}
    return Job(**(base | {"steps": 20, "epochs": 9} | changes))


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.fixture(scope="session")
def single(tmp_path_factory, data):
    """The run of one process alone for a job, made once."""
    return each_once(data, lambda: tmp_path_factory.mktemp("single"))


def reference(wanted: Job, data: Path) -> dict[str, np.ndarray]:
    """The same 20 steps written out with autograd and plain arithmetic, apart from everything in the engine."""
    from velodrome.models import torch_zoo
    from velodrome.tasks.schedule import order_of_epoch

    stored = np.load(data)
    images = torch.from_numpy(stored["train_images"]).permute(0, 3, 1, 2).double() * float(stored["scale"])
    labels = torch.from_numpy(stored["train_labels"])
    torch.manual_seed(wanted.seed)
    model = torch_zoo.build(wanted.model, (1, 8, 8), 10).double()
    speed = [torch.zeros_like(parameter) for parameter in model.parameters()]
    batches = []
    for epoch in range(1, wanted.epochs + 1):
        batches += torch.from_numpy(order_of_epoch(len(labels), wanted.seed, epoch)).split(wanted.batch_size)
    for batch in batches[: wanted.steps]:
        chances = torch.log_softmax(model(images[batch]), 1)
        loss = -chances[torch.arange(len(batch)), labels[batch]].mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient, moved in zip(model.parameters(), gradients, speed, strict=True):
                moved.mul_(0.9 if wanted.optimizer == "momentum" else 0.0).add_(gradient)
                parameter.sub_(wanted.rate * moved)
    return {f"model.{name}": value.detach().numpy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_single_does_what_the_textbook_says(single, data, optimizer):
    wanted = job(optimizer=optimizer)
    state = {name: value for name, value in single(wanted).state.items() if name.startswith("model.")}
    assert largest_difference(reference(wanted, data), state) < 1e-12


def test_the_answers_are_those_of_the_trained_weights_in_the_order_of_the_test_set(single, data):
    from velodrome.models import torch_zoo

    ran, stored = single(job()), np.load(data)
    model = torch_zoo.build("dense-128", (1, 8, 8), 10).double()
    model.load_state_dict({
        name.removeprefix("model."): torch.from_numpy(value)
        for name, value in ran.state.items() if name.startswith("model.")
    })
    images = torch.from_numpy(stored["test_images"]).permute(0, 3, 1, 2).double() * float(stored["scale"])
    right = model(images).argmax(1).numpy() == stored["test_labels"]
    assert 0 < right.sum() < 31
    assert decode(ran.result["test_answers"], 31).tolist() == right.tolist()


@pytest.mark.quick("*-2-momentum-float64", "*-3-sgd-float64", "allreduce-1-momentum-float64", "*-3-momentum-float32")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["ddp", "allreduce"])
def test_workers_together_end_with_the_weights_of_one(single, data, tmp_path, strategy, workers, optimizer, dtype):
    wanted = job(optimizer=optimizer, dtype=dtype)
    ran = run(wanted.model_copy(update={"strategy": strategy, "workers": workers}), data, tmp_path)
    alone = single(wanted)
    path = {"ddp": None, "allreduce": "shared-memory" if workers > 1 else "mpi"}[strategy]
    assert (ran.result["implementation"]["kind"], ran.result["implementation"]["path"]) == ("velodrome", path)
    assert largest_difference(ran.state, alone.state, "model.") < TOLERANCE[dtype]
    for part in ("correct", "total"):
        assert ran.result["test"][part] == alone.result["test"][part]
    assert ran.result["test_answers"] == alone.result["test_answers"]
    assert ran.result["test_fingerprint"] == alone.result["test_fingerprint"]
    assert ran.result["test"]["total"] == 31
    for mine, theirs in zip(ran.result["history"], alone.result["history"], strict=True):
        assert mine["train_accuracy"] == theirs["train_accuracy"]
        assert mine["validation_accuracy"] == theirs["validation_accuracy"]
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)


@pytest.mark.quick("*-momentum-float64", "*-adam-float32")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("strategy", ["single", "ddp", "allreduce"])
def test_the_stock_form_ends_with_the_weights_of_velodromes(single, data, tmp_path, strategy, optimizer, dtype):
    wanted = job(optimizer=optimizer, dtype=dtype)
    workers = 1 if strategy == "single" else 2
    stock = wanted.model_copy(update={"implementation": "stock", "strategy": strategy, "workers": workers})
    ran = run(stock, data, tmp_path)
    assert largest_difference(ran.state, single(wanted).state, "model.") < TOLERANCE[dtype]
    assert ran.result["test_answers"] == single(wanted).result["test_answers"]
    used = ran.result["implementation"]
    assert used["kind"] == "stock"
    assert "torch.optim" in used["framework"]
    assert used["path"] == ("mpi" if strategy == "allreduce" else None)


@pytest.mark.parametrize("strategy", ["ddp", "allreduce"])
def test_the_stock_form_clips_the_whole_gradient(single, data, tmp_path, strategy):
    wanted = job(clip_norm=0.05)
    stock = wanted.model_copy(update={"implementation": "stock", "strategy": strategy, "workers": 2})
    assert largest_difference(run(stock, data, tmp_path).state, single(wanted).state, "model.") < 1e-9


def test_a_pytorch_without_fused_kernels_trains_the_same_and_is_reported(data, tmp_path):
    plain = run(job(model="torch_nets:without_fused_kernels", optimizer="adam"), data, tmp_path / "plain")
    fused = run(job(model="torch_nets:logits", optimizer="adam"), data, tmp_path / "fused")
    assert largest_difference(plain.state, fused.state, "model.") < 1e-9
    (process,) = plain.processes
    assert "torch._fused_adam_" in process.of_kind("warning")[0]["message"]
    assert PLAIN_OPTIMIZER in plain.result["implementation"]["own"]
    assert FUSED_OPTIMIZER in fused.result["implementation"]["own"]


@pytest.mark.quick("allreduce")
@pytest.mark.parametrize("strategy", ["ddp", "allreduce"])
def test_convolutions_and_several_channels_agree_too(strategy, tmp_path):
    data = write_data(tmp_path / "data.npz", shape=(16, 16, 3), examples=40)
    wanted = job(model="lenet5", batch_size=9, steps=8)
    alone = run(wanted, data, tmp_path / "single")
    ran = run(wanted.model_copy(update={"strategy": strategy, "workers": 2}), data, tmp_path / strategy)
    assert largest_difference(ran.state, alone.state, "model.") < 1e-9


@pytest.mark.parametrize("strategy", ["ddp", "allreduce"])
def test_hosts_apart_reach_each_other_over_the_network(single, data, tmp_path, strategy):
    wanted = job()
    hosts = ["127.0.0.2", "127.0.0.3"]
    ran = run(wanted.model_copy(update={"strategy": strategy, "workers": 2}), data, tmp_path, hosts=hosts)
    assert largest_difference(ran.state, single(wanted).state, "model.") < 1e-9
    assert ran.result["implementation"]["path"] == ("mpi" if strategy == "allreduce" else None)


@pytest.mark.quick(
    "torch_nets:normalised-single-velodrome", "torch_nets:normalised-ddp-velodrome",
    "torch_nets:normalised-allreduce-stock",
)
@pytest.mark.parametrize("implementation", ["velodrome", "stock"])
@pytest.mark.parametrize("strategy", ["single", "ddp", "allreduce"])
@pytest.mark.parametrize("model", ["dense-128", "torch_nets:normalised"])
def test_a_resumed_run_ends_with_the_weights_of_an_undisturbed_one(data, tmp_path, strategy, model, implementation):
    workers = 1 if strategy == "single" else 2
    arguments = {"dropout": 0.3} if ":" in model else {}
    wanted = job(model=model, model_args=arguments, optimizer="adam", strategy=strategy, workers=workers, steps=None,
                 epochs=4, dtype="float32", implementation=implementation)  # fmt: skip
    whole = run(wanted, data, tmp_path / "whole")
    run(wanted.model_copy(update={"epochs": 2}), data, tmp_path / "parts")
    parts = run(wanted, data, tmp_path / "parts", resume=True)
    assert largest_difference(whole.state, parts.state) == 0
    assert whole.result["test"] == parts.result["test"]


@pytest.mark.quick("ddp")
@pytest.mark.parametrize("strategy", ["single", "ddp", "allreduce"])
def test_a_resumed_run_draws_what_an_undisturbed_one_draws(data, tmp_path, strategy):
    """In each process: from Python's, NumPy's and PyTorch's generators and from those of the model."""
    wanted = job(model="torch_nets:drawing", model_args={"by_rank": True}, strategy=strategy, steps=None, epochs=4,
                 workers=1 if strategy == "single" else 2)  # fmt: skip
    whole = run(wanted, data, tmp_path / "whole")
    run(wanted.model_copy(update={"epochs": 2}), data, tmp_path / "parts")
    parts = run(wanted, data, tmp_path / "parts", resume=True)
    assert largest_difference(whole.state, parts.state) == 0
    mine, theirs = (checkpoint.latest(tmp_path / name).generators for name in ("whole", "parts"))
    assert mine == theirs
    assert len(set(mine)) == wanted.workers, "the generators of each process are its own"


@pytest.mark.parametrize("strategy", ["ddp", "allreduce"])
def test_workers_that_draw_the_same_numbers_end_with_the_weights_of_one(single, data, tmp_path, strategy):
    """`allreduce` tries the model on a copy, which must draw nothing."""
    wanted = job(model="torch_nets:drawing", validation=0, steps=12)
    ran = run(wanted.model_copy(update={"strategy": strategy, "workers": 2}), data, tmp_path)
    assert ran.result["implementation"]["path"] == ("shared-memory" if strategy == "allreduce" else None)
    assert largest_difference(ran.state, single(wanted).state, "model.") < 1e-9


@pytest.mark.quick("ddp")
@pytest.mark.parametrize("strategy", ["ddp", "allreduce"])
def test_frozen_and_unused_parameters_train_as_in_one_process(single, data, tmp_path, strategy):
    wanted = job(model="torch_nets:unused")
    ran = run(wanted.model_copy(update={"strategy": strategy, "workers": 3}), data, tmp_path)
    assert largest_difference(ran.state, single(wanted).state, "model.") < 1e-9


def stepped_by_torch_optim(wanted: Job, data: Path) -> dict[str, np.ndarray]:
    """The model `odd`, trained in this process by `torch.optim` on the sum of what each worker's own autograd finds."""
    import torch_nets

    from velodrome.tasks.schedule import order_of_epoch

    stored = np.load(data)
    images = torch.from_numpy(stored["train_images"]).permute(0, 3, 1, 2).double() * float(stored["scale"])
    labels = torch.from_numpy(stored["train_labels"])
    torch.manual_seed(wanted.seed)
    model = torch_nets.odd((1, 8, 8), 10).double()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if wanted.optimizer == "adam":
        stepping = torch.optim.Adam(trained, wanted.rate)
    else:
        stepping = torch.optim.SGD(trained, wanted.rate, momentum=0.9)
    batches = []
    for epoch in range(1, wanted.epochs + 1):
        batches += torch.from_numpy(order_of_epoch(len(labels), wanted.seed, epoch)).split(wanted.batch_size)
    for batch in batches[: wanted.steps]:
        stepping.zero_grad(set_to_none=True)
        for part in [part for rank in range(wanted.workers) if len(part := batch[rank :: wanted.workers])]:
            # Gradients add up; what no part reaches stays without one.
            chances = torch.log_softmax(model(images[part]), 1)
            (-chances[torch.arange(len(part)), labels[part]].sum() / len(batch)).backward()
        stepping.step()
    return {f"model.{name}": value.detach().numpy() for name, value in model.state_dict().items()}


@pytest.mark.quick("ddp-adam", "shared-memory-adam", "mpi-stock-adam", "fsdp-adam")
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize(
    ("strategy", "workers", "path", "implementation"),
    [
        pytest.param("single", 1, None, "velodrome", id="single"),
        pytest.param("ddp", 3, None, "velodrome", id="ddp"),
        pytest.param("ddp", 3, None, "stock", id="ddp-stock"),
        pytest.param("allreduce", 3, "shared-memory", "velodrome", id="shared-memory"),
        pytest.param("allreduce", 3, "mpi", "velodrome", id="mpi"),
        pytest.param("allreduce", 3, "mpi", "stock", id="mpi-stock"),
        pytest.param("fsdp", 3, None, "velodrome", id="fsdp"),
        pytest.param("fsdp", 3, None, "stock", id="fsdp-stock", marks=pytest.mark.slow),
    ],
)
def test_a_parameter_without_a_gradient_is_skipped_as_torch_optim_does(
    data, tmp_path, monkeypatch, strategy, workers, path, implementation, optimizer
):
    """A layer is used in some steps, by some workers; in the last steps of an epoch one worker has no examples."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    wanted = job(model="torch_nets:odd", strategy=strategy, workers=workers, optimizer=optimizer,
                 implementation=implementation)  # fmt: skip
    hosts = [f"127.0.0.{rank + 2}" for rank in range(workers)] if path == "mpi" else None
    ran = run(wanted, data, tmp_path, hosts=hosts)
    assert ran.result["implementation"]["path"] == path
    assert largest_difference(ran.state, stepped_by_torch_optim(wanted, data), "model.") < 1e-9
    assert "find_unused_parameters" not in ran.logs


@pytest.mark.quick("adam")
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_gradients_that_are_added_up_and_those_that_are_missing_mean_the_same_to_ddp_as_to_pytorchs_own_search(
    data, tmp_path, optimizer
):
    """A parameter may have a gradient in the first of two batches that are added up, and none in the second."""
    wanted = job(model="torch_nets:odd", strategy="ddp", workers=3, optimizer=optimizer, accumulate=2)
    ours, stock = (run(wanted.model_copy(update={"implementation": kind}), data, tmp_path / kind)
                   for kind in ("velodrome", "stock"))
    assert largest_difference(ours.state, stock.state, "model.") < 1e-9


@pytest.mark.quick("allreduce", "fsdp")
@pytest.mark.parametrize("strategy", ["ddp", "allreduce", "zero1", "fsdp"])
def test_a_users_convolutions_end_with_the_weights_of_one_process(single, data, tmp_path, strategy):
    wanted = job(model="torch_nets:convolved")
    ran = run(wanted.model_copy(update={"strategy": strategy, "workers": 2}), data, tmp_path)
    assert largest_difference(ran.state, single(wanted).state, "model.") < 1e-9
    assert ran.result["test_answers"] == single(wanted).result["test_answers"]


def test_ddp_does_not_warn_of_a_model_that_uses_all_of_its_parameters(data, tmp_path):
    ran = run(job(model="torch_nets:logits", strategy="ddp", workers=2, steps=3), data, tmp_path)
    assert "find_unused_parameters" not in ran.logs


@pytest.mark.parametrize("strategy", ["ddp", "allreduce"])
def test_a_model_that_changes_its_own_weights_does_so_once_a_step(single, data, tmp_path, strategy):
    """Processes that share memory would do it once each."""
    wanted = job(model="torch_nets:fading")
    ran = run(wanted.model_copy(update={"strategy": strategy, "workers": 2}), data, tmp_path)
    assert largest_difference(ran.state, single(wanted).state, "model.") < 1e-9


@pytest.mark.quick("allreduce")
@pytest.mark.parametrize("strategy", ["ddp", "allreduce"])
def test_batch_statistics_are_averaged_and_single_examples_are_no_obstacle(data, tmp_path, strategy):
    wanted = job(model="torch_nets:normalised", strategy=strategy, workers=3, batch_size=4, optimizer="adam")
    wanted = wanted.model_copy(update={"steps": None, "epochs": 3})
    ran = run(wanted, data, tmp_path)
    assert np.isfinite(ran.state["model.1.running_var"]).all()
    assert ran.result["history"][-1]["train_loss"] < ran.result["history"][0]["train_loss"]


def test_a_rank_without_examples_leaves_batch_statistics_alone(data, tmp_path):
    """One step has a single example, so two of three ranks have none: ddp computes even so."""
    wanted = job(model="torch_nets:normalised", workers=3, batch_size=89, optimizer="sgd")
    ran = {
        strategy: run(wanted.model_copy(update={"strategy": strategy, "steps": None, "epochs": 2}), data,
                      tmp_path / strategy)
        for strategy in ("ddp", "allreduce")
    }
    for name in ("model.1.running_mean", "model.1.running_var"):
        assert np.allclose(ran["ddp"].state[name], ran["allreduce"].state[name], rtol=1e-6), name


def test_log_probabilities_are_trained_as_the_logits_before_them(single):
    state = single(job(model="torch_nets:logits")).state
    assert largest_difference(single(job(model="torch_nets:log_softmax")).state, state, "model.") < 1e-9


@pytest.mark.quick("single-velodrome", "ddp-stock", "allreduce-velodrome")
@pytest.mark.parametrize("implementation", ["velodrome", "stock"])
@pytest.mark.parametrize("strategy", ["single", "ddp", "allreduce"])
def test_a_final_softmax_is_trained_and_evaluated_as_the_logits_before_it(
    single, data, tmp_path, strategy, implementation
):
    """The layer is so large that clipped probabilities would give no gradient for most examples."""
    asked = {"model_args": {"factor": 100}, "optimizer": "sgd"}
    logits = single(job(model="torch_nets:logits", **asked))
    place = {"strategy": strategy, "workers": 1 if strategy == "single" else 2, "implementation": implementation}
    softmax = run(job(model="torch_nets:softmax", **asked, **place), data, tmp_path)
    assert largest_difference(softmax.state, logits.state, "model.") < 1e-9
    test, expected = softmax.result["test"], logits.result["test"]
    assert test["loss_sum"] / test["total"] > 17
    assert test["loss_sum"] == pytest.approx(expected["loss_sum"], rel=1e-9)
