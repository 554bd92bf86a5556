"""Image classification: labelled images, batches by index, accuracy. No framework here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from velodrome.data import catalogue
from velodrome.errors import BadRequest
from velodrome.offers.models import check_shape, is_own, text_models
from velodrome.offers.registry import strategy_of
from velodrome.spec.job import Job
from velodrome.spec.resolve import batch_of_step, sharding_of
from velodrome.tasks.base import LOSS, Metric, Task, mean_loss

if TYPE_CHECKING:
    from velodrome.data.base import Description
    from velodrome.data.splits import Splits
    from velodrome.tasks.schedule import Schedule


class Classification(Task):
    """Counts how many examples were classified correctly."""

    name = "classification"
    metrics = (Metric("accuracy", "more", ".4f", margin=0.01, superlative="most accurate", fraction=True), LOSS)
    counted = ("correct",)

    def measure(self, counts: Mapping[str, Any]) -> dict[str, float | None]:
        return {"accuracy": float(counts["correct"] / counts["total"]), "loss": mean_loss(counts)}

    def amount(self, counts: Mapping[str, Any]) -> str:
        return f"{counts['correct']:,} of {counts['total']:,}"

    def check(self, job: Job, about: Description) -> None:
        if about.kind != "images":
            raise BadRequest(
                f"--dataset {job.dataset!r} is {about.kind}, and model {job.model!r} takes images: choose "
                f"{text_models()}"
            )
        # What only the user's code can tell, the workers check when they have loaded it.
        if about.input_shape is not None and not is_own(job.model):
            check_shape(job.model, about.input_shape)
        if about.train is not None:
            check_batch(job, about.train)
            sharding_of(job, about.files, synchronous=strategy_of(job).synchronous)

    def load(self, job: Job, rank: int) -> Splits:
        """All of the data set, or the files of this worker where it trains on no others."""
        numbers = _files_of_worker(job, rank)
        if numbers is None:
            data = catalogue.load(job.dataset, seed=job.seed, validation=job.validation, bad_data=job.bad_data)
        else:
            data = catalogue.load_files(job.dataset, numbers, validation=job.validation, bad_data=job.bad_data)
            if job.pixels == "standardize" and data.own_files and data.statistics is None:
                # Written by an earlier version: the whole training part has to be read for its statistics.
                data = catalogue.load(job.dataset, seed=job.seed, validation=job.validation, bad_data=job.bad_data)
        # The controller may not have known: it never runs the user's code, and does not decode to count.
        check_batch(job, sum(data.files) or len(data.train))
        if not is_own(job.model):
            check_shape(job.model, data.input_shape)
        return data

    def class_names(self, data: Splits) -> Sequence[str]:
        return data.class_names

    def test_fingerprint(self, data: Splits) -> str:
        from velodrome.tasks.answers import fingerprint

        return fingerprint(data.test.images, data.test.labels)

    def schedule(self, job: Job, data: Splits, epoch: int) -> Schedule:
        """Indices by the job's sharding: one partition per worker, or one queue for workers that do not wait."""
        from velodrome.tasks import schedule

        strategy = strategy_of(job)
        batch, policy = batch_of_step(job, strategy), _sharding(job, data)
        if strategy.synchronous:
            return _by_policy(policy, data, batch, job.workers, job.seed, epoch)
        if policy == "data":
            return schedule.by_data(len(data.train), batch, 1, job.seed, epoch)
        return schedule.one_queue(_by_policy(policy, data, batch * job.workers, job.workers, job.seed, epoch), batch)

    def schedule_warnings(self, job: Job, data: Splits) -> list[str]:
        if not strategy_of(job).synchronous or _sharding(job, data) != "file":
            return []
        first = self.schedule(job, data, 1)
        if not (uneven := first.uneven_steps()):
            return []
        return [
            f"{uneven} of {first.steps} steps of an epoch leave a worker without examples: {len(data.files)} files are "
            f"not the same for each of {job.workers} workers; nothing is dropped"
        ]


def check_batch(job: Job, examples: int) -> None:
    """Refuse a resolved job whose batch is larger than its training set."""
    batch = batch_of_step(job, strategy_of(job))
    if batch > examples:
        raise BadRequest(
            f"--batch-size {job.batch_size}: a step would need {batch:,} examples, and {job.dataset} has "
            f"{examples:,} to train on; choose a smaller batch"
        )


def _sharding(job: Job, data: Splits) -> str:
    return sharding_of(job, len(data.files), synchronous=strategy_of(job).synchronous)


def _files_of_worker(job: Job, rank: int) -> range | None:
    """The files that this worker alone trains on; None if it needs all of the data."""
    from velodrome.tasks.schedule import files_of

    strategy = strategy_of(job)
    if not strategy.synchronous or strategy.one_process or job.workers == 1 or job.sharding in ("data", "off"):
        return None
    count = len(catalogue.files(job.dataset, bad_data=job.bad_data))
    return files_of(rank, count, job.workers) if sharding_of(job, count, synchronous=True) == "file" else None


def _by_policy(policy: str, data: Splits, batch: int, workers: int, seed: int, epoch: int) -> Schedule:
    from velodrome.tasks import schedule

    if policy == "file":
        return schedule.by_file(data.files, batch, workers, seed, epoch, own=data.own_files)
    make = schedule.off if policy == "off" else schedule.by_data
    return make(len(data.train), batch, workers, seed, epoch)
