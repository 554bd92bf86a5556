"""Whatever the number of workers: together they see at every step the batch of one worker, each example once an epoch."""

from __future__ import annotations

import numpy as np
import pytest

from velodrome.worker.counts import Counts
from velodrome.worker.schedule import Schedule, order_of_epoch, share_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("examples", [1, 7, 100, 101, 129])
@pytest.mark.parametrize("batch", [1, 10, 32, 101])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_add_up_to_the_batches_of_one_worker(examples: int, batch: int, workers: int) -> None:
    order = order_of_epoch(examples, seed=3, epoch=2)
    schedule = Schedule(order, batch, workers)
    alone = Schedule(order, batch, 1).share(0)
    shares = [schedule.share(rank) for rank in range(workers)]
    for step in range(schedule.steps):
        together = np.concatenate([share.of(step) for share in shares])
        assert sorted(together) == sorted(alone.of(step))
        assert all(share.batch[step] == len(together) for share in shares)
    everything = np.concatenate([share.indices for share in shares])
    assert sorted(everything) == list(range(examples))
    assert schedule.examples(0, schedule.steps) == examples


def test_an_order_depends_on_seed_and_epoch_alone() -> None:
    assert np.array_equal(order_of_epoch(50, 1, 1), order_of_epoch(50, 1, 1))
    assert not np.array_equal(order_of_epoch(50, 1, 1), order_of_epoch(50, 1, 2))
    assert not np.array_equal(order_of_epoch(50, 1, 1), order_of_epoch(50, 2, 1))


def test_the_last_batch_may_leave_a_worker_without_examples() -> None:
    share = Schedule(np.arange(9), 8, 3).share(2)
    assert len(share.of(1)) == 0
    assert share.batch[1] == 1


@pytest.mark.parametrize("workers", [1, 2, 3, 10])
def test_evaluation_counts_each_example_once(workers: int) -> None:
    seen = np.concatenate([share_of(23, rank, workers) for rank in range(workers)])
    assert sorted(seen) == list(range(23))


def test_counts_add_up_exactly_and_travel_as_numbers() -> None:
    total = Counts(3, 10, 1.5) + Counts(4, 7, 2.0)
    assert total == Counts(7, 17, 3.5)
    assert Counts.of(total.vector()) == total
    assert total.accuracy == 7 / 17
    assert np.isnan(Counts().accuracy)
