"""A race on disk: its description, its runs and their attempts, and in which order they run. `races/runs.py` runs
them."""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from velodrome import files
from velodrome.catalog.registry import DEFAULT_ENGINE
from velodrome.clusters import environments, refuse_living
from velodrome.clusters.yaml_files import LARGEST
from velodrome.errors import BadRequest, FolderGone, VelodromeError
from velodrome.job import names as published
from velodrome.job.job import Job
from velodrome.job.names import check_name, expand, varied_fields
from velodrome.job.race import LIMITS, Entry, Race
from velodrome.job.result import Result
from velodrome.machine import describe_machine
from velodrome.run.listing import ASIDE, runs_of, scan
from velodrome.run.store import LOCK, LOCK_SECONDS, RunFolder, Store

#: Which jobs a race has announced and what they are expected to take.
EXPECTED = "expected.json"
#: Runs of a folder that are considered as similar ones, the newest first, and how many of those are read.
_MOST_LOOKED_AT, _MOST_READ = 3000, 60


class RaceFolder:
    """A race on disk: its description, and a store of its runs."""

    def __init__(self, runs: Path, name: str) -> None:
        self.path = runs / check_name(name)
        self.store = Store(self.path)
        self._place: files.HeldFolder | None = None

    def stamped(self, race: Race) -> Race:
        """The race with everything that its names need, as it was when it first began, so that it can be continued."""
        written = self.written()
        if written is not None:
            limits = {name: getattr(written, name) for name in LIMITS - race.model_fields_set}
            kept: dict[str, Any] = {"engine": race.engine or written.engine, "named_by": written.named_by}
            if race.baseline is None or not (race.baseline or written.baseline):
                kept["baseline"] = written.baseline
            race = race.model_copy(update={**limits, **kept})
        else:
            race = race.model_copy(update={"engine": race.engine or _engine_of(race)})
            race = race.model_copy(update={"named_by": race.named_by or _named_by(race)})
        return published.stamped(race, written)

    def written(self) -> Race | None:
        """The race that the folder holds, if it holds a readable one."""
        with suppress(OSError, ValueError):
            return self.store.race()[1]
        return None

    def refuse_other(self, race: Race, *, grown: bool = False) -> bool:
        """Refuse another race under the same name; whether the folder holds this one, with all its repetitions.

        The same race may have more repetitions than before, or fewer, which discards none, and another end. With
        `grown` it may have more jobs of any kind.
        """
        if os.path.lexists(self.path / "race.yaml"):
            written = self.written()
            if written is not None and _with_repetitions_of(race, written) == written:
                return True
            same = written is not None and _with_limits_of(written, race) == race and _keeps_names(race, written)
            if not same and not (grown and written is not None and _contains(race, written)):
                raise BadRequest(f"--name {self.path.name!r}: {self.path} holds another race; choose another name")
        if (self.path / "job.yaml").exists():
            raise BadRequest(f"--name {self.path.name!r}: {self.path} is a run; choose another name")
        return False

    def begin(self, race: Race, *, grown: bool = False) -> None:
        """Write race.yaml, unless the folder holds it already; `refuse_other` says what may be there."""
        if self.refuse_other(race, grown=grown):
            return
        if (written := self.written()) is not None:
            race = _with_repetitions_of(race, written)
        text = yaml.safe_dump(race.model_dump(exclude_defaults=True), sort_keys=False)
        file = self.path / "race.yaml"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            files.write_text(file, text)
        except OSError as error:
            raise BadRequest(f"--runs {str(self.path.parent)!r}: cannot write there: {error.strerror}") from None

    def expect(self, seconds: Mapping[str, float]) -> None:
        """Write down how long jobs are expected to take, those that ended included, for pages that follow the race."""
        with suppress(OSError):  # a full disk is reported elsewhere
            files.write_text(self.path / EXPECTED, json.dumps(dict(seconds), indent=1) + "\n")

    def expected(self) -> dict[str, float]:
        """Seconds by the names of the jobs that this session of the race has announced so far; empty if unknown."""
        try:
            expected = files.read_json(self.path / EXPECTED, LARGEST, inside=self.path)
        except (OSError, ValueError):
            return {}
        return {name: float(value) for name, value in expected.items()
                if isinstance(value, int | float) and 0 <= value <= sys.float_info.max
                } if isinstance(expected, dict) else {}

    def refuse_running(self) -> None:
        """Refuse if another process is running this race."""
        if RunFolder(self.path).is_locked():
            raise BadRequest(self._running())

    def refuse_resumed(self, entries: Sequence[Entry]) -> None:
        """Refuse if another process resumes a single run of this race: what is being written cannot be archived."""
        for entry in entries:
            if RunFolder(self.path / entry.name).is_locked():
                raise BadRequest(f"--name {self.path.name!r}: run {entry.name!r} is running; wait for it to finish")
            refuse_living(self.path / entry.name)

    def _running(self) -> str:
        return (f"--name {self.path.name!r}: this race is running in {self.path}; wait for it to finish, or "
                "choose another name")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the race while it runs, and see that its folder stays where it is.

        The lock ends with the process, however that ends.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            files.refuse_special_files(self.path)
        except OSError as error:
            raise BadRequest(f"--name {self.path.name!r}: {error.filename}: {error.strerror}") from None
        lock = files.FileLock(self.path / LOCK)
        if not lock.acquire(LOCK_SECONDS):
            raise BadRequest(self._running())
        lock.path.write_text(f"{os.getpid()}\n", encoding="utf-8")
        self._place = place = files.HeldFolder(self.path)
        try:
            yield
            self.check_place()
        finally:
            self._place = None
            place.remove(LOCK)
            lock.release()
            place.close()

    @property
    def is_in_place(self) -> bool:
        """Whether the folder is still where it was when it was locked."""
        return self._place is None or self._place.is_in_place()

    def check_place(self) -> None:
        """Raise `FolderGone` if the folder was removed, renamed or replaced since it was locked, or if its race.yaml
        was, without which nobody could read its verdict."""
        if not self.is_in_place:
            raise FolderGone(f"race {self.path.name!r}", self.path)
        if self._place is not None and not os.path.lexists(self.path / "race.yaml"):
            raise FolderGone(f"race {self.path.name!r}", self.path / "race.yaml", "file")

    def finished(self) -> dict[str, Result]:
        """Results of the finished runs, by name; a result that lacks its numbers is run again."""
        results = {run.name: run.result() for run in self.store.runs()}
        return {name: result for name, result in results.items() if result is not None and result.status == "finished"}

    def similar(self, jobs: Iterable[Job], launcher: str) -> list[tuple[Job, Result]]:
        """Finished runs with the engine, model and data set of one of these jobs, on machines like these, newest first:
        of this race, and of everything else in the folder that it lies in.

        Of a folder with very many runs only the newest are considered; those that cannot be read are skipped.
        """
        wanted = {(job.engine, job.model, job.dataset) for job in jobs}
        machine, similar = describe_machine(), list[tuple[Job, Result]]()
        for path in itertools.islice(_newest_runs(self.path.parent), _MOST_LOOKED_AT):
            if len(similar) >= _MOST_READ:
                break
            folder = self.store.at(path) if path.parent == self.path else RunFolder(path)
            result = folder.result()
            if result is None or result.status != "finished" or (result.launcher or "local") != launcher:
                continue
            here = result.machine
            if (result.engine, result.model, result.dataset) not in wanted or here is None:
                continue
            if (here.processor, here.cores) == (machine["processor"], machine["cores"]):
                with suppress(VelodromeError):
                    similar.append((folder.job(), result))
        return similar

    def run(self, name: str) -> RunFolder:
        """The run of that name, if there is one."""
        return self.store.at(self.path / name)

    def attempts(self, name: str) -> list[RunFolder]:
        """The archived attempts of a run, oldest first."""
        return [self.run(archived) for archived in itertools.takewhile(self._exists, _archived(name))]

    def archive(self, name: str) -> None:
        """Rename an attempt that does not count; it stays readable."""
        if self._exists(name):
            self.store.rename(self.path / name, self._free(name))

    def swap(self, name: str) -> None:
        """Bring back the attempt that was archived last; the run that takes its place, if there is one, is archived."""
        before, free = self.attempts(name)[-1].path, self._free(name)
        if self._exists(name):
            self.store.rename(self.path / name, free)
        archived = before.name
        self.store.rename(before, name)
        if self._exists(free):
            self.store.rename(self.path / free, archived)

    def bring_back_finished(self) -> None:
        """Let finished attempts count again whose repetition was interrupted, by Ctrl-C or with its controller."""
        finished = self.finished()
        for name in {path.name.partition(ASIDE)[0] for path in self.path.glob(f"*{ASIDE}*")} - finished.keys():
            last = self.attempts(name)[-1:]
            result = last[0].result() if last else None
            if result is not None and result.status == "finished":
                self.swap(name)

    def _exists(self, name: str) -> bool:
        return (self.path / name).exists()

    def _free(self, name: str) -> str:
        return next(itertools.dropwhile(self._exists, _archived(name)))


