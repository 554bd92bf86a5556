"""One run as a page shows it while it trains: progress, curves, pace and resources, from its files as they grow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from velodrome import files
from velodrome.errors import BadRequest, VelodromeError
from velodrome.events import LONGEST_LINE, MOST_STRANGE, parse_stored
from velodrome.events.fields import HistoryRow
from velodrome.events.models import Event, LostEvent, WarningEvent
from velodrome.job.job import Job
from velodrome.job.result import Result
from velodrome.judge.configuration import label_of
from velodrome.run.processes import ProcessState
from velodrome.run.state import WATCHED_ROWS, Epoch, RunState
from velodrome.run.store import RunFolder
from velodrome.tasks.base import Task
from velodrome.tasks.registry import recorded_task, task_of, task_of_result
from velodrome.web.run_files import Thinned, read_thinned

T = TypeVar("T")
#: Epochs of a curve; a screen has no more pixels.
_MOST_EPOCHS = 2_000
#: Processes whose resources a page shows.
MOST_PROCESSES = 16
#: Points of a curve over time.
_MOST_ROWS = 2 * WATCHED_ROWS
_CURVE = ("epoch", "seconds", "steps", "examples", "value", "loss")
#: A point of the curves, by the names of `_CURVE`.
Point = dict[str, float | None]
#: Which folder it is, when it changed, when its result changed, and the size of its events.
_Files = tuple[int, int, int | None, int]
#: Bytes of events that are read at once; more than that is thinned out.
_MOST_NEW_BYTES = 4 << 20


class LiveRun:
    """A run whose files are followed. `poll` returns whether anything a page shows has changed."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path, self.name = path, name or path.name
        self.folder = RunFolder(path)
        self.status = "waiting"
        self.version = 0
        self._job: Job | None = None
        self._read_to, self._rest = 0, b""
        self._files: _Files | None = None
        self._forget()

    def _forget(self) -> None:
        """Begin anew, as a run does that is repeated."""
        self._read_to, self._rest = 0, b""
        self.result: Result | None = None
        self._problem: str | None = None
        self.state = RunState(limit=WATCHED_ROWS)
        #: The epochs of the result as points of a curve.
        self._curve: list[Point] = []
        #: Points of epochs that have been made already.
        self._points: dict[int, tuple[Epoch, Point]] = {}

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
        """The task of its job; of a job that this version cannot run, that of its model."""
        if (job := self.job) is None:
            return None
        try:
            return task_of(job)
        except BadRequest:
            return recorded_task(None, job.model)

    def poll(self) -> bool:
        """Read what is new."""
        changed = self._look()
        if (changed or self.status == "running") and self.result is None and self._files is not None:
            self._read_events()
        return changed

    def _look(self) -> bool:
        """Read the result and the status."""
        state = _file_state(self.path)
        if state == self._files and self.status != "running":
            return False
        changed, before = state != self._files, self.status
        if self._files is not None and state is not None and state[0] != self._files[0]:
            self._forget()  # another folder of the same name: the run is repeated
        self._files = state
        if state is None:
            self.status = "waiting"
            return changed
        result, self._problem = self.folder.read() if state[2] is not None else (None, None)
        if result is None:
            self.result, self.status = None, self.folder.status()
        elif result is not self.result:
            self.result, self.status = result, result.status
            if self._read_to:
                self._read_events()  # its last ones
            self._conclude(result)
        return changed or before != self.status

    def _conclude(self, result: Result) -> None:
        """Take over the epochs of the result; only events know steps and examples."""
        self._curve = curve_of(result.history, task_of_result(result).metric.name)
        for point in self._curve:
            if (epoch := self.state.epochs.get(int(point["epoch"] or 0))) is not None:
                point |= {"steps": epoch.event.steps, "examples": epoch.examples}

    @property
    def events_size(self) -> int:
        """Bytes of events of an ended run that were not read yet; 0 if there is nothing to read."""
        return self._files[3] if self._files is not None and self.result is not None and not self._read_to else 0

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
            self.state.add(event)

    def _take(self, thinned: Thinned, size: int) -> None:
        self._read_to = size
        for place, event in enumerate(thinned.events):
            self.state.add(event, thinned.gaps.get(place))

    @classmethod
    def ended(cls, path: Path, thinned: Thinned) -> LiveRun:
        """A run as it is now, from events that were read already."""
        run = cls(path)
        run._look()
        run.state = RunState()
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

    @property
    def seconds(self) -> float | None:
        """How long it took so far."""
        if self.result is not None:
            return self.result.seconds.total
        return None if self.state.began is None else self.state.latest - self.state.began

    @property
    def error(self) -> str | None:
        if self.result is not None:
            return self.result.error.message if self.result.error else None
        return self.state.error.message if self.state.error else self._problem

    @property
    def epoch(self) -> int:
        return self.state.epoch if self.result is None else len(self.result.history)

    @property
    def done(self) -> float:
        """How much of its training is over, from 0 to 1."""
        if self.status == "finished":
            return 1.0
        if self.job is None:
            return 0.0
        return self.state.done(self.job, None if self.result is None else len(self.result.history))

    @property
    def curve(self) -> list[Point]:
        """Its epochs as points of a curve."""
        if self.result is not None:
            return self._curve
        task = self.task or recorded_task(None)
        for number, epoch in self.state.epochs.items():
            if self._points.get(number, (None,))[0] is not epoch:
                self._points[number] = epoch, _point(epoch, task)
        return [self._points[number][1] for number in self.state.epochs]

    def as_json(self) -> dict[str, Any]:
        """What a page shows of it."""
        job, result, task, curve, state = self.job, self.result, self.task, self.curve, self.state
        began = state.began or 0.0
        processes = sorted(state.processes.values(), key=lambda process: process.process.name)
        rates = [round(row.rate, 1) for row in evenly(state.rates.rows, _MOST_ROWS)]
        rate = result.throughput.examples_per_second if result else None
        values = [point["value"] for point in curve if point["value"] is not None]
        test = result.test if result else None
        return {
            "name": self.name, "status": self.status, "phase": state.phase if self.status == "running" else "",
            "epoch": min(self.epoch, job.epochs) if job else self.epoch, "epochs": job.epochs if job else None,
            "done": round(self.done, 4),
            "label": label_of(job.engine, job.strategy, job.implementation) if job else "",
            "workers": job.workers if job else None,
            "seconds": self.seconds, "rate": rates[-1] if rate is None and rates else rate,
            "metric": task.metric.name if task else None,
            "value": values[-1] if values else None, "test": test.value(task.metric.name) if test and task else None,
            "error": self.error,
            "warnings": sum(isinstance(event, WarningEvent | LostEvent) for event in state.incidents),
            "curve": {name: [point[name] for point in evenly(curve, _MOST_EPOCHS)] for name in _CURVE},
            "pace": {
                "seconds": [round(row.moment - began, 1) for row in evenly(state.rates.rows, _MOST_ROWS)],
                "rate": rates,
            },
            "nodes": [
                _node(process, began) for process in processes[:MOST_PROCESSES] if process.samples.rows
            ],
        }


