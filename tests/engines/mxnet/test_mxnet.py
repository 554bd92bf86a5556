"""MXNet trains in its own environment: equal to PyTorch for equal weights, and its servers equal to one process."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from velodrome.cluster import environments

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "servers")]
import mxnet_environment  # noqa: E402

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(mxnet_environment.unavailable()), reason=mxnet_environment.unavailable() or "it can"),
]
COMMAND = [sys.executable, "-m", "velodrome", "train", "--json"]
Train = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def _current() -> None:
    mxnet_environment.prepare()


@pytest.fixture
def variables() -> dict[str, str]:
    return {**os.environ, environments.FOLDER: str(mxnet_environment.HOME)}


@pytest.fixture
def train(tmp_path: Path, variables: dict[str, str]) -> Train:
    """Trains a job of the command line's words; its result, with the weights under "weights"."""

    def run(*words: object) -> dict[str, Any]:
        command = [*COMMAND, "--runs", str(tmp_path / "runs"), *map(str, words)]
        done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        result["weights"] = load_file(Path(result["path"]) / "model" / "model.safetensors")
        return result

    return run


def _difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one["weights"].keys() == other["weights"].keys()
    return max(float(np.abs(one["weights"][name] - other["weights"][name]).max()) for name in one["weights"])


IMAGES = ("--dataset", "digits", "--model", "dense-128", "--seed", 7, "--optimizer", "momentum", "--learning-rate",
          "0.05", "--batch-size", 97, "--steps", 20)
#: A momentum of 0.9 is a number of 32 bits to MXNet's kernels, and its servers sum in 32 bits.
ROUNDING = 1e-6


def test_with_equal_weights_it_learns_what_pytorch_learns(train: Train) -> None:
    weights = Path(train(*IMAGES, "--engine", "mxnet", "--steps", 1)["path"]) / "model" / "model.safetensors"
    ours = train(*IMAGES, "--engine", "mxnet", "--weights", weights)
    theirs = train(*IMAGES, "--engine", "torch", "--weights", weights)
    assert _difference(ours, theirs) < ROUNDING
    assert ours["test"]["correct"] == theirs["test"]["correct"]


def test_workers_and_servers_under_bsp_end_with_the_weights_of_one_process(train: Train) -> None:
    one = train(*IMAGES, "--engine", "mxnet")
    several = train(*IMAGES, "--engine", "mxnet", "--strategy", "kvstore", "--workers", 3, "--servers", 2)
    assert _difference(one, several) < ROUNDING
    assert several["test"]["correct"] == one["test"]["correct"]
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
    generator = np.random.default_rng(1)
    rows = generator.choice(list("abcdefgh"), (400, 10))
    (tmp_path / "words.txt").write_text("\n".join(" ".join(row) for row in rows))
    job = ("--model", model, "--dtype", "float64", "--optimizer", "sgd", *words)
    weights = Path(train(*job, "--engine", "mxnet", "--steps", 1)["path"]) / "model" / "model.safetensors"
    ours = train(*job, "--engine", "mxnet", "--weights", weights)
    theirs = train(*job, "--engine", "torch", "--weights", weights)
    several = train(*job, "--engine", "mxnet", "--strategy", "kvstore", "--workers", 2, "--weights", weights)
    assert _difference(ours, theirs) < ROUNDING
    assert _difference(ours, several) < ROUNDING
    assert ours["test"]["loss"] == pytest.approx(theirs["test"]["loss"], rel=1e-6)


@pytest.mark.slow
def test_the_network_for_photos_answers_as_pytorchs_for_equal_weights(train: Train, tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    images, labels = generator.integers(0, 256, (104, 32, 32, 3), np.uint8), generator.integers(0, 3, 104)
    np.savez(tmp_path / "photos.npz", x_train=images[:64], y_train=labels[:64], x_test=images[64:], y_test=labels[64:])
    job = ("--dataset", "path:photos.npz", "--model", "fruit-cnn", "--dtype", "float64", "--optimizer", "sgd",
           "--validation", 0, "--batch-size", 16)
    trained = train(*job, "--engine", "mxnet", "--steps", 8, "--learning-rate", "0.1")
    weights = Path(trained["path"]) / "model" / "model.safetensors"
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
def test_what_asynchronous_workers_evaluate_is_the_model_that_is_saved(train: Train) -> None:
    job = ("--dataset", "digits", "--model", "dense-128", "--optimizer", "sgd", "--learning-rate", "0.1")
    ours = train(*job, "--engine", "mxnet", "--strategy", "kvstore", "--consistency", "asp", "--workers", 3, "--epochs",
                 2, "--batch-size", 16)
    weights = Path(ours["path"]) / "model" / "model.safetensors"
    # A step that is too small to matter: what is compared is the evaluation.
    saved = train(*job, "--engine", "torch", "--weights", weights, "--steps", 1, "--learning-rate", "1e-12")
    assert ours["test"]["loss"] == pytest.approx(saved["test"]["loss"], rel=1e-5)
    assert ours["confusion"] == saved["confusion"]


@pytest.mark.slow
def test_a_resumed_run_ends_like_an_undisturbed_one(train: Train, tmp_path: Path, variables: dict[str, str]) -> None:
    job = ("--dataset", "digits", "--engine", "mxnet", "--optimizer", "adam", "--seed", 3)
    whole = train(*job, "--epochs", 4, "--name", "whole")
    part = Path(train(*job, "--epochs", 4, "--name", "part")["path"])
    (part / "result.json").unlink()
    for checkpoint in sorted((part / "checkpoints").iterdir())[2:]:
        checkpoint.unlink()
    resume = [sys.executable, "-m", "velodrome", "resume", "part", "--runs", str(part.parent), "--json"]
    done = subprocess.run(resume, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    resumed = {"weights": load_file(part / "model" / "model.safetensors")}
    assert _difference(whole, resumed) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("number", "words"), [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGSTOP, "worker 1")])
@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_worker_that_dies_or_stops_ends_the_run_by_name(
    tmp_path: Path, variables: dict[str, str], number: signal.Signals, words: str, consistency: str
) -> None:
    command = [*COMMAND, "--runs", str(tmp_path), "--name", "hurt", "--dataset", "digits", "--engine", "mxnet",
               "--strategy", "kvstore", "--consistency", consistency, "--workers", "2", "--epochs", "5000",
               "--stall-timeout", "10"]
    running = subprocess.Popen(command, env=variables, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    try:
        events = tmp_path / "hurt" / "events.jsonl"
        deadline = time.monotonic() + 120
        while not (events.exists() and '"progress"' in events.read_text()):
            assert running.poll() is None, running.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        hurt = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_worker(path, tmp_path / "hurt", 1)]
        os.kill(hurt[0], number)
        _, errors = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 1
    assert "worker 1" in errors
    assert words in errors


def _is_worker(process: Path, run: Path, rank: int) -> bool:
    try:
        words = (process / "cmdline").read_bytes().decode().split("\0")
    except OSError:
        return False
    given = dict(itertools.pairwise(words))
    return (given.get("--folder"), given.get("--role"), given.get("--rank")) == (str(run), "worker", str(rank))
