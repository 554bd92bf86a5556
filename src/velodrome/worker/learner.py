"""What an engine offers under one strategy: the interface between the one training loop and every framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from velodrome.catalog.engines.torch import Mesh
from velodrome.errors import BadRequest
from velodrome.models.generators import Generators, of_process
from velodrome.tasks.counts import Counts

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

    @abstractmethod
    def set_rate(self, rate: float) -> None:
        """Use this learning rate from now on."""

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
