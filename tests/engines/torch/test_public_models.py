"""Models as their authors publish them train unmodified under several strategies; what is not promised is stated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import Ran, largest_difference, run, write_data

from velodrome.job.job import Job

torch = pytest.importorskip("torch")
pytest.importorskip("mpi4py")
pytestmark = pytest.mark.integration

slow = pytest.mark.slow
WORKERS = {"single": 1, "ddp": 2, "allreduce": 2}


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Train a public model for some steps on two uneven parts of a batch; equal requests are trained once."""
    data = write_data(tmp_path_factory.mktemp("data") / "data.npz")
    done: dict[str, Ran] = {}

    def call(kind: str, strategy: str, **changes: Any) -> Ran:
        arguments = changes.pop("arguments", {})
        asked = {"model": "torch_public:build", "model_args": {"kind": kind, **arguments}, "strategy": strategy,
                 "workers": WORKERS[strategy], "batch_size": 23, "steps": 10, "epochs": 4, "optimizer": "momentum",
                 "dtype": "float64", **changes}
        key = repr(asked)
        if key not in done:
            done[key] = run(Job(**asked), data, tmp_path_factory.mktemp("run"))
        return done[key]

    call.data = data
    return call


def warnings(ran: Ran) -> list[str]:
    return [event["message"] for process in ran.processes for event in process.of_kind("warning")]


#: Each model under one process and two; the other way to distribute it is slow.
INSIDE = [
    pytest.param("digits", {"dropout": 0.0}, "ddp", id="log-probabilities-ddp"),
    pytest.param("digits", {"dropout": 0.0}, "allreduce", id="log-probabilities-allreduce", marks=slow),
    pytest.param("vit", {}, "allreduce", id="vision-transformer-allreduce"),
    pytest.param("vit", {}, "ddp", id="vision-transformer-ddp", marks=slow),
    pytest.param("tied", {}, "allreduce", id="tied-weights-allreduce"),
    pytest.param("tied", {}, "ddp", id="tied-weights-ddp", marks=slow),
    pytest.param("fine-tuned", {}, "allreduce", id="without-gradients-allreduce"),
    pytest.param("fine-tuned", {}, "ddp", id="without-gradients-ddp", marks=slow),
    pytest.param("constants", {}, "allreduce", id="constant-buffers-allreduce"),
    pytest.param("constants", {}, "ddp", id="constant-buffers-ddp", marks=slow),
    pytest.param("packed", {"form": "dictionary"}, "ddp", id="dictionary-ddp"),
    pytest.param("packed", {"form": "dictionary"}, "allreduce", id="dictionary-allreduce", marks=slow),
    pytest.param("packed", {"form": "tuple"}, "allreduce", id="tuple-allreduce"),
    pytest.param("packed", {"form": "tuple"}, "ddp", id="tuple-ddp", marks=slow),
    pytest.param("packed", {"form": "object"}, "ddp", id="object-ddp"),
    pytest.param("packed", {"form": "object"}, "allreduce", id="object-allreduce", marks=slow),
    pytest.param("auxiliary", {}, "ddp", id="auxiliary-outputs-ddp"),
    pytest.param("auxiliary", {}, "allreduce", id="auxiliary-outputs-allreduce", marks=slow),
    pytest.param("packed", {"form": "softmax"}, "ddp", id="softmax-in-dictionary", marks=slow),
]


@pytest.mark.quick(
    "dictionary-ddp", "log-probabilities-ddp", "vision-transformer-allreduce", "without-gradients-allreduce",
    "constant-buffers-allreduce", "tied-weights-allreduce",
)
@pytest.mark.parametrize(("kind", "arguments", "strategy"), INSIDE)
def test_two_workers_end_with_the_weights_of_one(train, kind: str, arguments: dict[str, Any], strategy: str) -> None:
    alone, ran = (train(kind, name, arguments=arguments) for name in ("single", strategy))
    assert largest_difference(ran.state, alone.state, "model.") < 1e-9
    assert ran.result["test"]["correct"] == alone.result["test"]["correct"]
    assert not [message for message in warnings(ran) if "guarantee" in message]
    history = ran.result["history"]
    assert history[-1]["train_loss"] < history[0]["train_loss"]


