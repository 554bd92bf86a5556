"""Models of JAX, MXNet and Horovod as ONNX: another engine writes the graph, which must compute what theirs does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velodrome
from velodrome.clusters import environments
from velodrome.errors import RunFailed
from velodrome.models.description import ONNX
from velodrome.serving import export as exporting
from velodrome.serving.model import LoadedModel

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "servers")]
import horovod_environment  # noqa: E402
import jax_environment  # noqa: E402
import mxnet_environment  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
IMAGES = {"dataset": "digits", "epochs": 3}
#: Jobs of engines whose models another one writes.
ROWS: dict[str, dict[str, Any]] = {
    "jax-convolutions": {"engine": "jax", "model": "vgg-small", **IMAGES},
    "jax-normalised": {"engine": "jax", "model": "resnet20", "pixels": "standardize", "dataset": "digits",
                       "epochs": 1, "steps": 4},
    "jax-float64": {"engine": "jax", "model": "dense-128", "dtype": "float64", **IMAGES},
    "mxnet-dense": {"engine": "mxnet", "model": "dense-128", **IMAGES},
    "mxnet-standardized": {"engine": "mxnet", "model": "vgg-small", "pixels": "standardize", **IMAGES},
    "horovod-torch": {"engine": "horovod", "framework": "torch", "model": "dense-128", **IMAGES},
    "horovod-keras": {"engine": "horovod", "framework": "tensorflow", "model": "vgg-small", **IMAGES},
    "horovod-keras-float64": {"engine": "horovod", "framework": "tensorflow", "model": "dense-128",
                              "dtype": "float64", **IMAGES},
}


@pytest.fixture(scope="module")
def ready() -> Any:
    """Makes sure that an engine can train here, or skips the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(environments.FOLDER, str(mxnet_environment.HOME))

        def prepared(engine: str, framework: str | None = None) -> None:
            if engine == "horovod":
                assert framework is not None
                if reason := horovod_environment.unavailable(framework):
                    pytest.skip(reason)
                horovod_environment.prepare(framework)
                return
            own = {"jax": jax_environment, "mxnet": mxnet_environment}[engine]
            if reason := own.unavailable():
                pytest.skip(reason)
            own.prepare()

        yield prepared


@pytest.mark.parametrize("name", ROWS)
def test_a_model_is_exported_and_answers_as_its_run_reported(ready: Any, tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    ready(row["engine"], row.get("framework"))
    reported = velodrome.train(velodrome.Job(strategy="single", **row), name=name, runs=tmp_path)
    found = velodrome.export(name, tmp_path)
    assert found["difference"] <= 1e-4
    assert found["checked"] == 100
    model = LoadedModel(tmp_path / name / "model", name)
    assert model.about.engine == row["engine"]
    assert model.about.classes == tuple("0123456789")
    right = (model.scores({"x": model.examples["in:x"]}).argmax(1) == model.examples["y:y"]).mean()
    assert right == pytest.approx(reported["test"]["accuracy"], abs=0.1)
    assert not list((tmp_path / name / "model").glob(".onnx-*"))


@pytest.mark.parametrize(("engine", "model"), [("mxnet", "lstm-small"), ("jax", "lstm-small"), ("jax", "gpt-mini")])
def test_a_language_model_is_exported(ready: Any, tmp_path: Path, engine: str, model: str) -> None:
    ready(engine)
    words = np.random.default_rng(1).choice(list("abcdefgh"), (400, 10))
    (tmp_path / "words.txt").write_text("\n".join(" ".join(row) for row in words))
    job = velodrome.Job(engine=engine, strategy="single", model=model, dataset=f"text:{tmp_path}/words.txt",
                        steps=6, epochs=1, batch_size=8, unroll=10)
    velodrome.train(job, name="letters", runs=tmp_path)
    assert velodrome.export("letters", tmp_path)["difference"] <= 1e-4
    answer = velodrome.predict("letters", [tmp_path / "words.txt"], tmp_path, top=3)
    assert len(answer["files"][0]["predictions"]) == 3


def test_a_graph_that_differs_from_the_engine_that_trained_is_not_kept(
    ready: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch would agree with itself: what counts are the outputs of MXNet."""
    ready("mxnet")
    velodrome.train(velodrome.Job(strategy="single", **ROWS["mxnet-dense"]), name="odd", runs=tmp_path)
    write_graph = exporting._write_graph

    def damage(job: Any, writer: str, made: Path, launcher: Any) -> None:
        write_graph(job, writer, made, launcher)
        import onnx
        from onnx import numpy_helper

        graph = onnx.load(made / ONNX)
        for one in graph.graph.initializer:
            if one.dims == [10]:
                one.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(one) + np.float32(0.01), one.name))
        onnx.save(graph, made / ONNX)

    monkeypatch.setattr(exporting, "_write_graph", damage)
    with pytest.raises(RunFailed, match=r"is not kept: its outputs differ by 0\.01"):
        velodrome.export("odd", tmp_path)
    assert not (tmp_path / "odd" / "model" / ONNX).exists()
