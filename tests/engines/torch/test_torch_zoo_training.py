"""The larger networks of the zoo train with PyTorch under every strategy as in one process; batch normalisation uses
each worker's own examples, and everything else about it is exact.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import largest_difference, loading_code, run, write_data, write_text
from driver_process import read_data, read_text

from velodrome.job.job import Job
from velodrome.tasks.schedule import order_of_epoch

torch = pytest.importorskip("torch")
pytest.importorskip("mpi4py")
pytestmark = pytest.mark.integration

LIMITS = {"float64": 1e-9, "float32": 1e-5}
LEAN = [
    ("gpt-mini", "ddp", 3, "float64"), ("gpt-mini", "allreduce", 2, "float32"),
    ("vgg-small", "ddp", 2, "float32"), ("vgg-small", "allreduce", 3, "float64"),
]
REST = [
    row for row in product(("gpt-mini", "vgg-small"), ("ddp", "allreduce"), (1, 2, 3), LIMITS) if row not in LEAN
]
ROWS = [*LEAN, *(pytest.param(*row, marks=pytest.mark.slow) for row in REST)]


@pytest.fixture(scope="session")
def train(tmp_path_factory):
    """Train a job once a session: images in four steps of 30, the last with one example, or a text in five of seven
    rows."""
    folder = tmp_path_factory.mktemp("zoo")
    images, text = write_data(folder / "images.npz", examples=91), write_text(folder / "text.npz")
    done = {}

    def call(model, **asked):
        key = repr((model, sorted(asked.items())))
        if key not in done:
            reads = {"batch_size": 7, "unroll": 10} if model == "gpt-mini" else {
                "batch_size": 30, "weight_decay": 0.0, "schedule": "constant"}
            usual = {"dataset": "driven", "seed": 3, "epochs": 2, "optimizer": "momentum", "learning_rate": 0.005,
                     "dtype": "float64"} | reads  # fmt: skip
            data = text if model == "gpt-mini" else images
            done[key] = run(Job(model=model, **(usual | asked)), data, tmp_path_factory.mktemp("run"))
        return done[key]

    call.images, call.text = images, text
    return call


@pytest.fixture(autouse=True)
def _one_thread():
    """The references compute in this process: with one thread they do not suffer from what else runs here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.quick("vgg-small-ddp-*", "gpt-mini-allreduce-*")
@pytest.mark.parametrize(("model", "strategy", "workers", "dtype"), ROWS)
def test_workers_together_end_with_the_weights_of_one(train, model, strategy, workers, dtype):
    alone, together = train(model, dtype=dtype), train(model, strategy=strategy, workers=workers, dtype=dtype)
    assert largest_difference(alone.state, together.state, "model.") < LIMITS[dtype]
    assert together.result["test"]["total"] == alone.result["test"]["total"]
    assert together.result["test"]["loss_sum"] == pytest.approx(alone.result["test"]["loss_sum"], rel=1e-6)
    for mine, theirs in zip(together.result["history"], alone.result["history"], strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-6)
        assert mine["validation_loss"] == pytest.approx(theirs["validation_loss"], rel=1e-6)


def normalised_by_worker(images, labels, workers, rate):
    """Two epochs of resnet20 where each of several workers normalises by its own part of a batch: the gradients of all
    parts are summed, and moving statistics averaged after an epoch. Plain autograd, apart from the engine."""
    from velodrome.models import torch_zoo

    torch.manual_seed(3)
    model = torch_zoo.build("resnet20", (1, 8, 8), 10).double()
    buffers = [name for name, value in model.named_buffers() if value.is_floating_point()]
    start = {name: model.state_dict()[name].clone() for name in buffers}
    held = [dict(start) for _ in range(workers)]
    speed = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for epoch in (1, 2):
        for batch in np.split(order_of_epoch(len(labels), 3, epoch), range(30, len(labels), 30)):
            total = [torch.zeros_like(parameter) for parameter in model.parameters()]
            for rank in range(workers):
                mine = batch[rank::workers]
                if not len(mine):
                    continue
                model.load_state_dict(held[rank], strict=False)
                chances = torch.log_softmax(model(images[mine]), 1)
                loss = -chances[torch.arange(len(mine)), labels[mine]].sum() / len(batch)
                for each, gradient in zip(total, torch.autograd.grad(loss, list(model.parameters())), strict=True):
                    each += gradient
                held[rank] = {name: model.state_dict()[name].clone() for name in buffers}
            with torch.no_grad():
                for parameter, gradient, moved in zip(model.parameters(), total, speed, strict=True):
                    parameter -= rate * moved.mul_(0.9).add_(gradient)
        mean = {name: torch.stack([each[name] for each in held]).mean(0) for name in buffers}
        held = [dict(mean) for _ in range(workers)]
    model.load_state_dict(mean, strict=False)
    return {f"model.{name}": value.numpy() for name, value in model.state_dict().items() if "tracked" not in name}


