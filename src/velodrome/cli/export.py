"""`velodrome export`: a trained model as ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json, Mirror, Runs, TrustCode, asking


def command(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A finished run, RACE/RUN, or the path of its folder.",
                       autocompletion=completion.stored),
    ],
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
    from velodrome.api.serving import export
    from velodrome.cli.options import relative
    from velodrome.cli.output import say, say_json

    written = asking(
        lambda names: export(run, runs, format=form, again=again, mirror=mirror, trust_code=names), trust_code
    )
    if json:
        say_json(written)
    else:
        say(f"{relative(written['file'])}: differs from the engine's own output by at most "
            f"{written['difference']:.1g} on {written['checked']} test examples")
