"""What a training process is given: the job, its place in it, its data, and the way to say what happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from velodrome.offers.base import Strategy
from velodrome.offers.registry import strategy_of
from velodrome.offers.world import World
from velodrome.spec.job import Job
from velodrome.tasks.base import Task
from velodrome.tasks.registry import task_of
from velodrome.worker.emitter import Emitter


@dataclass
class Status:
    """Where the process is; its heartbeat tells this every second, so plain attributes are enough."""

    steps: int = 0
    #: Batches looked at in evaluations: a long one goes on as long as this grows.
    seen: int = 0
    #: In a call that waits for other processes: a rank that waits is not the one that stalls.
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
        return task_of(self.job)

    @cached_property
    def data(self) -> Any:
        """What the task loaded, at first use."""
        with self.events.phase("data"):
            data = self.task.load(self.job, self.rank)
        for note in data.notes if self.is_chief else ():
            self.events.emit("warning", message=note)
        return data

    @property
    def has_validation(self) -> bool:
        return self.task.has_validation(self.data)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a call that blocks until other processes come."""
        self.status.waiting = True
        try:
            yield
        finally:
            self.status.waiting = False
