"""Progress of one job on stderr and its result on stdout."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
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
from rich.table import Table
from rich.text import Text

from velodrome.analysis.estimate import steps_done
from velodrome.analysis.foreign import foreign_note
from velodrome.analysis.hosts import host_lines
from velodrome.analysis.implementation import implementation_lines
from velodrome.cli.output import complain, say_json, say_on_stderr
from velodrome.cli.safe_console import SafeConsole
from velodrome.cluster.plan import LOOPBACK, Plan
from velodrome.cluster.preflight import crowded
from velodrome.cluster.registry import launcher_named
from velodrome.events.lines import to_event
from velodrome.events.models import EpochEvent, LostEvent, PhaseEvent, ProgressEvent, WarningEvent
from velodrome.offers.registry import strategy_of
from velodrome.printable import shown
from velodrome.run.execute import JobFailed, default_runs
from velodrome.run.store import OpenRun, Store
from velodrome.spec.job import Job
from velodrome.spec.resolve import batch_of_step
from velodrome.tasks.base import Task
from velodrome.tasks.registry import task_of, task_of_result

error_console = SafeConsole(stderr=True)


class JobProgress:
    """Live progress of one job: a bar on a terminal, a line an epoch elsewhere."""

    def __init__(self, label: str = "", *, live: bool = True) -> None:
        self._label = label
        #: The run, once it has begun.
        self.run: OpenRun | None = None
        self._job: Job | None = None
        self._epochs = self._per_epoch = 0
        self._learns: Task | None = None
        self._reached = ""
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[note]}"), TimeElapsedColumn(), TimeRemainingColumn(),
            console=error_console, transient=True, disable=not (live and error_console.is_terminal),
        )
        self._task: TaskID | None = None
        self._download: Progress | None = None
        self._download_task: TaskID | None = None

    def begin(self, plan: Plan, run: OpenRun) -> None:
        self.run, self._job, self._epochs = run, plan.job, plan.job.epochs
        self._learns = task_of(plan.job)
        if not self._label:
            error_console.print(_announce(plan, run), soft_wrap=True)
            if {process.host for process in plan.processes} == {LOOPBACK} and (warning := crowded([plan.job])):
                error_console.print(f"warning: {warning}", soft_wrap=True, markup=False)
        self._bar.start()
        self._task = self._bar.add_task(self._label or "starting", total=None, note="")

    def data(self, done: int, total: int, label: str) -> None:
        if self._download is None:
            self._download = Progress(
                TextColumn("{task.description}"), BarColumn(bar_width=30), DownloadColumn(), console=error_console,
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
            self._bar.update(self._task, description=self._label or f"{event.phase} …")
        elif isinstance(event, ProgressEvent) and event.rank == 0 and self._task is not None:
            assert self._job is not None
            self._per_epoch = max(self._per_epoch, event.steps)
            done, total = steps_done(self._job, event, self._per_epoch)
            rate = event.examples / event.seconds if event.seconds else 0.0
            quality = f"  {self._reached}" if self._reached else ""
            label = self._label or f"epoch {event.epoch} of {self._epochs}"
            self._bar.update(
                self._task, description=label, total=total, completed=done, note=f"{rate:,.0f} examples/s{quality}"
            )
        elif isinstance(event, EpochEvent):
            self._take_epoch(event)
        elif isinstance(event, WarningEvent | LostEvent):
            error_console.print(f"{event.kind}: {event.message}", soft_wrap=True, markup=False)

    def _take_epoch(self, event: EpochEvent) -> None:
        assert self._learns is not None
        self._reached = self._learns.in_words(event.validation.as_json())
        if not self._label:
            trained = self._learns.in_words(event.train.as_json())
            shown = f"  validation {self._reached}" if self._reached else ""
            error_console.print(
                f"epoch {event.epoch:>3} of {self._epochs}  train {trained}{shown}  {event.seconds:.1f} s"
            )

    def end(self) -> None:
        if self._download is not None:
            self._download.stop()
        self._bar.stop()


def _announce(plan: Plan, run: OpenRun) -> str:
    """The configuration of a run, defaults included."""
    job, strategy = plan.job, strategy_of(plan.job)
    form = f"{strategy.consistency}, stock" if job.implementation == "stock" else strategy.consistency
    who = _counted(job.workers, "worker") + (f", {_counted(job.servers, 'server')}" if job.servers else "")
    threads = f"{job.threads} per process" if job.threads else "cores divided evenly"
    scope = f"{job.batch_scope}, {batch_of_step(job, strategy)} examples a step"
    target = f", until {job.target}" if job.target else ""
    return (
        f"[bold]{run.name}[/bold]\n"
        f"  {job.engine}/{job.strategy} ({form}), {who}, threads {threads}\n"
        f"  {escape(job.model)} on {escape(job.dataset)}, validation {job.validation:g}, batch {job.batch_size} "
        f"({scope})\n"
        f"  {job.optimizer} {job.rate:g}, {_counted(job.epochs, 'epoch')}{target}, seed {job.seed}, {job.dtype}"
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def summary(result: dict[str, Any]) -> Table:
    """A finished run at a glance."""
    table = Table(title=str(result["run"]), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    test, seconds, rate = result["test"], result["seconds"], result["throughput"]
    if test:
        task = task_of_result(result)
        for metric in task.metrics:
            shown = "not finite" if test[metric.name] is None else metric.text(test[metric.name])
            table.add_row(f"test {metric.name}", f"{shown}  ({task.amount(test)})" if metric is task.metric else shown)
    if lines := implementation_lines(result):
        table.add_row("implementation", "\n".join(lines))
    if pair := _most_confused(result.get("confusion"), result.get("class_names")):
        table.add_row("most confused", pair)
    table.add_row("parameters", f"{result['parameters']:,}")
    table.add_row(
        "seconds", f"start-up {seconds['startup']:.1f}, training {seconds['train']:.1f}, "
        f"evaluation {seconds['evaluate']:.1f}, total {seconds['total']:.1f}"
    )
    if rate["examples_per_second"]:
        table.add_row(
            "throughput", f"{rate['examples_per_second']:,.0f} examples/s, {rate['batches_per_second']:,.1f} batches/s "
            f"(first {rate['warmup_steps']} steps left out)"
        )
    if "staleness" in result:
        table.add_row("staleness", f"mean {result['staleness']['mean']:.2f}, at most {result['staleness']['max']}")
    for node in result["nodes"]:
        cpu, memory, network = node["cpu_percent"], node["memory_bytes"], node["network_bytes"]
        if cpu["mean"] is not None:
            table.add_row(
                f"{node['role']} {node['rank']}", f"CPU {cpu['mean']:.0f} % (max {cpu['max']:.0f}), "
                f"memory {memory['max'] / 2**20:,.0f} MiB, network in {network['in'] / 2**20:.1f} / out "
                f"{network['out'] / 2**20:.1f} / loopback {network['loopback'] / 2**20:.1f} MiB"
            )
    if note := foreign_note([result]):
        table.add_row(Text("other programs", style="yellow"), note.removeprefix("other programs "))
    if hosts := host_lines(result):
        table.add_row("hosts", "\n".join(hosts))
    table.add_row("stored in", str(result["path"]))
    return table


def _most_confused(confusion: list[list[int]] | None, names: list[str] | None) -> str | None:
    """The most frequent confusion of two classes."""
    pairs = [
        (count, true, taken) for true, row in enumerate(confusion or []) for taken, count in enumerate(row)
        if true != taken and count
    ]
    if not pairs or confusion is None:
        return None
    count, true, taken = max(pairs, key=lambda pair: pair[0])
    named = names if names and len(names) == len(confusion) else [f"class {place}" for place in range(len(confusion))]
    return f"{shown(named[true])} predicted as {shown(named[taken])}: {count:,} of {sum(confusion[true]):,} times"


def show_failure(error: JobFailed) -> None:
    """Print the user's traceback or the stack of the stalled rank; the message itself is printed with the exit code."""
    failure = error.failure
    if failure.traceback:
        say_on_stderr(failure.traceback.rstrip())
    if failure.stack:
        say_on_stderr(f"stack of {failure.role} {failure.rank}:\n{failure.stack}")
    say_on_stderr(f"details are stored in {error.result['path']}")


