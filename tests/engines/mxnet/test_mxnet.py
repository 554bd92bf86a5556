"""MXNet trains in its own environment: equal to PyTorch for equal weights, and its servers equal to one process."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from velodrome.clusters import environments

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "servers"), str(ROOT / "tests" / "engines")]
import mxnet_environment  # noqa: E402
from command import (  # noqa: E402
    DENSE,
    Train,
    difference,
    errors_after_hurting,
    resumed_after,
    trainer,
    weights_of,
    write_photos,
    write_words,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(mxnet_environment.unavailable()), reason=mxnet_environment.unavailable() or "it can"),
]


@pytest.fixture(scope="module", autouse=True)
def _current() -> None:
    mxnet_environment.prepare()


@pytest.fixture
def variables() -> dict[str, str]:
    return {**os.environ, environments.FOLDER: str(mxnet_environment.HOME)}


@pytest.fixture
def train(tmp_path: Path, variables: dict[str, str]) -> Train:
    return trainer(tmp_path, variables)


#: A momentum of 0.9 is a number of 32 bits to MXNet's kernels, and its servers sum in 32 bits.
ROUNDING = 1e-6


def test_with_equal_weights_it_learns_what_pytorch_learns(train: Train) -> None:
    weights = weights_of(train(*DENSE, "--engine", "mxnet", "--steps", 1))
    ours = train(*DENSE, "--engine", "mxnet", "--weights", weights)
    theirs = train(*DENSE, "--engine", "torch", "--weights", weights)
    assert difference(ours, theirs) < ROUNDING
    assert ours["test"]["correct"] == theirs["test"]["correct"]
    assert ours["history"][0]["train_accuracy"] == theirs["history"][0]["train_accuracy"] > 0.1
    assert ours["history"][0]["train_loss"] == pytest.approx(theirs["history"][0]["train_loss"], rel=1e-5)


def test_workers_and_servers_under_bsp_end_with_the_weights_of_one_process(train: Train) -> None:
    one = train(*DENSE, "--engine", "mxnet")
    several = train(*DENSE, "--engine", "mxnet", "--strategy", "kvstore", "--workers", 3, "--servers", 2)
    assert difference(one, several) < ROUNDING
    assert several["test"]["correct"] == one["test"]["correct"]
    assert several["history"][0]["train_accuracy"] == one["history"][0]["train_accuracy"]
    assert several["consistency"] == "bsp"
    assert sorted({node["role"] for node in several["nodes"]}) == ["scheduler", "server", "worker"]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "words"), [
    pytest.param("lenet5", ("--dataset", "fashion-mnist", "--steps", 5, "--batch-size", 64), marks=pytest.mark.skipif(
        "VELODROME_DATA_MIRROR" not in os.environ, reason="no mirror of data sets beside the checkout")),
    ("dense-300-100", ("--dataset", "digits", "--steps", 20)),
    ("linear", ("--dataset", "digits", "--steps", 20)),
    ("vgg-small", ("--dataset", "digits", "--steps", 5, "--batch-size", 64)),
    ("lstm-small", ("--dataset", "text:words.txt", "--steps", 6, "--batch-size", 8, "--unroll", 10)),
])
def test_every_network_computes_what_pytorch_computes(
    train: Train, tmp_path: Path, model: str, words: tuple[object, ...]
) -> None:
    write_words(tmp_path)
    job = ("--model", model, "--dtype", "float64", "--optimizer", "sgd", *words)
    weights = weights_of(train(*job, "--engine", "mxnet", "--steps", 1))
    ours = train(*job, "--engine", "mxnet", "--weights", weights)
    theirs = train(*job, "--engine", "torch", "--weights", weights)
    several = train(*job, "--engine", "mxnet", "--strategy", "kvstore", "--workers", 2, "--weights", weights)
    assert difference(ours, theirs) < ROUNDING
    assert difference(ours, several) < ROUNDING
    assert ours["test"]["loss"] == pytest.approx(theirs["test"]["loss"], rel=1e-6)
    assert ours["history"][0]["train_loss"] == pytest.approx(theirs["history"][0]["train_loss"], rel=1e-6)


@pytest.mark.slow
def test_the_network_for_photos_answers_as_pytorchs_for_equal_weights(train: Train, tmp_path: Path) -> None:
    write_photos(tmp_path)
    job = ("--dataset", "path:photos.npz", "--model", "fruit-cnn", "--dtype", "float64", "--optimizer", "sgd",
           "--validation", 0, "--batch-size", 16)
    trained = train(*job, "--engine", "mxnet", "--steps", 8, "--learning-rate", "0.1")
    weights = weights_of(trained)
    # It changes its training images at random, so it is compared after a step that is too small to matter.
    still = ("--weights", weights, "--steps", 1, "--learning-rate", "1e-12")
    ours, theirs = train(*job, *still, "--engine", "mxnet"), train(*job, *still, "--engine", "torch")
    assert ours["test"]["loss"] == pytest.approx(theirs["test"]["loss"], rel=1e-9)
    assert ours["test"]["loss"] == pytest.approx(trained["test"]["loss"], rel=1e-6)
    assert ours["confusion"] == theirs["confusion"]


@pytest.mark.slow
def test_asynchronous_workers_learn_and_every_example_is_counted_once(train: Train) -> None:
    result = train("--dataset", "digits", "--engine", "mxnet", "--strategy", "kvstore", "--consistency", "asp",
                   "--workers", 2, "--epochs", 10, "--batch-size", 32, "--optimizer", "sgd", "--learning-rate", "0.1")
    assert result["consistency"] == "asp"
    assert result["test"]["accuracy"] > 0.9
    assert result["test"]["total"] == 359
    assert [entry["train_total"] for entry in result["history"] if "train_total" in entry] in ([], [1294] * 10)


@pytest.mark.slow
def test_asynchronous_workers_train_a_model_whose_recipe_has_a_decay_without_it(train: Train, tmp_path: Path) -> None:
    write_words(tmp_path)
    result = train("--dataset", "text:words.txt", "--model", "lstm-small", "--batch-size", 4, "--epochs", 6, "--engine",
                   "mxnet", "--strategy", "kvstore", "--consistency", "asp", "--workers", 2)
    assert [entry["learning_rate"] for entry in result["history"]] == [1.0] * 6
    assert any(warning.startswith("--decay 0.5, by default of model 'lstm-small', is left out")
               for warning in result["warnings"])


@pytest.mark.slow
def test_what_asynchronous_workers_evaluate_is_the_model_that_is_saved(train: Train) -> None:
    job = ("--dataset", "digits", "--model", "dense-128", "--optimizer", "sgd", "--learning-rate", "0.1")
    ours = train(*job, "--engine", "mxnet", "--strategy", "kvstore", "--consistency", "asp", "--workers", 3, "--epochs",
                 2, "--batch-size", 16)
    weights = weights_of(ours)
    # A step that is too small to matter: what is compared is the evaluation.
    saved = train(*job, "--engine", "torch", "--weights", weights, "--steps", 1, "--learning-rate", "1e-12")
    assert ours["test"]["loss"] == pytest.approx(saved["test"]["loss"], rel=1e-5)
    assert ours["confusion"] == saved["confusion"]


@pytest.mark.slow
def test_a_resumed_run_ends_like_an_undisturbed_one(train: Train, tmp_path: Path, variables: dict[str, str]) -> None:
    job = ("--dataset", "digits", "--engine", "mxnet", "--optimizer", "adam", "--seed", 3)
    whole = train(*job, "--epochs", 4, "--name", "whole")
    part = Path(train(*job, "--epochs", 4, "--name", "part")["path"])
    assert difference(whole, resumed_after(2, part, variables)) < 1e-6


@pytest.mark.slow
def test_asynchronous_workers_that_are_resumed_begin_with_adams_small_steps(
    train: Train, tmp_path: Path, variables: dict[str, str]
) -> None:
    """The servers' moments are not stored, so the first step is that of a new Adam: the learning rate in a weight."""
    job = ("--dataset", "digits", "--engine", "mxnet", "--strategy", "kvstore", "--consistency", "asp", "--workers", 1,
           "--optimizer", "adam", "--learning-rate", 0.001, "--batch-size", 8, "--epochs", 4)
    run = Path(train(*job, "--steps", 3 * 162 + 1)["path"])  # three epochs and a step
    before, _ = sorted((run / "checkpoints").iterdir())
    kept = {"weights": load_file(before)}
    resumed = resumed_after(1, run, variables)
    # Without the correction of Adam's first steps it would be 1.9 of it.
    assert 0.0005 < difference(resumed, kept, resumed["weights"].keys()) < 0.00101


