"""Options and the start of commands that serve pages."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from velodrome.errors import BadRequest

if TYPE_CHECKING:
    from starlette.applications import Starlette

Port = Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes any free one.", show_default=True)]
Host = Annotated[str, typer.Option("--host", help="Address to listen on.", show_default=True)]
AllowRemote = Annotated[
    bool,
    typer.Option("--allow-remote", help="Allow an address that other machines can reach; visitors need the token that "
                 "is printed."),
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the address only.")]


def need_packages() -> None:
    """Refuse if the packages that serve pages are not installed."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise BadRequest(f"pages need the package {missing[0]!r}, which is not installed: "
                         'pip install "velodrome[ui]"')


def serve_page(
    make: Callable[[], Starlette], host: str, port: int, *, allow_remote: bool, browser: bool,
    as_json: bool = False, shared: bool = False,
) -> None:
    """Serve an application until Ctrl-C, and print its address; a `shared` port is for several processes."""
    from velodrome.cli.output import say, say_json
    from velodrome.web.server import check_host, listen, serve

    with listen(check_host(host, allow_remote=allow_remote), port, shared=shared) as listener:
        serve(
            make(), listener, browser=browser,
            say=lambda address: say_json({"address": address}) if as_json else say(address, flush=True),
        )
