"""What jobs will take: collects what is known about them from stored runs and from a second of training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from velodrome.catalog.registry import engine_of
from velodrome.clusters.registry import DEFAULT, Where, launcher_named, open_launcher
from velodrome.data import catalogue
from velodrome.data.source import Description
from velodrome.errors import VelodromeError
from velodrome.job.job import Job
from velodrome.judge.estimate import IMPORT_SECONDS, Estimate, Known, estimate, is_alike, known_of
from velodrome.judge.remaining import estimate_script
from velodrome.machine import cores
from velodrome.races.repetitions import similar
from velodrome.run.dry_run import alone, measure

#: By default measuring may take this long in total, and one measurement is expected to take so long.
MOST_SECONDS, _ONE_SECONDS = 10.0, 2.5
#: A race that is not expected to take this long, even if the guess is wrong, is not worth measuring.
_WORTH_SECONDS = 60.0

Note = Callable[[str], None]


@dataclass(frozen=True)
class Costs:
    """What is known about how long jobs take on some machines."""

    on: Where = DEFAULT
    warm: bool = True
    #: Runs that finished, with their jobs.
    runs: Sequence[tuple[Job, Mapping[str, Any]]] = ()
    #: Seconds of training.
    measured: tuple[Known, ...] = ()
    _about: dict[tuple[str, float], Description] = field(default_factory=dict)

    @classmethod
    def stored(cls, folder: Path, jobs: Iterable[Job], *, on: Where = DEFAULT, warm: bool = True) -> Costs:
        """What the runs in a folder, and in its races, show about these jobs."""
        return cls(on, warm, similar(folder, jobs, launcher_named(on).name))

    def of(self, job: Job) -> Estimate:
        """How long a job will take, and what that rests on."""
        if job.script is not None:
            return estimate_script(job, self.runs)
        about = self._described(job)
        known = [known for other, result in self.runs
                 if is_alike(other, job) and (known := known_of(result, other, about.train)) is not None]
        pixels = math.prod(about.input_shape) if about.input_shape else None
        return estimate(job, about.train, pixels, cores(), [*known, *self.measured], warm=self.warm)

    def _described(self, job: Job) -> Description:
        key = job.dataset, job.validation
        if key not in self._about:
            self._about[key] = catalogue.describe(job.dataset, validation=job.validation)
        return self._about[key]

    def measuring(self, jobs: Sequence[Job], *, limit: float | None, note: Note = lambda text: None) -> Costs:
        """The same, and a second of training of each `single` whose jobs would otherwise be guessed.

        Within the limit, if there is one; only on this machine, and only with data that is here.
        """
        guessed = [job for job in jobs if job.script is None and job.on is None and not self.of(job).measured]
        wanted = [job for job in measured_jobs(guessed) if catalogue.is_here(job.dataset)]
        if not wanted or launcher_named(self.on).name != DEFAULT:
            return self
        began, found = time.monotonic(), list[Known]()
        engines = _within(wanted, limit)
        wanted = [job for job in wanted if engine_of(job).key in engines]
        with open_launcher(self.on) as launcher:
            if self.warm and engines:
                note(f"measuring how fast {', '.join(engines)} {'is' if len(engines) == 1 else 'are'} here …")
                launcher.prepare(engines)
            for job in wanted:
                left = 60.0 if limit is None else limit - (time.monotonic() - began)
                timing = measure(job, launcher, limit=left) if left > 1.0 else None
                if timing is not None:
                    found.append(Known(job, timing, cores(), measured=True))
        return Costs(self.on, self.warm, self.runs, tuple(found), self._about)


def measured_jobs(jobs: Iterable[Job]) -> list[Job]:
    """One process of each engine, model, data set and batch that jobs have; what cannot be one is left out."""
    found: dict[str, Job] = {}
    for job in jobs:
        try:
            single = alone(job).model_copy(update={"seed": 1, "steps": None, "epochs": 10_000})
        except VelodromeError:
            continue
        found.setdefault(single.model_dump_json(), single)
    return list(found.values())


def _within(jobs: Sequence[Job], limit: float | None) -> list[str]:
    """Engines whose jobs are expected to be measured within a limit; importing happens at the same time."""
    found: list[str] = []
    for key in dict.fromkeys(engine_of(job).key for job in jobs):
        engines = [*found, key]
        count = sum(engine_of(job).key in engines for job in jobs)
        importing = max(IMPORT_SECONDS.get(name, 5.0) for name in engines)
        if limit is None or importing + _ONE_SECONDS * count <= limit:
            found = engines
    return found


def worth_measuring(jobs: Iterable[Job], costs: Costs) -> bool:
    """Whether these jobs may take long although they are not expected to, because that is only guessed."""
    found = [(job, one) for job in jobs if not (one := costs.of(job)).measured]
    return sum(one.at_worst(job) for job, one in found) > _WORTH_SECONDS
