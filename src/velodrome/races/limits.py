"""What ends a race or one of its runs before its time: the budget, and a target that others reach much sooner."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from velodrome.job.job import Job
from velodrome.job.race import Entry, Race
from velodrome.job.result import BEATEN, Result
from velodrome.judge.attempts import Limit
from velodrome.judge.blocks import FIRST_LOOK
from velodrome.judge.budget import REPEATED_SHARE, Affordable, afford, contenders
from velodrome.judge.configuration import Configuration, names_of
from velodrome.judge.criteria import objective_of
from velodrome.judge.estimate import Estimate
from velodrome.judge.phrases import as_option, in_full, in_list
from velodrome.judge.phrases import in_words as duration
from velodrome.races.folder import RaceFolder
from velodrome.run.listing import ASIDE
from velodrome.run.processes import Failure
from velodrome.run.state import RunState
from velodrome.tasks.registry import task_of

#: A race that takes longer is worth a word on how to ask for less.
_LONG_WAIT = 900.0
#: Numbers of steps after which the rate is known well enough, the best first.
_FEWER_STEPS = (300, 100, 40)


class Budget:
    """The time that all runs of a race may take together, those of earlier sessions included.

    `expected` are seconds by the name of a job, for configurations that never ran. Without `seconds` everything fits.
    """

    def __init__(
        self, folder: RaceFolder, seconds: float | None, entries: Sequence[Entry], expected: Mapping[str, float]
    ) -> None:
        self.seconds = seconds
        self._folder, self._expected = folder, expected
        self._of: dict[str, list[Entry]] = {}
        for entry in entries:
            self._of.setdefault(entry.configuration, []).append(entry)
        self._announced: dict[str, float] = {}
        self._spent = 0.0
        self._began: float | None = None
        #: Whether a job was not started because it would have ended too late.
        self.exceeded = False

    def begin(self) -> None:
        """Count from now on, and what the runs of earlier sessions took, archived attempts included."""
        self._spent, self._began = self.stored, time.monotonic()

    @property
    def stored(self) -> float:
        """What the stored runs took, archived attempts included."""
        results = (run.result() for run in self._folder.store.runs())
        return sum(elapsed(result) for result in results if result is not None)

    @property
    def spent(self) -> float:
        return self._spent + (0.0 if self._began is None else time.monotonic() - self._began)

    @property
    def left(self) -> float:
        return math.inf if self.seconds is None else self.seconds - self.spent

    def announce(self, entries: Iterable[Entry]) -> None:
        """Let pages that follow the race know what comes next, and how long it was expected to take."""
        self._announced.update({entry.name: self._expected.get(entry.name, 0.0) for entry in entries})
        self._folder.expect(self._announced)

    def expected(self, entry: Entry, results: Mapping[str, Result]) -> float:
        """How long a job will take: as its configuration did so far, or as was estimated."""
        ran = [elapsed(result) for other in self._of[entry.configuration]
               if (result := results.get(other.name)) is not None and result.status == "finished"]
        return median(ran) if ran else self._expected.get(entry.name, 0.0)

    def fits(self, entry: Entry, results: Mapping[str, Result]) -> bool:
        """Whether a job is expected to end in time; if not, that is remembered."""
        fits = self.expected(entry, results) <= self.left
        self.exceeded = self.exceeded or not fits
        return fits

    def may_repeat(self, entry: Entry, results: Mapping[str, Result], ahead: Iterable[Entry]) -> bool:
        """Whether a disturbed run may be repeated: what is ahead must still fit, and repeats are a fifth at most."""
        if self.seconds is None:
            return True
        wanted, reserved = self.expected(entry, results), sum(self.expected(other, results) for other in ahead)
        return wanted + reserved <= self.left and self._repeated() + wanted <= REPEATED_SHARE * self.seconds

    def _repeated(self) -> float:
        """What disturbed runs took that were repeated: of each, the attempt that counts less is archived."""
        archived = (run.result() for run in self._folder.store.runs() if ASIDE in run.name)
        return sum(elapsed(result) for result in archived if result is not None and result.status == "finished")

    def affordable(
        self, race: Race, jobs: Mapping[str, Job], seconds: Mapping[str, float], promise: Mapping[str, float],
        done: Mapping[str, int], guessed: Collection[str], *, at_once: int = 1,
    ) -> Affordable:
        """Which configurations fit, so that they reach the first look; all values are by the key of a configuration."""
        left = self.left * at_once
        return afford(contenders(jobs, seconds, promise, done, guessed), left, min(FIRST_LOOK, race.most))

    @property
    def unknown_note(self) -> str:
        """What a budget means for scripts of which nothing is known."""
        return (f"how many repetitions fit into the budget of {in_full(self.seconds or 0.0)} is known after the first "
                "one")

    def notes(self, race: Race, affordable: Affordable) -> list[str]:
        """What the budget of a race that has not begun is enough for, as sentences."""
        asked, count = in_full(self.seconds or 0.0), len(self._of)
        if not race.until_sure:
            total = sum(self._expected.values())
            more = "" if race.repeat >= FIRST_LOOK else (
                f"; a verdict needs {FIRST_LOOK} repetitions: add --until-sure, or --repeat {FIRST_LOOK}")
            if total <= self.left:
                return [f"the budget of {asked} is enough for all jobs (about {duration(total)}){more}"]
            return [f"the budget of {asked} is too small for all jobs, which take about {duration(total)}: jobs that "
                    f"would end later are not started; --budget {as_option(self.spent + total)} is enough for "
                    f"all{more}"]
        times = min(FIRST_LOOK, race.most)
        if not affordable.settles:
            return [f"the budget of {asked} is too small for a verdict: it needs {times} repetitions, which take about "
                    f"{duration(affordable.least)} for two configurations "
                    f"(--budget {as_option(self.spent + affordable.least)}); as many jobs as fit will run, the most "
                    "promising first"]
        if affordable.left_out:
            names = configuration_names({key: entries[0].job for key, entries in self._of.items()})
            out = in_list([names[key] for key in reversed(affordable.left_out)])
            return [f"left out by the budget of {asked}, so that the others run {times} times, as a verdict needs: "
                    f"{out}; --budget {as_option(self.spent + affordable.whole)} includes all {count} configurations"]
        if affordable.whole == 0:
            return [f"the budget of {asked} leaves {duration(max(0.0, self.left))} for further repetitions"]
        return [f"the budget of {asked} is enough for {times} repetitions of all {count} configurations (about "
                f"{duration(affordable.whole)}), as many as a verdict needs"] if count > 1 else []


def configuration_names(jobs: Mapping[str, Job]) -> dict[str, str]:
    """The name of each configuration, by its key."""
    configurations = {key: Configuration.of_job(job) for key, job in jobs.items()}
    names = names_of(list(configurations.values()))
    return {key: names[configuration.key] for key, configuration in configurations.items()}


def fewer_steps_note(
    race: Race, jobs: Mapping[str, Job], estimates: Mapping[str, Estimate], estimate: Callable[[Job], Estimate]
) -> str:
    """How to learn which configuration is fastest without whole trainings, of a race that is too long for its budget or
    for a short wait; empty if it is not, or if it is about more than speed."""
    least = 0.9 * (race.budget or _LONG_WAIT)
    if len(jobs) < 2 or (race.objective and not objective_of(race.objective).timed) or any(
            job.script is not None or job.target or job.steps or not estimates[key].measured
            for key, job in jobs.items()):
        return ""
    if FIRST_LOOK * sum(whole.seconds for whole in estimates.values()) <= least:
        return ""
    for steps in _FEWER_STEPS:
        short = [job.model_copy(update={"steps": steps}) for job in jobs.values()]
        seconds = FIRST_LOOK * sum(estimate(job).seconds for job in short)
        if seconds <= least:
            return (f"which one is fastest shows sooner: with --steps {steps} --objective throughput, {FIRST_LOOK} "
                    f"repetitions of all {len(jobs)} configurations take about {duration(seconds)}")
    return ""


def elapsed(result: Result) -> float:
    """Seconds between the start and the end of a run."""
    return max(0.0, result.ended - result.started)


@dataclass(frozen=True)
class EarlyEnd:
    """Ends a run after an epoch beyond the limit, but not before `grace` epochs.

    The last epoch ends by itself, with everything that a whole run measures.
    """

    job: Job
    limit: Limit
    grace: int

    def stop(self, state: RunState) -> Failure | None:
        """Why the run is to be ended now, if it is."""
        last, limit = state.last_epoch, self.limit
        if last is None or last.seconds <= limit.seconds or not self.grace <= last.event.epoch < self.job.epochs:
            return None
        reached = limit.target.reached(task_of(self.job).measured(last.event.validation.as_json()))
        return None if reached else Failure(limit.reason(last.seconds), cause=BEATEN)
