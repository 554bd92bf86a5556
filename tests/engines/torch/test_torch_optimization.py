"""Optimization as people do it: schedules, weight decay, accumulation, smoothing, averages and optimizers of one's own,
compared with PyTorch's own and with the formulas written out."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import Ran, largest_difference, run, write_data, write_text

from velodrome.job.job import Job
from velodrome.tasks.schedule import order_of_epoch

torch = pytest.importorskip("torch")
pytest.importorskip("mpi4py")

#: 90 examples in batches of 22: five steps an epoch, the last with 2.
STEPS_OF_EPOCH, STEPS = 5, 18
EVERYTHING = {
    "model": "dense-128", "dtype": "float64", "optimizer": "adamw", "weight_decay": 0.05, "learning_rate": 0.01,
    "schedule": "cosine", "warmup": "4", "label_smoothing": 0.1, "ema": 0.8, "batch_size": 22, "epochs": 9,
    "steps": STEPS,
}


def job(**changes) -> Job:
    return Job(**(EVERYTHING | changes))


def cosine(step: int, *, rate: float = 0.01, warmup: int = 4, total: int = STEPS) -> float:
    """The rate of a step, counted from 0."""
    if step < warmup:
        return rate * (step + 1) / warmup
    return rate * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.fixture(scope="module")
def alone(tmp_path_factory, data) -> Ran:
    """One process with everything at once, and the larger batch."""
    return run(job(), data, tmp_path_factory.mktemp("alone"))


def trained_by_hand(data: Path, make, rate, *, smoothing: float = 0.0, steps: int = STEPS):
    """The model that `torch.optim` makes in so many steps, and its average by `torch.optim.swa_utils`."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    from velodrome.models import torch_zoo

    stored = np.load(data)
    images = torch.from_numpy(stored["train_images"]).permute(0, 3, 1, 2).double() * float(stored["scale"])
    labels = torch.from_numpy(stored["train_labels"])
    torch.manual_seed(1)
    model = torch_zoo.build("dense-128", (1, 8, 8), 10).double()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    optimizer = make(model.parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    loss = torch.nn.CrossEntropyLoss(label_smoothing=smoothing)
    batches = [batch for epoch in range(1, 10) for batch in torch.from_numpy(order_of_epoch(90, 1, epoch)).split(22)]
    for step, batch in enumerate(batches[:steps]):
        for group, own in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = own * rate(step)
        optimizer.zero_grad()
        loss(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        averaged.update_parameters(model)
    return model, averaged.module


def difference(ran: Ran, model) -> float:
    named = {f"model.{name}": value.detach().numpy() for name, value in model.state_dict().items()}
    return largest_difference(named, {name: value for name, value in ran.state.items() if name in named})


@pytest.mark.integration
def test_all_of_it_together_is_what_pytorch_makes_of_it(alone, data) -> None:
    model, averaged = trained_by_hand(
        data, lambda given: torch.optim.AdamW(given, lr=1.0, weight_decay=0.05), cosine, smoothing=0.1
    )
    assert difference(alone, model) < 1e-9
    places = [f"optimizer.ema.{number}" for number in range(4)]
    for place, average in zip(places, averaged.parameters(), strict=True):
        assert np.abs(alone.state[place] - average.detach().numpy()).max() < 1e-9
    # The test set is evaluated with the average, and without smoothing.
    stored = np.load(data)
    images = torch.from_numpy(stored["test_images"]).permute(0, 3, 1, 2).double() * float(stored["scale"])
    loss = torch.nn.functional.cross_entropy(averaged(images), torch.from_numpy(stored["test_labels"]), reduction="sum")
    assert alone.result["test"]["loss_sum"] == pytest.approx(loss.item(), abs=1e-9)


@pytest.mark.integration
def test_the_saved_model_has_the_averaged_weights(alone) -> None:
    from safetensors.torch import load_file

    saved = load_file(alone.folder / "model" / "model.safetensors")
    names = [name.removeprefix("model.") for name in alone.state if name.startswith("model.")]
    assert len(names) == len(saved) == 4
    for name in names:
        assert not np.array_equal(saved[name].numpy(), alone.state[f"model.{name}"])
        averages = [alone.state[f"optimizer.ema.{number}"] for number in range(4)]
        assert any(np.array_equal(saved[name].numpy(), average) for average in averages)


@pytest.mark.integration
def test_the_rates_are_recorded(alone) -> None:
    last_steps = [min(STEPS_OF_EPOCH * epoch, STEPS) - 1 for epoch in range(1, 5)]
    expected = [cosine(step) for step in last_steps]
    assert [row["learning_rate"] for row in alone.result["history"]] == pytest.approx(expected, rel=1e-12)
    (process,) = alone.processes
    for event in process.of_kind("progress"):
        step = (event["epoch"] - 1) * STEPS_OF_EPOCH + event["step"] - 1
        assert event["learning_rate"] == pytest.approx(cosine(step), rel=1e-12)


SMALL = {"batch_size": 11, "accumulate": 2}


@pytest.mark.integration
@pytest.mark.parametrize(("strategy", "workers", "implementation", "hosts"), [
    ("single", 1, "velodrome", 1), ("ddp", 2, "velodrome", 1), ("allreduce", 3, "velodrome", 1),
    ("allreduce", 2, "velodrome", 2), ("ddp", 3, "stock", 1),
    *(pytest.param(*row, marks=pytest.mark.slow) for row in (
        ("single", 1, "stock", 1), ("ddp", 3, "velodrome", 1), ("allreduce", 2, "velodrome", 1),
        ("allreduce", 3, "stock", 1), ("ddp", 2, "stock", 1))),
])
def test_smaller_batches_that_are_added_up_are_the_larger_batch(
    alone, data, tmp_path, strategy, workers, implementation, hosts
) -> None:
    wanted = job(**SMALL, strategy=strategy, workers=workers, implementation=implementation)
    places = [f"127.0.0.{2 + host}" for host in range(hosts)] if hosts > 1 else None
    ran = run(wanted, data, tmp_path, hosts=places)
    assert largest_difference(ran.state, alone.state, "model.") < 1e-9
    assert ran.result["steps"] == STEPS
    assert ran.result["test"]["loss_sum"] == pytest.approx(alone.result["test"]["loss_sum"], abs=1e-9)
    assert ran.result["test_answers"] == alone.result["test_answers"]
    assert ran.result["history"][-1]["train_loss"] == pytest.approx(alone.result["history"][-1]["train_loss"], abs=1e-9)


@pytest.mark.integration
@pytest.mark.parametrize(("strategy", "workers"), [("single", 1), ("ddp", 2)])
def test_rows_of_a_text_are_added_up_too(tmp_path, strategy, workers) -> None:
    text = write_text(tmp_path / "text.npz")
    asked = {"model": "lstm-small", "dtype": "float64", "optimizer": "momentum", "nesterov": True, "learning_rate": 0.1,
             "weight_decay": 0.01, "unroll": 5, "steps": 6, "epochs": 2, "schedule": "linear"}
    whole = run(Job(**asked, batch_size=6), text, tmp_path / "whole")
    parts = run(Job(**asked, batch_size=2, accumulate=3, strategy=strategy, workers=workers), text, tmp_path / "parts")
    assert largest_difference(whole.state, parts.state, "model.") < 1e-9
    assert parts.result["test"]["loss_sum"] == pytest.approx(whole.result["test"]["loss_sum"], rel=1e-9)


OWN = {"optimizer": "torch_nets:make_optimizer", "weight_decay": None, "learning_rate": None, "label_smoothing": 0.0}


@pytest.mark.integration
@pytest.mark.parametrize(("strategy", "workers"), [("single", 1), ("ddp", 2), ("allreduce", 2)])
def test_an_optimizer_of_ones_own_is_used_as_it_is(data, tmp_path, strategy, workers) -> None:
    import torch_nets

    ran = run(job(**OWN, strategy=strategy, workers=workers, schedule="constant", warmup=None), data, tmp_path)
    model, _ = trained_by_hand(data, lambda given: torch_nets.make_optimizer(list(given)), lambda step: 1.0)
    assert difference(ran, model) < 1e-9
    used = ran.result["implementation"]
    assert "your optimizer torch_nets:make_optimizer" in used["framework"]
    assert used["path"] == ("mpi" if strategy == "allreduce" else None)


@pytest.mark.integration
def test_a_schedule_multiplies_the_rates_of_ones_own_optimizer(data, tmp_path) -> None:
    import torch_nets

    ran = run(job(**OWN), data, tmp_path)
    model, _ = trained_by_hand(
        data, lambda given: torch_nets.make_optimizer(list(given)), lambda step: cosine(step, rate=1.0)
    )
    assert difference(ran, model) < 1e-9


@pytest.mark.integration
@pytest.mark.parametrize("asked", [{"strategy": "allreduce", "workers": 2, **SMALL}, {"strategy": "single", **OWN}])
def test_a_resumed_run_ends_with_the_weights_of_an_undisturbed_one(data, tmp_path, asked) -> None:
    wanted = job(**(asked | {"steps": None, "epochs": 4, "schedule": "step", "milestones": "6,12"}))
    whole = run(wanted, data, tmp_path / "whole")
    run(wanted.model_copy(update={"epochs": 2}), data, tmp_path / "parts")
    parts = run(wanted, data, tmp_path / "parts", resume=True)
    assert largest_difference(whole.state, parts.state) == 0
    assert whole.result["test"] == parts.result["test"]


@pytest.mark.integration
@pytest.mark.parametrize(("name", "reason"), [
    ("torch_nets:no_optimizer", "returned 'str': --engine torch needs a torch.optim.Optimizer"),
    ("torch_nets:many_losses", "computes the loss several times in a step"),
    ("torch_nets:nowhere", "has no 'nowhere'"),
])
def test_what_is_no_usable_optimizer_is_refused(data, tmp_path, name, reason) -> None:
    ran = run(job(**OWN | {"optimizer": name}), data, tmp_path, good=False)
    (process,) = ran.processes
    assert process.code == 2
    assert reason in process.of_kind("error")[0]["message"]


@pytest.mark.integration
@pytest.mark.parametrize(("strategy", "workers"), [("single", 1), ("allreduce", 2)])
def test_bfloat16_is_close_to_float32_and_keeps_float32_weights(data, tmp_path, strategy, workers) -> None:
    asked = {"strategy": strategy, "workers": workers, "steps": None, "epochs": 8, "optimizer": "sgd",
             "weight_decay": None, "ema": None}
    exact = run(job(**asked, dtype="float32"), data, tmp_path / "float32")
    mixed = run(job(**asked, dtype="bfloat16"), data, tmp_path / "bfloat16")
    assert {value.dtype for name, value in mixed.state.items() if name.startswith("model.")} == {np.dtype("float32")}
    apart = largest_difference(exact.state, mixed.state, "model.")
    assert 1e-6 < apart < 0.01, "it computes in another format, and nearly the same"
    assert abs(exact.result["test"]["correct"] - mixed.result["test"]["correct"]) <= 3
    assert "autocast" in (mixed.folder / "model" / "README.md").read_text()


def start_from(data: Path, folder: Path, file: Path, **changes) -> Ran:
    """Train a single step, so small that the weights are those of the file."""
    asked = {"weights": str(file), "steps": 1, "epochs": 1, "optimizer": "sgd", "weight_decay": None, "ema": None,
             "learning_rate": 1e-12}
    return run(job(**(asked | changes)), data, folder, good=False)


@pytest.mark.integration
@pytest.mark.parametrize(("strategy", "workers"), [("single", 1), ("allreduce", 2)])
def test_a_job_starts_from_the_weights_of_a_file(alone, data, tmp_path, strategy, workers) -> None:
    from safetensors.torch import load_file

    file = alone.folder / "model" / "model.safetensors"
    ran = start_from(data, tmp_path, file, strategy=strategy, workers=workers, seed=2)
    saved = load_file(file)
    for name, value in saved.items():
        assert np.abs(ran.state[f"model.{name}"] - value.numpy()).max() < 1e-9
    assert not [event for process in ran.processes for event in process.of_kind("warning")]


@pytest.mark.integration
def test_what_does_not_match_is_listed_and_the_rest_is_loaded(alone, data, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    first, second, third, fourth = names = sorted(load_file(alone.folder / "model" / "model.safetensors"))
    saved = load_file(alone.folder / "model" / "model.safetensors")
    saved[second] = torch.zeros(3, 3)
    saved["head.extra"] = saved.pop(fourth)
    save_file(saved, tmp_path / "other.safetensors")
    ran = start_from(data, tmp_path / "run", tmp_path / "other.safetensors")
    (message,) = [event["message"] for process in ran.processes for event in process.of_kind("warning")]
    assert f"2 of the model's {len(names)} tensors were loaded" in message
    assert f"missing in the file: {fourth}" in message
    assert "unexpected in the file: head.extra" in message
    assert f"of another shape: {second} (3×3 instead of " in message
    for name in (first, third):
        assert np.abs(ran.state[f"model.{name}"] - saved[name].numpy()).max() < 1e-9


@pytest.mark.integration
def test_a_file_of_which_nothing_matches_is_refused(data, tmp_path) -> None:
    from safetensors.torch import save_file

    save_file({"another": torch.zeros(2)}, tmp_path / "other.safetensors")
    (tmp_path / "garbled.safetensors").write_bytes(b"no tensors at all")
    for name, reason in (("other", "none of its 1 tensors fits"), ("garbled", "is not a safetensors file")):
        (process,) = start_from(data, tmp_path / "run", tmp_path / f"{name}.safetensors").processes
        assert process.code == 2
        assert reason in process.of_kind("error")[0]["message"]
