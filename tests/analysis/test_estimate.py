"""How long a job will take is said from what it will really train, not from more."""

from __future__ import annotations

import pytest

from synthetic_races import result
from velodrome.analysis.estimate import estimate
from velodrome.spec.job import Job
from velodrome.spec.resolve import resolve

pytestmark = pytest.mark.unit

#: Seconds from the command to the first step of a warm PyTorch.
START = 1.0


def test_stored_runs_give_the_rate_and_steps_the_end() -> None:
    earlier = [result("single", rate=1000.0)]
    job = resolve(Job(epochs=10, batch_size=100))
    whole = estimate(job, 50_000, 64, 2, earlier, warm=True)
    assert (whole.measured, whole.seconds) == (True, START + 500)
    short = estimate(job.model_copy(update={"steps": 20}), 50_000, 64, 2, earlier, warm=True)
    assert short.seconds == START + 2
    # More steps than the epochs hold are never made.
    assert estimate(job.model_copy(update={"steps": 10**6}), 50_000, 64, 2, earlier, warm=True) == whole


@pytest.mark.parametrize("earlier", [[], [result("single", rate=2000.0, dataset="ptb", model="lstm-small")]])
def test_a_step_of_a_language_model_reads_its_rows_many_words_at_a_time(earlier) -> None:
    job = resolve(Job(dataset="ptb", model="lstm-small", batch_size=20, unroll=30, epochs=4))
    words = 900_000
    short = estimate(job.model_copy(update={"steps": 100}), words, None, 2, earlier, warm=True)
    whole = estimate(job.model_copy(update={"epochs": 1}), words, None, 2, earlier, warm=True)
    assert (short.seconds - START) / (whole.seconds - START) == pytest.approx(100 * 20 * 30 / words)


def test_a_step_of_synchronous_workers_trains_the_batches_of_all() -> None:
    job = resolve(Job(strategy="ddp", workers=2, batch_size=100, batch_scope="per-worker", steps=50))
    earlier = [result("ddp", 2, rate=1000.0)]
    assert estimate(job, 50_000, 64, 2, earlier, warm=True).seconds == START + 50 * 200 / 1000
