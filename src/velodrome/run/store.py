"""Runs on disk. A half-written file is never read as a complete one; a finished run is never overwritten."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO

import yaml
from pydantic import ValidationError

from velodrome import files
from velodrome.clusters.yaml_files import LARGEST, parse_yaml
from velodrome.errors import BadRequest, FolderGone, VelodromeError, if_full
from velodrome.events import event_files, read_events, to_line
from velodrome.events.models import Event, EventBase
from velodrome.events.result import RunResult
from velodrome.job.job import Job
from velodrome.job.job import reason_of as said_of
from velodrome.job.names import check_name
from velodrome.job.race import Race
from velodrome.job.result import BadResult, Result, Status, parse_result
from velodrome.job.values import in_words
from velodrome.run.state import RunState

#: Reserved from the start, so that a result can be written even to a full disk.
RESERVE_BYTES = 256 * 1024
#: Bytes of a `result.json` that is read; the confusion matrix of 4,000 classes takes as much.
LARGEST_RESULT = 256 << 20
#: Locked while a controller writes the run or race, and how long others try: a reader that asks holds it for a moment.
LOCK, LOCK_SECONDS = "controller.lock", 0.5
_RESERVE = ".reserve"
#: Seconds between checks whether the folder of a run is still where it was.
_LOOK_SECONDS = 0.25


@dataclass
class RunFolder:
    """One run on disk, as its reader sees it."""

    path: Path
    #: The result that was read last, and of which version of its file.
    _read: tuple[object, tuple[Result | None, str | None]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def name(self) -> str:
        return self.path.name

    def job(self) -> Job:
        """The job of the run; `VelodromeError` if it cannot be read."""
        try:
            return Job.model_validate(parse_yaml(self.read_text("job.yaml")))
        except (OSError, ValueError) as error:
            raise VelodromeError(f"run {self.name!r} has no readable job.yaml: {reason_of(error)}") from error

    def read_text(self, name: str, *, errors: str = "strict") -> str:
        """The text of one of its YAML files, which is no link."""
        return files.read_text(self.path / name, LARGEST, errors=errors, inside=self.path)

    def read(self) -> tuple[Result | None, str | None]:
        """The result of the run, all of its fields of the documented types, and else what is wrong with its file.

        Both are None if there is none yet. The reason continues a sentence that starts with the run's name. The file
        is parsed once, unless it has changed.
        """
        version = files.version_of(f"{self.path}/result.json")
        if version is None:
            return None, None
        if self._read is None or self._read[0] != version:
            self._read = version, self._read_now()
        return self._read[1]

    def _read_now(self) -> tuple[Result | None, str | None]:
        try:
            return self.parse(), None
        except FileNotFoundError:
            return None, None
        except OSError as error:
            return None, f"its result.json cannot be read: {error.strerror}"
        except BadResult as error:
            return None, f"its result.json {error}"

    def parse(self) -> Result:
        """The result of the run; `OSError` or `BadResult` if it cannot be read."""
        text = files.read_bytes(f"{self.path}/result.json", LARGEST_RESULT, inside=self.path)
        return parse_result(text, self.path)

    def result(self) -> Result | None:
        """The result of the run; None if there is none, or none that can be read."""
        return self.read()[0]

    def status(self) -> Status:
        locked = self.is_locked()  # asked first: a run writes its result before it is unlocked
        result, problem = self.read()
        if result is not None:
            return result.status
        return "running" if locked else "interrupted" if problem is None else "unreadable"

    def events(self, *, progress: bool = True) -> Iterator[Event]:
        """Yield every complete event, also those of progress by default; lines that were cut off are skipped."""
        return read_events(self.path / "events.jsonl", progress=progress)

    def is_locked(self) -> bool:
        """Whether a controller is writing this run or race."""
        return files.is_locked(self.path / LOCK)


@dataclass
class OpenRun(RunFolder):
    """A run that a controller is writing, locked until it is closed."""

    _lock: files.FileLock | None = field(default=None, repr=False)
    _events: IO[str] | None = field(default=None, repr=False)
    _held: files.HeldFolder | None = field(default=None, repr=False)
    _looked: float = field(default=0.0, repr=False)
    #: From the monotonic clock to Unix time, as it was when the run was opened.
    _epoch: float = field(default_factory=lambda: time.time() - time.monotonic(), repr=False)

    def now(self) -> float:
        """Unix seconds by a clock that cannot jump while the run is open: differences are durations."""
        return self._epoch + time.monotonic()

    def begin(self) -> None:
        self._held = files.HeldFolder(self.path)
        for name in ("logs", "checkpoints", "tensorboard"):
            (self.path / name).mkdir(exist_ok=True)
        lock = files.FileLock(self.path / LOCK)
        if not lock.acquire(LOCK_SECONDS):
            raise BadRequest(f"run {self.name!r} is running already")
        self._lock = lock
        lock.path.write_text(f"{os.getpid()}\n", encoding="utf-8")
        with (self.path / _RESERVE).open("wb") as reserve:
            reserve.write(os.urandom(RESERVE_BYTES))  # some file systems keep no space for zeros
            reserve.flush()
            os.fsync(reserve.fileno())
        self._events = (self.path / "events.jsonl").open("a", encoding="utf-8")
        if self._events.tell():
            self._events.write("\n")  # whatever a killed controller left half written ends here

    @property
    def is_in_place(self) -> bool:
        """Whether the folder is still where the run began."""
        return self._held is None or self._held.is_in_place()

    def check_place(self) -> None:
        """Raise `FolderGone` if the folder or its events were removed, renamed or replaced: looked at a few times a
        second."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            if not self.is_in_place:
                raise FolderGone(f"run {self.name!r}", self.path)
            if self._held and self._events and not self._held.has("events.jsonl", self._events.fileno()):
                raise FolderGone(f"run {self.name!r}", self.path / "events.jsonl", "file")

    def add_event(self, event: EventBase) -> None:
        self.check_place()
        assert self._events is not None
        self._events.write(to_line(event) + "\n")
        self._events.flush()

    def release_reserve(self) -> None:
        if self._held is not None:
            self._held.remove(_RESERVE)

    def finish(self, result: RunResult) -> None:
        """Write the result, if need be into the reserved space."""
        if not self.is_in_place:
            raise FolderGone(f"run {self.name!r}", self.path)
        self.release_reserve()
        files.write_text(self.path / "result.json", json.dumps(result.as_json(), indent=2, default=float) + "\n")

    def close(self) -> None:
        self.release_reserve()
        if self._events is not None:
            with suppress(OSError):
                self._events.close()
        if self._lock is not None:
            if self._held is not None:  # a folder that took this one's place may have a lock of its own
                self._held.remove(LOCK)
            self._lock.release()
        if self._held is not None:
            self._held.close()


