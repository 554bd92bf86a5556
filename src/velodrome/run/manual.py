"""One process of a job that people start themselves, with a line that `velodrome plan` prints for its host.

Starts the training process as a child, keeps its events in the run's folder on this host and prints the essential ones.
With the chief, it also writes the job and the result.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from velodrome import files
from velodrome.catalog.registry import engine_of
from velodrome.catalog.world import World
from velodrome.clusters.launcher import Exit
from velodrome.clusters.local.processes import run_in_foreground
from velodrome.clusters.plan import Plan, Process
from velodrome.errors import BadRequest, printable
from velodrome.events.lines import event_files, parse_event, read_events
from velodrome.events.models import EpochEvent, ErrorEvent, Event, PhaseEvent, ResultEvent, WarningEvent
from velodrome.job.job import Job
from velodrome.job.result import Ended
from velodrome.run.outcome import make_result
from velodrome.run.state import Failure, RunState
from velodrome.tasks.registry import task_of
from velodrome.variables import JOB, WORLD


@dataclass(frozen=True)
class Part:
    """The part of a job that this host was asked to start."""

    plan: Plan
    process: Process
    folder: Path
    #: From the monotonic clock to Unix time, as it was at the start.
    _epoch: float = field(default_factory=lambda: time.time() - time.monotonic(), repr=False)

    def now(self) -> float:
        """Unix seconds by a clock that cannot jump while the part runs."""
        return self._epoch + time.monotonic()

    @property
    def events_file(self) -> Path:
        return self.folder / f"events-{self.process.file_name}.jsonl"


def _parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m velodrome.run.manual", description="Start one process of a job that has no controller; "
        "`velodrome plan` prints the whole line, with the environment that it requires.",
    )
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--role", required=True, help="role of the process, as the strategy names it")
    parser.add_argument("--rank", required=True, type=int, help="number of the process among those of its role")
    parser.add_argument("--folder", required=True, type=Path, help="the run's folder on this host")
    parser.add_argument("--slot", default="0/0", help="place among the computing processes of this host, as 0/2")
    return parser.parse_args(words)


def _part(options: argparse.Namespace) -> Part:
    """The job and its processes as the environment has them."""
    try:
        job = Job.model_validate_json(os.environ[JOB])
        world = World.from_json(os.environ[WORLD], options.role, options.rank)
    except KeyError as error:
        raise BadRequest(f"{error.args[0]} is not set: paste the whole line that `velodrome plan` printed") from None
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{JOB} or {WORLD} cannot be read: {error}") from None
    processes = {member: Process(member, 0, 0, {}) for member in world.members}
    return Part(Plan(options.run, job, tuple(processes.values())), processes[world.me], options.folder)


def _prepare(folder: Path) -> None:
    if (folder / "result.json").exists():
        raise BadRequest(f"--run {folder.name!r}: {folder} holds a run already, and none is ever overwritten")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequest(f"--folder {str(folder)!r}: cannot write there: {error.strerror}") from None


def sentence(event: Event, job: Job) -> str | None:
    """An event as a person reads it, or None if it is not worth a line."""
    task = task_of(job)
    if isinstance(event, PhaseEvent) and event.state == "begin" and event.epoch is None:
        return f"{event.phase} …"
    if isinstance(event, EpochEvent):
        parts = {"train": event.train, "validation": event.validation}
        values = {part: task.in_words(counts.as_json()) for part, counts in parts.items()}
        return f"epoch {event.epoch}: " + ", ".join(f"{part} {value}" for part, value in values.items() if value)
    if isinstance(event, ResultEvent):
        test = event.test.as_json()
        return f"test {task.in_words(test)} ({task.amount(test)})"
    if isinstance(event, ErrorEvent | WarningEvent):
        return f"{event.kind}: {event.message}"
    return None


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def take(part: Part, line: str) -> None:
    """Keep an event line in the run's folder and print its essence; anything else is printed."""
    event = parse_event(line)
    if event is None:
        _say(line)
        return
    with suppress(OSError), part.events_file.open("a", encoding="utf-8") as stream:  # the disk may be full
        stream.write(line + "\n")
    if words := sentence(event, part.plan.job):
        _say(f"{part.process.name}: {words}")


def finish(part: Part, status: Ended, end: Exit) -> None:
    """With the chief: compile the result from the events that are on this host."""
    events = [event for path in event_files(part.folder) for event in read_events(path)]
    events.sort(key=lambda event: event.time)
    started = events[0].time if events else part.now()
    failure = None
    if status != "finished":
        me = part.process
        mine = [event for event in events if (event.role, event.rank) == (me.role, me.rank)]
        error = next((event for event in reversed(mine) if isinstance(event, ErrorEvent)), None)
        what = f": {error.message}" if error else f" {end.cause}"
        failure = Failure(f"{me.name} on {me.host}{what}", me.role, me.rank, me.host,
                          cause=error.cause if error else "exit")
    result = make_result(
        part.plan, RunState.of(part.plan, started, events), str(part.folder.resolve()), status, ended=part.now(),
        failure=failure, launcher="manual",
    )
    files.write_text(part.folder / "job.yaml", yaml.safe_dump(part.plan.job.model_dump(), sort_keys=False))
    files.write_text(part.folder / "result.json", json.dumps(result.as_json(), indent=2) + "\n")
    _say(f"{part.process.name}: the result is in {part.folder / 'result.json'}")


def main(words: list[str] | None = None) -> int:
    """Run one process of a job; the exit code: 0 finished, 1 failed, 2 cannot be done as asked, 130 Ctrl-C."""
    words = sys.argv[1:] if words is None else words
    try:
        options = _parse(words)
        part = _part(options)
        _prepare(part.folder)
        part.events_file.write_text("")
    except BadRequest as error:
        _say(f"velodrome: {error}")
        return error.exit_code
    end, interrupted = run_in_foreground(engine_of(part.plan.job).key, words, lambda line: take(part, line))
    status: Ended = "finished" if end.is_success else "interrupted" if interrupted else "failed"
    if part.process is part.plan.chief:
        finish(part, status, end)
    return 130 if status == "interrupted" else end.code if end.code is not None else 1


if __name__ == "__main__":
    sys.exit(main())
