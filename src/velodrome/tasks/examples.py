"""Tasks whose batches are examples by their numbers: how they load data, shard it, and order it. No framework here."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from velodrome.catalog.models import ARRAY_MODEL, check_shape, is_own, text_models, zoo_model
from velodrome.catalog.registry import strategy_of
from velodrome.data import catalogue
from velodrome.data.examples import ExampleSet
from velodrome.data.own.functions import with_transform
from velodrome.data.source import Description, Source
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import batch_of_step, replica_of, replicas_of, sharding_of
from velodrome.tasks import schedule
from velodrome.tasks.base import Task
from velodrome.tasks.schedule import Schedule, files_of


class ExampleTask(Task):
    """Learns from examples, each of which an epoch visits once."""

    #: Whether evaluation needs the score of every example over all processes: see `count_scores`.
    scored: ClassVar[bool] = False
    #: Whether the loss is the user's, who may use the model in any way.
    has_own_loss: ClassVar[bool] = False

    # -- what is refused before anything starts

    def check(self, job: Job, about: Description) -> None:
        self._check_model(job, about)
        if about.train is not None:
            check_batch(job, about.train)
            sharding_of(job, about.files, synchronous=strategy_of(job).synchronous)

    def _check_model(self, job: Job, about: Description) -> None:
        if about.kind == "text":
            takes = "images" if is_own(job.model) else zoo_model(job.model).takes
            raise BadRequest(
                f"--dataset {job.dataset!r} is text, but model {job.model!r} takes {takes}: choose "
                f"{text_models()}"
            )
        has_bytes = about.kind != "arrays" or any(column.dtype == "uint8" for column in about.inputs)
        if job.pixels != "auto" and not has_bytes:
            raise BadRequest(f"--pixels {job.pixels!r}: {job.dataset!r} is arrays and has no pixels; leave it out")
        if is_own(job.model):
            return
        model = zoo_model(job.model)
        if not is_own(self.name) and self.name not in model.tasks:
            raise BadRequest(
                f"--task {self.name}: model {job.model!r} is for {' or '.join(model.tasks)}; choose another model, or "
                "name your own as module:function"
            )
        # What only the user's code can tell, the workers check when they have loaded it.
        if about.kind == "arrays" and (len(about.inputs) > 1 or about.input_shape is not None):
            shapes = {column.name: column.shape for column in about.inputs}
            check_input(job.model, shapes or {"x": about.input_shape or ()})
        elif about.input_shape is not None:
            check_shape(job.model, about.input_shape)

    # -- data

    @abstractmethod
    def fit(self, job: Job, data: ExampleSet) -> Any:
        """The data with targets as this task takes them, or `BadRequest`."""

    def outputs(self, data: Any) -> int | dict[str, int]:
        """Numbers that the model returns for an example: what its function is called with as `outputs`."""
        raise NotImplementedError

    def saved_fields(
        self, data: ExampleSet, input_shape: Any, inputs: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What a saved model records of the examples that it was trained on; `inputs` by name, as its engine describes
        them, and `arguments` of the user's function."""
        if self.classifies_images(data):
            return {"input_shape": list(input_shape), "classes": data.classes, "dataset": data.name}
        return {
            "kind": "arrays", "task": self.name, "dataset": data.name, "inputs": inputs, "images": sorted(data.images),
            "classes": data.classes, "class_names": list(data.class_names), "input_shape": input_shape,
            "returns": self.outputs(data), "arguments": arguments,
        }

    def load(self, job: Job, rank: int) -> Any:
        """All of the data set, or the files of this worker where it trains on no others."""
        place = replica_of(job, rank)
        data = transformed(job, self.fit(job, load_examples(job, place)), place)
        check_stream(job, data)
        # The controller may not have known: it never runs the user's code, and does not decode to count.
        check_batch(job, sum(data.files) or len(data.train))
        return data if is_own(job.model) else fit_model(job.model, data)

    # -- evaluation

    def count_scores(self, data: Any, part: str, scores: NDArray[np.float64]) -> Mapping[str, float]:
        """Counts that need the scores of all examples of a part, in its order (examples, numbers per example).

        Called with the scores of all processes, in each of them; only for tasks that are `scored`.
        """
        return {}

    # -- schedule

    def schedule(self, job: Job, data: Any, epoch: int) -> Schedule:
        """Indices by the job's sharding: one partition per worker, or one queue for workers that do not wait."""
        strategy = strategy_of(job)
        batch, policy = batch_of_step(job, strategy), _sharding(job, data)
        if data.in_order:
            return schedule.in_order(len(data.train), batch, replicas_of(job) if strategy.synchronous else 1)
        if strategy.synchronous:
            return _by_policy(policy, data, batch, replicas_of(job), job.seed, epoch)
        if policy == "data":
            return schedule.by_data(len(data.train), batch, 1, job.seed, epoch)
        return schedule.one_queue(_by_policy(policy, data, batch * job.workers, job.workers, job.seed, epoch), batch)

    def schedule_warnings(self, job: Job, data: Any) -> list[str]:
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
            f"--batch-size {job.batch_size}: a step would need {batch:,} examples, but {job.dataset} has {examples:,} "
            "to train on; choose a smaller batch"
        )


