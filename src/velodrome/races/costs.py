"""What jobs will take: collects what is known about them from stored runs and from a second of training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from velodrome.catalog.registry import engine_of
from velodrome.clusters import DEFAULT, Cluster
from velodrome.clusters.launcher import Launcher
from velodrome.data import catalogue
from velodrome.data.base import Progress
from velodrome.errors import VelodromeError
from velodrome.job.job import Job
from velodrome.job.resolve import alone
from velodrome.job.result import Result
from velodrome.judge.budget import Tried, estimate_script
from velodrome.judge.estimate import IMPORT_SECONDS, Estimate, Known, Timing, estimate, is_alike, known_of
from velodrome.machine import cores
from velodrome.races.folder import RaceFolder
from velodrome.run.dry_run import DryRunFailed, measure
from velodrome.run.script_trial import BY_ITSELF, try_script

#: By default measuring may take this long in total, and one measurement is expected to take so long.
MOST_SECONDS, _ONE_SECONDS = 10.0, 2.5
#: A race that is not expected to take this long, even if the guess is wrong, is not worth measuring.
_WORTH_SECONDS = 60.0

Note = Callable[[str], None]


@dataclass(frozen=True)
class Costs:
    """What is known about how long jobs take on some machines."""

    warm: bool = True
    #: Runs that finished, with their jobs.
    runs: Sequence[tuple[Job, Result]] = ()
    #: Seconds of training.
    measured: tuple[Known, ...] = ()
    #: Trials of scripts.
    tried: tuple[Tried, ...] = ()
    _sizes: dict[tuple[str, float], tuple[int | None, int | None]] = field(default_factory=dict)

    @classmethod
    def stored(cls, race: RaceFolder, jobs: Iterable[Job], cluster: Cluster, *, warm: bool = True) -> Costs:
        """What the runs of a race, and what lies beside it, show about these jobs."""
        return cls(warm, race.similar(jobs, cluster.launcher.name))

    @classmethod
    def at_pace(cls, job: Job, timing: Timing) -> Costs:
        """What a job that trained alone for a moment shows."""
        return cls(measured=(Known(job, timing, cores(), measured=True),))

    def of(self, job: Job) -> Estimate:
        """How long a job will take, and what that rests on."""
        if job.script is not None:
            return estimate_script(job, self.runs, self.tried)
        examples, pixels = self._sizes_of(job)
        known = [known for other, result in self.runs
                 if is_alike(other, job) and (known := known_of(result, other, examples)) is not None]
        return estimate(job, examples, pixels, cores(), [*known, *self.measured], warm=self.warm)

    def _sizes_of(self, job: Job) -> tuple[int | None, int | None]:
        """Examples to train on, and numbers of each, as far as they are known before the data is loaded."""
        key = job.dataset, job.validation
        if key not in self._sizes:
            about = catalogue.describe(job.dataset, validation=job.validation)
            self._sizes[key] = about.train, math.prod(about.input_shape) if about.input_shape else None
        return self._sizes[key]

    def measuring(
        self, jobs: Sequence[Job], cluster: Cluster, *, limit: float | None, note: Note = lambda text: None,
        on_download: Progress | None = None,
    ) -> Costs:
        """The same, and a second of training of each `single` whose jobs would otherwise be guessed.

        Only on this machine. Within a limit, only with data that is here, and no script is tried, which may take a
        minute; without one, data is fetched.
        """
        guessed = [job for job in jobs if job.on is None and not self.of(job).measured]
        if not guessed:
            return self
        launcher = cluster.launcher
        if launcher.name != DEFAULT:
            if limit is None:
                note(f"not measured: that is for this machine, and the race runs on {cluster.target}")
            return self
        models = [job for job in guessed if job.script is None]
        measured = self._with_seconds(models, launcher, limit, note, on_download)
        scripts = [job for job in guessed if job.script is not None]
        return measured._with_trials(scripts, launcher, note) if limit is None else measured

    def _with_seconds(
        self, jobs: Sequence[Job], launcher: Launcher, limit: float | None, note: Note, on_download: Progress | None
    ) -> Costs:
        if limit is None:
            for name, bad_data in dict.fromkeys((job.dataset, job.bad_data) for job in jobs):
                with _noting(note, name):
                    catalogue.prepare(name, on_download, bad_data=bad_data)
        wanted = [job for job in measured_jobs(jobs) if catalogue.is_here(job.dataset)]
        if not wanted:
            return self
        began, measured = time.monotonic(), list[Known]()
        engines = _within(wanted, limit)
        wanted = [job for job in wanted if engine_of(job).key in engines]
        if self.warm and engines:
            note(f"measuring how fast {', '.join(engines)} {'is' if len(engines) == 1 else 'are'} here …")
            launcher.prepare(engines)
        refused: list[DryRunFailed] = []
        for job in wanted:
            left = 60.0 if limit is None else limit - (time.monotonic() - began)
            try:
                timing = measure(job, launcher, limit=left) if left > 1.0 else None
            except DryRunFailed as error:
                refused.append(error)
                continue
            if timing is not None:
                measured.append(Known(job, timing, cores(), measured=True))
        if refused and len(refused) == len(measured_jobs(jobs)):
            raise refused[0]  # so will every job
        return replace(self, measured=tuple(measured))

    def _with_trials(self, jobs: Sequence[Job], launcher: Launcher, note: Note) -> Costs:
        """The same, and a trial of each script."""
        trials: list[Tried] = []
        for job in jobs:
            what = f"{job.script} with {job.workers} worker{'' if job.workers == 1 else 's'}"
            note(f"trying {what} …")
            with _noting(note, what):
                trial = try_script(job, launcher)
                seconds = trial["seconds"] if trial["ended"] == BY_ITSELF else trial["expected_seconds"]
                if seconds is None:
                    note(f"{what}: its total work is unknown; report it with velodrome.log(total_epochs=…)")
                else:
                    trials.append(Tried(job, seconds, trial["seconds"]))
        return replace(self, tried=tuple(trials))


@contextmanager
def _noting(note: Note, what: str) -> Iterator[None]:
    """Note in a sentence why something could not be measured."""
    try:
        yield
    except VelodromeError as error:
        note(f"{what} is not measured: {error}")


def measured_jobs(jobs: Iterable[Job]) -> list[Job]:
    """One process of each engine, model, data set and batch that jobs have; what cannot be one is left out."""
    singles: dict[str, Job] = {}
    for job in jobs:
        try:
            single = alone(job).model_copy(update={"seed": 1, "steps": None, "epochs": 10_000})
        except VelodromeError:
            continue
        singles.setdefault(single.model_dump_json(), single)
    return list(singles.values())


def _within(jobs: Sequence[Job], limit: float | None) -> list[str]:
    """Engines whose jobs are expected to be measured within a limit; importing happens at the same time."""
    chosen: list[str] = []
    for key in dict.fromkeys(engine_of(job).key for job in jobs):
        engines = [*chosen, key]
        count = sum(engine_of(job).key in engines for job in jobs)
        importing = max(IMPORT_SECONDS.get(name, 5.0) for name in engines)
        if limit is None or importing + _ONE_SECONDS * count <= limit:
            chosen = engines
    return chosen


def worth_measuring(jobs: Iterable[Job], costs: Costs) -> bool:
    """Whether these jobs may take long although they are not expected to, because that is only guessed."""
    guesses = [(job, estimate) for job in jobs if not (estimate := costs.of(job)).measured]
    return sum(estimate.at_worst(job) for job, estimate in guesses) > _WORTH_SECONDS
