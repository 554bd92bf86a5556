"""A user's model is tried on the job's own batches before training, in both modes, and is the same afterwards."""

from __future__ import annotations

import random
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny import tiny_splits

from velodrome.errors import BadRequest, UsersCodeFailed
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.models.own import users_traceback
from velodrome.tasks.supervised import Classification

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.unit

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _nets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def network(kind: str, examples: int = 40, size: int = 16, **changes: Any) -> Any:
    from velodrome.engines.torch.network import build

    asked = {"model": "torch_trials:build", "model_args": {"kind": kind, "size": size}, "batch_size": 16, **changes}
    return build(resolve(Job(**asked)), tiny_splits(examples), Classification(), CPU)


@pytest.mark.parametrize(("kind", "sentence"), [
    ("tuple", "returns a tuple of 2 in training, and one tensor of logits is needed: turn its auxiliary outputs off"),
    ("named", "returns a tuple of 2 (Outputs) in training"),
    ("dictionary", "returns a dict with the keys 'out', 'aux', and one tensor of logits is needed"),
    ("detached", "cannot be trained: what it returns does not depend on a parameter"),
    ("library", "cannot be trained on images of shape (1, 8, 8) in a batch of 16: mat1 and mat2 shapes cannot be"),
])
def test_a_model_that_cannot_be_trained_is_refused_with_its_cause(kind: str, sentence: str) -> None:
    with pytest.raises(BadRequest) as refused:
        network(kind)
    assert str(refused.value).startswith("model 'torch_trials:build' ")
    assert sentence in str(refused.value)


def test_the_users_own_mistake_in_training_passes_through() -> None:
    with pytest.raises(RuntimeError, match="a mistake of the user's") as raised:
        network("mistake")
    assert "torch_trials.py" in (users_traceback(raised.value) or "")


@pytest.mark.parametrize("kind", ["fixed-batch", "own-check"])
def test_a_model_for_one_size_of_batch_is_refused_where_an_epoch_ends_with_another(kind: str) -> None:
    with pytest.raises(BadRequest) as refused:
        network(kind)
    assert "trains on batches of 16 and not on one of 8, which the end of an epoch has: " in str(refused.value)
    assert "choose a --batch-size that divides the 40 training examples" in str(refused.value)
    assert "torch_trials.py, line" in str(refused.value)


@pytest.mark.parametrize("job", [{"examples": 48}, {"steps": 2}], ids=["divides", "steps"])
def test_it_is_trained_where_none_does_and_evaluated_in_batches_of_that_size(job: dict[str, int]) -> None:
    built = network("fixed-batch", **job)
    images = torch.rand(37, 1, 8, 8)
    outputs = built.module.model.eval()(images)
    torch.testing.assert_close(outputs, built.model.layer(images.flatten(1)))


def test_a_model_whose_batch_is_not_the_jobs_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"cannot take images of shape \(1, 8, 8\) in a batch of 16: shape '\[5, "):
        network("fixed-batch", size=5)


@pytest.mark.parametrize(("workers", "sizes"), [(1, "16 and not on one of 8"), (3, "6 and not on one of 2")])
def test_the_sizes_are_those_of_a_worker(workers: int, sizes: str) -> None:
    from velodrome.engines.torch.network import build

    asked = {"model": "torch_trials:build", "batch_size": 16, "workers": workers,
             "strategy": "single" if workers == 1 else "ddp"}
    first = int(sizes.partition(" ")[0])
    with pytest.raises(BadRequest, match=f"trains on batches of {sizes}" if workers == 1 else "not on one of"):
        build(resolve(Job(**asked, model_args={"kind": "own-check", "size": first})), tiny_splits(), Classification(),
              CPU)


@pytest.mark.parametrize("kind", ["batch-norm", "functional-norm"])
def test_batch_normalisation_of_one_example_is_padded(kind: str) -> None:
    assert network(kind, examples=33).objective.minimum_batch == 2
    if kind == "functional-norm":
        assert network(kind, examples=32).objective.minimum_batch == 1


@pytest.mark.parametrize("kind", ["changes", "uncopyable"])
def test_the_trial_leaves_weights_statistics_and_random_numbers_as_they_were(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from velodrome.engines.torch import trial

    def drawn() -> tuple[float, ...]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    tried = network(kind)
    after = drawn()
    monkeypatch.setattr(trial.TorchTrial, "examine", lambda *_, **__: trial.Findings("logits", "logits", 1, None))
    plain = network(kind)
    assert after == drawn()
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, tried.model.state_dict()[name]), name
    assert tried.model.training
    assert all(parameter.grad is None for parameter in tried.model.parameters())
    if kind == "changes":
        assert tried.model.calls == 0


def test_lazy_layers_get_their_shape_and_the_weights_of_the_seed() -> None:
    from velodrome.engines.torch.network import build

    made = [build(resolve(Job(model="torch_trials:lazy", batch_size=16)), tiny_splits(), Classification(), CPU)
            for _ in range(2)]
    weights = [network.model[1].weight for network in made]
    assert weights[0].shape == (10, 64)
    assert torch.equal(*weights)


def test_a_network_for_other_images_is_refused_in_one_sentence_without_a_traceback() -> None:
    from velodrome.engines.torch.network import build

    with pytest.raises(BadRequest) as refused:
        build(resolve(Job(model="torch_trials:lenet_for_28", batch_size=16)), tiny_splits(), Classification(), CPU)
    assert str(refused.value).startswith(
        "model 'torch_trials:lenet_for_28' cannot take images of shape (1, 8, 8) in a batch of 16: mat1 and mat2"
    )
    lines = traceback.extract_tb(refused.value.__traceback__)
    assert not any("nn/modules" in line.filename for line in lines)  # it would end in the sentence once more


def test_layers_of_the_users_that_do_not_fit_are_refused_with_the_users_own_lines() -> None:
    from velodrome.engines.torch.network import build

    with pytest.raises(UsersCodeFailed, match=r"mat1 and mat2 shapes .* \(torch_trials.py, line \d+\)") as refused:
        build(resolve(Job(model="torch_trials:misfit", batch_size=16)), tiny_splits(), Classification(), CPU)
    assert refused.value.__cause__ is not None
    assert "return self.second(self.first(images.flatten(1)))" in (users_traceback(refused.value.__cause__) or "")


@pytest.mark.parametrize("model", ["of_keras", "of_keras_that_fails"])
def test_a_keras_model_is_refused_as_such(model: str) -> None:
    pytest.importorskip("keras")
    from velodrome.engines.torch.network import build

    with pytest.raises(BadRequest) as refused:
        build(resolve(Job(model=f"torch_trials:{model}", batch_size=16)), tiny_splits(), Classification(), CPU)
    assert "a Keras model" in str(refused.value)
    assert str(refused.value).endswith("--engine torch needs a torch.nn.Module: choose --engine tensorflow")
