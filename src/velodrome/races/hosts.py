"""The hosts of a race: jobs that run at the same time, each on hosts of its own, and a calibration of this machine.

Launchers side by side have one job at a time each. The calibration is a fixed small computation on every core, timed
between runs: it shows whether the machine's own speed changed. Each rate is a line of `calibration.jsonl` in the race's
folder.
"""

from __future__ import annotations

import contextvars
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from velodrome import files
from velodrome.clusters.interrupts import deferred
from velodrome.clusters.launcher import Launcher
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.race import Entry
from velodrome.machine import cores
from velodrome.run.processes import Failure

FILE = "calibration.jsonl"
#: How long one calibration computes.
SECONDS = 0.3
#: At the most so many runs between two calibrations, and at least so many seconds.
RUNS_BETWEEN, SECONDS_BETWEEN = 5, 5.0
#: Numbers that fit into a core's own cache; numpy releases the interpreter's lock for so many.
_SIZE = 16_384
_LONGEST_LINE = 1_000


class Calibration:
    """Measures now and then how fast this machine is, and keeps the rates."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._runs = 0
        self._last: float | None = None

    def before_block(self) -> None:
        """Measure before the first run of a repetition."""
        self._measure()

    def before_run(self) -> None:
        """Measure if several runs passed since the last time."""
        if self._runs >= RUNS_BETWEEN:
            self._measure()
        self._runs += 1

    def _measure(self) -> None:
        if self._last is not None and time.monotonic() - self._last < SECONDS_BETWEEN:
            return
        rate = measured_rate()
        self._last, self._runs = time.monotonic(), 0
        line = json.dumps({"time": round(time.time(), 3), "rate": round(rate, 2)})
        with suppress(OSError), self._file.open("a", encoding="utf-8") as file:  # a full disk is reported elsewhere
            file.write(f"{line}\n")


def measured_rate(seconds: float = SECONDS) -> float:
    """Rounds of the computation per second, all cores together."""
    counts: list[int] = []
    begin = time.perf_counter()

    def compute() -> None:
        values, count = np.linspace(0.0, 1.0, _SIZE), 0
        scratch = np.empty_like(values)
        while time.perf_counter() - begin < seconds:
            np.multiply(values, values, out=scratch)
            np.add(scratch, 1.0, out=scratch)
            np.sqrt(scratch, out=scratch)
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=compute) for _ in range(cores())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begin)


def rates(folder: Path) -> list[float]:
    """The rates of a race's calibrations, in order; lines that cannot be read are skipped."""
    measured = []
    try:
        for line in files.read_lines(folder / FILE, _LONGEST_LINE, inside=folder):
            answer: Any = None
            with suppress(ValueError, RecursionError):
                answer = json.loads(line)
            rate = answer.get("rate") if isinstance(answer, dict) else None
            if isinstance(rate, int | float) and 0 < rate <= sys.float_info.max:
                measured.append(float(rate))
    except OSError:
        return []
    return measured


#: How long interrupted jobs may take to end by themselves, and then without their hosts.
_END_SECONDS, _CLOSE_SECONDS = 15.0, 60.0

Attempt = Callable[[Entry, Launcher], None]


def parallel_launchers(launcher: Launcher, jobs: Sequence[Job], parallel: int | None) -> list[Launcher]:
    """Launchers that can run these jobs at the same time: at most `parallel`, as many as there is room for if None.

    One machine has one launcher: jobs beside each other would disturb each other.
    """
    if parallel == 1 or not jobs:
        return [launcher]
    if not launcher.divisible:
        if parallel is not None:
            raise BadRequest(
                f"--parallel {parallel}: jobs on one machine would disturb each other; leave it out, or choose a "
                "cluster of several hosts with --on"
            )
        return [launcher]
    return launcher.divide(jobs)[: min(parallel or len(jobs), len(jobs))]


class ParallelJobs:
    """Runs jobs on launchers side by side; an interruption of the command ends all of them."""

    def __init__(self, launchers: Sequence[Launcher]) -> None:
        self.launchers = list(launchers)
        self._over = threading.Event()

    def stop(self) -> Failure | None:
        """Why the runs on these launchers are to be ended now: the race was interrupted."""
        return Failure("interrupted by Ctrl-C", cause="interrupt") if self._over.is_set() else None

    def run(self, entries: Sequence[Entry], attempt: Attempt) -> None:
        """Attempt all entries, each as soon as a launcher is free."""
        free, waiting = [*self.launchers], [*entries]
        running: dict[Future[None], Launcher] = {}
        with ThreadPoolExecutor(len(self.launchers), thread_name_prefix="velodrome-launcher") as pool:
            try:
                while waiting or running:
                    while waiting and free:
                        launcher = free.pop(0)
                        context = contextvars.copy_context()
                        running[pool.submit(context.run, attempt, waiting.pop(0), launcher)] = launcher
                    # Not for ever: a signal is handled between two waits.
                    for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                        free.append(running.pop(future))
                        future.result()
            except BaseException:
                with deferred():
                    self._end(running)
                raise

    def _end(self, running: dict[Future[None], Launcher]) -> None:
        """End the jobs that run: at once, and if that takes long by taking away their hosts."""
        self._over.set()
        left = wait(running, timeout=_END_SECONDS).not_done
        for future in left:
            with suppress(Exception):
                running[future].close()
        wait(left, timeout=_CLOSE_SECONDS)
