"""Jobs that train at the same time and take turns of a second: the processes of all others are stopped (SIGSTOP).

On a machine whose speed changes by the minute, two runs one after the other differ by more than what is compared. Jobs
that take turns see the same machine. What a job has done is read from its own reports, each with the moment at which it
was made; a rate is examples over the time during which the job was not stopped, from one report to another.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from running import RunError, background

#: A job must have reported this often before it is stopped for the first time: start-up and first calls are over.
FIRST_REPORTS = 2
#: More turns that a job is waited for which does not report.
MOST_TURNS = 60
#: Seconds for which a job may stand still at most: TensorFlow's processes give up on a peer that is silent for ten.
LONGEST_STOP = 4.0
#: Seconds that a job which trains already gets now and then while others start, on cores that these use fully.
SLICE = 0.25


@dataclass(frozen=True)
class Report:
    """Examples that a job had trained on at a moment, since it began."""

    time: float
    examples: float


#: Turns the lines of a job's reports, those that are new, into reports.
Reader = Callable[[bytes], Report | None]


@dataclass(frozen=True)
class Trial:
    """What is to be run: a command without an end, and the file that it reports to."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    reports: Path
    read: Reader


def read_events(*, summed: bool = False) -> Reader:
    """Reads `events.jsonl` of a run: progress of the process that reports most, epoch by epoch; or of all processes
    together, for workers that each count their own examples only."""
    made: dict[tuple[str, int | None], dict[int, int]] = {}

    def read(line: bytes) -> Report | None:
        if b'"progress"' not in line or (event := json.loads(line)).get("kind", "progress") != "progress":
            return None
        made.setdefault((event.get("role"), event.get("rank")), {})[event["epoch"]] = event["examples"]
        if summed:
            return Report(event["time"], float(sum(sum(epochs.values()) for epochs in made.values())))
        leader = max(made, key=lambda process: sum(made[process].values()))
        if (event.get("role"), event.get("rank")) != leader:
            return None
        return Report(event["time"], float(sum(made[leader].values())))

    return read


def read_steps(examples_per_step: int) -> Reader:
    """Reads what `peers/task.py` reports: the time and the number of steps."""

    def read(line: bytes) -> Report:
        moment, steps = line.split()
        return Report(float(moment), float(steps) * examples_per_step)

    return read


class Turns:
    """Stretches of time during which something ran."""

    def __init__(self) -> None:
        self._stretches: list[tuple[float, float]] = []

    def add(self, began: float, ended: float) -> None:
        self._stretches.append((began, ended))

    def before(self, moment: float) -> float:
        """Seconds that it has run until a moment."""
        return sum(max(0.0, min(ended, moment) - began) for began, ended in self._stretches)


class Job:
    """A trial that runs."""

    def __init__(self, trial: Trial, process: subprocess.Popen[str]) -> None:
        self.name, self._trial, self._process, self._offset = trial.name, trial, process, 0
        self._turns, self._processes, self.reports = Turns(), list[int](), list[Report]()

    def is_training(self) -> bool:
        """Whether it is past its start-up; if so, it is stopped."""
        self.look()
        if self._process.poll() is not None:
            raise RunError(f"{self.name} ended with exit code {self._process.returncode} before it had trained")
        if len(self.reports) < FIRST_REPORTS:
            return False
        # A command that started others only watches them, and goes on.
        self._processes = _descendants(self._process.pid) or [self._process.pid]
        self._signal(signal.SIGSTOP)
        return True

    def look(self) -> Report | None:
        """The last report so far."""
        with suppress(FileNotFoundError), self._trial.reports.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                if report := self._trial.read(line):
                    self.reports.append(report)
        return self.reports[-1] if self.reports else None

    def run(self, seconds: float) -> None:
        """Let it compute for a while."""
        self._signal(signal.SIGCONT)
        began = time.time()
        time.sleep(seconds)
        self._turns.add(began, time.time())
        self._signal(signal.SIGSTOP)

    def rate(self, one: Report, two: Report) -> float:
        """Examples per second of running between two reports."""
        return (two.examples - one.examples) / (self._turns.before(two.time) - self._turns.before(one.time))

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            try:
                os.kill(process, number)
            except ProcessLookupError:
                raise RunError(f"a process of {self.name} has ended") from None


@contextmanager
def running(trials: Sequence[Trial], limit: float) -> Iterator[list[Job]]:
    """All of them, past their start-up, and stopped."""
    until = time.monotonic() + limit
    with ExitStack() as stack:
        jobs = []
        for trial in trials:
            process = stack.enter_context(background(trial.command, {**os.environ, **trial.environment}))
            jobs.append(Job(trial, process))
        ready: list[Job] = []
        while len(ready) < len(jobs):
            ready += [job for job in jobs if job not in ready and job.is_training()]
            if time.monotonic() > until:
                late = ", ".join(job.name for job in jobs if job not in ready)
                raise RunError(f"no training within {limit:.0f} s: {late}")
            for job in ready:  # TensorFlow's processes give up on a peer that is silent for long
                job.run(SLICE)
            time.sleep(1)
        yield jobs


def rates(
    jobs: Sequence[Job], *, counts: int, turns: int, seconds: float, order: random.Random
) -> dict[str, list[float]]:
    """Examples per second of every job in each of `counts` stretches of so many turns, which are in a random order.

    Many jobs take shorter turns, and more of them: one may have the first turn of a round and the last of the next.
    """
    shorter = min(seconds, LONGEST_STOP / (2 * len(jobs)))
    turns, seconds = math.ceil(turns * seconds / shorter), shorter
    before = _take_turns(jobs, 2, seconds, order)
    found: dict[str, list[float]] = {job.name: [] for job in jobs}
    for _ in range(counts):
        after = _take_turns(jobs, turns, seconds, order)
        for job, one, two in zip(jobs, before, after, strict=True):
            found[job.name].append(job.rate(one, two))
        before = after
    return found


def _take_turns(jobs: Sequence[Job], turns: int, seconds: float, order: random.Random) -> list[Report]:
    """The last report of each job after so many turns, and after more of them if one has not reported since."""
    reported = [len(job.reports) for job in jobs]
    for number in range(1, turns + MOST_TURNS):
        for job in order.sample(jobs, len(jobs)):
            job.run(seconds)
        if number < turns:
            continue
        time.sleep(0.3)  # the controllers write down what was reported last
        last = [job.look() for job in jobs]
        found = [report for report in last if report is not None]
        if all(len(job.reports) > count for job, count in zip(jobs, reported, strict=True)):
            return found
    silent = ", ".join(job.name for job, count in zip(jobs, reported, strict=True) if len(job.reports) == count)
    raise RunError(f"no report in {turns + MOST_TURNS - 1} turns: {silent}")


def _descendants(leader: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, IndexError):
            if entry.name.isdigit():
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, now = list[int](), {leader}
    while now := {process for process, parent in parents.items() if parent in now}:
        found += sorted(now)
    return found
