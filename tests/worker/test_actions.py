"""What `velodrome check` reports of an engine that cannot look into its own steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_loop import Heard, NumpyLearner

from velodrome.worker import actions


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float64", 8), ("bfloat16", 4)])
def test_weights_and_gradients_are_counted_by_the_parameters(tmp_path: Path, dtype: str, size: int) -> None:
    heard = Heard(tmp_path, dtype=dtype)
    actions.check(heard.context, NumpyLearner(heard.context), workers=2)
    (found,) = (event for event in heard.events() if event["kind"] == "inspection")
    assert (found["weight_bytes"], found["gradient_bytes"]) == (640 * size, 640 * size)
    assert found.get("optimizer_bytes") is None
