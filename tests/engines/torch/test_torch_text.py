"""A language model trains with PyTorch as the textbook says, and under every strategy as in one process."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import largest_difference, loading_code, run, write_text
from driver_process import read_text

from velodrome.job.job import Job

torch = pytest.importorskip("torch")
pytest.importorskip("mpi4py")
pytestmark = pytest.mark.integration

LIMITS = {"float64": 1e-9, "float32": 1e-5}
LEAN = [("ddp", 3, "float64"), ("allreduce", 2, "float32"), ("allreduce", 3, "float64")]
REST = [row for row in product(("ddp", "allreduce"), (1, 2, 3), LIMITS) if row not in LEAN]
ROWS = [*LEAN, *(pytest.param(*row, marks=pytest.mark.slow) for row in REST)]


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """Five steps of seven rows an epoch: rows that no number of workers divides evenly."""
    return write_text(tmp_path_factory.mktemp("text") / "text.npz")


@pytest.fixture(scope="session")
def read(text, tmp_path_factory):
    done = {}

    def call(**asked):
        key = repr(sorted(asked.items()))
        if key not in done:
            usual = {"dataset": "driven", "model": "lstm-small", "batch_size": 7, "unroll": 10, "seed": 3, "epochs": 2,
                     "dtype": "float64"}  # fmt: skip
            done[key] = run(Job(**(usual | asked)), text, tmp_path_factory.mktemp("run"))
        return done[key]

    return call


@pytest.mark.quick("ddp-3-float64", "allreduce-2-float32")
@pytest.mark.parametrize(("strategy", "workers", "dtype"), ROWS)
def test_workers_together_end_with_the_weights_of_one(read, strategy, workers, dtype):
    alone, together = read(dtype=dtype), read(strategy=strategy, workers=workers, dtype=dtype)
    assert together.result["steps"] == 10
    assert largest_difference(alone.state, together.state, "model.") < LIMITS[dtype]
    assert together.result["test"]["total"] == alone.result["test"]["total"]
    assert together.result["test"]["loss_sum"] == pytest.approx(alone.result["test"]["loss_sum"], rel=1e-6)
    for mine, theirs in zip(together.result["history"], alone.result["history"], strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-6)
        assert mine["validation_loss"] == pytest.approx(theirs["validation_loss"], rel=1e-6)


def _gates(kernel, recurrent, bias, inputs, said, cell):
    enter, forget, new, leave = (inputs @ kernel.T + said @ recurrent.T + bias).chunk(4, 1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(leave) * torch.tanh(cell), cell


def _say(weights, words, state):
    """Logits (rows, columns, vocabulary) by the equations of the paper, one word after the other."""
    state, logits = list(state), []
    for column in range(words.shape[1]):
        now = weights["embedding.weight"][words[:, column]]
        for layer in range(2):
            named = [weights[f"lstm.{kind}_l{layer}"] for kind in ("weight_ih", "weight_hh", "bias_ih")]
            now, cell = _gates(*named, now, *state[layer])
            state[layer] = now, cell
        logits.append(now @ weights["softmax.weight"].T + weights["softmax.bias"])
    return torch.stack(logits, 1), state


def test_training_and_perplexity_are_those_of_plain_arithmetic(read, text):
    """Two epochs and the test text as the paper describes them, apart from everything in the engine."""
    from velodrome.models import torch_zoo

    ours, data = read(), read_text(str(text))
    torch.manual_seed(3)
    model = torch_zoo.build_text("lstm-small", len(data.vocabulary)).double()
    weights = {name: value.detach().clone() for name, value in model.named_parameters() if "bias_hh" not in name}
    assert ours.result["parameters"] == sum(value.numel() for value in weights.values())
    length = len(data.train) // 7
    rows = torch.from_numpy(data.train[: length * 7].reshape(7, length)).long()
    zero = torch.zeros(7, 200, dtype=torch.float64)
    clipped = 0
    for _ in range(2):
        state = [(zero, zero)] * 2
        for step in range((length - 1) // 10):
            for value in weights.values():
                value.requires_grad_()
            logits, state = _say(weights, rows[:, 10 * step : 10 * step + 10], state)
            targets = rows[:, 10 * step + 1 : 10 * step + 11]
            loss = -torch.log_softmax(logits, 2).gather(2, targets[:, :, None]).sum() / 7
            gradients = torch.autograd.grad(loss, list(weights.values()))
            norm = float(sum((gradient**2).sum() for gradient in gradients)) ** 0.5
            clipped += norm > 5
            weights = {
                name: value.detach() - gradient * min(1.0, 5 / norm)
                for (name, value), gradient in zip(weights.items(), gradients, strict=True)
            }
            state = [(said.detach(), cell.detach()) for said, cell in state]
    assert clipped, "a gradient was long enough to be shortened"
    for name, value in weights.items():
        assert np.abs(value.numpy() - ours.state[f"model.{name}"]).max() < 1e-9
    test = torch.from_numpy(data.test).long()
    length = -(-(len(test) - 1) // 20)
    loss = 0.0
    for first in range(0, len(test) - 1, length):
        row = test[first : first + length + 1]
        state = [(zero[:1], zero[:1])] * 2
        logits, _ = _say(weights, row[None, :-1], state)
        loss -= float(torch.log_softmax(logits[0], 1).gather(1, row[1:, None]).sum())
    assert ours.result["test"]["total"] == len(test) - 1
    assert ours.result["test"]["loss_sum"] == pytest.approx(loss, rel=1e-9)


@pytest.mark.quick("allreduce")
@pytest.mark.parametrize("strategy", ["single", "allreduce"])
def test_a_resumed_run_ends_with_the_weights_of_an_undisturbed_one(read, text, tmp_path, strategy):
    workers = 1 if strategy == "single" else 2
    usual = {"dataset": "driven", "model": "lstm-small", "batch_size": 7, "unroll": 10, "seed": 3, "dtype": "float64"}
    job = Job(**usual, strategy=strategy, workers=workers, epochs=1)
    run(job, text, tmp_path)
    parts = run(job.model_copy(update={"epochs": 2}), text, tmp_path, resume=True)
    whole = read(strategy=strategy, workers=workers)
    assert largest_difference(whole.state, parts.state) == 0


def test_the_saved_model_says_what_the_trained_one_did(read, text):
    ran, data = read(), read_text(str(text))
    folder = ran.folder / "model"
    assert json.loads((folder / "vocabulary.json").read_text()) == list(data.vocabulary)
    scope = {}
    exec(loading_code(folder), scope)
    model = scope["model"]
    words = torch.from_numpy(data.test[None, :30]).long()
    with torch.no_grad():
        whole, _ = model(words, model.initial_state(1))
        first, memory = model(words[:, :11], model.initial_state(1))
        second, _ = model(words[:, 11:], memory)
    assert whole.shape == (1, 30, len(data.vocabulary))
    assert torch.allclose(whole, torch.cat([first, second], 1), atol=1e-12)


def test_words_that_are_left_out_are_told(read):
    (told,) = read().processes[0].of_kind("warning")
    assert "words are left out in every epoch" in told["message"]
