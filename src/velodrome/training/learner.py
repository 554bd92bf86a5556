"""What an engine offers under one strategy: the interface between the one training loop and every framework.

Most learners sum by a transport whatever is no gradient (`TransportLearner`); those of engines with a zoo of their own
also share weights by name, the evaluation of images, and saved models (`ZooLearner`)."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from velodrome import files
from velodrome.catalog.engines.torch import Mesh
from velodrome.data.base import Gather
from velodrome.data.pixels import transform_of
from velodrome.errors import BadRequest
from velodrome.models.checks import Generators, claims_equivalence, equivalence_warnings, of_process, zoo_differences
from velodrome.models.model_files import load_matching, write_description, zoo_recipe
from velodrome.tasks.base import Counts
from velodrome.tasks.correctness_bits import MAX_CONFUSION_CLASSES, Evaluated, Vector
from velodrome.tasks.schedule import evaluation_indices
from velodrome.training.context import Context
from velodrome.transport.base import Ranks, Transport
from velodrome.transport.mpi import MpiTransport

State = dict[str, NDArray[np.generic]]
Part = Literal["validation", "test"]


@dataclass
class Inspection:
    """What a model and a step take, in bytes and by layer: the fields of `events.models.InspectionEvent`."""

    weight_bytes: int
    gradient_bytes: int
    #: None where the engine cannot tell.
    optimizer_bytes: int | None = None
    activation_bytes: int | None = None
    #: The fields of `events.models.Layer`.
    layers: list[dict[str, Any]] = field(default_factory=list)


class Learner(ABC):
    """A model in training, as one process of a job sees it.

    Synchronous learners exist in every worker and are called in lockstep; an asynchronous one exists in the chief.
    The gradient of a step is the *sum* of its examples' gradients over all workers, divided by the whole batch.
    """

    #: Trainable numbers of the model.
    parameters: int
    #: Confusion matrix over all processes: examples of each true class (row) by predicted class (column). Set by
    #: `evaluate` where the task has classes.
    confusion: NDArray[np.int64] | None = None
    #: Which test examples were classified correctly, over all processes and in the order of the test set. Set by
    #: `evaluate("test")` where an answer is right or wrong.
    answers: NDArray[np.bool_] | None = None
    #: Seconds of training that this process spent in collectives, where the engine exposes it.
    collective_seconds: float | None = None
    #: Seconds of these in which it waited for other workers, where that is measured.
    waited_seconds: float | None = None

    #: What the result records of the implementation that trained (`Implementation.report`); None for the parts in the
    #: strategy's description.
    implementation: dict[str, Any] | None = None

    #: Pixel values fed to the model: unit, byte or standardize; None for a text.
    pixels: str | None = None

    #: The current epoch, counted from 1; set by the loop.
    epoch: int = 0
    #: First steps that are slower than the rest, because caches, buffers and graphs are new.
    warmup_steps: int = 20

    @abstractmethod
    def begin_epoch(self, schedule: Any) -> None:
        """Begin an epoch with the schedule that the task made for it."""

    def set_rate(self, rate: float) -> None:
        """Use this learning rate from now on. Only for a learner whose rate cannot change within an epoch."""
        raise NotImplementedError

    def set_rates(self, rates: NDArray[np.float64]) -> None:
        """Use these learning rates for the steps of the next epoch; called before it begins. Override it if they may
        differ from step to step."""
        if (rates != rates[0]).any():
            raise BadRequest("--schedule-by step: this engine sets the learning rate between epochs; choose epoch")
        self.set_rate(float(rates[0]))

    @abstractmethod
    def train(self, first: int, last: int) -> Counts:
        """Train the steps `first` up to, not including, `last`; the counts of this process since the last call.

        An asynchronous learner may return before they are done and count what has been done so far.
        """

    def inspect(self, step: int, weight_size: int) -> Inspection:
        """Train one step and find out what it takes, layer by layer where the engine can tell. For one process;
        `weight_size` is the bytes of one weight."""
        self.train(step, step + 1)
        return Inspection(self.parameters * weight_size, self.parameters * weight_size)

    def divisions(self, workers: int, mesh: Mesh | None, inspection: Inspection) -> list[dict[str, Any]]:
        """What strategies that divide the model over this many workers, or those of a mesh, would do with it: fields
        of `events.models.Division`."""
        return []

    def agree(self, number: int) -> int:
        """Rank 0's number, in every process: for strategies whose processes must make the same calls."""
        return number

    def end_epoch(self) -> Counts:
        """Wait for steps that are still running; the counts that no call of `train` returned."""
        return Counts()

    @abstractmethod
    def average_statistics(self) -> None:
        """Make moving statistics (batch normalisation) the mean over the workers."""

    @abstractmethod
    def evaluate(self, part: Part) -> Counts:
        """Count over a whole part, each example once; the sum over all processes, the same in each of them."""

    def sum_evaluated(
        self, mine: Evaluated, part: Part, context: Context, total: Callable[[Vector], Vector]
    ) -> Counts:
        """The counts of an evaluation over all processes; sets `confusion` and, of the test set, `answers`. `total`
        returns the sum of the processes' vectors."""
        summed = (mine if part == "test" else mine._replace(answers=None)).summed(context.task.counted, total)
        if summed.confusion is not None:
            classes = math.isqrt(len(summed.confusion))
            self.confusion = summed.confusion.round().astype(np.int64).reshape(classes, classes)
        if summed.answers is not None:
            self.answers = summed.answers
        if summed.scores is None:
            return summed.counts
        task: Any = context.task  # on examples: no other has scores
        counted = task.count_scores(context.data, part, summed.scores)
        return replace(summed.counts, own={**summed.counts.own, **counted})

    @abstractmethod
    def total(self, counts: Counts) -> Counts:
        """The sum of the processes' counts, the same in each of them."""

    def collect_state(self) -> None:  # noqa: B027 (most have it in every process)
        """Bring together in the chief what is divided over the processes. Called in lockstep before `state`."""

    def collect_model(self) -> None:  # noqa: B027
        """The same for what `save` and `check_saving` need. Called in lockstep before them."""

    @abstractmethod
    def state(self) -> State:
        """Weights, statistics and optimizer state, enough to continue as if nothing had happened."""

    @abstractmethod
    def load(self, state: State) -> None:
        """Continue from what `state` returned, in this process or another."""

    def check_saving(self, folder: Path) -> tuple[str, ...]:
        """Find out, in a folder below `folder`, whether what `save` will write can be loaded; what the user should
        know about it, as sentences. Called once in the chief, before training."""
        return ()

    def generators(self) -> Generators:
        """The random number generators of this process that training may draw from."""
        return of_process()

    def gather(self, data: bytes) -> list[bytes]:
        """The data of all processes by rank, in each of them; called in lockstep. Only the chief's where others have no
        learner."""
        return [data]

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the model as the engine's users expect it. Called by the chief only."""

    def close(self) -> None:  # noqa: B027 (most have nothing to do)
        """Leave together: after this no peer may depend on this process."""