def _newest_runs(runs: Path) -> Iterator[Path]:
    """The runs of a folder and of its races, the newest first."""
    for stored in reversed(scan(runs)):
        inside = runs_of(stored.path) if stored.kind == "race" else [stored]
        yield from (run.path for run in reversed(inside))


def _archived(name: str) -> Iterator[str]:
    """The names of a run's archived attempts, in order."""
    return (f"{name}{ASIDE}{number}" for number in itertools.count(1))


def _engine_of(race: Race) -> str | None:
    """The engine of jobs that name none, if there are any and it is not the usual one."""
    entries = race.vary.get("entry", ())
    if "engine" in race.job or "engine" in race.vary or (entries and all("engine" in entry for entry in entries)):
        return None
    engine = environments.default_engine(*(str(race.job.get(name) or "") for name in ("model", "script")))
    return None if engine == DEFAULT_ENGINE else engine


def _named_by(race: Race) -> list[str] | None:
    return (varied_fields(race) or None) if race.naming == "plain" else None


def _with_limits_of(race: Race, other: Race) -> Race:
    return race.model_copy(update={name: getattr(other, name) for name in LIMITS})


def _with_repetitions_of(race: Race, written: Race) -> Race:
    """The race with at least as many repetitions as it had: fewer discard none."""
    return race.model_copy(update={"repeat": max(race.repeat, written.repeat)})


