"""What a training process works with: the job and its task, its place in the world, its data, its events."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from velodrome.catalog.base import Strategy
from velodrome.catalog.registry import check_arrays, engine_of, strategy_of
from velodrome.catalog.world import World
from velodrome.errors import FolderGone
from velodrome.events import PREFIX, to_line
from velodrome.events.models import MODELS, EventBase, Kind, Phase
from velodrome.job.job import Job
from velodrome.models import own
from velodrome.tasks.base import Task
from velodrome.tasks.own import OwnTask
from velodrome.tasks.registry import task_of
from velodrome.variables import STRICT_EVENTS

if TYPE_CHECKING:
    from velodrome.training.learner import Learner


class InvalidEvent(Exception):
    """An event does not fit its model: a mistake in the code that emits it."""


class Emitter:
    """Writes the events of one process to a file descriptor that nothing else writes to.

    Every event is validated against its model. An event that does not fit is a programming error: it raises where
    `VELODROME_STRICT_EVENTS` is 1, as in the tests. In a real run training is worth more than a statistic: the fields
    that do not fit are left out, and a warning names them once per kind of event.
    """

    def __init__(self, descriptor: int, role: str, rank: int) -> None:
        self._descriptor = descriptor
        self._role, self._rank = role, rank
        self._lock = threading.Lock()
        self._strict = os.environ.get(STRICT_EVENTS) == "1"
        self._warned: set[str] = set()

    def emit(self, kind: Kind, **fields: Any) -> None:
        """Write one event that happens now."""
        event = {"time": round(time.time(), 4), "role": self._role, "rank": self._rank, "kind": kind, **fields}
        model, line = MODELS[kind], to_line(event)
        try:
            # The text itself, as every reader will validate it.
            model.model_validate_json(line)
        except ValidationError as error:
            line = to_line(self._repaired(model, event, error))
        if self._strict and (unknown := event.keys() - _names(model)):
            raise InvalidEvent(f"the event {kind!r} has no field {sorted(unknown)[0]!r}")
        with self._lock:
            self._write(PREFIX + line)

    def _write(self, line: str) -> None:
        data = (line + "\n").encode()
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _repaired(self, model: type[EventBase], event: dict[str, Any], error: ValidationError) -> dict[str, Any]:
        """Return an invalid event without the fields that do not fit, or raise if events are strict."""
        from velodrome.events import sentences

        kind = event["kind"]
        problems = "; ".join(sentences(error))
        if self._strict:
            raise InvalidEvent(f"the event {kind!r} {problems}")
        if kind not in self._warned:
            self._warned.add(kind)
            self.emit("warning", message=f"an event {kind!r} was wrong, please report this: it {problems}")
        wrong = {str(problem["loc"][0]) for problem in error.errors(include_url=False) if problem["loc"]}
        # Without a field that must be there it stays no event, and the controller keeps the line in the log.
        return {name: value for name, value in event.items() if name not in wrong}

    @contextmanager
    def phase(self, name: Phase, **fields: Any) -> Iterator[None]:
        """Report the begin of a phase, and its end with the seconds it took; not its end if it raises."""
        self.emit("phase", phase=name, state="begin", **fields)
        start = time.perf_counter()
        yield
        self.emit("phase", phase=name, state="end", seconds=round(time.perf_counter() - start, 6), **fields)


class LineEmitter(Emitter):
    """Passes event lines to a function, for a process that trains inside another program."""

    def __init__(self, deliver: Callable[[str], None], role: str, rank: int) -> None:
        super().__init__(-1, role, rank)
        self._deliver = deliver

    def _write(self, line: str) -> None:
        self._deliver(line)


def _names(model: type[EventBase]) -> set[str]:
    """Names of a model's fields as they are written."""
    return {field.alias or name for name, field in model.model_fields.items()}


@dataclass
class Status:
    """Progress of the process, which its heartbeat reports every second; plain attributes are enough for that."""

    steps: int = 0
    #: Batches evaluated so far, which shows that a long evaluation makes progress.
    seen: int = 0
    #: Whether it is in a call that waits for other processes: a rank that waits is not the one that stalls.
    waiting: bool = False


@dataclass
class Context:
    """One process of a job."""

    job: Job
    #: Every process of the job, and which of them this one is.
    world: World
    #: The run's folder: checkpoints and model are written below it.
    folder: Path
    events: Emitter
    threads: int
    resume: bool = False
    #: The folder of a saved model that is evaluated in place of one that is trained.
    saved_model: Path | None = None
    #: Where the saved model is written as ONNX instead (`training/actions.py`).
    export_to: Path | None = None
    #: What is done with the learner instead of training it (`training/actions.py`).
    action: Callable[[Context, Learner], None] | None = None
    status: Status = field(default_factory=Status)

    @property
    def role(self) -> str:
        return self.world.me.role

    @property
    def rank(self) -> int:
        return self.world.me.rank

    @cached_property
    def strategy(self) -> Strategy:
        return strategy_of(self.job)

    @property
    def is_chief(self) -> bool:
        return self.role == self.strategy.chief and self.rank == 0

    @cached_property
    def task(self) -> Task:
        """What the job learns; a task of the user's own is imported here, and nowhere else."""
        task = task_of(self.job)
        if not isinstance(task, OwnTask):
            return task
        return task.bind(own.make_task(task.name))

    @cached_property
    def data(self) -> Any:
        """What the task loaded, at first use: see `tasks.base.Loaded`."""
        from velodrome.data import catalogue

        with self.events.phase("data"):
            data = self.task.load(self.job, self.rank)
        if data.kind == "arrays":  # the controller did not know what a user's code returns
            check_arrays(engine_of(self.job), self.job.dataset)
        for note in (*data.notes, *data.caveats) if self.is_chief else ():
            self.events.emit("warning", message=note)
        if self.is_chief:
            self.events.emit("data", **data.identity(), seeded=catalogue.data_set(self.job.dataset).from_function)
        return data

    @property
    def has_validation(self) -> bool:
        return self.task.has_validation(self.data)

    def check_folder(self) -> None:
        """Refuse to save where the run's folder was removed or renamed: nobody would find it."""
        if not self.folder.is_dir():
            raise FolderGone(f"run {self.folder.name!r}", self.folder)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a call that blocks until other processes arrive."""
        self.status.waiting = True
        try:
            yield
        finally:
            self.status.waiting = False
