"""Runs the missing jobs of a race, with warm or cold processes, and reports to an observer what happens.

How a race is shown is the observer's business; which jobs a race has is decided in `run/race.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from velodrome.cluster.registry import DEFAULT, open_launcher
from velodrome.events.models import Event
from velodrome.run.execute import JobFailed
from velodrome.run.race import RaceFolder, run_race
from velodrome.spec.race import Entry

Result = dict[str, Any]


class RaceObserver:
    """Receives what happens in a race. Every method does nothing by default."""

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


def run_entries(
    folder: RaceFolder, entries: Sequence[Entry], observer: RaceObserver, *, on: str = DEFAULT, warm: bool
) -> list[Result]:
    """Run what is missing and return every result in the order of the entries.

    Refused if somebody else runs this race already.
    """
    folder.refuse_running()
    finished = folder.finished()
    for entry in entries:
        if entry.name in finished:
            observer.stored(entry, finished[entry.name])

    def listen(entry: Entry) -> dict[str, Any]:
        observer.begin(entry)
        return {"listener": lambda event: observer.event(entry, event)}

    with open_launcher(on) as launcher:
        if warm:
            with observer.importing():
                launcher.prepare(list(dict.fromkeys(one.job.engine for one in entries if one.name not in finished)))
        with observer.running():
            return run_race(folder, entries, listen, observer.end, launcher)
