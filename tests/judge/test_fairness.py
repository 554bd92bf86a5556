"""What a verdict must mention about the configurations that it compares."""

from __future__ import annotations

from typing import Any

import pytest

from synthetic_races import repeated, result
from typed_judge import compare
from velodrome.catalog.registry import strategy_of
from velodrome.job.job import Job
from velodrome.job.resolve import batch_of_step, resolve
from velodrome.judge.caveats import crash_note, crashes, update_size, updates_note
from velodrome.judge.compare import Row

pytestmark = pytest.mark.unit


def row(**fields: Any) -> Row:
    return compare([{name: value for name, value in result(**fields).items() if value is not None}])[0]


@pytest.mark.parametrize("scope", ["global", "per-worker"])
@pytest.mark.parametrize(
    ("engine", "strategy", "consistency"),
    [("torch", "single", "none"), ("torch", "ddp", "bsp"), ("tensorflow", "parameter-server", "asp")],
)
def test_the_update_size_of_a_result_that_lacks_it_is_what_a_job_of_today_has(
    engine: str, strategy: str, consistency: str, scope: str
) -> None:
    workers = 1 if strategy == "single" else 4
    job = resolve(Job.model_validate({"dataset": "digits", "model": "linear", "engine": engine, "strategy": strategy,
                                      "workers": workers, "batch_size": 64, "batch_scope": scope}))
    older = row(engine=engine, strategy=strategy, workers=workers, servers=job.servers, batch_scope=scope,
                consistency=consistency, batch_of_step=None)
    assert update_size(older) == batch_of_step(job, strategy_of(job))


def test_updates_of_different_size_are_named_and_equal_ones_are_not() -> None:
    one, two = row(strategy="single"), row(workers=2, batch_scope="per-worker", batch_of_step=128)
    assert updates_note(one, [two]) == (
        f"{one.name} updates the weights after 64 examples, {two.name} after 128: this is not the same training"
    )
    assert updates_note(one, [row(workers=2)]) == ""


def test_crashes_are_counted_against_the_configuration_that_crashed() -> None:
    runs = [*repeated([100, 101, 99], strategy="single"), *repeated([190, 192, 188], workers=2),
            *(result("ddp", 2, status="failed", seed=seed) for seed in (4, 5))]
    single, two = compare(runs)
    assert (crash_note(single), crash_note(two)) == ("", "crashed in 2 of 5 runs")
    assert crashes([single, two], {}) == "torch/ddp with 2 workers crashed in 2 of 5 runs"
    assert crashes([single], {"torch/ddp with 4 workers": 3, "torch/ddp with 8 workers": 1}) == (
        "torch/ddp with 4 workers crashed in all of 3 runs; torch/ddp with 8 workers crashed in its only run"
    )
    assert crashes([single], {}) == ""
