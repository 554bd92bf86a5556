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
from velodrome.clusters.preflight import admit
from velodrome.events.models import EpochEvent, Event, ProgressEvent, ResultEvent
from velodrome.job.job import Job
from velodrome.job.script import LONGEST_SCRIPT, lengths, words_of
from velodrome.run.dry_run import ENOUGH, DryRunFailed, planned
from velodrome.run.outcome import pattern_for
from velodrome.run.state import Failure, RunState
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
class _Trial:
    """How a trial goes: what its ranks report, and when it ends."""

    state: RunState
    started: float = field(default_factory=time.monotonic)
    ended: str = BY_ITSELF
    figures: dict[str, dict[str, float | None]] = field(default_factory=dict)

    def listen(self, state: RunState, event: Event) -> None:
        match event:
            case ProgressEvent(rank=0) if event.metrics:
                self._add("train", event.metrics)
            case EpochEvent():
                self._add("train", event.train.reported)
                self._add("validation", event.validation.reported)
            case ResultEvent() if event.test_seconds:
                self._add("test", event.test.reported)

    def _add(self, part: str, figures: Mapping[str, float | None] | None) -> None:
        if figures:
            self.figures.setdefault(part, {}).update(figures)

    def stop(self, state: RunState) -> Failure | None:
        """End the trial when it has lasted long enough."""
        if state.steps >= MOST_STEPS:
            self.ended = f"after {state.steps} steps"
        elif state.first_step is not None and time.time() - state.first_step > TRAINING_SECONDS:
            self.ended = f"after {TRAINING_SECONDS:g} s of training"
        elif time.monotonic() - self.started > MOST_SECONDS:
            self.ended = f"after {MOST_SECONDS:g} s"
        return None if self.ended == BY_ITSELF else Failure(self.ended, cause=ENOUGH)


def try_script(job: Job, launcher: Launcher) -> dict[str, Any]:
    """Run a resolved job with a script for a few steps in a copy of the current folder, and say what it reported;
    `DryRunFailed` if it fails."""
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
        tried = job.model_copy(update={"script": str(copied)})
        trial = _Trial(RunState(time.time(), script=True))
        with planned(tried, launcher, {SCRATCH: str(scratch)}) as (run, plan):
            failure = Supervisor(run, plan, launcher, trial.listen, trial.state, stop=trial.stop).watch()
            if failure is not None and failure.cause != ENOUGH:
                raise DryRunFailed(_at_home(failure, {scratch: here, folder / "script": script.parent}))
            written = [path for path, changed in _files(scratch) if before.get(path) != changed]
            summary = _summary(trial, _lengths(job))
            summary |= {"written": sorted(written)[:_MOST_WRITTEN], "left_out": left_out}
            if not summary["figures"].keys() & {"validation", "test"}:
                summary["read"] = pattern_for(run.path / "logs" / f"{plan.chief.file_name}.log") or None
            return summary


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


def _summary(trial: _Trial, asked: Mapping[str, int]) -> dict[str, Any]:
    """What a trial measured, and how long the whole training would take where the script reports how much there is, or
    its arguments say so."""
    state = trial.state
    seconds = time.monotonic() - trial.started
    last = state.progress
    pace = last.step / last.seconds if last is not None and last.seconds and last.step else None
    reports = [process.progress for process in state.processes.values() if process.progress is not None]
    rates = [progress.examples / progress.seconds for progress in reports if progress.seconds]
    trained = state.last_epoch.event.epoch if state.last_epoch else 0
    whole = None
    reported = last is not None and (last.total_steps or last.total_epochs)
    steps = (last.total_steps if last is not None and reported else asked.get("steps")) or 0
    epochs = (last.total_epochs if last is not None and reported else asked.get("epochs")) or 0
    if steps and pace:
        whole = steps / pace
    elif epochs and trained:
        spent = sum(epoch.event.seconds + epoch.event.evaluate_seconds for epoch in state.epochs.values())
        whole = epochs * spent / trained
    return {
        "ended": trial.ended, "seconds": seconds, "startup_seconds": state.startup, "steps": state.steps,
        "epochs": trained, "steps_per_second": pace, "examples_per_second": sum(rates) or None,
        "figures": trial.figures, "expected_seconds": None if whole is None else whole + (state.startup or 0.0),
        "warnings": state.warnings(),
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
