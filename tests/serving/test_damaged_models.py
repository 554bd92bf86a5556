"""Folders of models that other programs have written or damaged: one sentence, before anything large is allocated."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy
from starlette.testclient import TestClient
from typer.testing import CliRunner

from hostile_files import picture
from tiny_models import brightness, counting, line
from velodrome.api import datasets
from velodrome.cli.main import app
from velodrome.errors import BadRequest
from velodrome.models.description import EXAMPLES, SERVED
from velodrome.serving.model import LoadedModel
from velodrome.web.model_api import serve_app

pytestmark = pytest.mark.unit

Change = Callable[[dict[str, Any]], object]


def set_input(**fields: object) -> Change:
    return lambda about: about["inputs"][0].update(fields)


def set_fields(**fields: object) -> Change:
    return lambda about: about.update(fields)


def set_column(place: int, **fields: object) -> Change:
    return lambda about: about["columns"]["features"][place].update(fields)


DAMAGES: list[tuple[str, Callable[[Path], Path], Change, str]] = [
    ("no inputs", brightness, set_fields(inputs=[]), "inputs: "),
    ("inputs that are no list", brightness, set_fields(inputs=3), "inputs: "),
    ("an unknown type", brightness, set_input(dtype="float7"), r"inputs\[0\]\.dtype: "),
    ("a shape of a negative number", brightness, set_input(shape=[-5, 8, 1]), r"inputs\[0\]\.shape\[0\]"),
    ("a shape of zero", brightness, set_input(shape=[0, 8, 1]), r"inputs\[0\]\.shape\[0\]"),
    ("a shape of 400 digits", brightness, set_input(shape=[10**400, 8, 1]), r"inputs\[0\]\.shape\[0\]"),
    ("a shape of many gigabytes", brightness, set_input(shape=[1 << 20, 1 << 20, 1]), r"more than 67,108,864 numbers"),
    ("a shape of text", brightness, set_input(shape="eight"), r"inputs\[0\]\.shape"),
    ("an image of two axes", brightness, set_input(shape=[8, 8]), "'x' is not an image"),
    ("another shape than the graph's", brightness, set_input(shape=[9, 8, 1]), "the graph takes 'x' of shape"),
    ("another name than the graph's", brightness, set_input(name="z"), "the graph takes x, and not z"),
    ("an image that is none", brightness, set_input(image=False), "one input, an image"),
    ("more classes than outputs", brightness, set_fields(classes=["a", "b", "c"]), "3 names of classes"),
    ("classes that are numbers", brightness, set_fields(classes=[1, 2]), r"classes\[0\]"),
    ("a batch of none", brightness, set_fields(only_batch=0), "only_batch: "),
    ("a batch of billions", brightness, set_fields(only_batch=1 << 40), "only_batch: "),
    ("a pixel that divides by zero", brightness, set_fields(brightest=0), "brightest: "),
    ("a pixel that is not finite", brightness, set_fields(brightest=float("nan")), "brightest: "),
    ("a kind of its own", brightness, set_fields(kind="sound"), "kind: "),
    ("a state without a text", brightness, set_fields(state=[{"name": "h", "shape": [1]}]), "only a language model"),
    ("a state of terabytes", counting, set_fields(state=[{"name": "h", "shape": [-1, 1 << 40]}]), r"state\[0\]\.shape"),
    ("a state that the graph has not", counting, set_fields(state=[]), "the graph takes words, h, and not words"),
    ("no vocabulary", counting, set_fields(vocabulary=[]), "has a vocabulary"),
    ("a context of none", counting, set_fields(context=0), "context: "),
    ("two inputs of one name", line, lambda about: about["inputs"].append(about["inputs"][0]), "the same name"),
    ("columns of another width", line, set_column(1, categories=["red"]), "columns are not those of the inputs"),
    ("columns that are no list", line, set_fields(columns={"features": 3, "targets": []}), "no list of features"),
    ("a column of nothing", line, set_column(0, mean=None), "a column is described by"),
    ("a mean of 400 digits", line, set_column(0, mean=10**400), "the mean or the deviation of column 'width'"),
    ("a deviation of zero", line, set_column(0, deviation=0), "the mean or the deviation of column 'width'"),
    ("categories that are numbers", line, set_column(1, categories=[1, 2]), "categories of column 'colour'"),
]


def damaged(runs: Path, make: Callable[[Path], Path], change: Change) -> Path:
    folder = make(runs)
    about = json.loads((folder / SERVED).read_text())
    change(about)
    (folder / SERVED).write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize(("make", "change", "why"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_a_description_that_is_wrong_is_one_sentence(
    tmp_path: Path, make: Callable[[Path], Path], change: Change, why: str
) -> None:
    folder = damaged(tmp_path, make, change)
    with pytest.raises(BadRequest, match=why) as refused:
        LoadedModel(folder, "hurt", threads=1)
    assert "\n" not in str(refused.value)
    assert str(folder / SERVED) in str(refused.value)


@pytest.mark.parametrize("content", ["[]", "3", "{", "[" * 100_000, '{"kind": "images"}', "\ufeff"])
def test_a_description_that_is_none_is_one_sentence_on_the_command_line_and_on_the_page(
    tmp_path: Path, content: str
) -> None:
    folder = brightness(tmp_path)
    (folder / SERVED).write_text(content)
    (tmp_path / "x.png").write_bytes(picture())
    with pytest.raises(BadRequest, match=r"model of .* cannot be read") as refused:
        CliRunner().invoke(app, ["predict", "brightness", str(tmp_path / "x.png"), "--runs", str(tmp_path)],
                           catch_exceptions=False)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)
    with TestClient(serve_app(["brightness"], tmp_path), base_url="http://127.0.0.1") as client:
        assert client.post("/api/predict", json={}).status_code == 409
        assert "cannot be read" in client.get("/").text


def zipped(file: Path, head: bytes, zeros: int, name: str = "in:x.npy") -> None:
    """An archive of one array with this head and so many zeros, which take a thousandth of that on the disk."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive, archive.open(name, "w") as out:
        out.write(head)
        for _ in range(zeros >> 20):
            out.write(bytes(1 << 20))


