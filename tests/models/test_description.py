"""What `model.json` may say of a model, and the weights beside it: checked before anything is built or read of them."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from velodrome.errors import BadRequest
from velodrome.models.description import check_data
from velodrome.models.model_files import DESCRIPTION, read_description

pytestmark = pytest.mark.unit

IMAGES: dict[str, Any] = {
    "engine": "torch", "model": "dense-128", "model_args": {}, "dtype": "float32", "input_shape": [1, 8, 8],
    "classes": 10, "dataset": "digits", "pixels": "unit", "scale": 0.0625, "offset": 0.0, "outputs": "logits",
    "only_batch": None, "lazy": False, "file": "model.safetensors", "strict": True,
}
ARRAYS: dict[str, Any] = {
    **IMAGES, "kind": "arrays", "task": "regression", "inputs": {"x": {"shape": [4], "dtype": "float32"}}, "images": [],
    "classes": None, "class_names": [], "input_shape": [4], "returns": 1, "arguments": {"input_shape": [4]},
}
TEXT: dict[str, Any] = {"engine": "jax", "model": "gpt-mini", "dtype": "float32", "kind": "text", "vocabulary": 50,
                        "dataset": "t", "context": 20, "file": "model.safetensors"}


def folder_of(place: Path, about: Any, weights: bytes = b"w" * 400) -> Path:
    (place / DESCRIPTION).write_text(json.dumps(about))
    (place / (about["file"] if about.get("file") in ("model.keras", "model.weights.h5") else "model.safetensors")
     ).write_bytes(weights)
    return place


@pytest.mark.parametrize("about", [IMAGES, ARRAYS, TEXT, {**IMAGES, "offset": [0.5, 1.0], "scale": [1.0, 2.0]}])
def test_what_the_engines_write_is_read(tmp_path, about):
    assert read_description(folder_of(tmp_path, about), about["model"]) == about


@pytest.mark.parametrize(("about", "fields", "said"), [
    (IMAGES, {"classes": "ten"}, "'classes' 'ten'"), (IMAGES, {"classes": -1}, "'classes' -1"),
    (IMAGES, {"classes": True}, "'classes' True"), (IMAGES, {"classes": 10**400}, "'classes'"),
    (IMAGES, {"classes": None}, "has no 'classes'"), (IMAGES, {"classes": 1000}, "too few for a model that returns"),
    (IMAGES, {"input_shape": "eight"}, "input_shape"), (IMAGES, {"input_shape": [1 << 20, 1 << 20]}, "more than"),
    (IMAGES, {"input_shape": [0, 8, 8]}, "input_shape"), (IMAGES, {"dtype": "load"}, "'dtype' 'load'"),
    (IMAGES, {"dtype": ["float32"]}, "'dtype'"), (IMAGES, {"file": "README.md"}, "'file' 'README.md'"),
    (IMAGES, {"arguments": 5}, "'arguments' 5"), (IMAGES, {"model_args": [1]}, "'model_args'"),
    (IMAGES, {"only_batch": 1 << 40}, "'only_batch'"), (IMAGES, {"scale": "a"}, "scale"),
    (IMAGES, {"policy": {"class_name": "x"}}, "'policy'"), (IMAGES, {"lazy": "yes"}, "'lazy'"),
    (IMAGES, {"kind": "sound"}, "'kind' 'sound'"), (IMAGES, {"kind": "arrays"}, "has no 'returns'"),
    (ARRAYS, {"inputs": {"x": 3}}, "inputs has 'x' 3"), (ARRAYS, {"images": [{}]}, "images"),
    (ARRAYS, {"returns": 10**9}, "returns"), (ARRAYS, {"input_shape": {"x": [4, -1]}}, "input_shape"),
    (TEXT, {"vocabulary": 10**9}, "vocabulary"), (TEXT, {"context": 10**12}, "'context'"),
    (TEXT, {"vocabulary": ["a"]}, "'vocabulary'"),
])
def test_what_no_engine_writes_is_refused_in_a_sentence(tmp_path, about, fields, said):
    changed = {**about, **fields}
    with pytest.raises(ValueError) as caught:
        read_description(folder_of(tmp_path, changed), about["model"])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_weights_that_are_a_pipe_or_a_link_are_not_waited_for(tmp_path):
    folder_of(tmp_path, IMAGES)
    weights = tmp_path / "model.safetensors"
    weights.unlink()
    os.mkfifo(weights)
    with pytest.raises(OSError, match="a named pipe"):
        read_description(tmp_path, "dense-128")


def test_an_archive_that_unpacks_to_far_more_is_refused(tmp_path):
    folder_of(tmp_path, {**IMAGES, "engine": "tensorflow", "file": "model.keras"})
    with zipfile.ZipFile(tmp_path / "model.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(64 << 20))
    with pytest.raises(ValueError, match="packs 67,108,864 bytes into"):
        read_description(tmp_path, "dense-128")


class Data:
    input_shape, classes = (8, 8, 1), 10
    vocabulary = ("a",) * 50


def test_a_model_of_the_zoo_is_built_for_the_data_at_hand_alone():
    for about in (IMAGES, {**IMAGES, "input_shape": [8, 8, 1]}, TEXT):
        check_data(about, Data())
    for fields in ({"input_shape": [1, 4096, 4096]}, {"classes": 90}):
        with pytest.raises(BadRequest, match="the data"):
            check_data({**IMAGES, **fields}, Data())
    with pytest.raises(BadRequest, match="the data need 50"):
        check_data({**TEXT, "vocabulary": 51}, Data())