class Store:
    """A folder of runs; whoever keeps one parses no result twice, and no race.yaml."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runs: dict[Path, RunFolder] = {}
        self._race: tuple[object, tuple[str, Race] | Exception] | None = None

    def at(self, path: Path) -> RunFolder:
        """The run of a path, which may also lie in another folder."""
        return self._runs.setdefault(path, RunFolder(path))

    def rename(self, run: Path, name: str) -> None:
        """Give a run another name."""
        renamed = run.with_name(name)
        run.rename(renamed)
        if (moved := self._runs.pop(run, None)) is not None:
            moved.path = renamed
            self._runs[renamed] = moved

    def race(self) -> tuple[str, Race]:
        """The text of race.yaml, and the race that it holds; `OSError` or `ValueError` if it holds none."""
        version = files.version_of(self.path / "race.yaml")
        if version is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "race.yaml")
        if self._race is None or self._race[0] != version:
            self._race = version, self._race_now()
        if isinstance(self._race[1], Exception):
            raise self._race[1]
        return self._race[1]

    def _race_now(self) -> tuple[str, Race] | Exception:
        try:
            text = RunFolder(self.path).read_text("race.yaml", errors="replace")
            return text, race_of(text)
        except (OSError, ValueError) as error:
            return error

    def create(self, name: str, job: Job) -> OpenRun:
        """A new run with its job written down; refuses a name that is taken."""
        path = self.path / check_name(name)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except OSError as error:
            if path.exists():
                raise BadRequest(
                    f"--name {name!r}: {path} exists already, and a run is never overwritten; choose another name"
                ) from None
            raise BadRequest(f"--runs {str(self.path)!r}: cannot write there: {error.strerror}") from None
        run = OpenRun(path)
        try:
            files.write_text(path / "job.yaml", yaml.safe_dump(job.model_dump(), sort_keys=False))
            run.begin()
        except OSError as error:
            run.close()
            shutil.rmtree(path, ignore_errors=True)
            how_to_fix = if_full(error, "free some space there, or choose another folder with --runs")
            raise VelodromeError(
                f"cannot begin run {name!r} in {path}: {error.strerror or error}{how_to_fix}"
            ) from error
        return run

    def create_new(self, name: str, job: Job) -> OpenRun:
        """A new run under a default name: a number is added if it is taken."""
        names = (name if number == 1 else f"{name}-{number}" for number in count(1))
        return self.create(next(free for free in names if not (self.path / free).exists()), job)

    def reopen(self, name: str) -> OpenRun:
        """Open a run that did not finish, to resume it."""
        run = OpenRun(self.get(name).path)
        status = run.status()
        if status == "finished":
            raise BadRequest(f"run {name!r} is finished: there is nothing to resume")
        if status == "running":
            raise BadRequest(f"run {name!r} is running")
        if status == "unreadable":
            raise BadRequest(f"run {name!r} cannot be resumed: {run.read()[1]}; remove that file to run it to its end")
        try:
            files.refuse_special(run.path)
            run.begin()
            (run.path / "result.json").unlink(missing_ok=True)
        except OSError as error:
            run.close()
            where = run.path if error.filename is None else error.filename
            raise VelodromeError(
                f"cannot resume run {name!r}: {where}: {error.strerror or error}{if_full(error)}"
            ) from error
        return run

    def get(self, name: str) -> RunFolder:
        """A stored run by its name, or by the path of its folder inside this store."""
        run = RunFolder(self.path / check_name(Path(name).name if Path(name).parent == self.path else name))
        if not (run.path / "job.yaml").is_file():
            raise BadRequest(f"no run {name!r} in {self.path}: `velodrome runs list` shows what is there")
        return run

    def runs(self) -> list[RunFolder]:
        if not self.path.is_dir():
            return []
        folders = [self.at(path) for path in self.path.iterdir() if (path / "job.yaml").is_file()]
        return sorted(folders, key=lambda run: (run.path.stat().st_mtime, run.name))


def race_of(text: str) -> Race:
    """The race in the text of a race.yaml; `ValueError` if it holds none."""
    return Race.model_validate(parse_yaml(text))


def read_race(path: Path) -> Race:
    """The race that a folder holds; `VelodromeError` with the reason if its file holds none."""
    try:
        return race_of(RunFolder(path).read_text("race.yaml"))
    except (OSError, ValueError) as error:
        raise VelodromeError(f"its race.yaml cannot be read: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    """Why a file of a run or race cannot be read, as the end of a sentence."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place!r} {in_words(first['input'])!r}: {said_of(first)}" if place else said_of(first)
    return str(error.strerror if isinstance(error, OSError) else error)


def examples_trained(folder: Path) -> int | None:
    """Examples (words of a text) that all workers together trained on over all epochs; None if no event counts them."""
    state = RunState()
    for path in event_files(folder):
        for event in read_events(path, only="epoch"):
            state.add(event)
    return (state.last_epoch.examples or None) if state.last_epoch else None
