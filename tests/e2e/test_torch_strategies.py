"""Every strategy of PyTorch learns the digits, and records what it did as any other."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.usefixtures("no_strays", "warm")]

slow = pytest.mark.slow


@pytest.mark.parametrize(("strategy", "more", "consistency"), [
    pytest.param("fsdp", (), "bsp", id="fsdp"),
    pytest.param("zero1", (), "bsp", id="zero1", marks=slow),
    pytest.param("local-sgd", ("--sync-every", 5), "periodic", id="local-sgd"),
    pytest.param("diloco", ("--sync-every", 20), "periodic", id="diloco", marks=slow),
    pytest.param("pipeline", (), "bsp", id="pipeline", marks=slow),
    pytest.param("pipeline", ("--pipeline-schedule", "gpipe"), "bsp", id="gpipe", marks=slow),
    pytest.param("tensor", (), "bsp", id="tensor", marks=slow),
    pytest.param("ddp", ("--compress", "fp16"), "bsp", id="fp16", marks=slow),
    pytest.param("ddp", ("--compress", "bf16"), "bsp", id="bf16", marks=slow),
    pytest.param("ddp", ("--compress", "powersgd:4"), "bsp", id="powersgd", marks=slow),
])
def test_it_learns_the_digits(velodrome, runs, strategy: str, more: tuple[object, ...], consistency: str) -> None:
    pytest.importorskip("torch")
    words = ["train", "--engine", "torch", "--strategy", strategy, "--workers", 2, "--threads", 1, "--epochs", 15]
    done = velodrome(*words, "--batch-size", 32, *more, "--name", "a", "--runs", runs, "--json")
    assert done.code == 0, done.text
    result = done.json()
    assert result["test"]["accuracy"] >= 0.93
    assert result["test"]["total"] == 359
    assert result["steps"] == 15 * -(-1294 // 32)
    assert result["consistency"] == consistency
    assert len(result["nodes"]) == 2
    assert all(node["memory_bytes"]["max"] > 0 for node in result["nodes"])
    assert velodrome("runs", "check", "a", "--runs", runs).code == 0
