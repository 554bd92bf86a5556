"""What PyTorch's worker refuses, saves and says when others do not come or go away."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import finish, loading_code, members_of, run, start, write_data

from velodrome.job.job import Job

torch = pytest.importorskip("torch")
pytest.importorskip("mpi4py")
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("torch_nets:wrong_shape", "cannot take images of shape (1, 8, 8)"),
        ("torch_nets:wrong_outputs", "answers with shape (90, 11) for 90 examples"),
        ("torch_nets:no_module", "needs a torch.nn.Module"),
        ("torch_nets:frozen", "nothing to train"),
        ("lenet5", "at least 16×16"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(data, tmp_path, model, words):
    (process,) = run(Job(model=model), data, tmp_path, good=False).processes
    assert process.code == 2
    assert words in process.of_kind("error")[0]["message"]


@pytest.mark.parametrize("model", ["lenet5", "torch_nets:normalised"])
def test_a_saved_model_answers_as_the_trained_one_did(tmp_path, monkeypatch, model):
    from velodrome.engines.torch import model_file as saved

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    data = write_data(tmp_path / "data.npz", shape=(16, 16, 1))
    ran = run(Job(model=model, strategy="allreduce", workers=2, epochs=2), data, tmp_path / "run")
    loaded = saved.load(tmp_path / "run" / "model", model)
    stored = np.load(data)
    images = torch.from_numpy(stored["test_images"]).permute(0, 3, 1, 2).float() * float(stored["scale"])
    with torch.no_grad():
        correct = int((loaded(images).argmax(1).numpy() == stored["test_labels"]).sum())
    assert correct == ran.result["test"]["correct"]
    told = json.loads((tmp_path / "run" / "model" / "model.json").read_text())
    assert told["input_shape"] == [1, 16, 16]
    assert ran.result["parameters"] == sum(value.numel() for value in loaded.parameters())


@pytest.mark.parametrize(
    ("model", "arguments", "dtype"),
    [
        ("lenet5", {}, "float32"),
        ("torch_endings:build", {"end": "wrapped"}, "float64"),
        ("torch_trials:lazy", {}, "float32"),
        ("torch_trials:extra", {}, "float32"),
        ("torch_trials:build", {"kind": "fixed-batch", "size": 15}, "float32"),
    ],
    ids=["zoo", "probabilities", "lazy", "extra-state", "fixed-batch"],
)
def test_the_recipe_in_the_run_folder_loads_the_model(tmp_path, monkeypatch, model, arguments, dtype):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    data = write_data(tmp_path / "data.npz", shape=(16, 16, 1) if model == "lenet5" else (8, 8, 1))
    ran = run(Job(model=model, model_args=arguments, dtype=dtype, epochs=1, batch_size=15), data, tmp_path / "run")
    folder = tmp_path / "run" / "model"
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "model.json", "model.safetensors"]
    scope = {}
    exec(loading_code(folder), scope)
    stored = np.load(data)
    images = torch.from_numpy(stored["test_images"]).permute(0, 3, 1, 2).to(getattr(torch, dtype)) / 255
    size = json.loads((folder / "model.json").read_text())["only_batch"]
    with torch.no_grad():
        padded = torch.cat([images, images[: -len(images) % (size or len(images))]])
        outputs = torch.cat([scope["model"](part) for part in padded.split(size or len(padded))])[: len(images)]
    assert int((outputs.argmax(1).numpy() == stored["test_labels"]).sum()) == ran.result["test"]["correct"]
    warnings = [event["message"] for event in ran.processes[0].of_kind("warning")]
    assert warnings == ([f"model {model!r} has state that is not a tensor and will not be saved: 1._extra_state"]
                        if model == "torch_trials:extra" else [])


def test_a_model_that_cannot_be_saved_is_refused_before_training(data, tmp_path):
    (process,) = run(Job(model="torch_trials:sparse"), data, tmp_path, good=False).processes
    assert process.code == 2
    assert "cannot be saved: its tensor 'mask' is torch.float32 and torch.sparse_coo" in process.of_kind("error")[0][
        "message"]
    assert not process.of_kind("progress")


@pytest.mark.quick("ddp")
@pytest.mark.parametrize("strategy", ["ddp", "allreduce"])
def test_a_worker_that_does_not_come_is_named(data, tmp_path, strategy):
    job = Job(strategy=strategy, workers=3, start_timeout=10)
    ran = finish(start(job, data, tmp_path, only=[0, 2]), tmp_path)
    for process in ran.processes:
        assert process.code == 1, ran.logs
        assert "worker 1 on 127.0.0.1 did not join" in process.of_kind("error")[-1]["message"]


@pytest.mark.parametrize("strategy", ["ddp", "allreduce"])
def test_a_taken_port_is_said_as_such(data, tmp_path, strategy):
    job = Job(strategy=strategy, workers=2, start_timeout=10)
    members = members_of(job)
    with socket.create_server((members[0].host, members[0].port)):
        (process,) = finish(start(job, data, tmp_path, members=members, only=[0]), tmp_path).processes
    assert process.of_kind("error")[-1]["cause"] == "port"


@pytest.mark.quick("0-ddp", "1-allreduce")
@pytest.mark.parametrize("strategy", ["ddp", "allreduce"])
@pytest.mark.parametrize("victim", [0, 1])
def test_the_survivor_of_a_killed_worker_ends_and_is_not_the_cause(data, tmp_path, strategy, victim):
    job = Job(strategy=strategy, workers=2, epochs=100_000, checkpoints=False)
    started = start(job, data, tmp_path)
    started[victim].wait_for('"progress"')
    started[victim].kill()
    ran = finish(started, tmp_path)
    survivor = ran.processes[1 - victim]
    assert survivor.code == 1, ran.logs
    error = survivor.of_kind("error")[-1]
    assert error["cause"] == "peer"
