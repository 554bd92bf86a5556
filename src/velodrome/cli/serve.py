"""`velodrome serve`: a page on which trained models can be used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json, Mirror, Runs, TrustCode, asking
from velodrome.cli.web_options import AllowRemote, Host, NoBrowser, Port


def command(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Finished runs, RACE/RUN, or paths of their folders.",
                       autocompletion=completion.stored),
    ],
    runs: Runs = Path("runs"), port: Port = 8300, host: Host = "127.0.0.1", allow_remote: AllowRemote = False,
    no_browser: NoBrowser = False,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, max=64, help="Processes that answer requests, each with its own copy of the "
                     "models; by default one for each core, at most 4.", show_default=False),
    ] = None,
    mirror: Mirror = None, trust_code: TrustCode = None, json: Json = False,
) -> None:
    """Serve trained models on a web page and over HTTP.

    Upload, paste or drag photos, draw a digit, pick test images, type words, or fill in the columns of a table; several
    models answer side by side. Programs use POST /api/predict, which /openapi.json describes. Models run in ONNX
    Runtime and are exported first if necessary.

    Needs `pip install "velodrome[serve]"`.

    Examples:

    `velodrome serve fruits`

    `velodrome serve monday tuesday --port 0 --no-browser`

    `curl -F file=@apple.jpg http://127.0.0.1:8300/api/predict`
    """
    from velodrome.cli.output import say_on_stderr
    from velodrome.cli.web_options import need_packages, serve_page

    need_packages()
    from velodrome.serving.sessions import runtime
    from velodrome.web.serve import check_runs, serve_app
    from velodrome.web.siblings import usual_processes

    runtime()
    count = processes or usual_processes()
    if unready := asking(lambda trusted: check_runs(names, runs, trusted), trust_code):
        say_on_stderr(f"exporting {', '.join(unready)}, once; this takes a few seconds")
    serve_page(
        lambda: serve_app(names, runs, host, mirror=mirror, processes=count), host, port, allow_remote=allow_remote,
        browser=not no_browser, as_json=json, shared=count > 1,
    )
