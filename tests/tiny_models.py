"""Exported models made by hand, small enough that their answers can be computed in the head. No training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from velodrome.models.description import EXAMPLES, ONNX, SERVED, Served, ServedInput, ServedState

CLASSES = ("dark", "light")


def write_model(
    runs: Path, name: str, nodes: list[Any], inputs: list[Any], weights: dict[str, Any], about: Served,
    examples: dict[str, Any] | None = None, outputs: list[Any] | None = None, test: dict[str, float] | None = None,
) -> Path:
    """A run folder that holds an exported model and nothing else that matters."""
    folder = runs / name / "model"
    folder.mkdir(parents=True)
    (runs / name / "job.yaml").write_text("dataset: digits\n")
    (folder / "model.json").write_text("{}")
    graph = helper.make_graph(
        nodes, name, inputs, outputs or [helper.make_tensor_value_info("scores", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / ONNX)
    if examples:
        np.savez(folder / EXAMPLES, **examples)
    about.write(folder / SERVED)
    (runs / name / "result.json").write_text(json.dumps({"test": test or {}}))
    return folder


def brightness(runs: Path, name: str = "brightness", side: int = 8, channels: int = 1) -> Path:
    """Its logits are -m and m, where m is the mean of the picture less one half, times ten."""
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["f", "axes"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "scale"], ["unit"]),
        helper.make_node("Sub", ["unit", "half"], ["m"]),
        helper.make_node("Unsqueeze", ["m", "one"], ["column"]),
        helper.make_node("Mul", ["column", "signs"], ["scores"]),
    ]
    shape = (side, side, channels)
    ramp = np.linspace(0, 255, 5).astype(np.uint8)[:, None, None, None]
    pictures = np.broadcast_to(ramp, (5, *shape))
    return write_model(
        runs, name, nodes, [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", *shape])],
        {"axes": np.array([1, 2, 3]), "scale": np.float32(1 / 255), "half": np.float32(0.5), "one": np.array([1]),
         "signs": np.array([[-10.0, 10.0]], np.float32)},
        Served(kind="images", task="classification", model="brightness", engine="torch", dataset="greys",
               inputs=(ServedInput(name="x", shape=shape, dtype="uint8", image=True),), classes=CLASSES),
        {"in:x": pictures, "y:y": np.array([0, 0, 0, 1, 1]), "expected": np.zeros(5)},
    )


def line(runs: Path, name: str = "line") -> Path:
    """Predicts 100 + 10 · (2·standardised width + 1), and knows two colours that it ignores."""
    columns = {
        "features": [
            {"name": "width", "kind": "number", "mean": 5.0, "deviation": 2.0},
            {"name": "colour", "kind": "category", "how": "onehot", "categories": ["red", "blue"]},
        ],
        "targets": [{"name": "price", "kind": "number", "mean": 100.0, "deviation": 10.0}],
    }
    return write_model(
        runs, name,
        [helper.make_node("MatMul", ["features", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["scores"])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 3])],
        {"w": np.array([[2.0], [0.0], [0.0]], np.float32), "b": np.array([1.0], np.float32)},
        Served(kind="arrays", task="regression", model="line", engine="tensorflow", dataset="prices",
               inputs=(ServedInput(name="features", shape=(3,), dtype="float32"),), classes=("price",),
               columns=columns),
    )


def counting(runs: Path, name: str = "counting") -> Path:
    """A language model with a state: after each word comes the one after it in the vocabulary."""
    words = ("<eos>", "one", "two", "three", "<unk>")
    nodes = [
        helper.make_node("Gather", ["table", "words"], ["scores"]),
        helper.make_node("Add", ["h", "step"], ["h_after"]),
    ]
    table = np.full((5, 5), -20.0, np.float32)
    for place in range(5):
        table[place, (place + 1) % 4] = 20.0
    return write_model(
        runs, name, nodes,
        [helper.make_tensor_value_info("words", TensorProto.INT64, ["n", 1]),
         helper.make_tensor_value_info("h", TensorProto.FLOAT, ["n", 1])],
        {"table": table, "step": np.ones((1, 1), np.float32)},
        Served(kind="text", task="language-model", model="counting", engine="torch", dataset="numbers",
               inputs=(ServedInput(name="words", shape=(1,), dtype="int64"),), vocabulary=words, context=1,
               state=(ServedState(name="h", shape=(-1, 1)),)),
        outputs=[helper.make_tensor_value_info(each, TensorProto.FLOAT, None) for each in ("scores", "h_after")],
    )


def digits(runs: Path, name: str = "digits") -> Path:
    """A classifier of the embedded digits without training: random features, combined by least squares."""
    from velodrome.data import catalogue

    data = catalogue.load("digits", seed=1, validation=0.1)
    pixels = data.train.images.reshape(len(data.train), -1).astype(np.float64) / 16
    drawn = np.random.default_rng(1)
    mixed, shift = drawn.normal(size=(64, 600)) / 4, drawn.normal(size=600)
    wide = np.maximum(pixels @ mixed + shift, 0)
    tested = data.test.images.reshape(len(data.test), -1).astype(np.float64) / 16
    solved = np.linalg.solve(wide.T @ wide + 3 * np.eye(600), wide.T @ np.eye(10)[data.train.labels]) * 8
    right = float(((np.maximum(tested @ mixed + shift, 0) @ solved).argmax(1) == data.test.labels).mean())
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["f"], ["flat"]),
        helper.make_node("MatMul", ["flat", "mixed"], ["m"]),
        helper.make_node("Add", ["m", "shift"], ["shifted"]),
        helper.make_node("Relu", ["shifted"], ["wide"]),
        helper.make_node("MatMul", ["wide", "w"], ["scores"]),
    ]
    return write_model(
        runs, name, nodes, [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", 8, 8, 1])],
        {"mixed": (mixed / 16).astype(np.float32), "shift": shift.astype(np.float32), "w": solved.astype(np.float32)},
        Served(kind="images", task="classification", model="least squares", engine="numpy", dataset="digits",
               inputs=(ServedInput(name="x", shape=(8, 8, 1), dtype="uint8", image=True),),
               classes=tuple("0123456789"), brightest=16),
        {"in:x": data.test.images[:40], "y:y": data.test.labels[:40], "expected": np.zeros(40)},
        test={"accuracy": right},
    )
