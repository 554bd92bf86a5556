"""A run that was killed goes on where it was and ends with the weights of one that was not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.usefixtures("warm")]

slow = pytest.mark.slow
#: Each takes half a second at least in the run that is killed, because its model pauses.
EPOCHS = 5


def weights(folder: Path) -> dict[str, np.ndarray]:
    """Of the last checkpoint: the model, and the optimizer's state with it."""
    newest = sorted((folder / "checkpoints").glob("*.safetensors"))[-1]
    return load_file(newest)


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("momentum", marks=slow)])
@pytest.mark.parametrize(
    ("engine", "strategy"),
    [
        pytest.param("torch", "ddp", id="ddp"),
        pytest.param("torch", "allreduce", id="allreduce", marks=slow),
        pytest.param("torch", "zero1", id="zero1", marks=slow),
        pytest.param("torch", "fsdp", id="fsdp", marks=slow),
        pytest.param("torch", "local-sgd", id="local-sgd", marks=slow),
        pytest.param("torch", "diloco", id="diloco", marks=slow),
        pytest.param("tensorflow", "multi-worker-mirrored", id="multi-worker-mirrored", marks=slow),
        pytest.param("tensorflow", "allreduce", id="tensorflow-allreduce", marks=slow),
    ],
)
def test_a_resumed_run_ends_with_the_weights_of_an_undisturbed_one(
    velodrome, scene: Scene, engine: str, strategy: str, optimizer: str
) -> None:
    model = f"{'faulty_nets' if engine == 'torch' else 'faulty_keras'}:build"
    job = ("--model", model, "--optimizer", optimizer, "--epochs", EPOCHS)
    controller = scene.start(*scene.words(engine, strategy, *job, "--model-arg", "pause=0.05"))
    scene.until(lambda events: sum(event["kind"] == "checkpoint" for event in events) >= 2)
    controller.kill()
    controller.wait()
    epochs = [event["epoch"] for event in scene.events() if event["kind"] == "epoch"]
    assert epochs[-1] < EPOCHS, "it ended before it could be killed"
    scene.until_gone()

    resumed = velodrome("resume", scene.name, "--runs", scene.runs, "--json")
    assert resumed.code == 0, resumed.text
    assert "could not be loaded" not in resumed.text  # one worker loads the checkpoint, the other tries to save
    undisturbed = velodrome(*Scene(scene.runs, "b").words(engine, strategy, *job), "--json")
    assert undisturbed.code == 0, undisturbed.text

    got, expected = weights(scene.runs / "a"), weights(scene.runs / "b")
    assert got.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=1e-5, err_msg=name)
    assert resumed.json()["epochs"] == EPOCHS
    assert [entry["epoch"] for entry in resumed.json()["history"]] == list(range(1, EPOCHS + 1))
    assert resumed.json()["test"]["correct"] == undisturbed.json()["test"]["correct"]

    again = velodrome("resume", scene.name, "--runs", scene.runs)
    assert again.code == 2
    assert "run 'a' is finished: there is nothing to resume" in again.err
