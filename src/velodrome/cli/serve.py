"""Commands that serve pages, and others that use trained models: `velodrome ui`, `serve`, `export` and `predict`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import velodrome
from velodrome.cli import completion
from velodrome.cli.options import Json, Mirror, Run, Runs, TrustCode, asking, relative
from velodrome.cli.output import say, say_json, say_on_stderr
from velodrome.errors import LONGEST_LINE, BadRequest, shown

if TYPE_CHECKING:
    from starlette.applications import Starlette

Port = Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes any free one.", show_default=True)]
Host = Annotated[str, typer.Option("--host", help="Address to listen on.", show_default=True)]
AllowRemote = Annotated[
    bool,
    typer.Option("--allow-remote", help="Allow an address that other machines can reach; visitors then need the "
                                        "printed token."),
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


def serve_command(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Finished runs, RACE/RUN, paths of their folders, or addresses that "
                       "--artifacts sent them to.", autocompletion=completion.stored),
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

    `velodrome serve s3://bucket/models/monday`

    `curl -F file=@apple.jpg http://127.0.0.1:8300/api/predict`
    """
    need_packages()
    from velodrome.run.artifacts import fetch, is_address
    from velodrome.serving.model import runtime
    from velodrome.web.model_api import check_runs, serve_app
    from velodrome.web.processes import usual_processes

    runtime()
    names = [fetch(name, runs).name if is_address(name) else name for name in names]
    count = processes or usual_processes()
    if unready := asking(lambda trusted: check_runs(names, runs, trusted), trust_code):
        say_on_stderr(f"exporting {', '.join(unready)}, once; this takes a few seconds")
    serve_page(
        lambda: serve_app(names, runs, host, mirror=mirror, processes=count), host, port, allow_remote=allow_remote,
        browser=not no_browser, as_json=json, shared=count > 1,
    )


def export_command(
    run: Run,
    form: Annotated[str, typer.Option("--format", help="The format: onnx.")] = "onnx",
    runs: Runs = Path("runs"),
    mirror: Mirror = None,
    trust_code: TrustCode = None,
    again: Annotated[bool, typer.Option("--again", help="Export again, even if there is an export.")] = False,
    json: Json = False,
) -> None:
    """Export the model of a run to ONNX, and check its outputs against the engine's.

    The file is stored beside the run's model, with `serving.json`, which describes its inputs. It is kept only if its
    outputs on 100 test examples differ from the engine's by at most 1e-4. Needs `pip install "velodrome[serve]"`.

    Example: `velodrome export my-run --format onnx`
    """
    written = asking(
        lambda names: velodrome.export(run, runs, format=form, again=again, mirror=mirror, trust_code=names), trust_code
    )
    if json:
        say_json(written)
    else:
        say(f"{relative(written['file'])}: differs from the engine's own output by at most "
            f"{written['difference']:.1g} on {written['checked']} test examples")


def predict_command(
    run: Run,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Pictures, .csv tables, .json examples, or texts.")
    ],
    runs: Runs = Path("runs"),
    top: Annotated[int, typer.Option("--top", help="Number of classes to list, the most probable first.")] = 3,
    mirror: Mirror = None,
    trust_code: TrustCode = None,
    json: Json = False,
) -> None:
    """Run a trained model on files: pictures, tables or texts.

    The model runs in ONNX Runtime, and is exported first if necessary. For a table it predicts every
    row, for a text the next words.

    Examples:

    `velodrome predict fruits apple.jpg kiwi.jpg`

    `velodrome predict diabetes patients.csv --json`
    """
    predicted = asking(
        lambda names: velodrome.predict(run, files, runs, top=top, mirror=mirror, trust_code=names), trust_code
    )
    if json:
        say_json(predicted)
        return
    for row in predicted["files"]:
        place = f" row {row['row']}" if "row" in row else ""
        say(f"{shown(row['file'], LONGEST_LINE)}{place}: {', '.join(map(_prediction, row['predictions']))}")


def _prediction(answer: dict[str, Any]) -> str:
    if "class" in answer:
        return f"{shown(answer['class'])} {100 * answer['probability']:.1f} %"
    return f"{shown(answer['name'])} {answer['value']:.6g}"
