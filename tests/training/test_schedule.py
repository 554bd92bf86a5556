"""Whatever sharding and number of workers: an epoch sees exactly the training set, and nothing is dropped or padded."""

from __future__ import annotations

import numpy as np
import pytest

from velodrome.tasks.schedule import by_data, by_file, evaluation_indices, files_of, off, order_of_epoch

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("examples", [1, 7, 100, 101, 129])
@pytest.mark.parametrize("batch", [7, 10, 32, 101])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_with_data_sharding_shares_add_up_to_the_batches_of_one_worker(examples: int, batch: int, workers: int) -> None:
    schedule = by_data(examples, batch, workers, seed=3, epoch=2)
    alone = by_data(examples, batch, 1, seed=3, epoch=2).partition(0)
    partitions = [schedule.partition(rank) for rank in range(workers)]
    assert schedule.steps == alone.steps
    for step in range(schedule.steps):
        together = np.concatenate([partition.step(step) for partition in partitions])
        assert sorted(together) == sorted(alone.step(step))
        assert all(partition.batch[step] == len(together) for partition in partitions)
    everything = np.concatenate([partition.indices for partition in partitions])
    assert sorted(everything) == list(range(examples))
    assert schedule.examples(0, schedule.steps) == examples


@pytest.mark.parametrize("files", [[5, 5, 5], [1, 9, 4, 30], [7, 7, 7, 7, 1], [100, 1, 1]])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_with_file_sharding_each_worker_sees_its_own_files_and_none_is_lost(files: list[int], workers: int) -> None:
    schedule = by_file(files, 6, workers, seed=1, epoch=1, own=True)
    everywhere = by_file(files, 6, workers, seed=1, epoch=1)
    turns = [number for turn in range(max(files)) for number, count in enumerate(files) if turn < count]
    seen = []
    for rank in range(workers):
        mine = files_of(rank, len(files), workers)
        own = np.array([place for place, number in enumerate(turns) if number in mine])
        seen.append(own[schedule.partition(rank).indices])
        assert sorted(seen[-1]) == sorted(own)
        assert np.array_equal(seen[-1], everywhere.partition(rank).indices)
    assert sorted(np.concatenate(seen)) == list(range(sum(files)))
    partitions = [schedule.partition(rank) for rank in range(workers)]
    for step in range(schedule.steps):
        batch = sum(len(partition.step(step)) for partition in partitions)
        assert all(partition.batch[step] == batch for partition in partitions)
    assert schedule.examples(0, schedule.steps) == sum(files)


def test_unequal_files_leave_a_worker_without_examples_at_the_end_and_that_is_told() -> None:
    schedule = by_file([100, 10], 20, 2, seed=1, epoch=1)
    assert schedule.steps == 10
    assert schedule.uneven_steps() == 9
    assert len(schedule.partition(1).step(5)) == 0


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_without_sharding_everybody_sees_everything(workers: int) -> None:
    schedule = off(23, 6, workers, seed=1, epoch=1)
    for rank in range(workers):
        assert sorted(schedule.partition(rank).indices) == list(range(23))
    assert schedule.examples(0, schedule.steps) == 23 * workers


def test_an_order_depends_on_seed_and_epoch_alone() -> None:
    assert np.array_equal(order_of_epoch(50, 1, 1), order_of_epoch(50, 1, 1))
    assert not np.array_equal(order_of_epoch(50, 1, 1), order_of_epoch(50, 1, 2))
    assert not np.array_equal(order_of_epoch(50, 1, 1), order_of_epoch(50, 2, 1))
    for make in (lambda: by_file([9, 9], 4, 2, 1, 1), lambda: off(9, 4, 2, 1, 1), lambda: by_data(9, 4, 2, 1, 1)):
        first, second = make(), make()
        assert all(np.array_equal(a, b) for a, b in zip(first.indices, second.indices, strict=True))


def test_the_last_batch_may_leave_a_worker_without_examples() -> None:
    partition = by_data(9, 8, 3, seed=1, epoch=1).partition(2)
    assert len(partition.step(1)) == 0
    assert partition.batch[1] == 1


@pytest.mark.parametrize("workers", [1, 2, 3, 10])
def test_evaluation_counts_each_example_once(workers: int) -> None:
    seen = np.concatenate([evaluation_indices(23, rank, workers) for rank in range(workers)])
    assert sorted(seen) == list(range(23))
