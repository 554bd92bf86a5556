"""What ends a race or one of its runs before its time: the budget, and a target that others reach much sooner."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from velodrome.job.job import Job
from velodrome.job.race import Entry
from velodrome.job.result import BEATEN, Result
from velodrome.judge.attempts import Limit
from velodrome.judge.budget import REPEATED_SHARE
from velodrome.races.folder import RaceFolder
from velodrome.run.listing import ASIDE
from velodrome.run.processes import Failure
from velodrome.run.state import RunState
from velodrome.tasks.registry import task_of


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
        found = self.expected(entry, results) <= self.left
        self.exceeded = self.exceeded or not found
        return found

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
