"""One process of a job that people start themselves, with a line that `velodrome plan` prints for its host.

Starts the training process as a child, keeps its events in the run's folder on this host and prints the essential ones.
With the chief, it also writes the job and the result.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from velodrome import files
from velodrome.cluster.environments import interpreter_of
from velodrome.cluster.plan import Plan, Process
from velodrome.errors import BadRequest
from velodrome.events.lines import parse
from velodrome.offers.world import World
from velodrome.run.outcome import Failure, make_result
from velodrome.run.store import Status
from velodrome.spec.job import Job
from velodrome.tasks.base import Task
from velodrome.tasks.registry import task_of
from velodrome.variables import JOB, WORLD

#: How long a process may take to end after Ctrl-C before it is killed.
INTERRUPT_SECONDS = 10.0


@dataclass(frozen=True)
class Part:
    """The part of a job that this host was asked to start."""

    plan: Plan
    process: Process
    folder: Path

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


def sentence(event: dict[str, Any], task: Task) -> str | None:
    """An event as a person reads it, or None if it is not worth a line."""
    kind = event["kind"]
    if kind == "phase" and event["state"] == "begin" and "epoch" not in event:
        return f"{event['phase']} …"
    if kind == "epoch":
        parts = {part: task.in_words(event[part]) for part in ("train", "validation")}
        return f"epoch {event['epoch']}: " + ", ".join(f"{part} {value}" for part, value in parts.items() if value)
    if kind == "result":
        return f"test {task.in_words(event['test'])} ({task.amount(event['test'])})"
    if kind in ("error", "warning"):
        return f"{kind}: {event['message']}"
    return None


def take(part: Part, line: str) -> None:
    """Keep an event line in the run's folder and print its essence; anything else is printed as it is."""
    event = parse(line.rstrip("\n"))
    if event is None:
        print(line, end="", file=sys.stderr, flush=True)
        return
    with suppress(OSError), part.events_file.open("a", encoding="utf-8") as stream:  # the disk may be full
        stream.write(line)
    if words := sentence(event, task_of(part.plan.job)):
        print(f"{part.process.name}: {words}", file=sys.stderr, flush=True)


def _run_worker(part: Part, words: list[str]) -> tuple[int, bool]:
    """Run the training process to its end; its exit code, and whether Ctrl-C ended it.

    It leads a session of its own, so that Ctrl-C reaches it only through us: once to report, again to be killed.
    """
    interpreter = str(interpreter_of(part.plan.job.engine))
    child = subprocess.Popen(
        [interpreter, "-m", "velodrome.worker", *words, "--lifeline"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, errors="replace", start_new_session=True,
    )
    interrupts = 0

    def kill() -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)

    timer = threading.Timer(INTERRUPT_SECONDS, kill)
    timer.daemon = True
    assert child.stdout is not None
    try:
        while True:
            try:
                for line in child.stdout:
                    take(part, line)
                return child.wait(), interrupts > 0
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 1:
                    kill()
                else:
                    child.send_signal(signal.SIGINT)
                    timer.start()
    finally:
        timer.cancel()
        kill()
        child.wait()


def finish(part: Part, status: Status, code: int) -> None:
    """With the chief: compile the result from the events that are on this host."""
    events: list[dict[str, Any]] = []
    for path in sorted(part.folder.glob("events-*.jsonl")):
        events += filter(None, map(parse, path.read_text(encoding="utf-8", errors="replace").splitlines()))
    events.sort(key=lambda event: event["time"])
    started = events[0]["time"] if events else time.time()
    failure = None
    if status != "finished":
        me = part.process
        mine = [event for event in events if (event["role"], event["rank"]) == (me.role, me.rank)]
        errors = [event for event in mine if event["kind"] == "error"]
        error = errors[-1] if errors else {"message": f"it ended with {_exit(code)}"}
        failure = Failure(f"{me.name} on {me.host}: {error['message']}", me.role, me.rank, me.host,
                          cause=error.get("cause", "engine"))
    result = make_result(
        part.plan, str(part.folder.resolve()), status, events, started=started, ended=time.time(), failure=failure
    )
    files.write_text(part.folder / "job.yaml", yaml.safe_dump(part.plan.job.model_dump(), sort_keys=False))
    files.write_text(part.folder / "result.json", json.dumps(result, indent=2) + "\n")
    print(f"{part.process.name}: the result is in {part.folder / 'result.json'}", file=sys.stderr, flush=True)


def _exit(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"exit code {code}"


def main(words: list[str] | None = None) -> int:
    """Run one process of a job; the exit code: 0 finished, 1 failed, 2 cannot be done as asked, 130 Ctrl-C."""
    words = sys.argv[1:] if words is None else words
    try:
        options = _parse(words)
        part = _part(options)
        _prepare(part.folder)
        part.events_file.write_text("")
    except BadRequest as error:
        print(f"velodrome: {error}", file=sys.stderr)
        return error.exit_code
    code, interrupted = _run_worker(part, words)
    status: Status = "finished" if code == 0 else "interrupted" if interrupted else "failed"
    if part.process is part.plan.chief:
        finish(part, status, code)
    return 130 if status == "interrupted" else 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main())
