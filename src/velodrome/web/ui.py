"""The application of `velodrome ui`: which pages there are, what they share, and the page of a new race.

Races and runs are started, stopped and resumed as processes of the same command that a person would type.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from velodrome.clusters import DEFAULT
from velodrome.run.listing import Found, runs_of
from velodrome.run.store import RunFolder
from velodrome.run.trust import OPTION
from velodrome.web import form, race_pages, run_page
from velodrome.web.app import JsonAnswer, failure, make_app, page, race_of, run_of
from velodrome.web.processes import Boards, Control
from velodrome.web.run_files import RunIndex
from velodrome.web.security import Security
from velodrome.web.watch import Watches

#: Seconds to send the fields of a form.
_BODY_SECONDS = 20.0


async def show(request: Request) -> Response:
    if request.app.state.security.read_only:
        raise HTTPException(403, "This server was started with --read-only: it shows everything but starts nothing.")
    known = {field.name for group in form.groups() for field in group.fields}
    given = {name: value for name, value in request.query_params.items() if name in known}
    return page(request, "new.html", groups=form.groups(), given=given, folder=str(request.app.state.runs))


async def _fields(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "Send the fields as application/json.")
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            body = await request.body()
    except TimeoutError:
        raise HTTPException(408, "The request took too long to send.") from None
    except ClientDisconnect:
        raise HTTPException(413, "The request is larger than this server takes, or was cut off.") from None
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "The fields are not JSON.") from None
    if not isinstance(given, dict):
        raise HTTPException(400, "Send the fields as one JSON object.")
    return given


async def check(request: Request) -> Response:
    """What a form stands for, while it is filled in. Starts nothing."""
    given = await _fields(request)
    return JsonAnswer((await run_in_threadpool(form.check, given, request.app.state.runs)).as_json())


async def start(request: Request) -> Response:
    given = await _fields(request)
    runs: Path = request.app.state.runs
    checked = await run_in_threadpool(form.check, given, runs)
    if checked.errors or checked.name is None:
        return JsonAnswer({**checked.as_json(), "error": "The race was not started."}, 422)
    control: Control = request.app.state.control
    if RunFolder(runs / checked.name).is_locked():
        errors = {"name": f"The race {checked.name!r} is running already."}
        return JsonAnswer({**checked.as_json(), "errors": errors, "error": "The race was not started."}, 409)
    # In this thread: a process dies with the thread that started it if it asks for that.
    command = control.start(checked.words)
    if not await control.begun(command, runs / checked.name):
        complaint = command.complaint()
        return JsonAnswer(
            {**checked.as_json(), "errors": form.errors_of(complaint), "error": "The race was not started."}, 422,
        )
    return JsonAnswer({**checked.as_json(), "address": f"/races/{checked.name}"}, 202)


async def stop(request: Request) -> Response:
    run_or_race = await run_in_threadpool(_named, request)
    await run_in_threadpool(request.app.state.control.stop, run_or_race.path)
    return JsonAnswer({"stopping": run_or_race.path.name}, 202)


def _named(request: Request) -> Found:
    return run_of(request) if "run" in request.path_params else race_of(request)


def _elsewhere(path: Path) -> str | None:
    """The launcher of runs that did not run simply on this machine; None if all did."""
    folders = [path] if (path / "job.yaml").exists() else [run.path for run in runs_of(path)]
    results = [RunFolder(folder).result() for folder in folders]
    launchers = {result.launcher or DEFAULT for result in results if result is not None}
    return next((name for name in sorted(launchers) if name != DEFAULT), None)


async def resume(request: Request) -> Response:
    run_or_race = await run_in_threadpool(_named, request)
    path = run_or_race.path
    words = ["resume", run_or_race.name, f"--runs={path.parent}"] if run_or_race.kind == "run" else [
        "race", str(path / "race.yaml"), f"--name={run_or_race.name}", f"--runs={request.app.state.runs}"]
    control: Control = request.app.state.control
    if (elsewhere := await run_in_threadpool(_elsewhere, path)) is not None:
        return failure(request, 409, f"{path.name!r} ran on {elsewhere!r}, and where exactly is not stored: resume it "
                       "with the command that started it.")
    if RunFolder(path).is_locked():
        return failure(request, 409, f"{path.name!r} is running already.")
    command = control.start(words)
    if not await control.begun(command, path):
        complaint = command.complaint()
        if OPTION in complaint:  # code that is not trusted: a page runs none
            complaint += f" to this command in a terminal: {shlex.join(['velodrome', *words])}"
        return failure(request, 422, complaint)
    return JsonAnswer({"resumed": path.name}, 202)


NAVIGATION = (("/", "Races and runs"), ("/compare", "Compare"), ("/new", "New race"))


def routes() -> list[BaseRoute]:
    """Every page and answer of `velodrome ui`."""
    named = ("races/{race}", "runs/{run}", "runs/{race}/{run}")
    return [
        *race_pages.ROUTES, *run_page.ROUTES,
        Route("/new", show), Route("/api/check", check, methods=["POST"]), Route("/api/races", start, methods=["POST"]),
        *(Route(f"/api/{each}/stop", stop, methods=["POST"]) for each in named),
        *(Route(f"/api/{each}/resume", resume, methods=["POST"]) for each in named),
    ]


def ui_app(runs: Path, security: Security) -> Starlette:
    """The pages of a folder of runs."""
    control, boards = Control(runs), Boards()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            boards.close()
            control.close()

    return make_app(
        routes(), security, navigation=NAVIGATION[:2] if security.read_only else NAVIGATION, lifespan=lifespan,
        state={"runs": runs, "index": RunIndex(runs, time.monotonic), "watches": Watches(runs), "control": control,
               "boards": boards},
    )
