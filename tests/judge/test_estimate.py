"""How long a job will take is said from what it will really train, and from the nearest that is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from synthetic_races import result
from typed_judge import as_result
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.judge.budget import Tried, estimate_script
from velodrome.judge.estimate import Known, Timing, basis_of, estimate, known_of

pytestmark = pytest.mark.unit

EXAMPLES, CORES = 50_000, 2
#: Start-up with its import, then what comes with the first steps, each epoch and the end.
TIMING = Timing(startup=4.5, rate=1000.0, first=0.5, evaluate=2.0, trained=500.0, importing=3.0, save=0.25, rest=1.0)


def job_of(**fields: Any) -> Job:
    return resolve(Job(**{"engine": "torch", "epochs": 10, "batch_size": 100, **fields}))


def seconds(job: Job, *known: Known, warm: bool = True, examples: int = EXAMPLES) -> float:
    return estimate(job, examples, 64, CORES, known, warm=warm).seconds


def test_a_run_of_the_same_job_is_scaled_part_by_part() -> None:
    known = Known(job_of(), TIMING, CORES)
    around = 1.5 + 0.5 + 1.0  # warm: without the import
    assert seconds(job_of(seed=7, learning_rate=0.5), known) == pytest.approx(around + 10 * (50 + 2.25))
    assert seconds(job_of(epochs=1), known) == pytest.approx(around + 50 + 2.25)
    assert seconds(job_of(steps=20), known) == pytest.approx(around + 2 + 2.25)
    # More steps than the epochs hold are never made.
    assert seconds(job_of(steps=10**6), known) == pytest.approx(around + 10 * (50 + 2.25))
    assert seconds(job_of(), known, warm=False) > seconds(job_of(), known) + 1.0
    assert estimate(job_of(), EXAMPLES, 64, CORES, [known], warm=True).basis == "from 1 earlier run"


def test_the_middle_of_several_runs_counts() -> None:
    members = [Known(job_of(seed=rate), replace(TIMING, rate=rate), CORES) for rate in (900, 1000, 10)]
    found = estimate(job_of(), EXAMPLES, 64, CORES, members, warm=True)
    assert (found.seconds, found.basis) == (pytest.approx(3.0 + 10 * (50_000 / 900 + 2.25)), "from 3 earlier runs")


def test_runs_that_reached_their_target_stopped_there() -> None:
    known = Known(job_of(target="accuracy>=0.9"), TIMING, CORES, reached=4)
    assert seconds(job_of(target="accuracy>=0.9"), known) == pytest.approx(3.0 + 4 * (50 + 2.25))
    assert seconds(job_of(target="accuracy>=0.9", epochs=2), known) == pytest.approx(3.0 + 2 * (50 + 2.25))
    assert seconds(job_of(target="accuracy>=0.99"), known) == pytest.approx(3.0 + 10 * (50 + 2.25))


def test_the_nearest_that_is_known_counts() -> None:
    fast, slow = replace(TIMING, rate=5000.0), replace(TIMING, rate=50.0)
    ours = Known(job_of(), TIMING, CORES)
    measured = Known(job_of(), fast, CORES, measured=True)
    others = [Known(job_of(strategy="ddp", workers=2), slow, CORES), Known(job_of(model="linear"), slow, CORES)]

    def source(*known: Known) -> str:
        return estimate(job_of(), EXAMPLES, 64, CORES, known, warm=True).source

    assert [source(*others, measured, ours), source(*others, measured), source(*others), source(others[1])] == [
        "runs", "measured", "similar runs", "guess"]
    near, far = (Known(job_of(batch_size=batch), timing, CORES) for batch, timing in ((128, TIMING), (4096, slow)))
    assert seconds(job_of(), near, far) == pytest.approx(seconds(job_of(), near))


def test_a_job_of_several_workers_is_derived_from_one_of_one_by_the_rule() -> None:
    """A step of 100 ms for 1,000 examples: two workers on two cores take about half of it, and something for the
    exchange; four take turns on two cores."""
    alone = Known(job_of(batch_size=1000, threads=1), replace(TIMING, rate=10_000.0), CORES)

    def rate(workers: int, **fields: Any) -> float:
        job = job_of(strategy="ddp", workers=workers, batch_size=1000, threads=1, **fields)
        return estimate(job, EXAMPLES, 64, CORES, [alone], warm=True).rate

    assert 15_000 < rate(2) < 20_000
    assert rate(2) * 0.7 < rate(4) <= rate(2)
    assert rate(2, batch_scope="per-worker") > rate(2), "the exchange is divided by more examples"


def test_small_batches_cost_more_per_example_and_large_ones_less() -> None:
    known = Known(job_of(batch_size=100), replace(TIMING, rate=100_000.0), CORES)
    rates = [estimate(job_of(batch_size=batch), EXAMPLES, 64, CORES, [known], warm=True).rate
             for batch in (10, 100, 1000)]
    assert rates == sorted(rates)
    assert rates[1] == 100_000.0


def test_evaluations_that_were_not_measured_are_derived() -> None:
    """A second of training rarely reaches the end of an epoch."""
    measured = Known(job_of(), Timing(0.5, 1000.0), CORES, measured=True)
    trained = 0.5 + 10 * 50
    none, many = (seconds(job_of(validation=share), measured) for share in (0.0, 0.3))
    assert trained <= none < many < 2 * trained


@pytest.mark.parametrize("known", [False, True])
def test_a_step_of_a_language_model_reads_its_rows_many_words_at_a_time(known: bool) -> None:
    job = resolve(Job(dataset="ptb", model="lstm-small", batch_size=20, unroll=30, epochs=4, validation=0.0))
    words = 900_000
    earlier = [Known(job, Timing(1.0, 2000.0), CORES)] if known else []
    short = estimate(job.model_copy(update={"steps": 100}), words, None, CORES, earlier, warm=True)
    whole = estimate(job.model_copy(update={"epochs": 1}), words, None, CORES, earlier, warm=True)
    assert short.training / whole.training == pytest.approx(100 * 20 * 30 / words)


def test_a_step_of_synchronous_workers_trains_the_batches_of_all() -> None:
    job = job_of(strategy="ddp", workers=2, batch_scope="per-worker", steps=50, validation=0.0)
    known = Known(job, Timing(1.0, 1000.0, save=0.0, rest=0.0), CORES)
    assert seconds(job, known) == pytest.approx(1.0 + 50 * 200 / 1000)


def test_a_guess_says_that_it_is_one_and_how_far_off_it_may_be() -> None:
    found = estimate(job_of(model="lenet5"), EXAMPLES, 784, CORES, [], warm=True)
    assert (found.measured, found.basis) == (False, "rough guess")
    assert found.at_worst(job_of(model="lenet5")) == pytest.approx(5 * found.training)
    rest = found.seconds - found.training
    assert found.bounds(job_of(model="lenet5")) == pytest.approx((rest + found.training / 5, rest + 5 * found.training))
    own = job_of(model="my_net:build")
    assert estimate(own, EXAMPLES, 784, CORES, [], warm=True).at_worst(own) > 10 * found.training


def script(arguments: str = "", workers: int = 1) -> Job:
    return resolve(Job(script="train.py", script_args=arguments, workers=workers, engine="torch"))


RAN = as_result(result() | {"seconds": {"startup": 5.0, "total": 65.0}})


@pytest.mark.parametrize(("before", "asked", "expected"), [
    ("--steps 100", "--steps 100", 65.0), ("--steps 100", "--steps 1000", 605.0),
    ("--epochs=2 --lr 0.1", "--epochs=1 --lr 0.1", 35.0), ("--max-steps 100 -v", "--max-steps 50 -v", 35.0),
    ("--num_epochs 2 --steps 10", "--num_epochs 4 --steps 20", 245.0), ("data.npz", "data.npz", 65.0),
])
def test_a_script_takes_as_long_as_it_did_in_proportion_to_its_steps(before: str, asked: str, expected: float) -> None:
    found = estimate_script(script(asked), [(script(before), RAN)])
    assert (found.seconds, found.basis) == (pytest.approx(expected), "from 1 earlier run")


@pytest.mark.parametrize(("before", "asked"), [
    ("--lr 0.1", "--lr 0.2"), ("--steps 100", "--steps many"), ("--steps 0", "--steps 10"), ("--steps 10", ""),
    ("a.npz", "b.npz"), ("--steps 'open", "--steps 10"),
])
def test_a_script_with_other_arguments_is_not_compared(before: str, asked: str) -> None:
    first = script().model_copy(update={"script_args": before})
    assert estimate_script(script().model_copy(update={"script_args": asked}), [(first, RAN)]).basis == "rough guess"


def test_a_script_with_other_workers_is_taken_to_last_as_long_as_with_the_nearest_number() -> None:
    longer = as_result(result() | {"seconds": {"startup": 5.0, "total": 105.0}})
    found = estimate_script(script(workers=2), [(script(workers=8), RAN), (script(), longer)])
    assert (found.seconds, found.basis) == (105.0, "from 1 earlier run of this script with other workers")


def test_a_trial_of_a_script_counts_more_than_runs_with_other_workers_and_less_than_its_own() -> None:
    tried = [Tried(script("-v", 2), 40.0, 12.0), Tried(script(), 30.0, 12.0), Tried(script(workers=2), 20.0, 12.0)]
    found = estimate_script(script(workers=2), [(script(), RAN)], tried)
    assert (found.seconds, found.basis) == (20.0, "measured for 12 s")
    assert estimate_script(script(workers=2), [(script(workers=2), RAN)], tried).seconds == 65.0


def test_what_several_jobs_rest_on_is_said_in_one_phrase() -> None:
    runs = estimate(job_of(), EXAMPLES, 64, CORES, [Known(job_of(), TIMING, CORES)], warm=True)
    guess = estimate(job_of(model="linear"), EXAMPLES, 64, CORES, [], warm=True)
    assert basis_of([runs, runs]) == "from 2 earlier runs"
    assert basis_of([guess]) == "rough guess"
    assert basis_of([runs, guess, guess]) == "from 1 earlier run for 1 of 3, rough guess for 2 of 3"


def test_a_run_without_what_an_estimate_needs_says_nothing() -> None:
    nothing = {"examples_per_second": None, "batches_per_second": None}
    for lacking in ({"history": []}, {"throughput": nothing}, {"history": [], "throughput": nothing}):
        assert known_of(as_result(result() | lacking), job_of(), EXAMPLES) is None
    assert known_of(as_result(result()), job_of(), EXAMPLES) is not None


def test_processes_find_one_another_more_slowly_on_a_machine_where_one_starts_slowly() -> None:
    distributed = job_of(strategy="ddp", workers=2, steps=1)

    def joining(startup: float) -> float:
        known = Known(job_of(), replace(TIMING, startup=startup, importing=0.0), CORES, measured=True)
        return seconds(distributed, known) - seconds(job_of(steps=1), known)

    idle, busy, busier = joining(0.09), joining(0.27), joining(90.0)
    assert busy == pytest.approx(3 * idle, rel=0.05)
    # However slowly one process starts, what is supposed of others has a limit.
    assert busier == pytest.approx(4 * idle, rel=0.05)
