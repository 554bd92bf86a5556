"""Receives what happens in a race. How a race is shown is the observer's business."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from velodrome.events.models import Event
from velodrome.job.race import Entry
from velodrome.job.result import Result
from velodrome.run.attempt import JobFailed

if TYPE_CHECKING:
    from velodrome.judge.judge import Dropped
    from velodrome.races.check import CheckedRace
    from velodrome.races.plan import PlannedRace


class RaceObserver:
    """Every method does nothing by default."""

    def planning(self) -> AbstractContextManager[object]:
        """A context that is open while the race is planned."""
        return nullcontext()

    def data(self, done: int, total: int, label: str) -> None:
        """How much of a data set has been fetched or read."""

    def skips(self, checked: CheckedRace) -> bool:
        """Whether to run what can run of a race of which not everything can."""
        return False

    def planned(self, plan: PlannedRace) -> RaceObserver:
        """The plan is made; returns who observes the race from here."""
        return self

    def session(self) -> AbstractContextManager[object]:
        """A context that is open from the plan to the verdict."""
        return nullcontext()

    def importing(self) -> AbstractContextManager[object]:
        """A context that is open while warm processes import their engines."""
        return nullcontext()

    def running(self) -> AbstractContextManager[object]:
        """A context that is open while jobs run."""
        return nullcontext()

    def stored(self, entry: Entry, result: Result) -> None:
        """A job that finished in an earlier attempt."""

    def begin(self, entry: Entry) -> None:
        """A job starts."""

    def event(self, entry: Entry, event: Event) -> None:
        """An event of the running job."""

    def end(self, entry: Entry, result: Result, error: JobFailed | None) -> None:
        """A job ended: with its result, and the error if it failed."""

    def note(self, text: str) -> None:
        """A sentence for the user."""

    def block(self, repetition: int, entries: Sequence[Entry]) -> None:
        """A repetition with these jobs begins, in a race that runs until it is sure."""

    def dropped(self, drop: Dropped) -> None:
        """A configuration is out, in a race that runs until it is sure."""


#: Observes nothing.
SILENT = RaceObserver()