class TransportLearner(Learner):
    """A learner that exists in every worker; whatever is no gradient is summed by the transport, in float64."""

    def __init__(self, context: Context, transport: Transport) -> None:
        self._context, self._transport = context, transport

    def sum_vector(self, vector: Vector) -> Vector:
        """Replace a vector by its sum over the processes, and return it."""
        with self._context.waiting():
            self._transport.all_reduce(vector)
        return vector

    def total(self, counts: Counts) -> Counts:
        names = self._context.task.counted
        return Counts.of(self.sum_vector(counts.vector(names)), names)

    def gather(self, data: bytes) -> list[bytes]:
        return gather(data, self._transport.rank, self._transport.size, self.sum_vector)

    def number_of_first(self, number: int) -> int:
        """Rank 0's number, in every process."""
        agreed = np.array([number], np.int64)
        with self._context.waiting():
            self._transport.broadcast(agreed)
        return int(agreed[0])

    def count_classified(
        self, part: Part, examples: Any, mine: NDArray[np.int64], predicted: NDArray[np.int64], loss: float,
        classes: int,
    ) -> Counts:
        """Count, over all processes, an evaluation of a part whose examples `mine` this process classified as
        `predicted`, with this summed loss. Sets `confusion` and, for the test set, `answers`."""
        labels = np.asarray(examples.labels[mine], np.int64)
        right = predicted == labels
        answers = np.zeros(len(examples), np.bool_)
        answers[mine] = right
        confusion = None
        if classes <= MAX_CONFUSION_CLASSES:
            confusion = np.bincount(labels * classes + predicted, minlength=classes**2).astype(np.float64)
        counts = Counts(len(mine), loss, {"correct": int(right.sum())})
        return self.sum_evaluated(Evaluated(counts, confusion, answers), part, self._context, self.sum_vector)

    def average_statistics(self) -> None:
        """Nothing: for models without moving statistics."""

    def close(self) -> None:
        self._transport.close()


