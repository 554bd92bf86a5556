"""A few steps of a script in a copy of its folder: supervised as any run is, ended early, and stored nowhere."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.plan import make_plan
from velodrome.clusters.preflight import admit
from velodrome.events.models import EpochEvent, Event, PhaseEvent, ProgressEvent, ResultEvent, WarningEvent
from velodrome.job.job import Job
from velodrome.job.script import LONGEST_SCRIPT, lengths, words_of
from velodrome.run.dry_run import ENOUGH, RehearsalFailed
from velodrome.run.outcome import Failure, pattern_for
from velodrome.run.store import Store
from velodrome.run.supervisor import Supervisor
from velodrome.variables import SCRATCH

#: A trial ends after so many steps, so many seconds of training, or so many seconds in all.
MOST_STEPS, TRAINING_SECONDS, MOST_SECONDS = 50, 10.0, 60.0
#: What is copied: files up to this size, and this much in all; the others are linked, and cannot be written to.
_LARGEST_COPY, _MOST_BYTES, _MOST_ENTRIES, _COPY_SECONDS = 32 << 20, 256 << 20, 5_000, 5.0
#: Checkpoints, which libraries write without Python: those that are too large to copy are left out.
_CHECKPOINTS = (".pt", ".pth", ".ckpt")
_SKIPPED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".mypy_cache"})
#: How a trial ended that was not ended.
BY_ITSELF = "by itself"
#: Files that are named of those that a script wrote.
_MOST_WRITTEN = 10


@dataclass
class _Seen:
    """What the ranks of a script reported so far."""

    started: float
    training: float | None = None
    ended: str = BY_ITSELF
    steps: int = 0
    epochs: int = 0
    epoch_seconds: float = 0.0
    progress: dict[int, ProgressEvent] = field(default_factory=dict)
    figures: dict[str, dict[str, float | None]] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        match event:
            case PhaseEvent(phase="train", rank=0) if self.training is None:
                self.training = time.monotonic()
            case ProgressEvent(rank=int(rank)):
                self.progress[rank] = event
                if rank == 0 and event.metrics:
                    self.figures.setdefault("train", {}).update(event.metrics)
            case EpochEvent():
                self.epochs, self.steps = event.epoch, event.steps
                self.epoch_seconds += event.seconds + event.evaluate_seconds
                for part, counts in (("train", event.train), ("validation", event.validation)):
                    if counts.reported:
                        self.figures.setdefault(part, {}).update(counts.reported)
            case ResultEvent() if event.test.reported and event.test_seconds:
                self.figures.setdefault("test", {}).update(event.test.reported)
            case WarningEvent():
                self.warnings[event.message] = None

    @property
    def steps_so_far(self) -> int:
        last = self.progress.get(0)
        return max(self.steps, self.steps + last.step if last is not None and last.epoch > self.epochs else 0)


    def stop(self) -> Failure | None:
        """End the trial when it has lasted long enough."""
        now = time.monotonic()
        if self.steps_so_far >= MOST_STEPS:
            self.ended = f"after {self.steps_so_far} steps"
        elif self.training is not None and now - self.training > TRAINING_SECONDS:
            self.ended = f"after {TRAINING_SECONDS:g} s of training"
        elif now - self.started > MOST_SECONDS:
            self.ended = f"after {MOST_SECONDS:g} s"
        return None if self.ended == BY_ITSELF else Failure(self.ended, cause=ENOUGH)


def try_script(job: Job, launcher: Launcher) -> dict[str, Any]:
    """Run a resolved job with a script for a few steps in a copy of the current folder, and say what it reported;
    `RehearsalFailed` if it fails."""
    job = admit(job, launcher).job
    assert job.script is not None
    with tempfile.TemporaryDirectory(prefix="velodrome-") as name:
        folder = Path(name).resolve()
        here, scratch = Path.cwd(), folder / "work"
        left_out = _copy(here, scratch)
        script = Path(job.script).absolute()
        if script.is_relative_to(here):
            copied = scratch / script.relative_to(here)
        else:
            left_out += _copy(script.parent, folder / "script")
            copied = folder / "script" / script.name
        before = dict(_files(scratch))
        run = Store(folder / "runs").create("trial", job)
        seen = _Seen(time.monotonic())
        try:
            allocation = launcher.allocate(job)
            tried = job.model_copy(update={"script": str(copied)})
            plan = make_plan(run.name, tried, allocation.hosts, allocation.port)
            processes = tuple(replace(one, environment={**one.environment, SCRATCH: str(scratch)})
                              for one in plan.processes)
            plan = replace(plan, processes=processes)
            failure = Supervisor(run, plan, launcher, seen.take, stop=seen.stop).watch()
            if failure is not None and failure.cause != ENOUGH:
                raise RehearsalFailed(_at_home(failure, {scratch: here, folder / "script": script.parent}))
            written = [path for path, changed in _files(scratch) if before.get(path) != changed]
            found = _summary(seen, _lengths(job)) | {"written": sorted(written)[:_MOST_WRITTEN], "left_out": left_out}
            if not found["figures"].keys() & {"validation", "test"}:
                found["read"] = pattern_for(run.path / "logs" / f"{plan.chief.file_name}.log") or None
            return found
        finally:
            run.close()


def _at_home(failure: Failure, places: dict[Path, Path]) -> Failure:
    """The same failure with the script's own paths in place of those of its copy."""
    texts = {name: getattr(failure, name) for name in ("message", "traceback", "stack")}
    for copy, original in places.items():
        texts = {name: text and text.replace(str(copy), str(original)) for name, text in texts.items()}
    return replace(failure, **texts)