def _node(process: ProcessState, began: float) -> dict[str, Any]:
    rows = evenly(process.samples.rows, _MOST_ROWS)
    return {
        "process": process.process.name, "host": process.hostname,
        "seconds": [round(row.moment - began, 1) for row in rows],
        "cpu": [row.used["cpu_percent"] for row in rows], "memory": [row.used["memory_bytes"] for row in rows],
        "network": [round(row.network_rate + row.loopback_rate) for row in rows],
    }


def _point(epoch: Epoch, task: Task) -> Point:
    event = epoch.event
    row = task.history(train=event.train.as_json(), validation=event.validation.as_json())
    return {
        "epoch": event.epoch, "seconds": round(epoch.seconds, 4), "steps": event.steps, "examples": epoch.examples,
        "value": row.get(f"validation_{task.metric.name}"), "loss": row.get("train_loss"),
    }


def evenly(rows: Sequence[T], most: int) -> Sequence[T]:
    """So many of the rows at most, the first and the last among them."""
    return rows if len(rows) <= most else [rows[place * (len(rows) - 1) // (most - 1)] for place in range(most)]


def curve_of(history: Sequence[HistoryRow], metric: str) -> list[Point]:
    """The epochs of a result as points of a curve; steps and examples are only known from events."""
    totals = accumulate(row.seconds for row in history)
    return [
        {"epoch": row.epoch, "seconds": round(seconds, 4), "steps": None, "examples": None,
         "value": row.value(f"validation_{metric}"), "loss": row.train_loss}
        for row, seconds in zip(history, totals, strict=True)
    ]


def _file_state(path: Path) -> _Files | None:
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
