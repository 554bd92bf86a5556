"""Which run or race a request names. A name is looked up in the store and never used as a path."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request

from velodrome.errors import BadRequest
from velodrome.printable import shown
from velodrome.run.listing import Found, locate


def race_of(request: Request) -> Found:
    """The race that the address names, or an answer 404."""
    return _found(request, request.path_params["race"], "race")


def run_of(request: Request) -> Found:
    """The run that the address names, alone or as RACE/RUN, or an answer 404."""
    race = request.path_params.get("race")
    name = request.path_params["run"]
    return _found(request, f"{race}/{name}" if race else name, "run")


def run_named(request: Request, name: str) -> Found:
    return _found(request, name, "run")


def _found(request: Request, name: str, kind: str) -> Found:
    runs = request.app.state.runs
    try:
        if name.startswith(("/", ".")) or "\\" in name or name.count("/") > 1:
            raise BadRequest(name)
        found = locate(runs, name)
    except (BadRequest, OSError, ValueError):
        raise HTTPException(404, f"There is no {kind} {shown(name)!r} in {runs}.") from None
    if found.kind != kind:
        raise HTTPException(404, f"{shown(name)!r} is a {found.kind}, not a {kind}.")
    return found


def full_name(request: Request) -> str:
    """RUN or RACE/RUN, as commands take it."""
    race = request.path_params.get("race")
    return f"{race}/{request.path_params['run']}" if race else str(request.path_params["run"])
