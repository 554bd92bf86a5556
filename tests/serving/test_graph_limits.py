"""Exported graphs that other programs have written: what a call of one may take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tiny_models import brightness
from velodrome.serving import model
from velodrome.serving.model import BadInput, LoadedModel

pytestmark = pytest.mark.integration


def graph(nodes: list[Any], weights: dict[str, Any]) -> bytes:
    """A graph that takes the pictures of `brightness`, and returns two numbers for each."""
    before = [helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
              helper.make_node("ReduceMean", ["f", "axes"], ["m"], keepdims=0),
              helper.make_node("Unsqueeze", ["m", "one"], ["column"]),
              helper.make_node("Concat", ["column", "column"], ["both"], axis=1)]
    stored = {"axes": np.array([1, 2, 3]), "one": np.array([1]), **weights}
    made = helper.make_graph(
        [*before, *nodes], "g", [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", 8, 8, 1])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()],
    )
    return bytes(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString())


def values(*names: str) -> list[Any]:
    kinds = {"again": TensorProto.BOOL, "go": TensorProto.BOOL, "turn": TensorProto.INT64}
    return [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT),
                                          [] if name in kinds else None) for name in names]


BODY = helper.make_graph([helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Neg", ["v"], ["w"])],
                         "body", values("turn", "go", "v"), values("again", "w"))
LOOP = graph([helper.make_node("Loop", ["turns", "true", "both"], ["scores"], body=BODY)],
             {"turns": np.array(2**62), "true": np.array(True)})
FILLED = graph([helper.make_node("ConstantOfShape", ["many"], ["zeros"]),
                helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=0),
                helper.make_node("Add", ["both", "sum"], ["scores"])], {"many": np.array([2**45])})


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("content", "why"), [(LOOP, "it took more than 1 s"), (FILLED, "cannot compute this")])
def test_a_graph_of_a_few_bytes_takes_neither_all_time_nor_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, why: str
) -> None:
    monkeypatch.setattr(model, "CALL_SECONDS", 1.0)
    folder = brightness(tmp_path)
    (folder / "model.onnx").write_bytes(content)
    with pytest.raises(BadInput, match=why):
        LoadedModel(folder, "hurt", threads=1).scores({"x": np.zeros((1, 8, 8, 1), np.uint8)})


def test_graphs_allocate_from_one_arena_that_has_an_end(tmp_path: Path) -> None:
    """Half of the memory that is free."""
    folder = brightness(tmp_path)
    asked = 2**29  # numbers of four bytes: too many to be computed when the graph is opened
    (folder / "model.onnx").write_bytes(graph([
        helper.make_node("ConstantOfShape", ["many"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=0),
        helper.make_node("Add", ["both", "sum"], ["scores"]),
    ], {"many": np.array([asked])}))
    code = (
        "import sys\nfrom pathlib import Path\nimport numpy as np\nfrom velodrome.serving import model\n"
        "model.memory_budget = lambda share: int(share * int(sys.argv[2]))\n"
        "from velodrome.serving.model import BadInput, LoadedModel\n"
        "model = LoadedModel(Path(sys.argv[1]), 'hurt', threads=1)\n"
        "try:\n    print(model.scores({'x': np.zeros((1, 8, 8, 1), np.uint8)}).tolist())\n"
        "except BadInput as error:\n    print(error)\n"
    )
    for free, answer in ((4 * asked, "cannot compute this"), (24 * asked, "[[0.0, 0.0]]")):
        done = subprocess.run([sys.executable, "-c", code, str(folder), str(free)], capture_output=True, text=True,
                              timeout=100, check=True)
        assert answer in done.stdout
