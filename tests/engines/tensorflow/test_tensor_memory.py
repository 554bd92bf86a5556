"""A gradient is reduced in the tensor's own memory; where TensorFlow does not allow it, through a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from driver import largest_difference

tf = pytest.importorskip("tensorflow")


@pytest.mark.unit
def test_tensorflow_still_exposes_the_memory_of_a_tensor() -> None:
    """Fails when TensorFlow drops what the in-place reduction relies on; training then falls back to copies."""
    from velodrome.engines.tensorflow.strategies import allreduce

    assert allreduce.available()
    tensor = tf.ones([100], tf.float64) * 2
    memory = allreduce.writable_memory(tensor)
    assert memory is not None
    memory += 1
    assert tf.reduce_sum(tensor).numpy() == 300


@pytest.mark.unit
@pytest.mark.parametrize("broken", ["raises", "copies"])
def test_memory_that_cannot_be_written_is_not_offered(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    from velodrome.engines.tensorflow.strategies import allreduce

    def view(tensor: Any) -> Any:
        if broken == "raises":
            raise BufferError
        return np.array(tensor)

    monkeypatch.setattr(allreduce, "_view", view)
    allreduce.available.cache_clear()
    try:
        assert allreduce.writable_memory(tf.ones([3])) is None
    finally:
        allreduce.available.cache_clear()


@pytest.mark.slow
@pytest.mark.integration
def test_allreduce_through_copies_ends_with_the_same_weights(train: Any) -> None:
    asked = {"strategy": "allreduce", "workers": 2, "optimizer": "momentum", "dtype": "float64"}
    in_place = train(**asked)
    copied = train(**asked, without="velodrome.engines.tensorflow.strategies.allreduce:available")
    assert largest_difference(in_place.state, copied.state) == 0
