"""Follows races and runs on disk, and sends changes to their open pages.

All pages of a race share one watch, which reads files and writes messages once. A message holds the whole of each part
that changed since the one before, and its id is the version of that state: a page that was away is sent what changed
since the id that it has seen, or everything, so nothing is lost however long the connection was gone.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from velodrome.errors import VelodromeError
from velodrome.job.names import expand
from velodrome.job.race import Entry
from velodrome.judge.budget import Progress, Remaining, remaining
from velodrome.judge.choice import is_settled
from velodrome.judge.compare import Row
from velodrome.judge.configuration import label_of
from velodrome.judge.measures import Ratio
from velodrome.judge.plausibility import suspects
from velodrome.races.folder import RaceFolder
from velodrome.reporting.load import load_race
from velodrome.run.listing import runs_of
from velodrome.run.store import RunFolder, read_race
from velodrome.web.app import encoded
from velodrome.web.live_run import LiveRun


def standing_of(runs: Path, name: str) -> dict[str, Any]:
    """What a page shows of a race as a whole, as its finished runs show it; the reason if it cannot be read."""
    try:
        record = load_race(runs, name)
        judgement = record.judged()
        answers = [{"task": task.task, **task.answer.as_json()} for task in judgement.tasks]
    except VelodromeError as error:
        return {"rows": [], "verdicts": [], "problem": str(error), "failures": []}
    doubtful = suspects(judgement.rows)
    return {
        "rows": [{**_row(row), "suspect": doubtful.get(row.name)} for row in judgement.rows],
        "verdicts": [_verdict(answer) for answer in answers], "problem": None,
        "failures": [{"run": failure.run, "status": failure.status, "message": failure.message}
                     for failure in record.failures],
    }


def _verdict(answer: dict[str, Any]) -> dict[str, Any]:
    verdict = {name: answer[name] for name in (
        "task", "objective", "decision", "verdict", "why", "next", "best", "rival", "ratio", "interval", "reliable",
        "caveats",
    )}
    return {**verdict, "decided": is_settled(verdict["decision"], reliable=verdict["reliable"])}


def _interval(ratio: Ratio | None) -> list[float] | None:
    if ratio is None or ratio.low is None or ratio.high is None:
        return None
    return [ratio.low, ratio.high]


def _row(row: Row) -> dict[str, Any]:
    spread = row.spreads.get("examples_per_second")
    quality = row.mean("accuracy")
    return {
        "name": row.name, "label": row.label, "workers": row.workers, "runs": row.runs, "failed": row.failed,
        "single": row.single, "accuracy": quality,
        "rate": spread.mean if spread else None, "rate_range": [spread.low, spread.high] if spread else None,
        "speedup": row.speedup.estimate if row.speedup else None, "speedup_interval": _interval(row.speedup),
        "scaling": row.scaling.estimate if row.scaling else None, "scaling_interval": _interval(row.scaling),
        "time_to_target": row.mean("time_to_target"), "train_seconds": row.mean("train_seconds"),
    }


#: Seconds between checks of the files, and between two signs of life on a quiet connection.
TICK_SECONDS = 1.0
SIGN_SECONDS = 15.0
#: Live connections that a client may keep. A browser opens six to a server for all of its tabs together, and pages need
#: some for everything else; further pages poll.
MOST_STREAMS = 3
#: Sent after all news to a page that shall poll: how long its browser waits before it asks again.
POLL = b"retry: 3000\nevent: poll\ndata: poll\n\n"
#: A race's verdict is computed again after this many times of what it took, and never more often than every second.
_PATIENCE = 10.0
#: Ended runs of a race of which pace and resources are shown, and bytes of events that are read at a look.
MOST_READ, _BYTES_AT_ONCE = 24, 2 << 20
#: Jobs of a race that a page lists.
MOST_JOBS = 2000


class Watch:
    """A race, or a single run, that is being followed as long as somebody looks at it."""

    def __init__(self, runs: Path, path: Path, *, race: bool) -> None:
        self.runs, self.path, self.is_race = runs, path, race
        self.boot = secrets.token_hex(4)
        self.version = 0
        self.jobs: dict[str, LiveRun] = {}
        self.header: dict[str, Any] = {}
        self.standing: dict[str, Any] = {"rows": [], "verdicts": [], "problem": None, "failures": []}
        self._header_version = self._standing_version = 0
        self._judged: Any = None
        self._next_judgement = 0.0
        self._waiting: tuple[int, list[Entry]] = (0, [])
        self._lock = asyncio.Lock()
        self._message: tuple[int, int, bytes] | None = None
        self._looked = float("-inf")
        self.watchers = 0

    async def refresh(self) -> None:
        """Read the files, unless somebody did so just now."""
        async with self._lock:
            if time.monotonic() - self._looked < TICK_SECONDS * 0.8:
                return
            await run_in_threadpool(self._look)
            self._looked = time.monotonic()

    def _look(self) -> None:
        version = self.version + 1
        changed = False
        for run in self._runs():
            if run.poll():
                run.version, changed = version, True
        for run in self._unread():
            run.read_ended()
            run.version, changed = version, True
        header = self._describe()
        if header != self.header:
            self.header, self._header_version, changed = header, version, True
        if self._judge():
            self._standing_version, changed = version, True
        if changed:
            self.version = version

    def _runs(self) -> list[LiveRun]:
        if not self.is_race:
            self.jobs.setdefault(self.path.name, LiveRun(self.path))
            return list(self.jobs.values())
        for run in runs_of(self.path):
            if run.name not in self.jobs and len(self.jobs) < MOST_JOBS:
                self.jobs[run.name] = LiveRun(run.path)
        return list(self.jobs.values())

    def _unread(self) -> list[LiveRun]:
        """Ended runs whose events are read now: as many as take no time."""
        unread, size = [], 0
        for run in list(self.jobs.values())[-MOST_READ:]:
            if run.events_size:
                size += run.events_size
                unread.append(run)
            if size > _BYTES_AT_ONCE:
                break
        return unread

    def _describe(self) -> dict[str, Any]:
        running = RunFolder(self.path).is_locked()
        counts: dict[str, int] = {}
        for job in self.jobs.values():
            counts[job.status] = counts.get(job.status, 0) + 1
        expected = [entry.job for entry in self._expected()]
        waiting = [entry.name for entry in self._expected() if entry.name not in self.jobs]
        running = running or counts.get("running", 0) > 0
        whole = "incomplete" if waiting else "finished"
        worst = (status for status in ("failed", "interrupted", "unreadable") if counts.get(status))
        status = "running" if running else next(worst, whole)
        left = self._left() if running else None
        return {"name": self.path.name, "status": status, "running": running, "counts": counts, "waiting": waiting,
                "jobs": len(self.jobs) + len(waiting),
                # What colours and line styles stand for, so that a job that begins changes none of them.
                "labels": sorted({label_of(job.engine, job.strategy, job.implementation) for job in expected}),
                "sizes": sorted({job.workers for job in expected}),
                "remaining": left and {"jobs": left.jobs, "seconds": round(left.seconds), "text": str(left)}}

    def _left(self) -> Remaining | None:
        """What is left of the jobs that the race has announced, as its terminal shows it; None if that is unknown."""
        expected = RaceFolder(self.path.parent, self.path.name).expected() if self.is_race else {}
        jobs = {name: self.jobs.get(name) for name in expected}
        return remaining(
            Progress(expected[name], False) if job is None or job.status == "waiting"
            else Progress(expected[name], job.status != "running", job.done, job.seconds or 0.0)
            for name, job in jobs.items() if expected[name] > 0
        ) if expected else None

    def _expected(self) -> list[Entry]:
        """All jobs that the race has in any case."""
        if not self.is_race:
            return []
        try:
            changed = (self.path / "race.yaml").stat().st_mtime_ns
            if self._waiting[0] != changed:
                self._waiting = (changed, [])
                self._waiting = (changed, expand(read_race(self.path))[:MOST_JOBS])
        except (OSError, VelodromeError):
            return []
        return self._waiting[1]

    def _judge(self) -> bool:
        """Compare the runs again if one more has ended; whether that changed anything."""
        ended = frozenset((run.name, run.status, run.seconds) for run in self.jobs.values()
                          if run.status not in ("running", "waiting"))
        if not self.is_race or ended == self._judged or time.monotonic() < self._next_judgement:
            return False
        began = time.monotonic()
        standing = standing_of(self.runs, self.path.name)
        took = time.monotonic() - began
        self._next_judgement = time.monotonic() + max(TICK_SECONDS, _PATIENCE * took)
        self._judged = ended
        if standing == self.standing:
            return False
        self.standing = standing
        return True

    def state(self, since: int = 0) -> dict[str, Any]:
        """What changed after a version; everything if that is 0."""
        changed: dict[str, Any] = {"whole": since == 0}
        jobs = [run.as_json() for run in self.jobs.values() if run.version > since]
        if jobs or since == 0:
            changed["jobs"] = jobs
        if self._header_version > since or since == 0:
            changed["race"] = self.header
        if self.is_race and (self._standing_version > since or since == 0):
            changed["standing"] = self.standing
        return changed

    def message(self, since: int) -> bytes:
        """The same as bytes of a server-sent event; pages that have seen the same share it."""
        if self._message is None or self._message[:2] != (since, self.version):
            text = encoded(self.state(since))
            event = f"id: {self.boot}-{self.version}\nevent: state\ndata: {text}\n\n"
            self._message = (since, self.version, event.encode())
        return self._message[2]

    def seen(self, last: str | None) -> int:
        """The version that an id stands for; 0 if it is from another watch."""
        boot, _, number = (last or "").partition("-")
        known = boot == self.boot and number.isascii() and number.isdigit()
        return min(int(number[:12]), self.version) if known else 0

    async def stream(
        self, last: str | None, closing: asyncio.Event, *, once: bool = False
    ) -> AsyncGenerator[bytes]:
        """Messages for one page, from what it has seen on, until it leaves or the server ends; `once` for a poll."""
        since = self.seen(last)
        first = since == 0

        async def news() -> bytes | None:
            nonlocal since, first
            await self.refresh()
            if not first and self.version <= since:
                return None
            message, since, first = self.message(since), self.version, False
            return message

        self.watchers += 1
        try:
            async with aclosing(live(news, closing, TICK_SECONDS, once=once)) as messages:
                async for message in messages:
                    yield message
        finally:
            self.watchers -= 1


async def live(
    news: Callable[[], Awaitable[bytes | None]], closing: asyncio.Event, seconds: float, *, once: bool
) -> AsyncGenerator[bytes]:
    """What `news` returns, asked every so many seconds until the server ends; `once` for a poll."""
    quiet = 0.0
    yield b"retry: 2000\n\n"
    while not closing.is_set():
        if (message := await news()) is not None:
            yield message
            quiet = 0.0
        if once:
            yield POLL
            return
        if quiet >= SIGN_SECONDS:
            yield b": still here\n\n"
            quiet = 0.0
        try:
            await asyncio.wait_for(closing.wait(), seconds)
        except TimeoutError:
            quiet += seconds


class Streams:
    """Counts the live connections of every client."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def answer(self, request: Request, messages: Callable[[bool], AsyncGenerator[bytes]]) -> Response:
        """A live connection with these messages; those of a single poll where the client has enough of them."""
        client = request.client.host if request.client is not None else ""

        async def counted() -> AsyncGenerator[bytes]:
            once = self._open[client] >= MOST_STREAMS
            self._open[client] += not once
            try:
                async with aclosing(messages(once)) as stream:
                    async for message in stream:
                        yield message
            finally:
                self._open[client] -= not once
                if not self._open[client]:
                    del self._open[client]

        return StreamingResponse(counted(), media_type="text/event-stream")


class Watches:
    """The watches of all open pages; those that nobody looks at are forgotten after a while."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.streams = Streams()
        self._watches: dict[Path, Watch] = {}

    def answer(self, request: Request, watch: Watch) -> Response:
        """A live connection with what changes in a race or run."""
        last, closing = request.headers.get("last-event-id"), request.app.state.closing
        return self.streams.answer(request, lambda once: watch.stream(last, closing, once=once))

    def of(self, path: Path, *, race: bool) -> Watch:
        if len(self._watches) > 50:
            for other in [key for key, watch in self._watches.items() if not watch.watchers][:25]:
                del self._watches[other]
        if path not in self._watches:
            self._watches[path] = Watch(self.runs, path, race=race)
        return self._watches[path]
