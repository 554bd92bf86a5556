"""`velodrome.log`: silent outside a run, cheap to import, and strict about what it is given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import velodrome
from velodrome import figures


@pytest.fixture
def heard() -> Iterator[list[tuple[Any, ...]]]:
    calls: list[tuple[Any, ...]] = []
    figures.listen(lambda *call: calls.append(call))
    yield calls
    figures.listen(None)


def test_outside_a_run_a_report_does_nothing() -> None:
    velodrome.log(step=1, examples=32, loss=0.5, accuracy=0.9)


def test_a_report_reaches_the_run_as_plain_numbers(heard: list[tuple[Any, ...]]) -> None:
    velodrome.log(step=np.int64(3), examples=32, loss=np.float32(0.5), epoch=1, f1=0.25)
    velodrome.log(split="test", accuracy=1)
    assert heard == [("train", 3, 32, 1, {"loss": 0.5, "f1": 0.25}), ("test", None, None, None, {"accuracy": 1.0})]
    assert [type(value) for value in heard[0][4].values()] == [float, float]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param({"split": "dev"}, "split 'dev' is unknown: choose one of train, validation, test", id="split"),
        pytest.param({"loss": "high"}, "loss must be a number or a tensor of one element, not 'str'", id="text"),
        pytest.param({"loss": np.zeros(2)}, "loss must be a number or a tensor of one element", id="two-numbers"),
        pytest.param({"examples": -1}, "examples -1 must be a whole number of at least 0", id="negative"),
        pytest.param({"step": 0.5}, "step 0.5 must be a whole number of at least 0", id="half"),
    ],
)
def test_a_wrong_report_is_refused_inside_and_outside_a_run(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        velodrome.log(**arguments)


@pytest.mark.integration
def test_reporting_imports_nothing_that_takes_time() -> None:
    code = "import sys, velodrome, velodrome.callbacks; velodrome.log(loss=1); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "pydantic", "torch", "tensorflow", "keras", "transformers", "psutil", "typer", "yaml"}
    assert not heavy & set(done.stdout.split())