def test_log_probabilities_are_trained_by_their_nll_loss(train) -> None:
    """The same steps with `F.nll_loss` and plain arithmetic, apart from everything in the engine."""
    import torch.nn.functional as functional
    import torch_public

    from velodrome.tasks.schedule import order_of_epoch

    stored = np.load(train.data)
    images = torch.from_numpy(stored["train_images"]).permute(0, 3, 1, 2).double() * float(stored["scale"])
    labels = torch.from_numpy(stored["train_labels"])
    torch.manual_seed(1)
    model = torch_public.build((1, 8, 8), 10, "digits", dropout=0.0).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    batches = [batch for epoch in range(1, 5) for batch in
               torch.from_numpy(order_of_epoch(len(labels), 1, epoch)).split(23)]
    for batch in batches[:10]:
        optimizer.zero_grad()
        functional.nll_loss(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    expected = {f"model.{name}": value.detach().numpy() for name, value in model.state_dict().items()}
    assert largest_difference(train("digits", "single", arguments={"dropout": 0.0}).state, expected, "model.") < 1e-12


OUTSIDE = [
    pytest.param("resnet", ["batch normalisation"], "ddp", id="residual-ddp"),
    pytest.param("resnet", ["batch normalisation"], "allreduce", id="residual-allreduce"),
    pytest.param("digits", ["random numbers"], "allreduce", id="dropout-allreduce"),
    pytest.param("digits", ["random numbers"], "ddp", id="dropout-ddp", marks=slow),
]


@pytest.mark.parametrize(("kind", "reasons", "strategy"), OUTSIDE)
def test_what_is_outside_the_promise_trains_and_is_stated_once(
    train, kind: str, reasons: list[str], strategy: str
) -> None:
    ran = train(kind, strategy, dtype="float32")
    (message,) = [one for one in warnings(ran) if "guarantee" in one]
    assert all(reason in message for reason in reasons)
    assert ("random numbers" in message) == ("random numbers" in reasons)
    history = ran.result["history"]
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    assert ran.result["test"]["total"] == 31


def test_one_worker_is_promised_nothing_and_warned_of_nothing(train) -> None:
    assert warnings(train("resnet", "single", dtype="float32")) == []


def test_parameters_without_a_gradient_and_constants_stay_as_they_are(train) -> None:
    import torch_public

    kept = {"fine-tuned": ("backbone.1.weight", "old_head.weight"), "constants": ("mean", "table", "gain")}
    for kind, names in kept.items():
        torch.manual_seed(1)
        fresh = torch_public.build((1, 8, 8), 10, kind).double().state_dict()
        trained = train(kind, "allreduce").state
        for name in names:
            np.testing.assert_array_equal(trained[f"model.{name}"], fresh[name].numpy(), name)
    assert "model.position_ids" not in train("constants", "allreduce").state


def test_auxiliary_classifiers_are_left_alone_with_a_warning(train) -> None:
    import torch_public

    torch.manual_seed(1)
    fresh = torch_public.build((1, 8, 8), 10, "auxiliary").double().state_dict()
    ran = train("auxiliary", "ddp")
    (message,) = warnings(ran)
    assert "has auxiliary outputs in training" in message
    np.testing.assert_array_equal(ran.state["model.aux1.weight"], fresh["aux1.weight"].numpy())
    assert np.abs(ran.state["model.fc.weight"] - fresh["fc.weight"].numpy()).max() > 0


def test_tied_weights_stay_tied_and_are_saved_and_loaded(train, monkeypatch: pytest.MonkeyPatch) -> None:
    from velodrome.engines.torch import model_file

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    ran = train("tied", "allreduce")
    np.testing.assert_array_equal(ran.state["model.encoder.weight"], ran.state["model.again.weight"])
    loaded = model_file.load(ran.folder / "model", "torch_public:build")
    assert loaded.again.weight is loaded.encoder.weight


@pytest.mark.parametrize(("kind", "problem"), [
    pytest.param("shape", "size mismatch for 1.weight", id="other-shapes"),
    pytest.param("function", "it computes something else after loading", id="other-function"),
])
def test_a_model_that_cannot_be_loaded_again_is_reported_before_training(train, tmp_path, kind, problem) -> None:
    asked = Job(model="torch_public:changing", model_args={"kind": kind}, epochs=1)
    (process,) = run(asked, train.data, tmp_path).processes
    (message,) = [event["message"] for event in process.of_kind("warning")]
    assert "'torch_public:changing' could not be loaded after saving it (" in message
    assert problem in message
    kinds = [event["kind"] for event in process.events]
    assert kinds.index("warning") < kinds.index("progress")
