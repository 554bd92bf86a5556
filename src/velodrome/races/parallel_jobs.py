"""Jobs of a race that run at the same time, each on hosts of its own: a lane is a launcher with one job at a time."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress

from velodrome.catalog.registry import engine_of
from velodrome.clusters.interrupts import deferred
from velodrome.clusters.launcher import Launcher
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.race import Entry
from velodrome.run.processes import Failure

#: How long interrupted jobs may take to end by themselves, and then without their hosts.
_END_SECONDS, _CLOSE_SECONDS = 15.0, 60.0

Attempt = Callable[[Entry, Launcher], None]


def lanes_of(launcher: Launcher, jobs: Sequence[Job], parallel: int | None) -> list[Launcher]:
    """Launchers that can run these jobs at the same time: at most `parallel`, as many as there is room for if None.

    One machine has one lane: jobs beside each other would disturb each other.
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


class Lanes:
    """Runs jobs in lanes; an interruption of the command ends all of them."""

    def __init__(self, launchers: Sequence[Launcher]) -> None:
        self.launchers = list(launchers)
        self._over = threading.Event()

    def stop(self) -> Failure | None:
        """Why the runs in lanes are to be ended now: the race was interrupted."""
        return Failure("interrupted by Ctrl-C", cause="interrupt") if self._over.is_set() else None

    def run(self, entries: Sequence[Entry], attempt: Attempt) -> None:
        """Attempt all entries, each as soon as a lane is free."""
        free, waiting = [*self.launchers], [*entries]
        running: dict[Future[None], Launcher] = {}
        with ThreadPoolExecutor(len(self.launchers), thread_name_prefix="velodrome-lane") as pool:
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


def warm_engines(entries: Iterable[Entry]) -> list[str]:
    """The engines whose import the processes of these jobs can share; scripts start new interpreters."""
    return list(dict.fromkeys(engine_of(entry.job).key for entry in entries if entry.job.script is None))
