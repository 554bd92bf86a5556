"""The application that every page of ours is part of: routes, static files, errors as pages, the guard before them, and
how pages write numbers, durations and moments.

`velodrome ui` and `velodrome serve` build theirs with `make_app`, and draw pages with `page`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from velodrome.errors import BadRequest, VelodromeError, bytes_text, printable, shown
from velodrome.reporting.write import code
from velodrome.run.listing import Found, locate
from velodrome.web.security import Guard, Security, csrf_of


def encoded(content: Any) -> str:
    """Strict JSON in ASCII: what is not finite is null, and half a surrogate in a name is escaped."""
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError:  # looking at every number first would cost every answer
        return json.dumps(_finite(content), allow_nan=False, separators=(",", ":"))


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    return [_finite(element) for element in content] if isinstance(content, list | tuple) else content


class JsonAnswer(Response):
    """Plain data as an answer."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encoded(content).encode("ascii")


def race_of(request: Request) -> Found:
    """The race that the address names, or an answer 404."""
    return _located(request, request.path_params["race"], "race")


def run_of(request: Request) -> Found:
    """The run that the address names, alone or as RACE/RUN, or an answer 404."""
    race = request.path_params.get("race")
    name = request.path_params["run"]
    return _located(request, f"{race}/{name}" if race else name, "run")


def run_named(request: Request, name: str) -> Found:
    return _located(request, name, "run")


def _located(request: Request, name: str, kind: str) -> Found:
    runs = request.app.state.runs
    try:
        if name.startswith(("/", ".")) or "\\" in name or name.count("/") > 1:
            raise BadRequest(name)
        run_or_race = locate(runs, name)
    except (BadRequest, OSError, ValueError):
        raise HTTPException(404, f"There is no {kind} {shown(name)!r} in {runs}.") from None
    if run_or_race.kind != kind:
        raise HTTPException(404, f"{shown(name)!r} is a {run_or_race.kind}, not a {kind}.")
    return run_or_race


def full_name(request: Request) -> str:
    """RUN or RACE/RUN, as commands take it."""
    race = request.path_params.get("race")
    return f"{race}/{request.path_params['run']}" if race else str(request.path_params["run"])


#: Kinds of static files; nothing else is served.
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain",
          ".webmanifest": "application/manifest+json"}
Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


def make_app(
    routes: Sequence[BaseRoute], security: Security, *, navigation: Sequence[tuple[str, str]] = (),
    lifespan: Lifespan | None = None, state: Mapping[str, Any] | None = None,
    direct: Mapping[str, ASGIApp] | None = None,
) -> Starlette:
    """An application with these routes, our static files and error pages, behind the guard.

    `navigation` has the addresses and names of the links on top of every page. `state` becomes `request.app.state`.
    What is posted to the paths of `direct` goes there straight behind the guard, without routing.
    """
    app = Starlette(
        routes=[*routes, Route("/static/{path:path}", static), Route("/favicon.ico", favicon)],
        middleware=[Middleware(Guard, security=security, direct=direct, failed=_unexpected)],
        exception_handlers={HTTPException: _http_error, VelodromeError: _velodrome_error},
        lifespan=lifespan,
    )
    app.state.security, app.state.navigation = security, tuple(navigation)
    #: Set when the server begins to end: live answers end then, too.
    app.state.closing = asyncio.Event()
    for name, value in (state or {}).items():
        setattr(app.state, name, value)
    return app


def page(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A page from a template of `velodrome/web/templates`; every text in it is escaped."""
    return HTMLResponse(
        _environment().get_template(template).render(
            request=request, csrf=csrf_of(request), navigation=request.app.state.navigation,
            read_only=request.app.state.security.read_only, here=request.url.path, version=_version(), **context,
        ),
        status,
    )


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = files("velodrome.web") / "templates"
    environment = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # of `Markup` nothing is changed
    )
    environment.globals["static"] = static_address
    environment.filters.update(FILTERS)
    return environment


@cache
def _version() -> str:
    return version("velodrome")


@cache
def _static_files() -> dict[str, bytes]:
    """Every static file of ours by its path: what is not in here is not served, whatever the request looks like."""
    home = files("velodrome.web") / "static"
    folders = {"": home, "vendor/": home / "vendor"}
    return {
        f"{prefix}{file.name}": file.read_bytes() for prefix, folder in folders.items() for file in folder.iterdir()
        if file.is_file() and "." + file.name.rpartition(".")[2] in _KINDS
    }


@cache
def static_address(path: str) -> str:
    """The address of a static file, which changes with its content, so that browsers may keep it."""
    return f"/static/{path}?v={hashlib.sha256(_static_files()[path]).hexdigest()[:12]}"


async def static(request: Request) -> Response:
    path = request.path_params["path"]
    content = _static_files().get(path)
    if content is None:
        raise HTTPException(404, "There is no such file.")
    # Modules that import each other have no version in their addresses: those are asked for again.
    kept = "public, max-age=31536000, immutable" if "v" in request.query_params else "no-cache"
    tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers = {"Cache-Control": kept, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_KINDS["." + path.rpartition(".")[2]], headers=headers)


async def favicon(request: Request) -> Response:
    return Response(_static_files()["icon.svg"], media_type="image/svg+xml", headers={"Cache-Control": "max-age=86400"})


def wants_json(request: Request) -> bool:
    return request.url.path.startswith("/api/") or request.url.path == "/openapi.json"


def failure(request: Request, status: int, text: str, **more: Any) -> Response:
    """An error as a page with a sentence, or as JSON for what a program asked."""
    if wants_json(request):
        return JsonAnswer({"error": printable(text), **more}, status)
    return page(request, "error.html", status=status, code=status, text=text)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = error.detail if error.status_code != 404 or error.detail != "Not Found" else "There is no such page."
    response = failure(request, error.status_code, text)
    response.headers.update(error.headers or {})
    return response


async def _velodrome_error(request: Request, error: Exception) -> Response:
    return failure(request, 400 if isinstance(error, BadRequest) else 500, str(error))


def _unexpected(request: Request) -> Response:
    return failure(request, 500, "Something unexpected happened: the terminal of the server has the details.")


ABSENT = "–"


def duration(seconds: float | None) -> str:
    """`0.8 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, with separators for thousands."""
    if value is None or not isinstance(value, int | float) or not math.isfinite(value):
        return ABSENT
    if value == 0 or abs(value) >= 100 or (isinstance(value, int) and abs(value) >= 10):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def share(value: float | None) -> str:
    return ABSENT if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def quality(value: float | None, metric: str | None = "accuracy") -> str:
    """The metric that decides: accuracies in per cent, others as they are."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{100 * value:.2f} %" if metric == "accuracy" else f"{value:.4g}"


def moment(seconds: float | None) -> str:
    """A moment in local time; the page has the exact one beside it."""
    if not seconds or not math.isfinite(seconds):
        return ABSENT
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, OSError, ValueError):
        return ABSENT


def size(count: float | None) -> str:
    return ABSENT if count is None or not math.isfinite(count) else bytes_text(count)


def quoted_path(name: str) -> str:
    """A name as part of an address, its slashes kept."""
    return quote(os.fsencode(name), safe="/")


FILTERS: dict[str, Callable[..., Any]] = {
    "code": code, "duration": duration, "number": number, "share": share, "quality": quality, "moment": moment,
    "size": size, "path": quoted_path,
}
