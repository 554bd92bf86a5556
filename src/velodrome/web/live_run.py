"""One run as a page shows it while it trains: progress, curves, pace and resources, from its files as they grow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from velodrome import files
from velodrome.errors import BadRequest, VelodromeError
from velodrome.events.fields import HistoryRow
from velodrome.events.lines import LONGEST_LINE, MOST_STRANGE, parse_stored
from velodrome.events.models import (
    EpochEvent,
    ErrorEvent,
    Event,
    HelloEvent,
    LostEvent,
    PhaseEvent,
    ProgressEvent,
    ResourcesEvent,
    WarningEvent,
)
from velodrome.job.job import Job
from velodrome.job.result import Result
from velodrome.judge.configuration import label_of
from velodrome.run.store import RunFolder
from velodrome.tasks.base import Task
from velodrome.tasks.registry import recorded_task, task_of, task_of_result
from velodrome.web.thinned import Points, Thinned, read_thinned

#: Epochs of a curve; a screen has no more pixels.
_MOST_EPOCHS = 2_000
#: Processes whose resources a page shows.
MOST_PROCESSES = 16
#: Bytes of events that are read at once; more than that is thinned out.
_MOST_NEW_BYTES = 4 << 20


T = TypeVar("T")


@dataclass
class ProcessSamples:
    """Heartbeats of a process: seconds since the run began, CPU, memory and network rate of its host."""

    host: str = ""
    points: Points = field(default_factory=lambda: Points.of(4))
    last: float | None = None

    def add(self, event: ResourcesEvent, seconds: float, gap: float | None = None) -> None:
        gap = gap if gap is not None else 1.0 if self.last is None else seconds - self.last
        self.last = seconds
        network = event.network.inbound + event.network.out + event.network.loopback
        self.points.add(round(seconds, 1), event.cpu_percent, event.memory_bytes, round(network / max(0.2, gap)))


class LiveRun:
    """A run whose files are followed. `poll` returns whether anything a page shows has changed."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path, self.name = path, name or path.name
        self.folder = RunFolder(path)
        self.status = "waiting"
        self.version = 0
        self._job: Job | None = None
        self._read_to, self._rest = 0, b""
        self._state: Any = None
        self._forget()

    def _forget(self) -> None:
        """Begin anew, as a run does that is repeated."""
        self._read_to, self._rest = 0, b""
        self.result: Result | None = None
        self._forget_events()

    def _forget_events(self) -> None:
        self.began: float | None = None
        self.seconds: float | None = None
        self.epoch, self.step, self.steps = 0, 0, 0
        #: Steps of a whole epoch: the most that one had, since the last of a job with `steps` may be shorter.
        self._per_epoch = 0
        self.phase = ""
        self.curve: list[dict[str, float | None]] = []
        self.pace = Points.of(2)
        self._before: tuple[int, float, int] | None = None
        self.samples: dict[str, ProcessSamples] = {}
        self._offsets: dict[str, float] = {}
        self.warnings: list[str] = []
        self.error: str | None = None

    @property
    def job(self) -> Job | None:
        if self._job is None and self.path.is_dir():
            try:
                self._job = self.folder.job()
            except VelodromeError:
                return None
        return self._job

    @property
    def task(self) -> Task | None:
        """The task of its job; of a job that this version cannot run, what its result would be read as."""
        if (job := self.job) is None:
            return None
        try:
            return task_of(job)
        except BadRequest:
            return recorded_task(None, job.model)

    def poll(self) -> bool:
        """Read what is new."""
        state = _file_state(self.path)
        if state == self._state and self.status != "running":
            return False
        changed = bool(state != self._state)
        if self._state is not None and state is not None and state[0] != self._state[0]:
            self._forget()  # another folder of the same name: the run is repeated
        self._state = state
        if state is None:
            self.status = "waiting"
            return changed
        before = self.status
        self._read_result()
        if self.result is None:
            self.status = self.folder.status()
            self._read_events()
            self.error = self.error or self.folder.read()[1]
        return changed or before != self.status

    def _read_result(self) -> None:
        if self._state[2] is None:
            self.result = None
            return
        result, problem = self.folder.read()
        if result is None:
            self.result, self.error = None, problem
            return
        if result is self.result:
            return
        self.result, self.status = result, result.status
        if self._read_to:
            self._read_events()  # its last ones
        self._conclude(result)

    def _conclude(self, result: Result) -> None:
        """Take over what the result says."""
        told = {point["epoch"]: point for point in self.curve}
        self.curve = curve_of(result.history, task_of_result(result).metric.name)
        for point in self.curve:  # only events know steps and examples
            point |= {name: told[point["epoch"]][name] for name in ("steps", "examples") if point["epoch"] in told}
        self.epoch = len(result.history)
        self.seconds = result.seconds.total
        self.error = result.error.message if result.error else None

    @property
    def events_size(self) -> int:
        """Bytes of events of an ended run that were not read yet; 0 if there is nothing to read."""
        return self._state[3] if self._state is not None and self.result is not None and not self._read_to else 0

    def read_ended(self) -> None:
        """Read the events of a run that has ended, which its result does not need: its pace and resources."""
        self._read_events()
        if self.result is not None:
            self._conclude(self.result)

    def _read_events(self) -> None:
        file = self.path / "events.jsonl"
        try:
            size = file.stat().st_size
        except OSError:
            return
        if self._read_to == 0 and size > _MOST_NEW_BYTES:
            self._take(read_thinned(self.path), size)
            return
        for event in self._new_events(file):
            self._add(event)

    def _take(self, thinned: Thinned, size: int) -> None:
        self._read_to = size
        for place, event in enumerate(thinned.events):
            self._add(event, thinned.gaps.get(place))

    @classmethod
    def ended(cls, path: Path, thinned: Thinned) -> LiveRun:
        """A run as it is now, from events that were read already."""
        run = cls(path)
        run.poll()
        if run.result is not None or not run.samples:
            run._forget_events()
            run._take(thinned, 1)
            if run.result is not None:
                run._conclude(run.result)
        return run

    def _new_events(self, file: Path) -> Iterable[Event]:
        strange = 0
        try:
            with files.open_regular(file, inside=self.path) as stream:
                stream.seek(self._read_to)
                text = stream.read(_MOST_NEW_BYTES)
        except OSError:
            return
        self._read_to += len(text)
        *lines, self._rest = (self._rest + text).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""
        for line in filter(None, lines):
            event = parse_stored(line.decode("utf-8", "replace"))
            if event is not None:
                yield event
            elif (strange := strange + 1) > MOST_STRANGE:
                return

    def _add(self, event: Event, gap: float | None = None) -> None:
        if self.began is None:
            self.began = event.controller_time
        self.seconds = max(self.seconds or 0.0, event.controller_time - self.began)
        process = "" if event.role is None else f"{event.role} {event.rank}"
        match event:
            case HelloEvent():
                self._offsets[process] = event.controller_time - event.time
                self.samples.setdefault(process, ProcessSamples(event.host)).last = None
                self.error = None
            case ResourcesEvent():
                seconds = event.time + self._offsets.get(process, 0.0) - self.began
                self.samples.setdefault(process, ProcessSamples()).add(event, seconds, gap)
            case PhaseEvent():
                self.phase = event.phase if event.state == "begin" else self.phase
            case ProgressEvent() if event.rank == 0:
                self._add_progress(event)
            case EpochEvent():
                self._add_epoch(event)
            case WarningEvent() | LostEvent():
                self.warnings.append(event.message)
            case ErrorEvent() if event.cause != "peer":
                self.error = self.error or event.message

    def _add_progress(self, event: ProgressEvent) -> None:
        self.epoch, self.step, self.steps = event.epoch, event.step, event.steps
        self._per_epoch = max(self._per_epoch, event.steps)
        before = self._before
        if before is not None and before[0] == event.epoch and event.seconds - before[1] < 0.2:
            return
        if before is not None and before[0] == event.epoch:
            rate = (event.examples - before[2]) / (event.seconds - before[1])
        else:
            rate = event.examples / event.seconds if event.seconds > 0 else 0.0
        self._before = (event.epoch, event.seconds, event.examples)
        if rate > 0:
            self.pace.add(round(event.controller_time - (self.began or 0.0), 1), round(rate, 1))

    def _add_epoch(self, event: EpochEvent) -> None:
        task = self.task or recorded_task(None)
        last = self.curve[-1] if self.curve else {}
        while self.curve and (self.curve[-1]["epoch"] or 0) >= event.epoch:  # a run that was resumed repeats them
            self.curve.pop()
        row = task.history(train=event.train.as_json(), validation=event.validation.as_json())
        self.curve.append({
            "epoch": event.epoch, "seconds": round((last.get("seconds") or 0.0) + event.seconds, 4),
            "steps": event.steps, "examples": (last.get("examples") or 0) + event.train.total,
            "value": row.get(f"validation_{task.metric.name}"), "loss": row.get("train_loss"),
        })
        self.epoch, self.step = event.epoch, 0

    @property
    def done(self) -> float:
        """How much of its training is over, from 0 to 1."""
        if self.status == "finished":
            return 1.0
        if self.job is None or self.job.script is not None:
            return 0.0  # a script does not tell how long it trains
        whole, per_epoch = len(self.curve), self._per_epoch
        part = self.step / per_epoch if per_epoch and self.epoch > whole else 0.0
        epochs = min(self.job.epochs, self.job.steps / per_epoch) if self.job.steps and per_epoch else self.job.epochs
        return min(1.0, (whole + part) / epochs)

    def as_json(self) -> dict[str, Any]:
        """What a page shows of it."""
        job, result = self.job, self.result
        rate = result.throughput.examples_per_second if result else None
        if rate is None and self.pace.columns[1]:
            rate = self.pace.columns[1][-1]
        values = [point["value"] for point in self.curve if point["value"] is not None]
        task = self.task
        test = result.test if result else None
        return {
            "name": self.name, "status": self.status, "phase": self.phase if self.status == "running" else "",
            "epoch": min(self.epoch, job.epochs) if job else self.epoch, "epochs": job.epochs if job else None,
            "done": round(self.done, 4),
            "label": label_of(job.engine, job.strategy, job.implementation) if job else "",
            "workers": job.workers if job else None,
            "seconds": self.seconds, "rate": rate, "metric": task.metric.name if task else None,
            "value": values[-1] if values else None, "test": test.value(task.metric.name) if test and task else None,
            "error": self.error, "warnings": len(self.warnings),
            "curve": {name: [point[name] for point in evenly(self.curve, _MOST_EPOCHS)] for name in _CURVE},
            "pace": {"seconds": self.pace.columns[0], "rate": self.pace.columns[1]},
            "nodes": [
                {"process": process, "host": samples.host,
                 **dict(zip(("seconds", "cpu", "memory", "network"), samples.points.columns, strict=True))}
                for process, samples in sorted(self.samples.items())[:MOST_PROCESSES] if samples.points.columns[0]
            ],
        }


