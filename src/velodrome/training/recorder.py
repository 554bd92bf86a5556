"""Turns what a script of the user reports into events: progress, epochs, its pace and the result.

The time before a report belongs to what it reports: training, or evaluation if training was reported before it in the
same epoch. What comes before training is start-up, the imports of the script in any case. What is not reported stays
unknown.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from velodrome.figures import Names
from velodrome.training.context import Context

#: Seconds between progress events.
PROGRESS_SECONDS = 0.25
#: Figures that say how much there will be.
TOTALS = ("total_steps", "total_epochs")
#: First reports that throughput leaves out, at most; and no more than a quarter of all.
WARMUP = 20


@dataclass
class _Mean:
    """A mean that is weighted by examples where they are known."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float) -> None:
        self.total += value * weight
        self.weight += weight

    @property
    def value(self) -> float | None:
        return finite(self.total / self.weight if self.weight else math.nan)


@dataclass
class _Row:
    """An epoch, or what lies between two validations where the script reports no epochs."""

    number: int
    #: The epoch as the script counts it.
    epoch: int | None = None
    train: dict[str, _Mean] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    validated: int = 0
    trained: bool = False
    begun: bool = False
    seconds: float = 0.0
    evaluate_seconds: float = 0.0
    examples: int = 0
    steps: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was reported of it, but perhaps its beginning."""
        return not (self.seconds or self.train or self.validation)


@dataclass(frozen=True)
class _Count:
    """Training so far, from the first report on."""

    steps: int = 0
    examples: int = 0
    seconds: float = 0.0

    def plus(self, steps: int, examples: int, seconds: float) -> _Count:
        return _Count(self.steps + steps, self.examples + examples, self.seconds + seconds)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Recorder:
    """Receives the reports of one process of a script."""

    def __init__(self, context: Context, clock: Callable[[], float] = time.perf_counter) -> None:
        self._context, self._events, self._clock = context, context.events, clock
        self._lock = threading.Lock()
        self._names = Names(self._warn)
        self._began, self._began_at = clock(), round(time.time(), 4)
        #: From when on the script may have trained: its imports are over.
        self._ready, self._ready_at = self._began, self._began_at
        #: When the last report was made.
        self._mark: float | None = None
        self._emitted = -math.inf
        self._row = _Row(1)
        self._history: list[dict[str, Any]] = []
        self._test: dict[str, float] = {}
        self._tested = 0
        self._test_seconds = 0.0
        #: The figures of the last validation, and its examples.
        self._validated: tuple[dict[str, float], int] = {}, 0
        self._steps: int | None = None
        #: The last step as the script counts it, and the steps before its count restarted.
        self._counted, self._steps_before = 0, 0
        self._restarts = False
        #: How many epochs and steps there will be, as far as the script reports it.
        self._totals: dict[str, int] = {}
        #: Training after each of the first reports, and after all of them.
        self._counts = [_Count()]
        self._count = _Count()
        self._reports = 0
        self._finished = False

    def begin(self) -> None:
        """Report that the script begins."""
        self._began, self._began_at = self._ready, self._ready_at = self._clock(), round(time.time(), 4)
        self._events.emit("phase", phase="script", state="begin", time=self._began_at)

    def imported(self) -> None:
        """Report that the imports of the script are over: they are start-up, even if it reports nothing else."""
        self._ready, self._ready_at = self._clock(), round(time.time(), 4)
        self._phase_end("import", self._ready - self._began)

    def _warn(self, message: str) -> None:
        if self._context.is_chief:
            self._events.emit("warning", message=message)

    def log(
        self, split: str, step: int | None, examples: int | None, epoch: int | None, figures: Mapping[str, float]
    ) -> None:
        """Take one report, as `velodrome.figures.log` passes it on."""
        with self._lock:
            if self._finished:
                return
            now = self._clock()
            totals = {name: int(figures[name]) for name in TOTALS if 0 < figures.get(name, 0) < math.inf}
            self._totals.update(totals)
            figures = {name: value for name, value in figures.items() if name not in TOTALS}
            if totals and not figures and step is None and examples is None:
                return
            parts = self._names.by_split(split, figures)
            training = parts.pop("train", {})
            # A report of nothing but a validation says nothing about training.
            if split == "train" and (training or not parts or step is not None or examples is not None):
                self._take_training(now, step, examples, epoch, training)
                self._mark = now
            for part in parts if split == "train" else [split]:
                counted = None if split == "train" else examples
                self._take_evaluation(now, part, counted, epoch, parts.get(part, {}))
                self._mark = now

    def _since_mark(self, now: float, *, of_epoch: bool) -> float:
        """Seconds since the previous report. Before the first one is start-up; if it reports an epoch, only the
        imports."""
        if self._mark is not None:
            return now - self._mark
        return now - self._ready if of_epoch else 0.0

    def _steps_so_far(self, step: int, *, only_marks: bool) -> int:
        """Training steps since the script began: a script that counts within an epoch restarts with each."""
        if step < self._counted and not only_marks:
            self._steps_before += self._counted + (step == 0)
            if not self._restarts:
                self._restarts = True
                self._warn(f"step {step} came after step {self._counted}: the script counts the steps of each epoch "
                           "anew, so they are added up")
        if not (only_marks and step < self._counted):
            self._counted = step
        return self._steps_before + self._counted

    def _take_training(
        self, now: float, step: int | None, examples: int | None, epoch: int | None, figures: Mapping[str, float]
    ) -> None:
        marks = not figures and not examples
        only_marks = self._mark is None and marks
        of_epoch = epoch is not None and step is None
        self._turn_to(epoch, ends=bool(self._row.validation))
        row = self._begin_row(of_epoch=of_epoch)
        row.trained = True
        before = self._context.status.steps
        if step is not None:
            step = self._steps_so_far(step, only_marks=marks and step == 0)
            self._steps = max(step, self._steps or 0)
            self._context.status.steps = max(before, step)
        elif not only_marks:
            self._context.status.steps += 1
        done = self._context.status.steps - before
        if only_marks:
            return
        seconds = self._since_mark(now, of_epoch=of_epoch)
        row.seconds += seconds
        row.examples += examples or 0
        row.steps += done
        for name, value in figures.items():
            row.train.setdefault(name, _Mean()).add(value, examples or 1)
        if self._mark is not None:
            self._reports += 1
            self._count = self._count.plus(done, examples or 0, seconds)
            if len(self._counts) <= WARMUP:
                self._counts.append(self._count)
        if now - self._emitted >= PROGRESS_SECONDS:
            self._emitted = now
            metrics = {name: finite(value) for name, value in figures.items()}
            self._events.emit(
                "progress", epoch=row.number, step=row.steps, steps=self._steps_of_epoch(), examples=row.examples,
                seconds=row.seconds, loss=metrics.get("loss"), accuracy=metrics.get("accuracy"), metrics=metrics,
                **self._totals,
            )

    def _take_evaluation(
        self, now: float, split: str, examples: int | None, epoch: int | None, figures: Mapping[str, float]
    ) -> None:
        self._context.status.seen += 1
        if split == "test":
            self._test_seconds += self._since_mark(now, of_epoch=False)
            self._test.update(figures)
            self._tested = examples or self._tested
            return
        self._turn_to(epoch, ends=False)
        row = self._begin_row(of_epoch=epoch is not None)
        seconds = self._since_mark(now, of_epoch=epoch is not None)
        if row.trained:
            row.evaluate_seconds += seconds
        else:  # the script reports no training: its time is all that is known
            row.seconds += seconds
        row.validation.update(figures)
        row.validated = examples or row.validated
        self._validated = row.validation, row.validated

    def _steps_of_epoch(self) -> int:
        """Steps of an epoch, if the script reports how many there will be; 0 where that is unknown."""
        steps, epochs = (self._totals.get(name, 0) for name in TOTALS)
        return steps // epochs if epochs else 0

    def _turn_to(self, epoch: int | None, *, ends: bool) -> None:
        """End the row if the epoch is another one; if the script reports none, if a validation `ends` it."""
        row = self._row
        if row.is_empty:
            row.epoch = epoch if epoch is not None else row.epoch
        elif (epoch != row.epoch) if epoch is not None else (row.epoch is None and ends):
            self._end_row()
            self._row.epoch = epoch

    def _begin_row(self, *, of_epoch: bool) -> _Row:
        row = self._row
        if not row.begun:
            row.begun = True
            # An epoch that is over when it is first heard of began when the script could train.
            past = {"time": self._ready_at} if of_epoch and self._mark is None else {}
            self._events.emit("phase", phase="train", state="begin", epoch=row.number, **past)
        return row

    def _end_row(self) -> None:
        row, task = self._row, self._context.task
        self._row = _Row(row.number + 1)
        self._phase_end("train", row.seconds, epoch=row.number)
        if row.evaluate_seconds or row.validation:
            self._events.emit("phase", phase="evaluate", state="begin", epoch=row.number, part="validation")
            self._phase_end("evaluate", row.evaluate_seconds, epoch=row.number, part="validation")
        train = _counts({name: mean.value for name, mean in row.train.items()}, 0)
        validation = _counts({name: finite(value) for name, value in row.validation.items()}, row.validated)
        self._history.append({
            "epoch": row.number, **task.history(train=train, validation=validation), "seconds": row.seconds,
            "evaluate_seconds": row.evaluate_seconds,
        })
        if self._context.is_chief:
            self._events.emit(
                "epoch", epoch=row.number, seconds=row.seconds, evaluate_seconds=row.evaluate_seconds,
                steps=self._context.status.steps, train=train, validation=validation,
            )

    def _phase_end(self, phase: Any, seconds: float, **fields: Any) -> None:
        self._events.emit("phase", phase=phase, state="end", seconds=round(seconds, 6), **fields)

    def finish(self) -> None:
        """Report what is left: the last epoch, the pace of this process and, in the chief, the result."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
            if not self._row.is_empty:
                self._end_row()
            if not self._test and self._validated[0]:
                self._test, self._tested = self._validated
                self._warn("no figures of a test set were reported: those of the last validation stand for them")
            elif self._test:
                self._events.emit("phase", phase="evaluate", state="begin", part="test")
                self._phase_end("evaluate", self._test_seconds, part="test")
            pace = self._pace()
            self._events.emit("pace", pace=pace)
            if self._context.is_chief:
                test = _counts({name: finite(value) for name, value in self._test.items()}, self._tested)
                self._events.emit(
                    "result", test=test, history=self._history, parameters=None, steps=self._steps,
                    test_seconds=self._test_seconds, pace=pace,
                )
            self._phase_end("script", self._clock() - self._began)

    def _pace(self) -> dict[str, Any]:
        """Training from the first report on, with the first reports apart as warm-up."""
        warmup, count = self._counts[min(WARMUP, self._reports // 4, len(self._counts) - 1)], self._count
        return {**vars(count), "warmup": {**vars(warmup)}}


def _counts(figures: Mapping[str, float | None], total: int) -> dict[str, Any]:
    return {"total": total, "loss_sum": None, "reported": dict(figures)}
