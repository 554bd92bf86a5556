"""What a job learns: its batches, schedule, counts and metrics, described without any framework.

A task has two sides: a `Task` in this package, and one module per engine that computes the loss and the counts. A new
task is one file per side and a line in `registry.py`. Engines hand a task batches in their tensors, and counts of them:
metrics as they travel, sums that add up exactly over steps and ranks, never means.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from velodrome.catalog.base import Engine, Strategy
from velodrome.catalog.registry import strategy_of
from velodrome.data.source import Description
from velodrome.errors import BadRequest
from velodrome.events.fields import LARGEST_INT
from velodrome.job.job import Job
from velodrome.job.resolve import batch_of_step
from velodrome.job.values import Target

Better = Literal["more", "less"]


@dataclass(frozen=True)
class Metric:
    """A number that says how good a model is."""

    name: str
    better: Better
    #: Format specification.
    form: str = ".4f"
    #: Models this close to the best count as equally good when speed or cost decides.
    margin: float = 0.0
    #: Whether the margin is a fraction of the best value instead of a difference to it.
    relative_margin: bool = False
    #: Whether it is a fraction of the examples, so that values differ by one example at least.
    fraction: bool = False

    def text(self, value: float) -> str:
        return format(value, self.form)

    def limit(self, best: float) -> float:
        """The worst value that is still as good as the best."""
        difference = self.margin * (abs(best) if self.relative_margin else 1.0)
        return best - difference if self.better == "more" else best + difference


@dataclass(frozen=True)
class Batch:
    """Some examples: inputs and targets by name, tensors whose first axis counts the examples."""

    inputs: Mapping[str, Any]
    targets: Mapping[str, Any]

    @property
    def x(self) -> Any:
        """What the model takes: the only input, or all of them by name."""
        return next(iter(self.inputs.values())) if len(self.inputs) == 1 else dict(self.inputs)

    @property
    def y(self) -> Any:
        """The only target, or all of them by name."""
        return next(iter(self.targets.values())) if len(self.targets) == 1 else dict(self.targets)

    def __len__(self) -> int:
        return int(next(iter((self.targets or self.inputs).values())).shape[0])


@dataclass(frozen=True)
class Counts:
    """How many examples were counted, the sum of their losses, and the sums that are the task's own, by name."""

    total: int = 0
    loss_sum: float = 0.0
    own: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Counts:
        names = self.own if len(self.own) >= len(other.own) else other.own
        own = {name: self.own.get(name, 0) + other.own.get(name, 0) for name in names}
        return Counts(self.total + other.total, self.loss_sum + other.loss_sum, own)

    def vector(self, names: Sequence[str]) -> NDArray[np.float64]:
        """The task's own sums in the order of `names`, then total and loss: float64, exact up to 2**53."""
        own = [self.own.get(name, 0) for name in names]
        return np.array([*own, self.total, self.loss_sum], dtype=np.float64)

    @classmethod
    def of(cls, vector: NDArray[np.float64], names: Sequence[str]) -> Counts:
        """Counts from what `vector` returned, or from the sum of several."""
        *own, total, loss_sum = (float(value) for value in vector)
        return cls(round(total), loss_sum, {name: _plain(value) for name, value in zip(names, own, strict=True)})

    def fields(self, names: Sequence[str]) -> dict[str, float]:
        """As events carry them."""
        return {**{name: self.own.get(name, 0) for name in names}, "total": self.total, "loss_sum": self.loss_sum}


def _plain(value: float) -> float:
    return int(value) if value.is_integer() else value


class Loaded(Protocol):
    """Data as a task loaded it: three parts that never share an example."""

    @property
    def name(self) -> str: ...

    @property
    def train(self) -> Any: ...

    @property
    def validation(self) -> Any: ...

    @property
    def test(self) -> Any: ...

    @property
    def arrays(self) -> Iterable[Any]:
        """The arrays that it holds."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out or changed when it was loaded, as sentences."""


class Steps(Protocol):
    """The schedule of an epoch, as the training loop sees it."""

    @property
    def steps(self) -> int: ...

    def examples(self, first: int, last: int) -> int:
        """Examples that the steps `first` up to, not including, `last` hold over all workers."""


LOSS = Metric("loss", "less")


