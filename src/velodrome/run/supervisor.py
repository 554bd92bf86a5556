"""Starts the processes of a plan, reads what they say, notices who dies, stalls or never comes, and ends them all."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from velodrome.cluster import local
from velodrome.cluster.plan import Plan
from velodrome.engines.registry import strategy_of
from velodrome.run import cleaner
from velodrome.run.outcome import Failure
from velodrome.run.stacks import main_thread, stack_of
from velodrome.run.store import OpenRun
from velodrome.run.watched import Watched, blame, stalled
from velodrome.worker.events import parse

Listener = Callable[[dict[str, Any]], None]

#: How long the others may still speak after the first failure, so that the cause is told from its consequences.
GRACE_SECONDS = 1.5
#: How long processes may take to leave after the chief has said the result.
LEAVE_SECONDS = 10.0


class Supervisor:
    """Watches one attempt at a plan from start to end."""

    def __init__(self, run: OpenRun, plan: Plan, listener: Listener, *, resume: bool = False) -> None:
        self._run, self._plan, self._listener, self._resume = run, plan, listener, resume
        self._token = secrets.token_hex(12)
        self._selector = selectors.DefaultSelector()
        self._processes: list[Watched] = []
        self._trouble: float | None = None
        self._result_time: float | None = None
        self._synchronous = strategy_of(plan.job).synchronous

    def watch(self) -> Failure | None:
        """Run the plan to its end; what ended it early, or None. Whatever happens, nothing is left running."""
        guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(cleaner.__file__)), self._token],
            stdin=subprocess.PIPE, start_new_session=True,
        )
        try:
            self._start()
            return self._loop()
        except OSError as error:
            return Failure(f"the controller cannot go on: {error.strerror or error} ({self._run.path})", cause="disk")
        finally:
            with _no_interrupts():
                self._end(guardian)

    def _start(self) -> None:
        for process in self._plan.processes:
            started = local.start(self._plan, process, self._run.path, self._token, resume=self._resume)
            watched = Watched(started)
            self._processes.append(watched)
            os.set_blocking(started.output.fileno(), False)
            self._selector.register(started.output, selectors.EVENT_READ, watched)

    def _loop(self) -> Failure | None:
        while True:
            for key, _ in self._selector.select(timeout=0.2):
                self._read(key.data)
            for watched in self._processes:
                watched.check_end()
            now = time.monotonic()
            if self._has_failed():
                self._trouble = self._trouble or now
                if now - self._trouble > GRACE_SECONDS or not any(watched.alive for watched in self._processes):
                    self._drain()
                    return blame(watched for watched in self._processes if not watched.lost)
            elif self._result_time is not None:
                if self._may_leave(now):
                    return None
            elif late := self._late(now) or self._stalled(now):
                return late

    def _read(self, watched: Watched) -> None:
        try:
            data = os.read(watched.started.output.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(watched.started.output)
            with suppress(subprocess.TimeoutExpired):
                watched.started.popen.wait(0.5)
            return
        *lines, watched.buffer = (watched.buffer + data).split(b"\n")
        for line in lines:
            self._take(watched, line.decode(errors="replace"))

    def _take(self, watched: Watched, line: str) -> None:
        event = parse(line)
        if event is None:
            with (self._run.path / "logs" / f"{watched.process.file_name}.log").open("a") as log:
                log.write(line + "\n")
            return
        watched.take(event)
        if event["kind"] == "result":
            self._result_time = time.monotonic()
        self._run.add_event(event)
        self._listener(event)

    def _drain(self) -> None:
        """What the processes said before they ended."""
        while self._selector.get_map():
            ready = self._selector.select(timeout=0)
            if not ready:
                return
            for key, _ in ready:
                self._read(key.data)

    def _has_failed(self) -> bool:
        failed = False
        for watched in self._processes:
            if watched.lost:
                continue
            gone = watched.exit_code is not None and not (watched.exit_code == 0 and watched.finished)
            if gone and self._result_time is not None and watched is not self._chief():
                continue
            if gone and watched.exit_code == 0 and watched is self._chief() and self._result_time is not None:
                continue
            if (watched.error is not None or gone) and not self._may_lose(watched):
                failed = True
        return failed

    def _chief(self) -> Watched:
        return next(watched for watched in self._processes if watched.process is self._plan.chief)

    def _may_lose(self, watched: Watched) -> bool:
        """With --keep-going, let a worker go while another is left, and say so."""
        others = [w for w in self._processes if w is not watched and w.process.role == "worker" and w.alive]
        if not (self._plan.job.keep_going and watched.process.role == "worker" and others):
            return False
        watched.lost = True
        event = {
            "time": time.time(), "role": watched.process.role, "rank": watched.process.rank, "kind": "lost",
            "message": f"{watched.describe()} was lost; {len(others)} worker(s) go on",
        }
        self._run.add_event(event)
        self._listener(event)
        return True

    def _may_leave(self, now: float) -> bool:
        """After the result: whether everybody is gone, or has had the time to go."""
        assert self._result_time is not None
        waiting_for = [w for w in self._processes if w.alive and (self._synchronous or w is self._chief())]
        return not waiting_for or now - self._result_time > LEAVE_SECONDS

    def _late(self, now: float) -> Failure | None:
        """Nobody advanced towards the first step for the time that starting may take."""
        missing = [watched for watched in self._processes if not watched.connected]
        limit = self._plan.job.start_timeout
        if not missing or any(now - watched.last_advance <= limit for watched in self._processes):
            return None
        idle = [watched for watched in missing if watched.phase != "connect"]
        culprits = idle or missing
        names = ", ".join(watched.describe() for watched in culprits)
        message = f"{names} did not connect within {limit:g} s (--start-timeout): {culprits[0].last_said()}"
        return self._with_stack(culprits[0], message, "start")

    def _stalled(self, now: float) -> Failure | None:
        limit = self._plan.job.stall_timeout
        if not all(watched.connected for watched in self._processes):
            return None
        culprits = stalled((w for w in self._processes if not w.lost), limit, now)
        if not culprits:
            return None
        names = ", ".join(watched.describe() for watched in culprits)
        message = f"{names} made no progress for {limit:g} s (--stall-timeout): {culprits[0].last_said()}"
        return self._with_stack(culprits[0], message, "stall")

    def _with_stack(self, watched: Watched, message: str, cause: str) -> Failure:
        stack = stack_of(watched.started.pid)
        with suppress(OSError):
            (self._run.path / "logs" / f"{watched.process.file_name}.stack.txt").write_text(stack + "\n")
        process = watched.process
        return Failure(message, process.role, process.rank, process.host, cause=cause, stack=main_thread(stack))

    def _end(self, guardian: subprocess.Popen[bytes]) -> None:
        for watched in self._processes:
            watched.started.end()
        for watched in self._processes:
            watched.started.wait(5.0)
            watched.started.output.close()
        self._selector.close()
        cleaner.end_marked(self._token)
        assert guardian.stdin is not None
        guardian.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            guardian.wait(10.0)


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """A second Ctrl-C must not leave the first one's work half done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