@pytest.mark.quick("ddp-2")
@pytest.mark.parametrize(("strategy", "workers"), [
    ("single", 1), ("ddp", 2), ("allreduce", 2),
    *(pytest.param(name, workers, marks=pytest.mark.slow) for name in ("ddp", "allreduce") for workers in (1, 3)),
])
def test_resnet20_normalises_by_each_workers_own_examples_and_is_exact_otherwise(train, strategy, workers):
    data = read_data(str(train.images)).train
    images = torch.from_numpy(data.images).permute(0, 3, 1, 2).double() / 255
    expected = normalised_by_worker(images, torch.from_numpy(data.labels), workers, 0.005)
    state = train("resnet20", strategy=strategy, workers=workers).state
    assert largest_difference(expected, {name: state[name] for name in expected}) < 1e-9


def test_gpt_mini_reads_the_words_of_a_step_by_themselves(train):
    """Two epochs and the test text, written with autograd apart from the engine: no row knows the step before."""
    from velodrome.models import torch_zoo

    ours, data = train("gpt-mini"), read_text(str(train.text))
    torch.manual_seed(3)
    model = torch_zoo.build_text("gpt-mini", len(data.vocabulary), context=10).double()
    length = len(data.train) // 7
    rows = torch.from_numpy(data.train[: length * 7].reshape(7, length)).long()
    speed = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for _ in range(2):
        for first in range(0, (length - 1) // 10 * 10, 10):
            chances = torch.log_softmax(model(rows[:, first : first + 10]), 2)
            loss = -chances.gather(2, rows[:, first + 1 : first + 11, None]).sum() / 7
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient, moved in zip(model.parameters(), gradients, speed, strict=True):
                    parameter -= 0.005 * moved.mul_(0.9).add_(gradient)
    for name, value in model.named_parameters():
        assert np.abs(value.detach().numpy() - ours.state[f"model.{name}"]).max() < 1e-9, name
    test = torch.from_numpy(data.test).long()
    length, loss = -(-(len(test) - 1) // 20), 0.0
    for begin in range(0, len(test) - 1, length):
        row = test[begin : begin + length + 1]
        for first in range(0, len(row) - 1, 10):
            chances = torch.log_softmax(model(row[None, first : min(first + 10, len(row) - 1)])[0].detach(), 1)
            loss -= float(chances.gather(1, row[first + 1 : first + 11, None]).sum())
    assert ours.result["test"]["total"] == len(test) - 1
    assert ours.result["test"]["loss_sum"] == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize("model", ["gpt-mini", "resnet20"])
def test_a_saved_model_loads_as_its_recipe_says(train, model):
    ran, scope = train(model), {}
    exec(loading_code(ran.folder / "model"), scope)
    loaded = scope["model"]
    for name, value in loaded.state_dict().items():
        assert np.array_equal(value.numpy(), ran.state[f"model.{name}"]), name
    if model == "gpt-mini":
        assert "at most 10 words" in (ran.folder / "model" / "README.md").read_text()
        assert loaded(torch.zeros(2, 10, dtype=torch.int64)).shape == (2, 10, 30)


def test_a_resumed_gpt_ends_with_the_weights_of_an_undisturbed_one(train, tmp_path):
    usual = {"dataset": "driven", "model": "gpt-mini", "batch_size": 7, "unroll": 10, "seed": 3, "dtype": "float64",
             "optimizer": "momentum", "learning_rate": 0.005}  # fmt: skip
    run(Job(**usual, epochs=1), train.text, tmp_path)
    parts = run(Job(**usual, epochs=2), train.text, tmp_path, resume=True)
    assert largest_difference(train("gpt-mini").state, parts.state) == 0


def test_gpt_mini_learns_what_no_bigram_can(tmp_path):
    """A text in which a word is most often the one before the last, of which the last says nothing."""
    random, words = np.random.default_rng(1), [0, 1]
    while len(words) < 9_000:
        words.append(int(random.integers(0, 16)) if random.random() < 0.2 else words[-2])
    text = np.array(words, np.int32)
    np.savez(tmp_path / "text.npz", vocabulary=[f"word{n}" for n in range(16)], train=text[:8_000],
             validation=text[8_000:8_500], test=text[8_500:])  # fmt: skip
    sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
    from ngrams import baselines

    wanted = Job(dataset="driven", model="gpt-mini", batch_size=10, unroll=16, epochs=2, seed=1, learning_rate=0.003)
    test = run(wanted, tmp_path / "text.npz", tmp_path / "run").result["test"]
    perplexity = float(np.exp(test["loss_sum"] / test["total"]))
    worse = baselines(text[:8_000], text[8_500:], 16)
    assert perplexity < 0.7 * worse["bigram"]
    assert perplexity < 0.7 * worse["unigram"]
