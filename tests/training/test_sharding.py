"""Sharding policies on a real set of shards: who loads what, and what the workers together see in an epoch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from velodrome.catalog.world import Member, World
from velodrome.clusters import preflight
from velodrome.data.examples import ExamplePart, image_part, image_set
from velodrome.data.shards.write import write_shards
from velodrome.data.source import Description
from velodrome.data.storage.store import open_store
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.training import loop
from velodrome.training.context import Context, Emitter

pytestmark = pytest.mark.unit

TRAIN, FILES, BATCH = 53, 5, 6


def _part(count: int, first: int) -> ExamplePart:
    """Images that are the number of their example."""
    numbers = np.arange(first, first + count)
    return image_part(np.repeat(numbers, 4).reshape(-1, 2, 2, 1).astype(np.uint8), numbers % 5)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """The address of 53 training, 7 validation and 9 test examples, 53 of them in 5 files."""
    folder = tmp_path_factory.mktemp("shards")
    before = os.environ.get("VELODROME_CACHE")
    os.environ["VELODROME_CACHE"] = str(folder / "cache")
    splits = image_set("numbers", _part(TRAIN, 0), _part(7, 100), _part(9, 200), classes=5, scale=1 / 255)
    about = Description("numbers", "Numbers", "none", "", TRAIN, 7, 9, (2, 2, 1), 5)
    write_shards(splits, about, open_store(str(folder / "set")), shards=FILES, encoding="raw", seed=1, validation=0.1)
    yield f"shards:{folder / 'set'}"
    if before is None:
        del os.environ["VELODROME_CACHE"]
    else:
        os.environ["VELODROME_CACHE"] = before


class Worker:
    """One process of a job, as far as its data goes."""

    def __init__(self, job: Job, rank: int, role: str = "worker") -> None:
        self._read, write = os.pipe()
        me = Member(role, rank, "127.0.0.1", 0)
        self.context = Context(
            job=resolve(job), world=World((me,), me), folder=Path(), events=Emitter(write, role, rank), threads=1
        )
        self.schedule_of = loop.schedules(self.context)
        os.close(write)

    def steps(self, epoch: int) -> list[list[int]]:
        """The numbers of the examples it trains on, step by step."""
        partition = self.schedule_of(epoch).partition(self.context.rank)
        numbers = np.asarray(self.context.data.train.images)[:, 0, 0, 0]
        return [numbers[partition.step(step)].tolist() for step in range(partition.steps)]

    def warnings(self) -> list[str]:
        with os.fdopen(self._read) as stream:
            events = [json.loads(line[line.index("{") :]) for line in stream]
        return [event["message"] for event in events if event["kind"] == "warning"]


def workers_of(shards: str, count: int, **changes) -> list[Worker]:
    job = Job(dataset=shards, engine="torch", strategy="ddp", workers=count, batch_size=BATCH, **changes)
    return [Worker(job, rank) for rank in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("policy", ["auto", "file", "data", "off"])
def test_workers_see_together_exactly_the_training_set_in_every_epoch(shards, policy, count):
    workers = workers_of(shards, count, sharding=policy)
    for epoch in (1, 2):
        steps = [worker.steps(epoch) for worker in workers]
        assert len({len(each) for each in steps}) == 1, "all make the same number of steps"
        together = [number for each in steps for step in each for number in step]
        times = count if policy == "off" else 1
        assert sorted(together) == sorted(list(range(TRAIN)) * times)
        partition = workers[0].schedule_of(epoch).partition(0)
        for step in range(partition.steps):
            assert partition.batch[step] == sum(len(each[step]) for each in steps)
    assert workers[0].steps(1) != workers[0].steps(2)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_with_files_a_worker_holds_its_own_alone(shards, count):
    for rank, worker in enumerate(workers_of(shards, count, sharding="file")):
        data = worker.context.data
        assert data.own_files
        assert sorted(data.train.images[:, 0, 0, 0]) == [n for n in range(TRAIN) if n % FILES % count == rank]
        assert (len(data.validation), len(data.test)) == (7, 9)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_with_data_sharding_every_step_is_that_of_one_worker(shards, count):
    alone = workers_of(shards, 1, sharding="data")[0].steps(3)
    steps = [worker.steps(3) for worker in workers_of(shards, count, sharding="data")]
    for number, batch in enumerate(alone):
        assert sorted(example for each in steps for example in each[number]) == sorted(batch)


@pytest.mark.parametrize("policy", ["file", "data", "off"])
def test_the_order_is_the_same_whenever_and_wherever_it_is_asked_for(shards, policy):
    first = [worker.steps(2) for worker in workers_of(shards, 3, sharding=policy)]
    again = [worker.steps(2) for worker in workers_of(shards, 3, sharding=policy)]
    other = [worker.steps(2) for worker in workers_of(shards, 3, sharding=policy, seed=2)]
    assert first == again
    assert first != other


def test_one_process_with_several_devices_sees_what_several_processes_do(shards):
    apart = [worker.steps(1) for worker in workers_of(shards, 2, sharding="file")]
    job = Job(dataset=shards, engine="tensorflow", strategy="mirrored", workers=2, batch_size=BATCH, sharding="file")
    one = Worker(job, 0)
    assert not one.context.data.own_files
    numbers = one.context.data.train.images[:, 0, 0, 0]
    for rank in range(2):
        partition = one.schedule_of(1).partition(rank)
        assert [numbers[partition.step(step)].tolist() for step in range(partition.steps)] == apart[rank]


@pytest.mark.parametrize("policy", ["auto", "file", "data", "off"])
def test_a_chief_hands_out_every_example_once(shards, policy):
    job = Job(dataset=shards, engine="tensorflow", strategy="parameter-server", workers=3, batch_size=4,
              sharding=policy)  # fmt: skip
    seen = sorted(number for step in Worker(job, 0, "chief").steps(1) for number in step)
    assert seen == sorted(list(range(TRAIN)) * (3 if policy == "off" else 1))


def test_a_chief_makes_batches_of_one_workers_files_until_only_leftovers_remain(shards):
    job = Job(dataset=shards, engine="tensorflow", strategy="parameter-server", workers=3, batch_size=4,
              sharding="file")  # fmt: skip
    steps = Worker(job, 0, "chief").steps(1)
    groups = [{number % FILES % 3 for number in step} for step in steps]
    assert len(steps) == 14
    assert [len(group) for group in groups[:12]] == [1] * 12  # 21, 21 and 11 examples hold so many whole batches


def test_unequal_work_is_told_once_by_the_chief(shards):
    first, second = workers_of(shards, 2, sharding="file")
    (told,) = first.warnings()
    assert "4 of 11 steps of an epoch leave a worker without examples" in told
    assert second.warnings() == []
    assert workers_of(shards, 2, sharding="data")[0].warnings() == []


def test_too_few_files_are_refused_before_anything_starts(shards):
    job = Job(dataset=shards, strategy="ddp", engine="torch", workers=6, batch_size=BATCH, sharding="file")
    with pytest.raises(BadRequest, match=r"6 workers need at least 6 files, but .* has 5"):
        preflight.check_job(resolve(job))
    with pytest.raises(BadRequest, match="is not stored in files"):
        preflight.check_job(resolve(Job(strategy="ddp", workers=2, sharding="file")))


def test_auto_falls_back_to_examples_where_files_are_too_few(shards):
    steps = [worker.steps(1) for worker in workers_of(shards, 6, sharding="auto")]
    alone = workers_of(shards, 1, sharding="data")[0].steps(1)
    assert [sorted(n for each in steps for n in each[step]) for step in range(len(alone))] == list(map(sorted, alone))
