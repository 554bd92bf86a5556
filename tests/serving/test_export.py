"""Models of both engines as ONNX: trained for a moment, exported, and asked the same as the engine's own model."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velodrome
from velodrome.catalog.base import Engine
from velodrome.catalog.registry import all_forms
from velodrome.errors import BadRequest, RunFailed
from velodrome.models.description import EXAMPLES, ONNX, SERVED
from velodrome.serving import export as exporting
from velodrome.serving.export import _compare
from velodrome.serving.model import LoadedModel, is_exported

pytestmark = pytest.mark.integration

#: Engine, data set, model and further options of a run of a few steps.
ROWS: dict[str, dict[str, Any]] = {
    "torch-digits": {"engine": "torch", "dataset": "digits", "model": "dense-128", "epochs": 3},
    "keras-digits": {"engine": "tensorflow", "dataset": "digits", "model": "dense-128", "epochs": 3},
}
MORE_ROWS: dict[str, dict[str, Any]] = {
    "accelerate-digits": {"engine": "accelerate", "dataset": "digits", "model": "dense-128", "epochs": 1},
    "fabric-digits": {"engine": "fabric", "dataset": "digits", "model": "dense-128", "epochs": 1},
    "torch-table": {"engine": "torch", "dataset": "diabetes", "epochs": 3},
    "keras-table": {"engine": "tensorflow", "dataset": "diabetes", "epochs": 3},
    "torch-binary": {"engine": "torch", "dataset": "breast-cancer", "task": "binary", "epochs": 3},
    "keras-float64": {"engine": "tensorflow", "dataset": "digits", "model": "linear", "dtype": "float64", "epochs": 1},
    "torch-standardized": {"engine": "torch", "dataset": "digits", "model": "resnet20", "pixels": "standardize",
                           "epochs": 1, "steps": 2},
    "keras-standardized": {"engine": "tensorflow", "dataset": "digits", "model": "resnet20", "pixels": "standardize",
                           "epochs": 1, "steps": 2},
}
TEXTS: dict[str, dict[str, Any]] = {
    "torch-lstm": {"engine": "torch", "model": "lstm-small", "epochs": 1, "steps": 2},
    "keras-lstm": {"engine": "tensorflow", "model": "lstm-small", "epochs": 1, "steps": 2},
    "torch-gpt": {"engine": "torch", "model": "gpt-mini", "epochs": 1, "steps": 2},
    "keras-gpt": {"engine": "tensorflow", "model": "gpt-mini", "epochs": 1, "steps": 2},
}


def trained(runs: Path, name: str, row: dict[str, Any]) -> dict[str, Any]:
    velodrome.train(velodrome.Job(strategy="single", **row), name=name, runs=runs)
    return velodrome.export(name, runs)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an exported run of each engine."""
    runs = tmp_path_factory.mktemp("exported")
    for name, row in ROWS.items():
        trained(runs, name, row)
    return runs


@pytest.mark.parametrize("name", ROWS)
def test_a_model_of_each_engine_answers_as_the_run_reported(runs: Path, name: str) -> None:
    model = LoadedModel(runs / name / "model", name)
    assert model.about.checked == 100
    assert model.about.difference is not None
    assert model.about.difference <= 1e-4
    examples, truth = model.examples["in:x"], model.examples["y:y"]
    right = (model.scores({"x": examples}).argmax(1) == truth).mean()
    assert right == pytest.approx(velodrome.runs.show(name, runs)["test"]["accuracy"], abs=0.1)
    assert model.about.classes == tuple("0123456789")
    assert model.about.brightest == 16


@pytest.mark.parametrize("engine", all_forms(), ids=lambda engine: engine.key)
def test_every_engine_says_how_its_models_are_exported(engine: Engine) -> None:
    """That it computes the same is tested where the engine is installed."""
    own, shared = engine.worker.rpartition(".")[0], f"velodrome.engines.{engine.tasks_of}"
    if engine.exported_by is None:
        assert find_spec(f"{own}.onnx_export") or find_spec(f"{shared}.onnx_export")
    else:  # its package is not imported: its framework may be missing here
        package = find_spec(own)
        assert package is not None
        assert package.origin is not None
        assert "\ndef outputs(" in Path(package.origin).read_text()


def test_what_is_exported_is_not_exported_again_until_it_is_trained_again(runs: Path) -> None:
    model = runs / "torch-digits" / "model"
    before = (model / ONNX).stat().st_mtime_ns
    velodrome.export("torch-digits", runs)
    assert (model / ONNX).stat().st_mtime_ns == before
    assert not list(model.glob(".onnx-*"))
    (model / "model.json").touch()
    assert not is_exported(model)
    (model / SERVED).touch()


def test_a_graph_that_computes_something_else_is_not_kept(runs: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    shutil.copytree(runs / "torch-digits" / "model", made)
    with np.load(made / EXAMPLES) as stored:
        arrays = dict(stored)
    arrays["expected"] = arrays["expected"] + np.float32(0.01)
    np.savez(made / EXAMPLES, **arrays)
    with pytest.raises(RunFailed, match=r"is not kept: its outputs differ by 0\.01"):
        _compare(made, "torch-digits")
    shutil.copy(runs / "keras-digits" / "model" / ONNX, made / ONNX)
    with pytest.raises(RunFailed, match="is not kept"):
        _compare(made, "torch-digits")


def test_what_has_no_model_is_refused(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="no run or folder"):
        velodrome.export("nobody", runs)
    with pytest.raises(BadRequest, match="--format 'pickle'"):
        velodrome.export("torch-digits", runs, format="pickle")
    copy = tmp_path / "copy"
    shutil.copytree(runs / "torch-digits", copy)
    shutil.rmtree(copy / "model")
    (copy / "model").mkdir()
    with pytest.raises(BadRequest, match="has no saved model"):
        velodrome.export(str(copy), tmp_path)
    (copy / "result.json").unlink()
    with pytest.raises(BadRequest, match="only a finished run has a model to export"):
        velodrome.export(str(copy), tmp_path)
    monkeypatch.setattr(exporting, "runtime", lambda: (_ for _ in ()).throw(BadRequest("ONNX Runtime is missing")))
    with pytest.raises(BadRequest, match="missing"):
        velodrome.export("torch-digits", runs)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_ROWS)
def test_other_tasks_and_number_formats_are_exported(tmp_path: Path, name: str) -> None:
    found = trained(tmp_path, name, MORE_ROWS[name])
    assert found["difference"] <= 1e-4
    assert found["checked"] >= 80


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_language_models_are_exported(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "words"
    folder.mkdir()
    draw = np.random.default_rng(1)
    for part, lines in (("train", 400), ("validation", 60), ("test", 60)):
        words = [" ".join(f"w{word}" for word in draw.integers(0, 30, 12)) for _ in range(lines)]
        (folder / f"{part}.txt").write_text("\n".join(words) + "\n")
    found = trained(tmp_path / "runs", name, {"dataset": f"text:{folder}", **TEXTS[name]})
    assert found["difference"] <= 1e-4
    assert found["checked"] == 100
    answer = velodrome.predict(name, [folder / "test.txt"], tmp_path / "runs", top=5)
    assert len(answer["files"][0]["predictions"]) == 5
