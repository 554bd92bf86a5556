"""The page of a run: what happened in it, process by process, and what it learned."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from velodrome import files
from velodrome.errors import BadRequest, VelodromeError
from velodrome.models.recipe import DESCRIPTION
from velodrome.run.listing import Found
from velodrome.run.store import RunFolder
from velodrome.tasks.registry import task_of_result
from velodrome.web import logs, run_view, wording, wrong_images
from velodrome.web.app import page
from velodrome.web.board import Boards
from velodrome.web.finding import full_name, run_of
from velodrome.web.json_answer import JsonAnswer
from velodrome.web.security import host_name, is_loopback

T = TypeVar("T")
#: Seconds that exporting a model may take.
_EXPORT_SECONDS = 600.0


async def show(request: Request) -> Response:
    found = await run_in_threadpool(run_of, request)
    names: dict[str, Any] = {"run": full_name(request), "race": request.path_params.get("race")}
    return await run_in_threadpool(lambda: page(request, "run.html", **_content(found), **names))


def _content(found: Found) -> dict[str, Any]:
    folder = RunFolder(found.path)
    result, problem = folder.read()
    if problem is not None:
        problem = f"{problem}: {shlex.join(['velodrome', 'runs', 'check', str(found.path)])} shows details"
    result = result or {}
    try:
        configuration = run_view.configuration_of(found.path)
    except VelodromeError as unreadable:
        configuration, problem = [], problem or str(unreadable)
    error = result.get("error") or {}
    again = shlex.join([
        "velodrome", "train", str(found.path / "job.yaml"), "--name", f"{found.name[:110]}-again", "--runs",
        str(found.path.parent),
    ])
    usable = result.get("status") == "finished" and (found.path / "model" / DESCRIPTION).is_file()
    test = result.get("test") or {}
    metric = task_of_result(result).metric.name if result else None
    return {
        "state": folder.status(), "result": result, "configuration": configuration, "problem": problem,
        "environment": run_view.environment_of(result) if result else [], "error": error, "command": again,
        "serve": _serve_command(found) if usable else None,
        "metric": metric, "score": test.get(metric), "notes": run_view.notes_of(result),
        "confusion": run_view.confusion_of(result), "logs": logs.names_of(found.path),
        "staleness": result.get("staleness"), "shares": result.get("shares"),
        "resumable": folder.status() in ("interrupted", "failed"),
    }


async def view(request: Request) -> Response:
    found = await run_in_threadpool(run_of, request)
    return JsonAnswer(await run_in_threadpool(run_view.run_view, found.path))


async def stream(request: Request) -> Response:
    found = await run_in_threadpool(run_of, request)
    last, state = request.headers.get("last-event-id"), request.app.state
    watch = state.watches.of(found.path, race=False)
    answer: Response = state.watches.streams.answer(
        request, lambda once: watch.stream(last, state.closing, once=once)
    )
    return answer


async def log_lines(request: Request) -> Response:
    found = await run_in_threadpool(run_of, request)
    query = request.query_params
    return JsonAnswer(await run_in_threadpool(
        logs.search, found.path, query.get("q", "")[:200], query.get("process", "")[:120]
    ))


async def wrong(request: Request) -> Response:
    """The test images that were classified wrongly, or why they cannot be shown."""
    found = await run_in_threadpool(run_of, request)
    try:
        mistakes = await run_in_threadpool(_wrong, found)
    except VelodromeError as error:
        return JsonAnswer({"images": [], "reason": str(error)})
    base = f"/api/runs/{wording.path(full_name(request))}/images"
    return JsonAnswer({"count": mistakes.count, "total": mistakes.total, "images": [
        {"address": f"{base}/{place}", "place": place, "class": name, "predicted": predicted}
        for place, name, predicted in zip(mistakes.places, mistakes.classes, mistakes.predicted, strict=True)
    ]})


def _wrong(found: Found) -> wrong_images.Wrong:
    folder = RunFolder(found.path)
    return wrong_images.wrong_of(folder.job(), folder.result() or {}, found.path)


async def image(request: Request) -> Response:
    found = await run_in_threadpool(run_of, request)
    try:
        content = await run_in_threadpool(
            lambda: wrong_images.picture(RunFolder(found.path).job(), request.path_params["place"])
        )
    except VelodromeError:
        content = None
    if content is None:
        raise HTTPException(404, "There is no such test image.")
    return Response(content, media_type="image/png", headers={"Cache-Control": "private, max-age=3600"})


async def tensorboard(request: Request) -> Response:
    """Start TensorBoard on this run, and return its address."""
    found = await run_in_threadpool(run_of, request)
    if not is_loopback(host_name(request.headers["host"])):
        raise BadRequest("TensorBoard listens on loopback only, and you look from another machine: start it yourself "
                         f"with tensorboard --logdir {found.path / 'tensorboard'}")
    if files.is_linked(found.path / "tensorboard", found.path):
        raise BadRequest(f"{str(found.path / 'tensorboard')!r} is a link, which is not followed")
    boards: Boards = request.app.state.boards
    return JsonAnswer({"address": await boards.address(found.path / "tensorboard")})


async def serve(request: Request) -> Response:
    """Start `velodrome serve` on the model of this run, and return its address."""
    found = await run_in_threadpool(run_of, request)
    if not is_loopback(host_name(request.headers["host"])):
        raise BadRequest("the model would answer on loopback only, and you look from another machine: start it "
                         f"yourself with {_serve_command(found)}")
    boards: Boards = request.app.state.boards
    return JsonAnswer({"address": await boards.model_address(found.path)})


async def export(request: Request) -> Response:
    """Export the model of this run, after which the page can tell what it predicts."""
    found = await run_in_threadpool(run_of, request)
    command = request.app.state.control.start(["export", str(found.path), f"--runs={request.app.state.runs}"])
    try:
        failed = await run_in_threadpool(command.process.wait, _EXPORT_SECONDS)
    except subprocess.TimeoutExpired:
        raise BadRequest(f"exporting the model takes longer than {_EXPORT_SECONDS:g} s: look again later") from None
    if failed:
        raise BadRequest(command.complaint())
    return JsonAnswer({"exported": found.name})


def _serve_command(found: Found) -> str:
    return shlex.join(["velodrome", "serve", str(found.path)])


def _routes() -> list[BaseRoute]:
    found: list[BaseRoute] = []
    for name in ("{run}", "{race}/{run}"):
        api = f"/api/runs/{name}"
        found += [
            Route(f"{api}/view", view), Route(f"{api}/stream", stream), Route(f"{api}/logs", log_lines),
            Route(f"{api}/wrong", wrong), Route(f"{api}/images/{{place:int}}", image),
            Route(f"{api}/tensorboard", tensorboard, methods=["POST"]), Route(f"{api}/serve", serve, methods=["POST"]),
            Route(f"{api}/export", export, methods=["POST"]), Route(f"/runs/{name}", show),
        ]
    return found


ROUTES = _routes()