def check_stream(job: Job, data: ExampleSet) -> None:
    """Refuse a stream where the schedule would have to be something else than its own order."""
    strategy = strategy_of(job)
    if not data.in_order:
        return
    if not strategy.synchronous:
        raise BadRequest(
            f"--strategy {job.strategy}: {job.dataset!r} is a stream, and asynchronous workers take examples by index: "
            "choose a synchronous strategy, or return a data set with random access"
        )
    if job.sharding == "off":
        raise BadRequest(
            f"--sharding off: {job.dataset!r} is a stream, which has one order for all workers; leave it out"
        )


def transformed(job: Job, data: ExampleSet, place: int) -> ExampleSet:
    """The data with the job's transform on its training examples; others stay as they are."""
    if job.transform is None:
        return data
    # Numbers of examples are those of the whole training part, unless a worker holds only files of its own.
    key = (job.seed, place) if data.own_files else (job.seed,)
    return with_transform(job.transform, data, key)


def check_input(model: str, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse arrays of these shapes for a model of the zoo that takes images."""
    if zoo_model(model).takes != "images":
        return
    described = ", ".join(f"{name!r} of shape {tuple(shape)}" for name, shape in shapes.items())
    if len(shapes) > 1 or len(next(iter(shapes.values()))) != 3:
        raise BadRequest(
            f"model {model!r} takes images, but the data has {described}: choose {ARRAY_MODEL}, or name your own as "
            "module:function"
        )
    height, width, channels = next(iter(shapes.values()))
    check_shape(model, (height, width, channels))


def fit_model(model: str, data: ExampleSet) -> ExampleSet:
    """Loaded data as a model of the zoo takes it, or `BadRequest`: one that takes images takes arrays as images."""
    check_input(model, {column.name: column.shape for column in data.inputs})
    images = frozenset(column.name for column in data.inputs) if zoo_model(model).takes == "images" else data.images
    return replace(data, images=images)


def load_examples(job: Job, place: int) -> ExampleSet:
    """All of the data set, or the files of the worker with a place (`replica_of`) where it trains on no others."""
    source = catalogue.data_set(job.dataset, job.bad_data)
    numbers = _files_of_worker(job, source, place)
    if numbers is not None:
        data = source.load_files(numbers, job.validation)
        # Shards of an earlier version have no statistics: the whole training part has to be read for them.
        if job.pixels != "standardize" or data.statistics is not None or not data.own_files:
            return data
    return source.load(job.seed, job.validation)


def _sharding(job: Job, data: ExampleSet) -> str:
    return sharding_of(job, len(data.files), synchronous=strategy_of(job).synchronous)


def _files_of_worker(job: Job, source: Source, place: int) -> range | None:
    """The files that this worker alone trains on; None if it needs all of the data."""
    strategy, replicas = strategy_of(job), replicas_of(job)
    if not strategy.synchronous or strategy.one_process or replicas == 1 or job.sharding in ("data", "off"):
        return None
    count = len(source.file_sizes())
    return files_of(place, count, replicas) if sharding_of(job, count, synchronous=True) == "file" else None


def _by_policy(policy: str, data: ExampleSet, batch: int, workers: int, seed: int, epoch: int) -> Schedule:
    if policy == "file":
        return schedule.by_file(data.files, batch, workers, seed, epoch, own=data.own_files)
    make = schedule.off if policy == "off" else schedule.by_data
    return make(len(data.train), batch, workers, seed, epoch)
