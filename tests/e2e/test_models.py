"""The user's own model goes wrong: its traceback once, from the rank where it happened, and a sentence."""

from __future__ import annotations

import pytest
from scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.usefixtures("warm")]

slow = pytest.mark.slow


def words(engine: str, fault: str, **more: object) -> list[str]:
    module = "faulty_nets" if engine == "torch" else "faulty_keras"
    arguments = {"fault": fault, **more}
    return ["--model", f"{module}:build", "--batch-size", "64", "--epochs", "3",
            *(word for key, value in arguments.items() for word in ("--model-arg", f"{key}={value}"))]


@pytest.mark.parametrize(
    ("engine", "strategy", "at"),
    [
        pytest.param("torch", "ddp", 3, id="ddp-forward"),
        pytest.param("torch", "allreduce", 3, id="allreduce-forward", marks=slow),
        pytest.param("torch", "ddp", 0, id="ddp-build", marks=slow),
        pytest.param("torch", "allreduce", 0, id="allreduce-build", marks=slow),
        pytest.param("tensorflow", "multi-worker-mirrored", 0, id="multi-worker-mirrored-build", marks=slow),
        pytest.param("tensorflow", "multi-worker-mirrored", 3, id="multi-worker-mirrored-forward", marks=slow),
        pytest.param("tensorflow", "allreduce", 3, id="tensorflow-allreduce-forward", marks=slow),
    ],
)
def test_an_error_of_the_users_shows_once_from_the_rank_where_it_happened(
    velodrome, scene: Scene, engine: str, strategy: str, at: int
) -> None:
    done = velodrome(*scene.words(engine, strategy, *words(engine, "raise", rank=1, at=at)))
    assert done.code == 1, done.text
    assert "velodrome: worker 1 on 127.0.0.1: " in done.err
    sentence = next(line for line in done.err.splitlines() if line.startswith("velodrome:"))
    assert "the user's own mistake" in sentence
    assert done.err.count("Traceback (most recent call last)") == 1
    assert done.err.count('raise ValueError("the user\'s own mistake")') == 1
    result = scene.result()
    assert (result["status"], result["error"]["rank"], result["error"]["cause"]) == ("failed", 1, "user")
    assert "raise ValueError" in result["error"]["traceback"]


def test_an_error_in_a_parameter_servers_chief_shows_once(velodrome, scene: Scene) -> None:
    done = velodrome(*scene.words("tensorflow", "parameter-server", *words("tensorflow", "raise", rank=0, at=0)))
    assert done.code == 1, done.text
    assert "velodrome: chief 0 on 127.0.0.1: ValueError: the user's own mistake" in done.err
    assert done.err.count("Traceback (most recent call last)") == 1


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        pytest.param("leave-0", "worker 1 on 127.0.0.1 exited with code 0 before it was finished", id="os-exit-0"),
        pytest.param("leave-3", "worker 1 on 127.0.0.1 exited with code 3 before it was finished", id="os-exit-3",
                     marks=slow),
        pytest.param("exit", "worker 1 on 127.0.0.1: the model's code called sys.exit(5)", id="sys-exit", marks=slow),
        pytest.param("nan", "worker 1 on 127.0.0.1: the loss became nan in epoch 1", id="nan"),
    ],
)
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("allreduce", marks=slow)])
def test_a_model_that_leaves_or_loses_its_numbers_is_told_from_its_peers(
    velodrome, scene: Scene, strategy: str, fault: str, sentence: str
) -> None:
    done = velodrome(*scene.words("torch", strategy, *words("torch", fault, rank=1)))
    assert done.code == 1, done.text
    if fault == "nan":  # the summed gradient spreads it: any rank may see it first
        sentence = sentence.partition(": ")[2]
    assert sentence in done.err
    assert scene.result()["status"] == "failed"


@pytest.mark.parametrize(
    ("engine", "fault", "sentence"),
    [
        pytest.param("torch", "shape", "'faulty_nets:build' cannot take images of shape (1, 8, 8)", id="torch-shape"),
        pytest.param("torch", "outputs", "answers with shape (64, 11) for 64 examples; 10 classes need (64, 10)",
                     id="torch-outputs", marks=slow),
        pytest.param("torch", "tuple", "returns a tuple of 2 in training", id="torch-tuple"),
        pytest.param("tensorflow", "shape", "'faulty_keras:build' cannot take images of shape (8, 8, 1)",
                     id="keras-shape", marks=slow),
        pytest.param("tensorflow", "outputs", "10 classes need", id="keras-outputs", marks=slow),
        pytest.param("tensorflow", "nan", "the loss became nan in epoch 1", id="keras-nan", marks=slow),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_a_bad_request(
    velodrome, scene: Scene, engine: str, fault: str, sentence: str
) -> None:
    done = velodrome(*scene.words(engine, "single", *words(engine, fault, rank=0)), "--json")
    assert done.code == (1 if fault == "nan" else 2), done.text
    assert done.err.count(sentence) == 1
    # Where a layer does not fit, the user's own lines show which one.
    assert done.err.count("Traceback (most recent call last)") == (fault == "shape")
    assert done.json()["status"] == "failed"
    assert done.json()["error"]["cause"] == ("engine" if fault == "nan" else "request")


def test_a_model_of_the_zoo_that_cannot_take_the_images_starts_nothing(velodrome, scene: Scene) -> None:
    done = velodrome(*scene.words("torch", "ddp", "--model", "lenet5"))
    assert done.code == 2
    assert "model 'lenet5' needs images of at least 16×16, but these are 8×8" in done.err
    assert not scene.path.exists()
