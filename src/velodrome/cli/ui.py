"""`velodrome ui`: races and runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli.options import Json, Runs
from velodrome.cli.web_options import AllowRemote, Host, NoBrowser, Port

ReadOnly = Annotated[bool, typer.Option("--read-only", help="Show everything, and start or stop nothing.")]


def command(
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
    from velodrome.cli.web_options import need_packages, serve_page

    need_packages()
    from velodrome.web.security import Security
    from velodrome.web.ui import ui_app

    serve_page(
        lambda: ui_app(runs, Security.for_address(host, read_only=read_only)), host, port, allow_remote=allow_remote,
        browser=not no_browser, as_json=json,
    )
