"""Races without the command around them: a cluster of this machine, and jobs that run in a held folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from velodrome.clusters import Cluster, open_cluster
from velodrome.job.race import Entry, Race
from velodrome.races.folder import RaceFolder
from velodrome.races.plan import PlannedRace, plan_race
from velodrome.races.request import SILENT, RaceObserver, RaceRequest, Result
from velodrome.races.runs import RaceRuns, run_blocks
from velodrome.run.attempt import JobFailed


def here() -> Cluster:
    """This machine, of which nothing needs to be closed as long as no process was prepared."""
    return Cluster("local", ExitStack())


def planned(asked: Race, name: str, runs: Path, **how: Any) -> PlannedRace:
    """The plan of a race on this machine, in which nothing is measured."""
    with open_cluster() as cluster:
        return plan_race(RaceRequest(asked, name, runs, **{"measure": False, **how}), cluster)


class Noted(RaceObserver):
    """Notes what a race says, and passes on the end of each job."""

    def __init__(self, ended: Callable[[Entry, Result, JobFailed | None], None] = lambda *told: None) -> None:
        self.notes: list[str] = []
        self._ended = ended

    def note(self, text: str) -> None:
        self.notes.append(text)

    def end(self, entry: Entry, result: Result, error: JobFailed | None) -> None:
        self._ended(entry, result, error)


def run_race(folder: RaceFolder, entries: Sequence[Entry], observer: RaceObserver = SILENT) -> list[Result]:
    """Hold a race and run what is missing; every result, also of earlier attempts, in the order of the entries."""
    with folder.held():
        folder.refuse_resumed(entries)
        runs = RaceRuns(folder, observer, here())
        run_blocks(runs, entries)
        return [runs.results[entry.name] for entry in entries]
