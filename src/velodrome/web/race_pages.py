"""The pages of races, live: the list of races and runs, and each race with its jobs, curves, resources, speedup and
verdict."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shlex
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from velodrome import files
from velodrome.reporting.load import load_race
from velodrome.run.listing import STATUSES, Found
from velodrome.run.store import RunFolder
from velodrome.web.app import JsonAnswer, page, race_of
from velodrome.web.index import Listed, RunIndex
from velodrome.web.watch import POLL, Watch

#: Rows of a page; the others are found by searching or on the next page.
ROWS = 1000
#: Seconds that a page waits for rows which were never read; the others follow as soon as they are.
_FIRST_SECONDS = 0.3
#: Seconds between checks of the folder for a list that is open.
_TICK_SECONDS = 2.0


async def _listed(
    request: Request, kind: str = "", seconds: float | None = None
) -> tuple[Listed, dict[str, Any]]:
    index: RunIndex = request.app.state.index
    query = request.query_params
    asked: dict[str, Any] = {
        "text": query.get("q", "")[:120], "status": query.get("status", "") if query.get("status") in STATUSES else "",
        "kind": kind or (query.get("kind", "") if query.get("kind") in ("run", "race") else ""),
    }
    number = query.get("page", "1")
    at = min(10_000, int(number[:6])) if number.isascii() and number.isdigit() else 1
    asked["offset"] = max(0, at - 1) * ROWS
    found = await run_in_threadpool(index.listed, **asked, limit=ROWS, seconds=seconds)
    return found, {**asked, "page": max(1, at)}


async def show(request: Request) -> Response:
    rows_only = request.query_params.get("part") == "rows"
    listed, asked = await _listed(request, seconds=None if rows_only else _FIRST_SECONDS)
    pages = max(1, -(-listed.found // ROWS))
    template = "rows.html" if rows_only else "races.html"
    return page(request, template, listed=listed, asked=asked, pages=pages, statuses=STATUSES,
                folder=str(request.app.state.runs))


async def races(request: Request) -> Response:
    listed, _ = await _listed(request, "race")
    return JsonAnswer({"races": listed.rows, "found": listed.found})


async def runs(request: Request) -> Response:
    listed, _ = await _listed(request)
    return JsonAnswer({"runs": listed.rows, "found": listed.found, "total": listed.total})


async def stream(request: Request) -> Response:
    """Tells a page when its list has changed; the id is a digest of what it shows."""
    closing: asyncio.Event = request.app.state.closing

    async def messages(once: bool) -> AsyncGenerator[bytes]:
        last = request.headers.get("last-event-id", "")
        quiet = 0.0
        yield b"retry: 2000\n\n"
        while not closing.is_set():
            listed, _ = await _listed(request)
            digest = await run_in_threadpool(_digest, listed)
            if digest != last:
                last, quiet = digest, 0.0
                yield f"id: {digest}\nevent: changed\ndata: {digest}\n\n".encode()
            if once:
                yield POLL
                return
            if quiet >= 15:
                yield b": still here\n\n"
                quiet = 0.0
            try:
                await asyncio.wait_for(closing.wait(), _TICK_SECONDS)
            except TimeoutError:
                quiet += _TICK_SECONDS

    answer: Response = request.app.state.watches.streams.answer(request, messages)
    return answer


def _digest(listed: Listed) -> str:
    shown = [(row["run"], row["status"], row.get("runs"), row.get("seconds")) for row in listed.rows]
    return hashlib.sha256(json.dumps([shown, listed.found]).encode()).hexdigest()[:16]


async def _watch(request: Request) -> Watch:
    found = await run_in_threadpool(race_of, request)
    watch: Watch = request.app.state.watches.of(found.path, race=True)
    return watch


async def show_race(request: Request) -> Response:
    watch = await _watch(request)
    await watch.refresh()
    try:
        text = await run_in_threadpool(RunFolder(watch.path).read_text, "race.yaml", errors="replace")
    except OSError as error:
        text = f"race.yaml cannot be read: {error.strerror}"
    state = watch.state()
    jobs = sorted(state["jobs"], key=lambda job: job["name"])
    groups = dict.fromkeys(f"{job['label']}, {job['workers']} worker{'' if job['workers'] == 1 else 's'}"
                           for job in jobs if job["workers"])
    return page(request, "race.html", race=state["race"], jobs=jobs, groups=list(groups), standing=state["standing"],
                text=text, again=_again(watch.path))


def _again(race: Path) -> str:
    """The command that runs what a race is missing, from any folder."""
    return shlex.join(["velodrome", "race", str(race / "race.yaml"), "--name", race.name, "--runs", str(race.parent)])


async def state(request: Request) -> Response:
    watch = await _watch(request)
    await watch.refresh()
    return JsonAnswer(watch.state())


async def stream_race(request: Request) -> Response:
    watch = await _watch(request)
    last, state = request.headers.get("last-event-id"), request.app.state
    answer: Response = state.watches.streams.answer(
        request, lambda once: watch.stream(last, state.closing, once=once)
    )
    return answer


async def report(request: Request) -> Response:
    """The report of the race as a file; it holds its own style and script, so that it is not shown as a page here."""
    found = await run_in_threadpool(race_of, request)
    text = await run_in_threadpool(_report, found)
    return Response(files.encoded(text), media_type="text/html", headers={
        "Content-Disposition": f'attachment; filename="{found.name}.html"',
    })


def _report(found: Found) -> str:
    from velodrome.reporting.document import make_pictures, make_report
    from velodrome.reporting.page import to_html

    record = load_race(found.path.parent, found.name)
    made = make_report(record)
    return to_html(made, make_pictures(made))


ROUTES = (
    Route("/", show), Route("/api/races", races), Route("/api/runs", runs), Route("/api/stream", stream),
    Route("/races/{race}/report", report),
    Route("/races/{race}", show_race), Route("/api/races/{race}", state),
    Route("/api/races/{race}/stream", stream_race),
)