def mention_interrupted(store: Store) -> None:
    """Print how to resume runs whose controller was killed."""
    # Whether the file exists is enough for the many that ended; only the others are opened.
    without = [run for run in store.runs() if not (run.path / "result.json").exists()]
    names = [run.name for run in without if run.status() == "interrupted"]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        error_console.print(
            f"run {names[-1]}{more} was interrupted: {_resume(store.path, names[-1])} resumes it",
            soft_wrap=True, markup=False,
        )


def _resume(runs: Path, name: str) -> str:
    """The command that resumes a run."""
    where = "" if runs == default_runs() else f" --runs {shlex.quote(str(runs))}"
    return f"`velodrome resume {name}{where}`"


def run_visibly(go: Callable[[JobProgress], dict[str, Any]], runs: Path, *, on: str, as_json: bool) -> None:
    """Run a job with progress on stderr and its result on stdout."""
    interactive = launcher_named(on).interactive
    mention_interrupted(Store(runs))
    progress = JobProgress(live=not interactive)
    try:
        result = go(progress)
    except JobFailed as error:
        progress.end()
        show_failure(error)
        if as_json:
            say_json(error.result)
        raise
    except (KeyboardInterrupt, SystemExit):
        progress.end()
        if progress.run is not None:
            kept = any(progress.run.path.glob("checkpoints/*.safetensors"))
            where = "from its newest checkpoint" if kept else "from the beginning: it has no checkpoint yet"
            complain(f"{_resume(runs, progress.run.name)} continues this run {where}")
        raise
    finally:
        progress.end()
    if as_json:
        say_json(result)
    else:
        SafeConsole(markup=False).print(summary(result))