def gather(data: bytes, rank: int, size: int, total: Callable[[Vector], Vector]) -> list[bytes]:
    """The data of all processes, in each of them; `total` returns the sum of the processes' vectors."""
    lengths = np.zeros(size)
    lengths[rank] = len(data)
    lengths = total(lengths).round().astype(np.int64)
    table = np.zeros((size, int(lengths.max())))
    table[rank, : len(data)] = np.frombuffer(data, np.uint8)
    numbers = total(table.ravel()).round().astype(np.uint8).reshape(table.shape)
    return [row[:length].tobytes() for row, length in zip(numbers, lengths, strict=True)]


def connect_mpi(context: Context) -> MpiTransport:
    """Join the job's MPI ranks; when a peer is lost, report it and end the process."""

    def on_lost(message: str) -> None:
        try:
            context.events.emit("error", cause="peer", message=message, traceback=None)
        finally:  # who reads it may be gone, too
            os._exit(1)

    return MpiTransport(Ranks.of(context.world), context.job.start_timeout, on_lost)


WEIGHTS = "model.safetensors"
#: Images that are evaluated at a time.
EVALUATION_BATCH = 512
Values = dict[str, NDArray[Any]]


class ZooLearner(TransportLearner):
    """Trains a network of the zoo, whose tensors have the names that `--weights` and saved models use."""

    #: What the description of a saved model names as engine, and what `saved.load` of the engine returns.
    engine: str
    loaded: str

    def __init__(self, context: Context, transport: Transport) -> None:
        super().__init__(context, transport)
        self._rates: NDArray[np.float64] = np.array([context.job.rate])
        if context.is_chief and claims_equivalence(context.job):
            self._warn(equivalence_warnings(context.job.model, zoo_differences(context.job.model)))

    def _warn(self, notes: tuple[str, ...]) -> None:
        for note in notes if self._context.is_chief else ():
            self._context.events.emit("warning", message=note)

    def initial_values(self, shapes: Mapping[str, tuple[int, ...]]) -> Values:
        """The tensors to start from in place of new ones: those of a saved model, or those that `--weights` matches."""
        if self._context.saved_model is not None:
            return dict(load_file(self._context.saved_model / WEIGHTS))
        if not self._context.job.weights:
            return {}
        values: Values = {}
        self._warn(load_matching(self._context.job.weights, shapes, values.__setitem__))
        return values

    def set_rates(self, rates: NDArray[np.float64]) -> None:
        self._rates = rates

    def agree(self, number: int) -> int:
        return self.number_of_first(number)

    def _use_images(self, context: Context) -> None:
        """Read images of bytes: called before a network for them is built."""
        self._data, self._transform = context.data, transform_of(context.job.pixels, context.data)
        self.pixels, self._gather = self._transform.form, Gather(context.data.train.images)

    def _image_description(self, shape: Sequence[int]) -> dict[str, Any]:
        """What is required to load a network that takes images of this shape."""
        return {"input_shape": list(shape), "classes": self._data.classes, "outputs": "logits",
                **self._transform.description()}

    def evaluate_images(
        self, part: Part, predict: Callable[[NDArray[Any], NDArray[np.int64]], tuple[float, Any]],
        size: int = EVALUATION_BATCH,
    ) -> Counts:
        """Count a part of labelled images; `predict` returns the summed loss and the classes of at most `size` images
        with these labels."""
        examples = getattr(self._context.data, part)
        mine = evaluation_indices(len(examples), self._transport.rank, self._transport.size)
        loss, predicted = 0.0, np.empty(len(mine), np.int64)
        for low in range(0, len(mine), size):
            chosen = mine[low : low + size]
            labels = np.asarray(examples.labels[chosen], np.int64)
            summed, predicted[low : low + size] = predict(examples.images[chosen], labels)
            loss += summed
            self._context.status.seen += 1
        return self.count_classified(part, examples, mine, predicted, loss, self._context.data.classes)

    # -- the saved model

    @abstractmethod
    def _saved_tensors(self) -> Values:
        """What is saved of the trained network."""

    @abstractmethod
    def _description(self) -> dict[str, Any]:
        """What is required, besides the tensors, to load the model."""

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        job, data = self._context.job, self._context.data
        with files.atomic_path(folder / WEIGHTS) as partial:
            save_file({name: np.ascontiguousarray(value) for name, value in self._saved_tensors().items()}, partial)
        about = {"engine": self.engine, "model": job.model, "dtype": job.dtype, "file": WEIGHTS,
                 "dataset": data.name, **self._description()}
        if vocabulary := getattr(data, "vocabulary", None):
            about |= {"kind": "text", "vocabulary": len(vocabulary)}
        write_description(folder, about, self._readme(about, folder))

    def _readme(self, about: Mapping[str, Any], folder: Path) -> str:
        return zoo_recipe(about, folder.resolve(), self.loaded)
