"""A PyTorch model that divides its input by 255 is noticed where it is fed numbers from 0 to 1."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny import tiny_splits

from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.tasks.supervised import Classification

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.unit


def notes(monkeypatch: pytest.MonkeyPatch, scale: str, pixels: str = "auto") -> tuple[str, ...]:
    from velodrome.engines.torch.network import build

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    job = Job(model="torch_byte_inputs:build", model_args={"scale": scale}, batch_size=16, pixels=pixels)
    return build(resolve(job), tiny_splits(), Classification(), torch.device("cpu")).notes


@pytest.mark.parametrize("scale", ["divide", "method", "multiply", "subtract", "flat"])
def test_a_model_that_scales_bytes_is_warned_of(monkeypatch: pytest.MonkeyPatch, scale: str) -> None:
    (note,) = notes(monkeypatch, scale)
    assert note.startswith("model 'torch_byte_inputs:build' begins by scaling its input as if pixels")
    assert "choose --pixels byte" in note
    assert not notes(monkeypatch, scale, "byte")


@pytest.mark.parametrize("scale", ["unit", "plain", "later"])
def test_other_arithmetic_is_not(monkeypatch: pytest.MonkeyPatch, scale: str) -> None:
    assert not notes(monkeypatch, scale)
