"""What a training process is given: the job, its place in it, its data, and the way to say what happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from velodrome.data.splits import Splits
from velodrome.data.text import Text
from velodrome.offers.base import Strategy
from velodrome.offers.models import check_shape, is_own, is_text
from velodrome.offers.registry import strategy_of
from velodrome.offers.world import World
from velodrome.spec.job import Job
from velodrome.spec.resolve import check_batch, sharding_of
from velodrome.tasks.schedule import files_of
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
    def data(self) -> Splits:
        """The data set, loaded at first use."""
        from velodrome.data.catalogue import load, load_files

        with self.events.phase("data"):
            job = self.job
            numbers = self._own_files()
            if numbers is None:
                data = load(job.dataset, seed=job.seed, validation=job.validation, bad_data=job.bad_data)
            else:
                data = load_files(job.dataset, numbers, validation=job.validation, bad_data=job.bad_data)
        for note in data.notes if self.is_chief else ():
            self.events.emit("warning", message=note)
        # The controller may not have known: it never runs the user's code, and does not decode to count.
        check_batch(job, sum(data.files) or len(data.train))
        if not is_own(job.model):
            check_shape(job.model, data.input_shape)
        return data

    def _own_files(self) -> range | None:
        """The files that this process alone trains on; None if it needs all of the data."""
        from velodrome.data.catalogue import files

        job, strategy = self.job, self.strategy
        if not strategy.synchronous or strategy.one_process or job.workers == 1 or job.sharding in ("data", "off"):
            return None
        count = len(files(job.dataset, bad_data=job.bad_data))
        return files_of(self.rank, count, job.workers) if sharding_of(job, count, synchronous=True) == "file" else None

    @property
    def is_text(self) -> bool:
        """Whether the job trains a language model."""
        return is_text(self.job.model)

    @cached_property
    def text(self) -> Text:
        """The text of a language model, loaded at first use."""
        from velodrome.data.catalogue import load_text

        with self.events.phase("data"):
            text = load_text(self.job.dataset, bad_data=self.job.bad_data)
        for note in text.notes if self.is_chief else ():
            self.events.emit("warning", message=note)
        return text

    @property
    def has_validation(self) -> bool:
        return len(self.text.validation if self.is_text else self.data.validation) > 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a call that blocks until other processes come."""
        self.status.waiting = True
        try:
            yield
        finally:
            self.status.waiting = False
