"""JAX trains in its own environment: equal to PyTorch for equal weights, and several processes equal to one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from velodrome.clusters import environments

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "servers"), str(ROOT / "tests" / "engines")]
import jax_environment  # noqa: E402
from command import (  # noqa: E402
    DENSE,
    UNEVEN,
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
    pytest.mark.skipif(bool(jax_environment.unavailable()), reason=jax_environment.unavailable() or "it can"),
]
JAX = ("--engine", "jax")


@pytest.fixture(scope="module", autouse=True)
def _current() -> None:
    jax_environment.prepare()


@pytest.fixture
def variables() -> dict[str, str]:
    return {**os.environ, environments.FOLDER: str(jax_environment.HOME)}


@pytest.fixture
def train(tmp_path: Path, variables: dict[str, str]) -> Train:
    return trainer(tmp_path, variables)


def test_with_equal_weights_it_learns_what_pytorch_learns(train: Train) -> None:
    weights = weights_of(train(*DENSE, *JAX, "--steps", 1))
    ours = train(*DENSE, *JAX, "--dtype", "float64", "--weights", weights)
    theirs = train(*DENSE, "--engine", "torch", "--dtype", "float64", "--weights", weights)
    assert difference(ours, theirs) < 1e-9
    assert ours["test"]["correct"] == theirs["test"]["correct"]


@pytest.mark.parametrize("strategy", ["data-parallel", "fsdp"])
def test_two_processes_end_with_the_weights_of_one(train: Train, strategy: str) -> None:
    one = train(*DENSE, *JAX)
    start = train(*DENSE, *JAX, "--steps", 1)
    assert difference(one, start) > 1e-3, "nothing was learned"
    several = train(*DENSE, *JAX, "--strategy", strategy, "--workers", 2)
    assert difference(one, several) < 1e-5
    assert several["test"]["correct"] == one["test"]["correct"]
    assert several["test"]["total"] == 359
    assert several["steps"] == one["steps"] == 20
    assert several["consistency"] == "bsp"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["data-parallel", "fsdp"])
@pytest.mark.parametrize("job", [DENSE, UNEVEN, (*DENSE, "--clip-norm", "0.1"), (*DENSE, "--ema", "0.9"),
                                 (*DENSE, "--optimizer", "adamw"), (*DENSE, "--label-smoothing", "0.1"),
                                 (*DENSE, "--schedule", "cosine", "--warmup", "5")])
def test_three_processes_end_with_the_weights_of_one(train: Train, strategy: str, job: tuple[object, ...]) -> None:
    job = (*job, *JAX, "--dtype", "float64")
    one = train(*job)
    several = train(*job, "--strategy", strategy, "--workers", 3)
    assert difference(one, several) < 1e-9
    assert several["test"]["correct"] == one["test"]["correct"]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "words"), [
    pytest.param("lenet5", ("--dataset", "fashion-mnist", "--steps", 5, "--batch-size", 64), marks=pytest.mark.skipif(
        "VELODROME_DATA_MIRROR" not in os.environ, reason="no mirror of data sets beside the checkout")),
    ("dense-300-100", ("--dataset", "digits", "--steps", 20)),
    ("linear", ("--dataset", "digits", "--steps", 20)),
    ("vgg-small", ("--dataset", "digits", "--steps", 5, "--batch-size", 64)),
    ("lstm-small", ("--dataset", "text:words.txt", "--steps", 6, "--batch-size", 7, "--unroll", 10)),
    ("gpt-mini", ("--dataset", "text:words.txt", "--steps", 6, "--batch-size", 7, "--unroll", 10)),
])
def test_every_network_computes_what_pytorch_computes(
    train: Train, tmp_path: Path, model: str, words: tuple[object, ...]
) -> None:
    write_words(tmp_path)
    job = ("--model", model, "--dtype", "float64", "--optimizer", "sgd", *words)
    weights = weights_of(train(*job, *JAX, "--steps", 1))
    ours = train(*job, *JAX, "--weights", weights)
    theirs = train(*job, "--engine", "torch", "--weights", weights)
    several = train(*job, *JAX, "--strategy", "data-parallel", "--workers", 2, "--weights", weights)
    divided = train(*job, *JAX, "--strategy", "fsdp", "--workers", 2, "--weights", weights)
    for other in (theirs, several, divided):
        assert difference(ours, other) < 1e-9
        assert other["test"]["loss"] == pytest.approx(ours["test"]["loss"], rel=1e-9)


@pytest.mark.slow
def test_batch_normalisation_computes_what_pytorchs_computes(train: Train) -> None:
    job = ("--model", "resnet20", "--dataset", "digits", "--dtype", "float64", "--steps", 4, "--batch-size", 97)
    weights = weights_of(train(*job, *JAX, "--steps", 1))
    ours, theirs = train(*job, *JAX, "--weights", weights), train(*job, "--engine", "torch", "--weights", weights)
    assert difference(ours, theirs, set(ours["weights"])) < 1e-9
    assert ours["test"]["loss"] == pytest.approx(theirs["test"]["loss"], rel=1e-9)
    # Statistics are those of each process's own examples, and their mean is saved, as under ddp.
    job = (*job, "--weights", weights, "--workers", 2)
    ours = train(*job, *JAX, "--strategy", "data-parallel")
    theirs = train(*job, "--engine", "torch", "--strategy", "ddp")
    assert difference(ours, theirs, set(ours["weights"])) < 1e-9
    assert [one for one in ours["warnings"] if "batch normalisation" in one] == [
        one for one in theirs["warnings"] if "batch normalisation" in one
    ] != []


@pytest.mark.slow
def test_the_network_for_photos_answers_as_pytorchs_for_equal_weights(train: Train, tmp_path: Path) -> None:
    write_photos(tmp_path)
    job = ("--dataset", "path:photos.npz", "--model", "fruit-cnn", "--dtype", "float64", "--optimizer", "sgd",
           "--validation", 0, "--batch-size", 16)
    trained = train(*job, *JAX, "--steps", 8, "--learning-rate", "0.1")
    # It changes its training images at random, so it is compared after a step that is too small to matter.
    still = ("--weights", weights_of(trained), "--steps", 1, "--learning-rate", "1e-12")
    ours, theirs = train(*job, *still, *JAX), train(*job, *still, "--engine", "torch")
    assert ours["test"]["loss"] == pytest.approx(theirs["test"]["loss"], rel=1e-9)
    assert ours["test"]["loss"] == pytest.approx(trained["test"]["loss"], rel=1e-6)
    assert ours["confusion"] == theirs["confusion"]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "workers"), [("single", 1), ("data-parallel", 2), ("fsdp", 2)])
def test_it_reaches_the_accuracy_of_the_others(train: Train, strategy: str, workers: int) -> None:
    result = train("--dataset", "digits", *JAX, "--strategy", strategy, "--workers", workers, "--epochs", 20)
    assert result["test"]["accuracy"] >= 0.93
    assert [entry["epoch"] for entry in result["history"]] == [*range(1, 21)]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "workers"), [("single", 1), ("fsdp", 2)])
def test_a_resumed_run_ends_like_an_undisturbed_one(
    train: Train, tmp_path: Path, variables: dict[str, str], strategy: str, workers: int
) -> None:
    job = ("--dataset", "digits", *JAX, "--strategy", strategy, "--workers", workers, "--optimizer", "adam",
           "--seed", 3, "--ema", "0.9")
    whole = train(*job, "--epochs", 4, "--name", "whole")
    part = Path(train(*job, "--epochs", 4, "--name", "part")["path"])
    assert difference(whole, resumed_after(1, part, variables)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("number", "words"), [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGSTOP, "worker")])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("strategy", ["data-parallel", "fsdp"])
def test_a_process_that_dies_or_stops_ends_the_run_by_name(
    tmp_path: Path, variables: dict[str, str], number: signal.Signals, words: str, rank: int, strategy: str
) -> None:
    errors = errors_after_hurting(tmp_path, rank, number, *JAX, "--strategy", strategy, "--stall-timeout", 10,
                                  seconds=200, variables=variables)
    assert words in errors


@pytest.mark.slow
def test_a_saved_model_loads_as_its_page_describes_and_verifies(
    train: Train, tmp_path: Path, variables: dict[str, str]
) -> None:
    result = train(*DENSE, *JAX, "--name", "saved")
    page = (Path(result["path"]) / "model" / "README.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    code += "\nimport numpy as np\nprint(apply(tensors, np.zeros((2, 8, 8, 1), 'float32')).shape)"
    python = jax_environment.HOME / "jax" / "bin" / "python"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120, env=variables)
    assert done.stdout.strip() == "(2, 10)", done.stderr
    verify = [sys.executable, "-m", "velodrome", "runs", "verify", "saved", "--runs", str(tmp_path / "runs")]
    checked = subprocess.run(verify, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert checked.returncode == 0, checked.stdout + checked.stderr
