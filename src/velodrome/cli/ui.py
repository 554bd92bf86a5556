"""`velodrome ui`: races and runs in a browser; and the start of any command that serves pages."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from velodrome.cli.options import Json, Runs
from velodrome.cli.output import say, say_json
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
    from velodrome.web.server import check_host, listen, serve

    with listen(check_host(host, allow_remote=allow_remote), port, shared=shared) as listener:
        serve(
            make(), listener, browser=browser,
            say=lambda address: say_json({"address": address}) if as_json else say(address, flush=True),
        )


ReadOnly = Annotated[bool, typer.Option("--read-only", help="Show everything, and start or stop nothing.")]


def ui_command(
    runs: Runs = Path("runs"), port: Port = 8200, host: Host = "127.0.0.1", allow_remote: AllowRemote = False,
    read_only: ReadOnly = False, no_browser: NoBrowser = False, json: Json = False,
) -> None:
    """Watch races live in a browser, and open and compare runs.

    Prints its address and opens it. Races that are started elsewhere appear by themselves. Ctrl-C ends it, and the
    races that were started from its pages; those can be resumed.

    Needs `pip install "velodrome[ui]"`.

    Examples:

    `velodrome ui`

    `velodrome ui --runs experiments --port 0 --no-browser`

    `velodrome ui --host 0.0.0.0 --allow-remote --read-only`
    """

    need_packages()
    from velodrome.web.security import Security
    from velodrome.web.ui import ui_app

    serve_page(
        lambda: ui_app(runs, Security.for_address(host, read_only=read_only)), host, port, allow_remote=allow_remote,
        browser=not no_browser, as_json=json,
    )
