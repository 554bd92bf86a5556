"""The page of a race, live: its jobs, curves, resources, speedup and verdict."""

from __future__ import annotations

import shlex
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from velodrome import files
from velodrome.reporting.load import load_race
from velodrome.run.listing import Found
from velodrome.run.store import RunFolder
from velodrome.web.app import page
from velodrome.web.finding import race_of
from velodrome.web.json_answer import JsonAnswer
from velodrome.web.watch import Watch


async def _watch(request: Request) -> Watch:
    found = await run_in_threadpool(race_of, request)
    watch: Watch = request.app.state.watches.of(found.path, race=True)
    return watch


async def show(request: Request) -> Response:
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


async def stream(request: Request) -> Response:
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
    made = make_report(record, margins=record.margins_for())
    return to_html(made, make_pictures(made))


ROUTES = (
    Route("/races/{race}/report", report),
    Route("/races/{race}", show), Route("/api/races/{race}", state), Route("/api/races/{race}/stream", stream),
)
