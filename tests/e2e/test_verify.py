"""`velodrome runs verify`: a saved model, loaded in a fresh process, reproduces what its run reported, or exit 1."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

slow = pytest.mark.slow
NETS = '''
def torch_net(input_shape, classes):
    """Batch normalisation, whose statistics are averaged before saving, and logits in a dictionary."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU())
            self.head = nn.Linear(16, classes)

        def forward(self, images):
            return {"logits": self.head(self.body(images))}

    return Net()

def keras_net(input_shape, classes):
    import keras

    inputs = keras.Input(input_shape)
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(16)(keras.layers.Flatten()(inputs)))
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(hidden))
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verified")
    (folder / "verified_nets.py").write_text(NETS)
    return folder


def trained(velodrome, place: Path, name: str, *words: object) -> Path:
    """A run of that name, trained once."""
    if not (place / "runs" / name).exists():
        done = velodrome("train", "--name", name, "--runs", place / "runs", "--epochs", 2, *words)
        assert done.code == 0, done.text
    return place / "runs" / name


RUNS = {
    "torch": ("--engine", "torch", "--model", "verified_nets:torch_net", "--strategy", "ddp", "--workers", 2),
    "keras": ("--engine", "tensorflow", "--model", "verified_nets:keras_net", "--strategy", "mirrored", "--workers", 2),
    "torch-zoo": ("--engine", "torch", "--model", "dense-128", "--strategy", "allreduce", "--workers", 2),
    "zero1": ("--engine", "torch", "--model", "verified_nets:torch_net", "--strategy", "zero1", "--workers", 2),
    "fsdp": ("--engine", "torch", "--model", "verified_nets:torch_net", "--strategy", "fsdp", "--workers", 2),
    "local-sgd": ("--engine", "torch", "--model", "dense-128", "--strategy", "local-sgd", "--workers", 2),
    "diloco": ("--engine", "torch", "--model", "dense-128", "--strategy", "diloco", "--workers", 2,
               "--sync-every", 5),
    "pipeline": ("--engine", "torch", "--model", "dense-300-100", "--strategy", "pipeline", "--workers", 2),
    "tensor": ("--engine", "torch", "--model", "dense-300-100", "--strategy", "tensor", "--workers", 2),
    "keras-zoo": ("--engine", "tensorflow", "--model", "dense-128", "--dtype", "float64"),
}


@pytest.mark.parametrize("name", [
    "torch", *(pytest.param(name, marks=slow) for name in (
        "keras", "torch-zoo", "keras-zoo", "zero1", "fsdp", "local-sgd", "diloco", "pipeline",
        "tensor")),
])
def test_a_fresh_process_reproduces_the_reported_metric(
    velodrome, place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip("tensorflow" if "keras" in name else "torch")
    monkeypatch.chdir(place)
    run = trained(velodrome, place, name, *RUNS[name])
    done = velodrome("runs", "verify", name, "--json")
    assert done.code == 0, done.text
    found, result = done.json(), json.loads((run / "result.json").read_text())
    assert found["ok"] is True
    assert found["reported"]["correct"] == found["measured"]["correct"] == result["test"]["correct"]
    assert found["measured"]["total"] == 359
    assert found["measured"]["loss"] == pytest.approx(result["test"]["loss"], rel=found["tolerance"])
    if name in ("torch", "keras", "zero1", "fsdp"):
        (warning,) = [message for message in result["warnings"] if "guarantee" in message]
        assert "batch normalisation" in warning


@pytest.fixture
def copied(velodrome, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the PyTorch run, to be spoiled."""
    pytest.importorskip("torch")
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    run = trained(velodrome, place, "torch", *RUNS["torch"])
    shutil.copytree(run, tmp_path / "spoiled")
    return tmp_path / "spoiled"


def verified(path: Path) -> dict[str, object]:
    from velodrome.api import runs

    return runs.verify(str(path), on="debug")


def test_other_weights_do_not_reproduce_it(copied: Path) -> None:
    from safetensors.numpy import load_file, save_file

    file = copied / "model" / "model.safetensors"
    weights = load_file(file)
    weights["head.weight"] = -weights["head.weight"]
    save_file(weights, file)
    found = verified(copied)
    assert found["ok"] is False
    assert any(problem.startswith("accuracy is ") for problem in found["problems"])
    assert any(problem.startswith("correct is ") for problem in found["problems"])


def test_another_test_set_is_named_as_the_reason(copied: Path) -> None:
    result = json.loads((copied / "result.json").read_text())
    result["test"]["fingerprint"] = "another"
    (copied / "result.json").write_text(json.dumps(result))
    assert verified(copied)["problems"] == ["the test set is not the one that the run was evaluated on"]


def test_a_model_that_cannot_be_loaded_is_exit_code_1(velodrome, copied: Path) -> None:
    (copied / "model" / "model.safetensors").write_bytes(b"nothing")
    done = velodrome("runs", "verify", copied)
    assert done.code == 1
    assert "cannot be loaded and evaluated: " in done.err


def test_a_run_without_a_result_is_refused(velodrome, copied: Path) -> None:
    (copied / "result.json").unlink()
    done = velodrome("runs", "verify", copied)
    assert done.code == 2
    assert "only a finished run has a model to verify" in done.err
