"""Starts the processes of a plan, reads what they say, notices who dies, stalls or never comes, and ends them all."""

from __future__ import annotations

import os
import secrets
import selectors
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from velodrome.cluster.launcher import Launch
from velodrome.cluster.local import cleaner
from velodrome.cluster.local import cold as local
from velodrome.cluster.local.stacks import is_stopped, shows_users_code, stack_of, telling_thread
from velodrome.cluster.plan import Plan
from velodrome.events.lines import parse
from velodrome.offers.registry import strategy_of
from velodrome.offers.segments import pattern_of_run
from velodrome.run.interrupts import deferred
from velodrome.run.outcome import Failure
from velodrome.run.store import OpenRun
from velodrome.run.watched import SILENT_SECONDS, Watched, blame, late, stalled

Listener = Callable[[dict[str, Any]], None]

#: How long processes may take to leave after the chief has said the result.
LEAVE_SECONDS = 10.0
MOST_STACKS = 4


class Supervisor:
    """Watches one attempt at a plan from start to end."""

    def __init__(
        self, run: OpenRun, plan: Plan, listener: Listener, *, resume: bool = False, launch: Launch = local.start
    ) -> None:
        self._run, self._plan, self._listener, self._resume = run, plan, listener, resume
        self._launch = launch
        self._token = secrets.token_hex(12)
        self._selector = selectors.DefaultSelector()
        self._processes: list[Watched] = []
        self._result_time: float | None = None
        self._synchronous = strategy_of(plan.job).synchronous

    def watch(self) -> Failure | None:
        """Run the plan to its end; what ended it early, or None. Whatever happens, nothing is left running."""
        guardian = cleaner.start_guardian(self._token, pattern_of_run(self._token))
        try:
            self._start()
            return self._loop()
        finally:
            with deferred():
                self._end(guardian)

    def _start(self) -> None:
        for process in self._plan.processes:
            started = self._launch(self._plan, process, self._run.path, self._token, resume=self._resume)
            watched = Watched(started)
            self._processes.append(watched)
            os.set_blocking(started.output.fileno(), False)
            self._selector.register(started.output, selectors.EVENT_READ, watched)

    def _loop(self) -> Failure | None:
        while True:
            for key, _ in self._selector.select(timeout=0.2):
                self._read(key.data)
            for watched in self._processes:
                if watched.has_ended():
                    # All it said is known before anybody judges how it ended.
                    while self._read(watched):
                        pass
            now = time.monotonic()
            if self._result_time is not None:
                if self._may_leave(now):
                    return None
                continue
            self._let_go()
            present = [watched for watched in self._processes if not watched.lost]
            if any(watched.failed for watched in present):
                over = not any(watched.alive for watched in present)
                if failure := blame(present) if over else blame(present, now):
                    # Who lost a peer is not the cause; somebody that lives but does not answer is.
                    silent = [w for w in present if w.alive and w.silent(SILENT_SECONDS, now)]
                    return (failure.cause == "peer" and self._name(silent, "did not answer", "stall")) or failure
            elif failure := self._late(present, now) or self._stalled(present, now):
                return failure

    def _read(self, watched: Watched) -> bool:
        """Take what a process said; whether there may be more."""
        output = watched.started.output
        try:
            data = os.read(output.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            with suppress(KeyError):
                self._selector.unregister(output)
            watched.started.wait(0.5)
            return False
        *lines, watched.buffer = (watched.buffer + data).split(b"\n")
        for line in lines:
            self._take(watched, line.decode(errors="replace"))
        return True

    def _take(self, watched: Watched, line: str) -> None:
        event = parse(line)
        if event is None:
            with (self._run.path / "logs" / f"{watched.process.file_name}.log").open("a") as log:
                log.write(line + "\n")
            return
        watched.take(event)
        if event["kind"] == "result":
            self._result_time = time.monotonic()
        self._say(event)

    def _say(self, event: dict[str, Any]) -> None:
        self._run.add_event(event)
        self._listener(event)

    def _let_go(self) -> None:
        """With --keep-going, a worker may fail while another is left."""
        if not self._plan.job.keep_going:
            return
        for watched in self._processes:
            if not watched.failed or watched.lost or watched.process.role != "worker":
                continue
            left = [w for w in self._processes if w.process.role == "worker" and w.alive and not w.failed]
            if left:
                watched.lost = True
                why = failure.message if (failure := blame([watched])) else watched.describe()
                self._say({
                    "time": time.time(), "role": watched.process.role, "rank": watched.process.rank, "kind": "lost",
                    "message": f"{why}; {len(left)} worker(s) go on",
                })

    def _may_leave(self, now: float) -> bool:
        """After the result: whether everybody is gone, or has had the time to go."""
        assert self._result_time is not None
        waited_for = [w for w in self._processes if w.alive and (self._synchronous or w.process is self._plan.chief)]
        return not waited_for or now - self._result_time > LEAVE_SECONDS

    def _late(self, present: list[Watched], now: float) -> Failure | None:
        limit = self._plan.job.start_timeout
        return self._name(late(present, limit, now), f"did not connect within {limit:g} s (--start-timeout)", "start")

    def _stalled(self, present: list[Watched], now: float) -> Failure | None:
        limit = self._plan.job.stall_timeout
        return self._name(stalled(present, limit, now), f"made no progress for {limit:g} s (--stall-timeout)", "stall")

    def _name(self, culprits: list[Watched], what: str, cause: str) -> Failure | None:
        """Say who holds everybody up; where events cannot tell them apart, their stacks may."""
        if not culprits:
            return None
        culprits = [w for w in self._processes if w.alive and is_stopped(w.started.pid)] or culprits
        # Each stack takes a moment: a few tell enough.
        stacks = {watched.process.file_name: stack_of(watched.started.pid) for watched in culprits[:MOST_STACKS]}
        for name, stack in stacks.items():
            with suppress(OSError):
                (self._run.path / "logs" / f"{name}.stack.txt").write_text(stack + "\n")
        culprits = [w for w in culprits if shows_users_code(stacks.get(w.process.file_name, ""))] or culprits
        first = culprits[0]
        names = ", ".join(watched.describe() for watched in culprits)
        return Failure(
            f"{names} {what}: {first.last_said()}", first.process.role, first.process.rank, first.process.host,
            cause=cause, stack=telling_thread(stacks[first.process.file_name]),
        )

    def _end(self, guardian: subprocess.Popen[bytes]) -> None:
        for watched in self._processes:
            watched.started.end()
        for watched in self._processes:
            watched.started.wait(5.0)
            watched.started.output.close()
        self._selector.close()
        cleaner.end_marked(self._token)
        cleaner.dismiss(guardian)