@pytest.mark.slow
def test_an_asynchronous_worker_does_not_wait_for_another(train: Train) -> None:
    result = train("--dataset", "digits", "--engine", "mxnet", "--strategy", "kvstore", "--consistency", "asp",
                   "--workers", 2, "--batch-size", 1, "--epochs", 1, "--fault", "pause worker0 1s..4s")
    events = [json.loads(line) for line in (Path(result["path"]) / "events.jsonl").read_text().splitlines()]
    began, ended = (one["received"] for one in events if one["kind"] == "fault")
    steps = [one["step"] for one in events if one["kind"] == "progress" and one["rank"] == 1
             and began + 0.5 < one["received"] < ended]
    assert len(steps) > 1
    assert steps == sorted(set(steps))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "words"), [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGSTOP, "worker 1")])
@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_worker_that_dies_or_stops_ends_the_run_by_name(
    tmp_path: Path, variables: dict[str, str], number: signal.Signals, words: str, consistency: str
) -> None:
    errors = errors_after_hurting(
        tmp_path, 1, number, "--engine", "mxnet", "--strategy", "kvstore", "--consistency", consistency,
        "--stall-timeout", 10, variables=variables, only_loopback=False,
    )
    assert words in errors


def test_its_stock_form_starts_as_module_fit_does(train: Train) -> None:
    """Uniform within 0.01, and zero for biases."""
    short = ("--strategy", "kvstore", "--engine", "mxnet", "--workers", 1, "--steps", 1, "--learning-rate", 1e-9,
             "--optimizer", "sgd")
    stock, ours = (load_file(weights_of(train(*DENSE, *short, "--implementation", kind)))
                   for kind in ("stock", "velodrome"))
    for name, value in stock.items():
        most = abs(value).max()
        assert most < 1e-6 if name.endswith("bias") else 0.009 < most < 0.0101, name
    assert any(abs(value).max() > 0.05 for value in ours.values())