class Task(ABC):
    """One kind of learning problem."""

    name: str
    #: What engines' sides of it are called (`arrays`), where that is not the task's name.
    side: ClassVar[str | None] = None
    #: What is counted: `examples`, `words`.
    unit: ClassVar[str] = "examples"
    #: The first one decides which model is better; every task has a loss.
    metrics: tuple[Metric, ...]
    #: Names of its counts beyond `total` and `loss_sum`, in the order in which they are summed over ranks.
    counted: tuple[str, ...] = ()
    #: The field of a job that says how many examples a row of a batch holds, if that is more than one.
    row_field: ClassVar[str | None] = None

    # -- metrics

    @property
    def metric(self) -> Metric:
        """The metric that decides."""
        return self.metrics[0]

    def metrics_of(self, scores: Mapping[str, Any]) -> tuple[Metric, ...]:
        """The metrics that a result's `test` holds."""
        return self.metrics

    @abstractmethod
    def measure(self, counts: Mapping[str, Any]) -> dict[str, float | None]:
        """The value of each metric, in order; None if it is not finite. `counts` has a `total` above 0."""

    def measured(self, counts: Mapping[str, Any] | None) -> dict[str, float | None]:
        """The value of each metric; None for all of them if nothing was counted, or not what they are computed from."""
        if not counts or not self._are_whole(counts):
            return {metric.name: None for metric in self.metrics}
        return self.measure(counts)

    def _are_whole(self, counts: Mapping[str, Any]) -> bool:
        """Whether something was counted, and all that metrics need: events of a file may lack or hold anything."""
        return counts["total"] > 0 and all(
            isinstance(counts.get(name), Real) and abs(counts[name]) <= LARGEST_INT for name in self.counted)

    def in_words(self, counts: Mapping[str, Any] | None) -> str:
        """`accuracy 0.9731`; nothing if nothing was counted."""
        if not counts or not self._are_whole(counts):
            return ""
        value = self.measure(counts)[self.metric.name]
        return f"{self.metric.name} {'not finite' if value is None else self.metric.text(value)}"

    def amount(self, counts: Mapping[str, Any]) -> str:
        """What a metric was measured on: `10,000 examples`."""
        total = counts.get("total")
        return f"{self.unit} that were not counted" if total is None else f"{total:,} {self.unit}"

    # -- events and results

    def fields(self, counts: Counts) -> dict[str, Any]:
        """Counts as an event carries them."""
        return counts.fields(self.counted)

    def definitions(self) -> list[dict[str, Any]]:
        """The metrics as a result defines them for readers that do not know the task; empty for ours."""
        return []

    def summary(self, counts: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Counts as a result states them: metrics, then what they were counted from."""
        if not counts or not self._are_whole(counts):
            return None
        return {**self.measure(counts), **{name: counts[name] for name in self.counted}, "total": counts["total"]}

    def history(self, **parts: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics of an epoch, by name and part: `train_accuracy`, `validation_accuracy`, …"""
        measured = {part: self.measured(counts) for part, counts in parts.items()}
        names = dict.fromkeys(name for values in measured.values() for name in values)
        return {f"{part}_{name}": values.get(name) for name in names for part, values in measured.items()}

    def recorded(self, entry: Mapping[str, Any], part: str) -> dict[str, float | None]:
        """The metrics of a part, read back from an entry of the history."""
        return {metric.name: entry.get(f"{part}_{metric.name}") for metric in self.metrics}

    # -- what is refused before anything starts

    @abstractmethod
    def check(self, job: Job, about: Description) -> None:
        """Refuse a resolved job whose model, data and batch do not fit, as far as descriptions tell."""

    def check_target(self, target: Target) -> None:
        """Refuse a target on a metric that this task does not have."""
        known = [metric.name for metric in self.metrics]
        if target.metric not in known:
            raise BadRequest(
                f"--target '{target}': {self.name} has no metric {target.metric!r}; choose {' or '.join(known)}"
            )

    def check_engine(self, engine: Engine) -> None:
        """Refuse an engine that has no implementation of this task."""
        own = {self.name, self.side} & {*engine.tasks}
        if not own and not _exists(self.module(engine.tasks_of or engine.name)):
            framework = f" with --framework {engine.framework}" if engine.framework else ""
            raise BadRequest(f"--engine {engine.name}{framework} has no implementation of task {self.name!r}: choose "
                             "another engine")

    def check_strategy(self, strategy: Strategy) -> None:
        """Refuse a strategy that cannot train this task."""
        if why := strategy.not_tasks.get(self.name):
            raise BadRequest(f"--strategy {strategy.name}: {why}; choose another strategy")

    def module(self, engine: str) -> str:
        """The module of an engine's side of this task, if it is none of those that come with the engine."""
        return f"velodrome.engines.{engine}.tasks.{(self.side or self.name).replace('-', '_')}"

    # -- data and schedule

    @abstractmethod
    def load(self, job: Job, rank: int) -> Any:
        """The data of one worker, checked against the job: see `Loaded`."""

    def has_validation(self, data: Loaded) -> bool:
        return len(data.validation) > 0

    def classifies_images(self, data: Any) -> bool:
        """Whether it learns the one class of images of bytes, for which engines have a fast path."""
        return False

    def class_names(self, data: Any) -> Sequence[str]:
        """Names of the classes of a confusion matrix; empty where there are none."""
        return ()

    def test_fingerprint(self, data: Any) -> str | None:
        """Equal for equal test sets; None where examples are not right or wrong."""
        return None

    @abstractmethod
    def schedule(self, job: Job, data: Any, epoch: int) -> Steps:
        """The steps of an epoch, counted from 1."""

    def schedule_warnings(self, job: Job, data: Any) -> list[str]:
        """What a person should know of the schedule, as sentences."""
        return []

    def examples_per_row(self, job: Job) -> int:
        """Examples that one row of a batch counts for."""
        return 1 if self.row_field is None else int(getattr(job, self.row_field))

    def examples_per_step(self, job: Job) -> int:
        """Examples behind one update of the weights."""
        return batch_of_step(job, strategy_of(job)) * self.examples_per_row(job)


def mean_loss(counts: Mapping[str, Any]) -> float | None:
    """Loss per example; None if it is not finite. An event carries such a sum as null."""
    loss = finite(counts["loss_sum"])
    return None if loss is None else loss / counts["total"]


def finite(value: float | None) -> float | None:
    """A number as it is reported: None if it is not finite, or not known."""
    return None if value is None or not math.isfinite(value) else float(value)


def _exists(module: str) -> bool:
    """Whether there is a module inside a package. Nothing of the package is imported: it would import a framework."""
    package, *inner = module.rsplit(".", 2)
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        return False
    if spec is None or not inner:
        return spec is not None
    paths = [Path(folder, *inner) for folder in spec.submodule_search_locations or ()]
    return any(path.is_dir() or path.with_suffix(".py").is_file() for path in paths)