def _keeps_names(race: Race, written: Race) -> bool:
    """Whether more repetitions leave the names of the first ones as they were: published names count them."""
    def whole(asked: Race) -> Race:
        return asked.model_copy(update={"repeat": asked.most})

    larger, smaller = sorted((whole(race), whole(written)), key=lambda asked: asked.repeat)[::-1]
    return race.naming == "plain" or larger.repeat == smaller.repeat or _contains(larger, smaller)


def _contains(race: Race, other: Race) -> bool:
    """Whether every job of the other race is one of this race, under the same name."""
    try:
        mine = {entry.name: entry.job for entry in expand(race)}
        return all(mine.get(entry.name) == entry.job for entry in expand(other))
    except BadRequest:
        return False


def shuffled(entries: Sequence[Entry]) -> list[Entry]:
    """The jobs of a race in the order they will run: repetition by repetition, each in a new random order.

    A repetition is a block: every configuration runs once in it, so that a machine that slows down affects all of them
    alike, and another repetition can be added at any time.
    """
    ordered = []
    for repetition in sorted({entry.repetition for entry in entries}):
        block = sorted((entry for entry in entries if entry.repetition == repetition), key=lambda entry: entry.name)
        # The order follows from what runs, however the race was written down.
        random.Random(" ".join(f"{entry.name} {entry.job.seed}" for entry in block)).shuffle(block)
        ordered += block
    return ordered