def head_of(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return npy.magic(1, 0) + len(text).to_bytes(2, "little") + text


HEADS = {
    "more examples than are kept": head_of((100 << 20, 1)), "larger ones": head_of((100, 1 << 20)),
    "a negative number of examples": head_of((-1,)), "nothing of everything": head_of((0, 10**30)),
    "Python objects": head_of((5, 8, 8, 1), "|O"), "items of a gigabyte": head_of((5,), "|V1000000000"),
    "a head of four gigabytes": npy.magic(2, 0) + b"\xff\xff\xff\xff",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_examples_that_would_fill_the_memory_are_not_unpacked(tmp_path: Path, head: bytes) -> None:
    folder = brightness(tmp_path)
    zipped(folder / EXAMPLES, head, 100 << 20)
    model = LoadedModel(folder, "b", threads=1)
    tracemalloc.start()
    try:
        assert model.examples == {}
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("content", [b"", b"no graph", bytes(1 << 16)])
def test_a_damaged_graph_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    folder = brightness(tmp_path)
    (folder / "model.onnx").write_bytes(content)
    with pytest.raises(BadRequest, match="ONNX Runtime cannot load") as refused:
        LoadedModel(folder, "hurt", threads=1)
    assert (refused.value.exit_code, "\n" in str(refused.value)) == (2, False)


@pytest.mark.parametrize("arrays", [
    {}, {"in:z": np.zeros((5, 8, 8, 1), np.uint8)}, {"in:x": np.zeros(5, np.uint8)}, {"in:x": np.uint8(3)},
    {"in:x": np.zeros((5, 9, 8, 1), np.uint8)}, {"in:x": np.array([[None]])},
])
def test_a_model_is_served_without_examples_that_are_not_its_own(tmp_path: Path, arrays: dict[str, Any]) -> None:
    folder = brightness(tmp_path)
    np.savez(folder / EXAMPLES, **arrays)
    with TestClient(serve_app(["brightness"], tmp_path), base_url="http://127.0.0.1") as client:
        assert client.get("/").status_code == 200
        assert client.get("/api/models").json()["models"][0]["picture"]["examples"] == []
        assert client.get("/api/example").status_code == 404
        assert client.post("/api/predict", files={"file": ("x.png", picture(), "image/png")}).status_code == 200


@pytest.mark.parametrize("test", [[1], 3, "x", {"accuracy": 10**400}, {"accuracy": [1]}, {"accuracy": float("inf")}])
def test_a_result_of_another_shape_does_not_keep_a_model_from_being_served(tmp_path: Path, test: object) -> None:
    folder = brightness(tmp_path)
    (folder.parent / "result.json").write_text(json.dumps({"test": test}))
    with TestClient(serve_app(["brightness"], tmp_path), base_url="http://127.0.0.1") as client:
        assert client.get("/").status_code == 200
        assert client.get("/api/models").json()["models"][0]["test"] == {}
    (folder.parent / "result.json").write_text("[1]")
    with TestClient(serve_app(["brightness"], tmp_path), base_url="http://127.0.0.1") as client:
        assert client.get("/api/models").status_code == 200


@pytest.mark.parametrize("columns", [
    [], 3, {}, {"features": [], "targets": []}, {"features": [{}], "targets": [{}]}, {"features": "ab", "targets": "c"},
])
def test_columns_that_are_none_are_one_sentence(tmp_path: Path, columns: object) -> None:
    (tmp_path / "columns.json").write_text(json.dumps(columns))
    with pytest.raises(BadRequest, match=r"cannot read .*columns\.json") as refused:
        datasets.encode_row(tmp_path, {"width": 3})
    assert "\n" not in str(refused.value)


def test_names_of_classes_and_files_with_line_breaks_stay_on_the_line_of_their_answer(tmp_path: Path) -> None:
    folder = brightness(tmp_path)
    about = json.loads((folder / SERVED).read_text())
    (folder / SERVED).write_text(json.dumps({**about, "classes": ["dark\nother.png: light 99.0 %", "li\rght"]}))
    file = tmp_path / "x\ny.png"
    file.write_bytes(picture())
    words = ["predict", "brightness", str(file), "--runs", str(tmp_path)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert len(done.stdout.splitlines()) == 1, done.stdout
    assert r"dark\nother.png: light 99.0 %" in done.stdout
