"""Runs the jobs of a race one after another, keeps what is finished, and goes on after one that fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from velodrome.cluster import local, preflight
from velodrome.cluster.launch import Launch
from velodrome.errors import BadRequest
from velodrome.run import published
from velodrome.run.execute import JobFailed, execute
from velodrome.run.names import check_name
from velodrome.run.store import RunFolder, Store, write_whole
from velodrome.spec.race import Entry, Race, expand


class RaceFolder:
    """A race on disk: its description, and a store of its runs."""

    def __init__(self, runs: Path, name: str) -> None:
        self.path = runs / check_name(name)
        self.store = Store(self.path)

    def stamped(self, race: Race) -> Race:
        """The race with the time stamp of its names: that of its first begin, so that it can be gone on with."""
        if race.naming != "published" or race.stamp is not None:
            return race
        written = self._written()
        return race.model_copy(update={"stamp": (written and written.stamp) or published.now()})

    def _written(self) -> Race | None:
        """The race that the folder holds, if it holds a readable one."""
        try:
            return Race.model_validate(yaml.safe_load((self.path / "race.yaml").read_text(encoding="utf-8")))
        except (OSError, ValueError, yaml.YAMLError):
            return None

    def begin(self, race: Race, *, grown: bool = False) -> None:
        """Write the race down; refuse another race under the same name, unless it is the same one `grown` by jobs."""
        text = yaml.safe_dump(race.model_dump(), sort_keys=False)
        file = self.path / "race.yaml"
        if file.exists():
            written = self._written()
            if written == race:
                return
            if not (grown and written is not None and _contains(race, written)):
                raise BadRequest(f"--name {self.path.name!r}: {self.path} holds another race; choose another name")
        if (self.path / "job.yaml").exists():
            raise BadRequest(f"--name {self.path.name!r}: {self.path} is a run; choose another name")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(file, text)
        except OSError as error:
            raise BadRequest(f"--runs {str(self.path.parent)!r}: cannot write there: {error.strerror}") from None

    def finished(self) -> dict[str, dict[str, Any]]:
        """Results of the runs that are whole, by name."""
        found = {}
        for run in self.store.runs():
            result = run.result()
            if result is not None and result["status"] == "finished":
                found[run.name] = result
        return found


def _contains(race: Race, other: Race) -> bool:
    """Whether every job of the other race is one of this race, under the same name."""
    try:
        mine = {entry.name: entry.job for entry in expand(race)}
        return all(mine.get(entry.name) == entry.job for entry in expand(other))
    except BadRequest:
        return False


def check(race: Race) -> list[Entry]:
    """The jobs of a race in the order they will run, or everything that is wrong with it, before anything starts."""
    entries = expand(race)
    wrong = []
    for entry in entries:
        try:
            preflight.check(entry.job)
        except BadRequest as error:
            wrong.append(f"{entry.name}: {error}")
    if wrong:
        raise BadRequest("this race cannot run:\n  " + "\n  ".join(wrong))
    # A random order keeps a machine that warms up or slows down from favouring a strategy.
    random.Random(int(race.job.get("seed", 1))).shuffle(entries)
    return entries


def run_race(
    folder: RaceFolder,
    entries: Sequence[Entry],
    show: Callable[[Entry], dict[str, Any]],
    ended: Callable[[Entry, dict[str, Any], JobFailed | None], None],
    launch: Launch = local.start,
) -> list[dict[str, Any]]:
    """Run what is missing; every result, also of earlier attempts, in the order of the entries."""
    results = folder.finished()
    for entry in entries:
        if entry.name in results:
            continue
        _put_aside(RunFolder(folder.path / entry.name))
        failure: JobFailed | None = None
        try:
            result = execute(entry.job, store=folder.store, name=entry.name, launch=launch, **show(entry))
        except JobFailed as error:
            failure, result = error, error.result
        results[entry.name] = result
        ended(entry, result, failure)
    return [results[entry.name] for entry in entries]


def _put_aside(run: RunFolder) -> None:
    """An attempt that did not finish stays readable under another name."""
    if not run.path.exists():
        return
    number = 1
    while (aside := run.path.with_name(f"{run.name}.attempt-{number}")).exists():
        number += 1
    run.path.rename(aside)
