"""The live table of a race: finished, running and waiting jobs, and the expected end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from velodrome.cli.console import show_failure
from velodrome.cli.output import SafeConsole, complain
from velodrome.events.models import Event, LostEvent, WaitEvent, WarningEvent
from velodrome.job.race import Entry
from velodrome.job.result import Result
from velodrome.judge.budget import Progress, remaining
from velodrome.judge.conditions import background_load
from velodrome.judge.judge import Dropped
from velodrome.races.request import RaceObserver
from velodrome.run.attempt import JobFailed
from velodrome.run.state import RunState
from velodrome.tasks.base import Metric, Task
from velodrome.tasks.registry import task_of, task_of_result

#: Rows that are shown before and after the running job.
BEFORE, AFTER = 12, 6
#: The width to which the name of a job may be folded.
_NARROWEST = 16


@dataclass
class _Line:
    entry: Entry
    expected: float
    task: Task
    state: str = "waiting"
    share: float = 0.0
    quality: float | None = None
    rate: float | None = None
    seconds: float = 0.0
    began: float = 0.0

    @property
    def metric(self) -> Metric:
        return self.task.metric

    @property
    def shown(self) -> str:
        return "" if self.quality is None else self.metric.text(self.quality)


class Board(RaceObserver):
    """Shows a race on a terminal; elsewhere prints one line when a job begins and one when it ends."""

    def __init__(
        self, console: SafeConsole, entries: Sequence[Entry], expected: Mapping[str, float], *, live: bool = True,
        until_sure: bool = False,
    ) -> None:
        self._console = console
        self._by_name = {entry.name: _Line(entry, expected[entry.name], task_of(entry.job)) for entry in entries}
        #: Those of a race that runs until it is sure are added with each repetition.
        self._lines = [] if until_sure else [*self._by_name.values()]
        self._until_sure = until_sure
        #: Printed already: a warning of the model would come with every job. Each result has its own.
        self._warned: set[str] = set()
        self._current: _Line | None = None
        drawn = live and console.is_terminal
        self._live = Live(self, console=console, refresh_per_second=4, transient=True) if drawn else None

    def importing(self) -> AbstractContextManager[object]:
        return self._console.status("importing engines …")

    @contextmanager
    def running(self) -> Iterator[None]:
        if self._live is not None:
            self._live.start()
        try:
            yield
        finally:
            if self._live is not None:
                self._live.stop()

    def stored(self, entry: Entry, result: Result) -> None:
        line = self._by_name[entry.name]
        line.state, line.share, line.seconds, line.expected = "stored", 1.0, 0.0, 0.0
        self._fill(line, result)
        if self._until_sure:
            self._lines.append(line)

    def block(self, repetition: int, entries: Sequence[Entry]) -> None:
        self._lines += [self._by_name[entry.name] for entry in entries]
        jobs = "1 job" if len(entries) == 1 else f"{len(entries)} jobs"
        self.note(f"repetition {repetition}: {jobs}")

    def dropped(self, drop: Dropped) -> None:
        self.note(str(drop))

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def begin(self, entry: Entry) -> None:
        self._current = line = self._by_name[entry.name]
        word = "started" if line.state == "waiting" else "repeated"
        line.state, line.began, line.share = "running", time.monotonic(), 0.0
        if self._live is None:
            number = self._lines.index(line) + 1
            self._console.print(f"{number}/{len(self._lines)} {entry.name}: {word}", highlight=False, soft_wrap=True)

    def event(self, entry: Entry, state: RunState, event: Event) -> None:
        line = self._by_name[entry.name]
        line.share = state.done(entry.job)
        # A process of a script reports its own examples only.
        if (progress := state.progress) is not None and progress.seconds and entry.job.script is None:
            line.rate = progress.examples / progress.seconds
        if (epoch := state.last_epoch) is not None:
            line.quality = line.task.measured(epoch.event.validation.as_json()).get(line.metric.name)
        if isinstance(event, WarningEvent | LostEvent | WaitEvent):
            if isinstance(event, WarningEvent):
                if event.message in self._warned:
                    return
                self._warned.add(event.message)
            self._console.print(f"{line.entry.name}: {event.message}", highlight=False, soft_wrap=True, markup=False)

    def end(self, entry: Entry, result: Result, error: JobFailed | None = None) -> None:
        if error is not None:
            show_failure(error)
            complain(f"{entry.name}: {error}")
        line = self._by_name[entry.name]
        line.seconds = time.monotonic() - line.began
        line.state = "done" if result.status == "finished" else result.status
        line.share = 1.0
        self._fill(line, result)
        self._current = None
        if self._live is None:
            quality = f", test {line.metric.name} {line.shown}" if line.shown else ""
            rate = "" if line.rate is None else f", {line.rate:,.0f} examples/s"
            spent = f"{line.state} after {line.seconds:.1f} s"
            load = background_load(result)
            beside = f", while other programs used {load}" if load is not None and load.matters else ""
            self._console.print(f"  {spent}{quality}{rate}{beside}; {self._eta()}", highlight=False, soft_wrap=True)

    @contextmanager
    def session(self) -> Iterator[None]:
        """When the race is interrupted, report how much of it is done and how to continue."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            ended = [line.state for line in self._lines if line.state not in ("waiting", "running", "interrupted")]
            failed = sum(state == "failed" for state in ended)
            done, total = len(ended) - failed, len(self._lines)
            also = f", {failed} failed" if failed else ""
            rest = f"runs the other {total - done}" if done < total else "compares them"
            if self._until_sure:
                complain(f"{done} jobs are done{also}; the same command continues")
                raise
            complain(f"{done} of {total} jobs are done{also}; the same command {rest}")
            raise

    def _fill(self, line: _Line, result: Result) -> None:
        # What it ended with, not what it had reached on the way.
        line.task = task_of_result(result)  # of a task of the user's own, the result knows the metrics
        line.quality = None if result.test is None else result.test.value(line.metric.name)
        line.rate = result.throughput.examples_per_second

    def _eta(self) -> str:
        left = remaining(
            Progress(line.expected, line.state not in ("waiting", "running"), line.share, line.seconds)
            for line in self._lines
        )
        if not left.jobs:
            return "this repetition is done" if self._until_sure else "all jobs are done"
        clock = time.strftime("%H:%M:%S", time.localtime(time.time() + left.seconds))
        return f"{left}, until {clock}"

    def __rich__(self) -> Group:
        place = self._lines.index(self._current) if self._current else len(self._lines)
        first, last = max(0, place - BEFORE), place + AFTER + 1
        table, dropped = self._table(first, self._lines[first:last], self._console.width)
        rows = len(self._lines) - len(self._lines[first:last])
        hidden = [*dropped, *([f"{rows} rows"] if rows else [])]
        finished = sum(line.state not in ("waiting", "running") for line in self._lines)
        more = f" (not shown: {', '.join(hidden)})" if hidden else ""
        return Group(table, Text(f"{finished} of {len(self._lines)} done{more}; {self._eta()}"))

    def _table(self, first: int, lines: Sequence[_Line], width: int) -> tuple[Table, list[str]]:
        """A row for each job, and the columns for which the terminal is too narrow. No number is cut."""
        quality = " / ".join(dict.fromkeys(line.metric.name for line in self._lines))
        rows = [["", "job", "state", quality, "examples/s", "seconds"]]
        rows += [[str(number), *self._cells(line)] for number, line in enumerate(lines, start=first + 1)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        shown = len(widths)
        while shown > 3 and sum(widths[:shown]) - widths[1] + _NARROWEST + 2 * (shown - 1) > width:
            shown -= 1
        table = Table(box=None, pad_edge=False)
        for place, heading in enumerate(rows[0][:shown]):
            table.add_column(
                heading, justify="left" if heading in ("job", "state") else "right", overflow="fold",
                no_wrap=heading != "job", min_width=None if heading == "job" else widths[place],
            )
        for line, cells in zip(lines, rows[1:], strict=True):
            table.add_row(*cells[:shown], style="bold" if line is self._current else None)
        return table, rows[0][shown:]

    @staticmethod
    def _cells(line: _Line) -> list[str]:
        seconds = time.monotonic() - line.began if line.state == "running" else line.seconds
        known = line.state == "running" and line.entry.job.script is None
        state = f"{line.state} {line.share:4.0%}" if known else line.state
        return [
            line.entry.name, state, line.shown, "" if line.rate is None else f"{line.rate:,.0f}",
            f"{seconds:.1f}" if seconds else "",
        ]
