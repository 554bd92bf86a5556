"""A Keras model that divides its input by 255 in code is noticed where it is fed numbers from 0 to 1."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import tiny_splits

from velodrome.job.job import Job
from velodrome.job.resolve import resolve

pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
pytestmark = pytest.mark.unit


def notes(monkeypatch: pytest.MonkeyPatch, scale: str, pixels: str = "auto") -> tuple[str, ...]:
    from velodrome.engines.tensorflow.network import Network
    from velodrome.tasks.supervised import Classification

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    job = Job(engine="tensorflow", model="keras_byte_inputs:build", model_args={"scale": scale}, batch_size=16,
              pixels=pixels)
    return Network(resolve(job), Classification(), tiny_splits()).notes


@pytest.mark.parametrize("scale", ["divide", "lambda", "multiply", "subtract"])
def test_a_model_that_scales_bytes_is_warned_of(monkeypatch: pytest.MonkeyPatch, scale: str) -> None:
    (note,) = notes(monkeypatch, scale)
    assert note.startswith("model 'keras_byte_inputs:build' begins by scaling its input as if pixels")
    assert not notes(monkeypatch, scale, "byte")


@pytest.mark.parametrize("scale", ["unit", "plain"])
def test_other_arithmetic_is_not(monkeypatch: pytest.MonkeyPatch, scale: str) -> None:
    assert not notes(monkeypatch, scale)
