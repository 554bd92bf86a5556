"""A batch of float data is copied no more often than one of bytes: the graph gathers it, and does nothing more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from velodrome.data.examples import ExamplePart, ExampleSet
from velodrome.data.pixels import transform_of_arrays

tf: Any = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.unit
COUNT, SHAPE = 60, (8, 8, 3)
#: Operations that return numbers which they were given, in the same memory or in none.
NO_COPIES = {"Placeholder", "Const", "Identity", "NoOp", "ReadVariableOp", "Shape", "StridedSlice"}


def copies_of_a_batch(array: Any) -> tuple[list[str], Any]:
    """The operations of a step's graph that copy a batch of training examples, and the batch."""
    from velodrome.engines.tensorflow.feed import Source, gather
    from velodrome.engines.tensorflow.objectives import ExampleInputs

    part = ExamplePart({"x": array}, {"y": np.arange(COUNT) % 2})
    data = ExampleSet("some", part, part, part, classes=2, images=frozenset("x"))
    inputs, source = ExampleInputs(data, tf.float32, transform_of_arrays("auto", data)), Source(part)

    def batch(examples: Any, indices: Any) -> Any:
        mine = gather(examples, indices)
        return inputs.batch(mine.inputs, mine.targets).x

    graph = tf.function(batch).get_concrete_function(source.spec, tf.TensorSpec([None], tf.int64))
    large = [
        step.type for step in graph.graph.get_operations()
        if step.type not in NO_COPIES and any(output.shape.rank == 4 for output in step.outputs)
    ]
    return large, batch(source.tensors(), tf.range(5, 25, dtype=tf.int64)).numpy()


def test_floats_are_copied_no_more_often_than_bytes() -> None:
    random = np.random.default_rng(1)
    floats = random.random((COUNT, *SHAPE), dtype=np.float32)
    of_bytes, _ = copies_of_a_batch(random.integers(0, 256, (COUNT, *SHAPE), dtype=np.uint8))
    of_floats, batch = copies_of_a_batch(floats)
    assert of_floats == ["GatherV2"]
    assert of_bytes[:2] == ["GatherV2", "Cast"]
    assert np.array_equal(batch, floats[5:25])
