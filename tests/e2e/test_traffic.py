"""What workers exchange per step is what the formulas of `velodrome check` say, by the kernel's own counters."""

from __future__ import annotations

from typing import Any

import pytest

from velodrome.offers.registry import strategy_of
from velodrome.offers.traffic import traffic_of
from velodrome.spec.job import Job
from velodrome.spec.resolve import resolve

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("no_strays", "warm")]

#: Steps of two runs, whose difference is steps alone, without start, evaluation and saving.
FEW, MANY = 60, 260
#: Gradients of dense-300-100 on the digits: float32.
GRADIENT = 4 * (64 * 300 + 300 + 300 * 100 + 100 + 100 * 10 + 10)


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
    counted = []
    for steps in (FEW, MANY):
        words = ["train", "--engine", "torch", "--strategy", strategy, "--workers", 2, "--threads", 1]
        words += ["--model", "dense-300-100", "--batch-size", 8, "--steps", steps, "--epochs", 2, "--no-checkpoints"]
        words += [word for name, value in more.items() for word in (f"--{name.replace('_', '-')}", value)]
        done = velodrome(*words, "--name", f"run{steps}", "--runs", runs, "--json")
        assert done.code == 0, done.text
        assert done.json()["steps"] == steps
        counted.append(max(node["network_bytes"]["loopback"] for node in done.json()["nodes"]))
    job = resolve(Job(engine="torch", strategy=strategy, workers=2, **more))
    exchange = strategy_of(job).exchange
    assert exchange is not None
    expected = traffic_of(exchange, GRADIENT, 2, every=job.sync_every or 1, compressed=0.5 if job.compress else 1.0)
    # Both workers send; the interface counts each byte once, with headers and acknowledgements.
    per_step = (counted[1] - counted[0]) / (MANY - FEW) / 2
    if strategy == "fsdp":  # layers of this size are gathered together, and kept for the backward pass
        assert 0.6 < per_step / expected.one_host < 1.1
    else:
        assert 0.95 < per_step / expected.one_host < 1.25
