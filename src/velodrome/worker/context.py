"""What a training process works with: the job and its task, its place in the world, its data, its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.catalog.base import Strategy
from velodrome.catalog.registry import check_arrays, engine_of, strategy_of
from velodrome.catalog.world import World
from velodrome.errors import FolderGone
from velodrome.job.job import Job
from velodrome.models import own
from velodrome.tasks.base import Task
from velodrome.tasks.own import OwnTask
from velodrome.tasks.registry import task_of
from velodrome.worker.emitter import Emitter

if TYPE_CHECKING:
    from velodrome.worker.learner import Learner


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
    #: Where the saved model is written as ONNX instead (`worker/onnx_export.py`).
    export_to: Path | None = None
    #: What is done with the learner instead of training it (`worker/actions.py`).
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
            self.events.emit("data", **data.identity(), seeded=catalogue.from_function(self.job.dataset))
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