def evenly(rows: Sequence[T], most: int) -> Sequence[T]:
    """So many of the rows at most, the first and the last among them."""
    return rows if len(rows) <= most else [rows[place * (len(rows) - 1) // (most - 1)] for place in range(most)]


_CURVE = ("epoch", "seconds", "steps", "examples", "value", "loss")


def curve_of(history: Sequence[HistoryRow], metric: str) -> list[dict[str, float | None]]:
    """The epochs of a result as points of a curve; steps and examples are only known from events."""
    found: list[dict[str, float | None]] = []
    seconds = 0.0
    for row in history:
        seconds += row.seconds
        found.append({
            "epoch": row.epoch, "seconds": round(seconds, 4), "steps": None, "examples": None,
            "value": row.value(f"validation_{metric}"), "loss": row.train_loss,
        })
    return found


def _file_state(path: Path) -> tuple[int, int, int | None, int] | None:
    """Which folder it is, and the times of what is read; None if there is no such run."""
    try:
        folder = os.stat(path)  # noqa: PTH116 - asked often
    except OSError:
        return None
    result: int | None
    try:
        result = os.stat(f"{path}/result.json").st_mtime_ns  # noqa: PTH116
    except OSError:
        result = None
    try:
        events = os.stat(f"{path}/events.jsonl").st_size  # noqa: PTH116
    except OSError:
        events = 0
    return folder.st_ino, folder.st_mtime_ns, result, events