def _lengths(job: Job) -> dict[str, int]:
    """How many steps or epochs the script trains, by its arguments or their defaults."""
    source = ""
    with suppress(OSError, ValueError):
        source = files.read_text(Path(job.script or ""), LONGEST_SCRIPT)
    return lengths(shlex.join(words_of(job)), source)


def _summary(seen: _Seen, asked: Mapping[str, int]) -> dict[str, Any]:
    """What a trial measured, and how long the whole training would take where the script reports how much there is, or
    its arguments say so."""
    seconds = time.monotonic() - seen.started
    startup = None if seen.training is None else seen.training - seen.started
    last = seen.progress.get(0)
    pace = last.step / last.seconds if last is not None and last.seconds and last.step else None
    rates = [one.examples / one.seconds for one in seen.progress.values() if one.seconds]
    whole = None
    reported = last is not None and (last.total_steps or last.total_epochs)
    steps = (last.total_steps if last is not None and reported else asked.get("steps")) or 0
    epochs = (last.total_epochs if last is not None and reported else asked.get("epochs")) or 0
    if steps and pace:
        whole = steps / pace
    elif epochs and seen.epochs:
        whole = epochs * seen.epoch_seconds / seen.epochs
    return {
        "ended": seen.ended, "seconds": seconds, "startup_seconds": startup, "steps": seen.steps_so_far,
        "epochs": seen.epochs, "steps_per_second": pace, "examples_per_second": sum(rates) or None,
        "figures": seen.figures, "expected_seconds": None if whole is None else whole + (startup or 0.0),
        "warnings": [*seen.warnings],
    }


def _copy(source: Path, target: Path) -> list[str]:
    """Copy a folder; names of what is left out. What is large is linked, and so is all of another file system, and what
    is left when there is much or it takes long."""
    began, device = time.monotonic(), source.stat().st_dev
    entries = size = 0
    left_out: list[str] = []
    waiting = deque([(source, target)])
    while waiting:
        old, new = waiting.popleft()
        new.mkdir(parents=True, exist_ok=True)
        for path in _entries(old):
            about, entries = path.lstat(), entries + 1
            has_room = entries <= _MOST_ENTRIES and time.monotonic() - began < _COPY_SECONDS and about.st_dev == device
            if stat.S_ISDIR(about.st_mode) and has_room:
                if path.name not in _SKIPPED and not (path / "events.jsonl").exists():  # a run
                    waiting.append((path, new / path.name))
                continue
            fits = size + about.st_size <= _MOST_BYTES and (about.st_size <= _LARGEST_COPY or _is_checkpoint(path))
            if stat.S_ISREG(about.st_mode) and has_room and fits:
                size += about.st_size
                with suppress(OSError):
                    shutil.copy2(path, new / path.name)
            elif stat.S_ISREG(about.st_mode) and _is_checkpoint(path):
                left_out.append(str(path))
            else:
                (new / path.name).symlink_to(path.resolve())
    return left_out


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_checkpoint(path: Path) -> bool:
    return path.suffix in _CHECKPOINTS


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Every file below a folder with the time of its last change."""
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                path = Path(place, name)
                yield str(path.relative_to(folder)), path.lstat().st_mtime_ns
