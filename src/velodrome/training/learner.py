"""What an engine offers under one strategy: the interface between the one training loop and every framework.

Most learners sum by a transport whatever is no gradient (`TransportLearner`); those of engines with a zoo of their own
also share weights by name, the evaluation of images, and saved models (`ZooLearner`)."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from velodrome import files
from velodrome.catalog.engines.torch import Mesh
from velodrome.errors import BadRequest
from velodrome.models.checks import Generators, claims_equivalence, equivalence_warnings, of_process, zoo_differences
from velodrome.models.model_files import DESCRIPTION, README, VOCABULARY, read_matching
from velodrome.tasks import correctness_bits
from velodrome.tasks.base import Counts
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
        """What strategies that divide the model over so many workers, or those of this mesh, would do with it: fields
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


#: A confusion matrix of more classes is unreadable and large.
MAX_CONFUSION_CLASSES = 100


class TransportLearner(Learner):
    """A learner that exists in every worker; whatever is no gradient is summed by the transport, in float64."""

    def __init__(self, context: Context, transport: Transport) -> None:
        self._context, self._transport = context, transport

    def sum_vector(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Replace a vector by its sum over the processes, and return it."""
        with self._context.waiting():
            self._transport.all_reduce(vector)
        return vector

    def sum_counts(self, counts: Counts) -> Counts:
        """The sum of the processes' counts."""
        names = self._context.task.counted
        return Counts.of(self.sum_vector(counts.vector(names)), names)

    def total(self, counts: Counts) -> Counts:
        return self.sum_counts(counts)

    def gather(self, data: bytes) -> list[bytes]:
        return gather(data, self._transport.rank, self._transport.size, self.sum_vector)

    def count_classified(
        self, part: Part, examples: Any, mine: NDArray[np.int64], predicted: NDArray[np.int64], loss: float,
        classes: int,
    ) -> Counts:
        """Count, over all processes, an evaluation of a part whose examples `mine` this process classified as
        `predicted`, with this summed loss. Sets `confusion` and, for the test set, `answers`."""
        labels = np.asarray(examples.labels[mine], np.int64)
        right = predicted == labels
        if part == "test":
            whole = np.zeros(len(examples), np.bool_)
            whole[mine] = right
            right_of_all = self.sum_vector(correctness_bits.to_vector(whole))
            self.answers = correctness_bits.from_vector(right_of_all, len(examples))
        if classes <= MAX_CONFUSION_CLASSES:
            pairs = np.bincount(labels * classes + predicted, minlength=classes**2).astype(np.float64)
            self.confusion = self.sum_vector(pairs).round().astype(np.int64).reshape(classes, classes)
        return self.sum_counts(Counts(len(mine), loss, {"correct": int(right.sum())}))

    def average_statistics(self) -> None:
        """Nothing: for models without moving statistics."""

    def close(self) -> None:
        self._transport.close()


Vector = NDArray[np.float64]


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
        values, notes = read_matching(self._context.job.weights, shapes)
        self._warn(notes)
        return values

    def set_rates(self, rates: NDArray[np.float64]) -> None:
        self._rates = rates

    def agree(self, number: int) -> int:
        agreed = np.array([number], np.int64)
        with self._context.waiting():
            self._transport.broadcast(agreed)
        return int(agreed[0])

    def evaluate_images(
        self, part: Part, size: int, predict: Callable[[NDArray[Any], NDArray[np.int64]], tuple[float, Any]]
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
            files.write_text(folder / VOCABULARY, json.dumps(vocabulary, ensure_ascii=False) + "\n", sync=False)
        files.write_text(folder / README, self._readme(about, folder), sync=False)
        files.write_text(folder / DESCRIPTION, json.dumps(about, indent=2) + "\n", sync=False)

    def _readme(self, about: Mapping[str, Any], folder: Path) -> str:
        return "\n".join([
            f"# Model `{about['model']}`, trained by Velodrome", "",
            f"`{WEIGHTS}` holds its weights under the names and in the layouts of PyTorch's zoo of Velodrome, so that "
            f"both engines can start from them (`--weights`). In the environment of `velodrome engines install "
            f"{self.engine}`:", "",
            "```python", "from pathlib import Path", "", f"from velodrome.engines.{self.engine}.saved import load", "",
            f"{self.loaded} = load(Path({str(folder.resolve())!r}))", "```", "",
        ])
