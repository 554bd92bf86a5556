"""Whatever a user's model ends in, the loss is PyTorch's own, in value and gradient, also of unlikely classes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny import tiny_splits

from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.tasks.supervised import Classification

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.unit

CPU = torch.device("cpu")
SOFTMAX = (
    "module", "nested", "wrapped", "functional", "torch-softmax", "method", "named", "convolutional", "indexed",
    "transposed", "cloned", "exponential",
)


@pytest.fixture(autouse=True)
def _nets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def network(end: str, **changes: object):
    from velodrome.engines.torch.network import build

    job = resolve(Job(model="torch_endings:build", model_args={"end": end}, batch_size=16, **changes))
    return build(job, tiny_splits(), Classification(), CPU)


def batch(dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    data = tiny_splits().train
    images = torch.from_numpy(data.images.transpose(0, 3, 1, 2) / 255.0).to(dtype)
    return images, torch.from_numpy(data.labels)


def make_certain(model: torch.nn.Module, factor: float = 400.0) -> torch.nn.Linear:
    """Make the layer so large that most classes have a probability below the smallest number; the layer."""
    (layer,) = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    with torch.no_grad():
        layer.weight.mul_(factor)
    return layer


def compare(end: str, expected: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *, training: bool = True) -> None:
    """Loss and gradient of the network are those of a function of what its layer returns."""
    built = network(end)
    layer = make_certain(built.model)
    images, labels = batch()
    loss = built.module.train(training)({"x": images}, {"y": labels})
    gradient = torch.autograd.grad(loss, list(layer.parameters()))
    reference = expected(layer(images.flatten(1)), labels)
    theirs = torch.autograd.grad(reference, list(layer.parameters()))
    assert float(loss.detach()) == pytest.approx(float(reference.detach()), rel=1e-6)
    for one, other in zip(gradient, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("end", [*SOFTMAX, "in-evaluation", "in-training", "inner-softmax", "log-softmax", "logits"])
def test_the_loss_is_the_cross_entropy_of_the_logits(end: str, training: bool) -> None:
    compare(end, cross_entropy, training=training)


def test_some_of_these_examples_have_a_probability_that_rounds_to_zero() -> None:
    built = network("module")
    make_certain(built.model)
    images, labels = batch()
    probabilities = built.model(images).gather(1, labels[:, None])
    assert (probabilities == 0).any()


@pytest.mark.parametrize(("end", "applied"), [
    ("sigmoid", torch.sigmoid),
    ("scaled", lambda logits: logits.softmax(1) * 3),
    ("over-examples", lambda logits: logits.softmax(0)),
])
def test_what_only_looks_like_a_softmax_is_taken_as_it_is(end: str, applied) -> None:
    compare(end, lambda logits, labels: cross_entropy(applied(logits), labels))


def test_a_layer_after_the_softmax_gives_the_logits() -> None:
    built = network("softmax-then-linear")
    images, _ = batch()
    assert built.module.model is built.model
    torch.testing.assert_close(built.module.model(images), built.model(images))


def test_log_probabilities_of_the_users_own_are_logits() -> None:
    built = network("logarithm")
    images, labels = batch()
    expected = torch.nn.functional.nll_loss(built.model(images), labels, reduction="sum")
    torch.testing.assert_close(built.module({"x": images}, {"y": labels}), expected)


@pytest.mark.quick("scripted", "hand-written")
@pytest.mark.parametrize("end", ["hand-written", "scripted", "compiled"])
def test_probabilities_without_a_softmax_to_look_into_are_exact_down_to_the_smallest_number_with_a_warning(
    end: str,
) -> None:
    built = network(end)
    (note,) = built.notes
    assert "return logits" in note
    images, labels = batch()
    (weight,) = [value for name, value in built.model.named_parameters() if name.endswith("weight")]
    with torch.no_grad():
        weight.mul_(30)
    probabilities = built.model(images).gather(1, labels[:, None])
    assert float(probabilities.detach().min()) < 1e-9  # far below where a clipped loss ends
    loss = built.module({"x": images}, {"y": labels})
    bias = next(value for name, value in built.model.named_parameters() if name.endswith("bias"))
    reference = cross_entropy(torch.nn.functional.linear(images.flatten(1), weight, bias), labels)
    assert float(loss.detach()) == pytest.approx(float(reference.detach()), rel=1e-5)
    ours, theirs = (torch.autograd.grad(each, weight)[0] for each in (loss, reference))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def test_a_sigmoid_is_taken_for_logits_with_a_warning() -> None:
    (note,) = network("sigmoid").notes
    assert "ends in a sigmoid" in note


@pytest.mark.parametrize("end", [*SOFTMAX, "log-softmax", "logits", "in-evaluation"])
def test_an_exact_loss_needs_no_warning(end: str) -> None:
    assert network(end).notes == ()


def test_the_saved_model_still_returns_probabilities() -> None:
    built = network("wrapped")
    images, _ = batch()
    torch.testing.assert_close(built.model(images).sum(1), torch.ones(len(images)))
    assert built.saved_as["outputs"] == "softmax"
    assert all(name.startswith("inner.inner.") for name in built.model.state_dict())
