"""What workers exchange per step is what the formulas of `velodrome check` say, by the kernel's own counters."""

from __future__ import annotations

from typing import Any

import pytest

from velodrome.catalog.exchange import traffic_of
from velodrome.catalog.registry import strategy_of
from velodrome.job.job import Job
from velodrome.job.resolve import resolve

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("no_strays", "warm")]

#: Steps of two runs, whose difference is steps alone, without start, evaluation and saving.
FEW, MANY = 60, 260
#: Gradients of dense-300-100 on the digits: float32.
GRADIENT = 4 * (64 * 300 + 300 + 300 * 100 + 100 + 100 * 10 + 10)


def _loopback_bytes_of_a_step(velodrome, runs, strategy: str, batch: int, more: dict[str, Any]) -> float:
    """What one of two workers sends: the interface counts each byte once, with headers and acknowledgements."""
    counted = []
    for steps in (FEW, MANY):
        words = ["train", "--engine", "torch", "--strategy", strategy, "--workers", 2, "--threads", 1]
        words += ["--model", "dense-300-100", "--batch-size", batch, "--steps", steps, "--epochs", 100]
        words += [word for name, value in more.items() for word in (f"--{name.replace('_', '-')}", value)]
        words += ["--validation", 0, "--no-checkpoints", "--name", f"run{steps}", "--runs", runs, "--json"]
        done = velodrome(*words)
        assert done.code == 0, done.text
        assert done.json()["steps"] == steps
        counted.append(max(node["network_bytes"]["loopback"] for node in done.json()["nodes"]))
    return (counted[1] - counted[0]) / (MANY - FEW) / 2


@pytest.mark.parametrize("strategy", ["pipeline", "tensor"])
def test_what_divided_models_send_is_what_check_expects(velodrome, runs, strategy: str) -> None:
    pytest.importorskip("torch")
    words = ["check", "--engine", "torch", "--model", "dense-300-100", "--batch-size", 64, "--workers", 2, "--json"]
    done = velodrome(*words)
    assert done.code == 0, done.text
    (expected,) = (row["traffic"]["one_host"] for row in done.json()["strategies"] if row["strategy"] == strategy)
    # Layers of this size take too little time for every run to cut them at the same place.
    may_be = [expected] if strategy == "tensor" else [64 * width * 4 for width in (300, 100)]
    per_step = _loopback_bytes_of_a_step(velodrome, runs, strategy, 64, {})
    assert expected in may_be
    assert any(0.95 < per_step / each < 1.25 for each in may_be)


@pytest.mark.parametrize(("strategy", "more"), [
    pytest.param("ddp", {}, id="ddp"),
    pytest.param("ddp", {"compress": "fp16"}, id="fp16"),
    pytest.param("zero1", {}, id="zero1"),
    pytest.param("fsdp", {}, id="fsdp"),
    pytest.param("local-sgd", {"sync_every": 5}, id="local-sgd"),
    pytest.param("diloco", {"sync_every": 20}, id="diloco"),
])
def test_the_formula_is_what_the_loopback_counts(velodrome, runs, strategy: str, more: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    per_step = _loopback_bytes_of_a_step(velodrome, runs, strategy, 8, more)
    job = resolve(Job(engine="torch", strategy=strategy, workers=2, **more))
    exchange = strategy_of(job).exchange
    assert exchange is not None
    expected = traffic_of(exchange, GRADIENT, 2, every=job.sync_every or 1, compressed=0.5 if job.compress else 1.0)
    if strategy == "fsdp":  # layers of this size are gathered together, and kept for the backward pass
        assert 0.6 < per_step / expected.one_host < 1.1
    else:
        assert 0.95 < per_step / expected.one_host < 1.25
