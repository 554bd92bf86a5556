"""With a real limit of memory per process, a model that does not fit under `ddp` trains where it is divided.

Under `ddp` a process holds its weights, their gradients and the two averages of Adam: four times the weights. Two
processes that divide all of them hold about half of that each.
"""

from __future__ import annotations

import sys

import pytest
from scene import Scene

pytestmark = [
    pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="the limit is that of Linux (RLIMIT_DATA)"),
]

#: Times the weights that a process may have in addition to the framework.
TIMES = 3.3


def train(velodrome, scene: Scene, strategy: str):
    pytest.importorskip("torch")
    words = ["--model", "large_nets:build", "--model-arg", f"times={TIMES}", "--batch-size", 16, "--steps", 3]
    words += ["--epochs", 1, "--no-checkpoints", "--threads", 1, "--json"]
    return velodrome(*scene.words("torch", strategy, *words))


def test_it_does_not_fit_under_ddp(velodrome, scene: Scene) -> None:
    done = train(velodrome, scene, "ddp")
    assert done.code == 1, done.text
    assert "memory" in scene.result()["error"]["message"].lower()


@pytest.mark.parametrize("strategy", ["fsdp", "pipeline", "tensor"])
def test_it_trains_where_it_is_divided(velodrome, scene: Scene, strategy: str) -> None:
    done = train(velodrome, scene, strategy)
    assert done.code == 0, done.text
    assert done.json()["steps"] == 3
    assert (scene.path / "model" / "model.safetensors").stat().st_size > 400e6
