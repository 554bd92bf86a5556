"""The console of stderr, and the progress of one job on it. How it ends is in `train.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from velodrome.catalog.registry import strategy_of
from velodrome.cli.output import SafeConsole, say_on_stderr
from velodrome.clusters.plan import LOOPBACK, Plan
from velodrome.clusters.preflight import crowded
from velodrome.errors import shown
from velodrome.events import to_event
from velodrome.events.models import (
    EpochEvent,
    FaultEvent,
    LostEvent,
    PhaseEvent,
    ProgressEvent,
    WaitEvent,
    WarningEvent,
)
from velodrome.job.check_optimization import batch_of_step, scale_of_rate
from velodrome.job.job import Job, default_of
from velodrome.judge.budget import steps_done
from velodrome.run.attempt import JobFailed
from velodrome.run.store import OpenRun
from velodrome.tasks.registry import task_of

error_console = SafeConsole(stderr=True)


def _words(form: str) -> TextColumn:
    """Text that is continued in the next line where the terminal is narrow, and not cut."""
    return TextColumn(form, table_column=Column(overflow="fold"))


def _is_wide() -> bool:
    """Whether a terminal has space for more than the numbers."""
    return error_console.width >= 60


def _bar() -> list[BarColumn]:
    """A bar as wide as the numbers beside it allow."""
    return [BarColumn(max(5, min(30, error_console.width - 80)))] if _is_wide() else []


class JobProgress:
    """Live progress of one job: a bar on a terminal, a line an epoch elsewhere."""

    def __init__(self, *, live: bool = True) -> None:
        #: The run, once it has begun.
        self.run: OpenRun | None = None
        self._job: Job | None = None
        self._per_epoch = 0
        self._measured: Callable[[dict[str, Any]], str] | None = None
        self._reached = ""
        self._bar = Progress(
            _words("{task.description}"), *_bar(), TextColumn("{task.percentage:>3.0f}%"),
            _words("{task.fields[note]}"), *([TimeElapsedColumn(), TimeRemainingColumn()] if _is_wide() else []),
            console=error_console, transient=True, disable=not (live and error_console.is_terminal),
        )
        self._task: TaskID | None = None
        self._download: Progress | None = None
        self._download_task: TaskID | None = None

    def begin(self, plan: Plan, run: OpenRun) -> None:
        self.run, self._job, self._measured = run, plan.job, task_of(plan.job).in_words
        error_console.print(_announce(plan, run), soft_wrap=True)
        if {process.host for process in plan.processes} == {LOOPBACK} and (warning := crowded([plan.job])):
            error_console.print(f"warning: {warning}", soft_wrap=True, markup=False)
        self._bar.start()
        self._task = self._bar.add_task("starting", total=None, note="")

    def data(self, done: int, total: int, label: str) -> None:
        if self._download is None:
            self._download = Progress(
                _words("{task.description}"), *_bar(), DownloadColumn(), console=error_console,
                transient=True, disable=not error_console.is_terminal,
            )
            self._download.start()
            self._download_task = self._download.add_task("", total=total)
        assert self._download_task is not None
        self._download.update(self._download_task, completed=done, total=total, description=escape(shown(label)))

    def event(self, fields: dict[str, Any]) -> None:
        event = to_event(fields)
        if self._download is not None:
            self._download.stop()
            self._download = None
        if isinstance(event, PhaseEvent) and event.state == "begin" and event.epoch is None and self._task is not None:
            self._bar.update(self._task, description=f"{event.phase} …")
        elif isinstance(event, ProgressEvent) and event.rank == 0 and self._task is not None:
            assert self._job is not None
            self._per_epoch = max(self._per_epoch, event.steps)
            done, total = steps_done(self._job, event, self._per_epoch)
            rate = event.examples / event.seconds if event.seconds else 0.0
            quality = f"  {self._reached}" if self._reached else ""
            note = f"{rate:,.0f} examples/s{quality}"
            if self._job.script is not None:  # a process of a script reports its own examples only
                figures = {name: value for name, value in event.metrics.items() if value is not None}
                note = ", ".join(f"{shown(name)} {value:.4g}" for name, value in figures.items())
            self._bar.update(
                self._task, description=f"epoch {event.epoch}{self._of_epochs}", total=total or None, completed=done,
                note=escape(note),
            )
        elif isinstance(event, EpochEvent):
            self._take_epoch(event)
        elif isinstance(event, WarningEvent | LostEvent):
            error_console.print(f"{event.kind}: {event.message}", soft_wrap=True, markup=False)
        elif isinstance(event, WaitEvent):
            error_console.print(event.message, soft_wrap=True, markup=False)
        elif isinstance(event, FaultEvent):
            over = " is over" if event.state == "end" else ""
            error_console.print(f"fault: {shown(event.fault)}{over} ({event.host})", soft_wrap=True, markup=False)

    @property
    def _of_epochs(self) -> str:
        """` of 5`; empty for a script, of which that is not known."""
        return f" of {self._job.epochs}" if self._job is not None and self._job.script is None else ""

    def _take_epoch(self, event: EpochEvent) -> None:
        assert self._measured is not None
        self._reached = self._measured(event.validation.as_json())
        trained = self._measured(event.train.as_json())
        parts = [f"{part} {words}" for part, words in (("train", trained), ("validation", self._reached)) if words]
        error_console.print(
            "  ".join([f"epoch {event.epoch:>3}{self._of_epochs}", *map(escape, parts), f"{event.seconds:.1f} s"]),
            soft_wrap=True,
        )

    def end(self) -> None:
        if self._download is not None:
            self._download.stop()
        self._bar.stop()


@contextmanager
def data_progress() -> Iterator[JobProgress]:
    """The progress of data that is fetched or read: a bar from the first call of its `data` on."""
    progress = JobProgress()
    try:
        yield progress
    finally:
        progress.end()


def _announce(plan: Plan, run: OpenRun) -> str:
    """The configuration of a run, defaults included."""
    job, strategy = plan.job, strategy_of(plan.job)
    words = [*([] if strategy.consistency.model == "none" else [str(strategy.consistency)]),
             *([job.framework] if job.framework else []),
             *(["stock"] if job.implementation == "stock" else [])]
    form = f" ({', '.join(words)})" if words else ""
    who = _counted(job.workers, "worker") + (f", {_counted(job.servers, 'server')}" if job.servers else "")
    threads = f"{_counted(job.threads, 'thread')} per process" if job.threads else "cores divided evenly"
    scope = f"{job.batch_scope}, {batch_of_step(job, strategy)} examples a step"
    target = f", until {job.target}" if job.target else ""
    if job.script is not None:
        return (f"[bold]{run.name}[/bold]\n  {escape(f'{job.script} {job.script_args}'.strip())}\n"
                f"  {job.engine}, {who}, {threads}, seed {job.seed}")
    learns = f", task {escape(job.task)}" if job.task else ""
    return (
        f"[bold]{run.name}[/bold]\n"
        f"  {job.engine}/{job.strategy}{form}, {who}, {threads}\n"
        f"  {escape(job.model)} on {escape(job.dataset)}{learns}, validation {job.validation:g}, "
        f"batch {job.batch_size} ({scope})\n"
        f"  {_optimization(job)}, {_counted(job.epochs, 'epoch')}{target}, seed {job.seed}, {job.dtype}"
    )


def _optimization(job: Job) -> str:
    """The optimizer with its learning rate, and the settings that are not their defaults."""
    scale = scale_of_rate(job, strategy_of(job))
    words = [escape(job.optimizer) if job.has_own_optimizer else f"{job.optimizer} {job.rate * scale:g}"]
    if job.scale_rate != "none":
        base = "its own rate" if job.has_own_optimizer else f"{job.rate:g}"
        words.append(f"{base} scaled by {scale:g} ({job.scale_rate})")
    if job.schedule != "constant":
        words.append(f"{job.schedule} schedule")
    if job.warmup is not None:
        words.append(f"warm-up {job.warmup}{' steps' if job.warmup.isdigit() else ''}")
    words += [
        f"{name.replace('_', ' ')} {getattr(job, name)}" for name in ("weight_decay", "accumulate", "label_smoothing",
                                                                     "ema", "weights")
        if getattr(job, name) != default_of(name)
    ]
    return ", ".join(words + ["nesterov"] * job.nesterov)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def show_failure(error: JobFailed) -> None:
    """Print the user's traceback or the stack of the stalled rank; the message itself is printed with the exit code."""
    failure = error.failure
    if failure.traceback:
        say_on_stderr(failure.traceback.rstrip())
    if failure.stack:
        say_on_stderr(f"stack of {failure.role} {failure.rank}:\n{failure.stack}")
    say_on_stderr(f"details are stored in {error.result.path}")
