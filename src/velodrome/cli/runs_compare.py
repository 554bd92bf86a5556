"""`velodrome runs compare`: two runs side by side, with what differs and what their repetitions show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json, Runs
from velodrome.cli.output import complain, say_json

if TYPE_CHECKING:
    from velodrome.judge.pair import Pair


def command(
    first: Annotated[
        str, typer.Argument(metavar="A", help="Name of a run, or RACE/RUN.", autocompletion=completion.stored)
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=completion.stored)],
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Compare two runs: their configuration, their measurements, and what differs.

    Runs in the same folder that differ from A or B in the seed only count as repetitions. A is reported to beat B only
    if both have repetitions and the 95 % interval of the ratio excludes 1.

    Examples:

    `velodrome runs compare first/torch-ddp-2w-128b-1 first/torch-single-1w-128b-1`

    `velodrome runs compare monday tuesday --json`
    """
    from velodrome.api import runs as api

    pair, skipped = api.compare_runs(first, second, runs)
    for name, problem in skipped.items():
        complain(f"{name}: {problem}; it is left out")
    if json:
        say_json({**pair.as_json(), "skipped": skipped})
    else:
        _show(pair)


def _show(pair: Pair) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from velodrome.cli.safe_console import SafeConsole
    from velodrome.cli.tables import print_table
    from velodrome.judge.configuration import text_of

    console = SafeConsole()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    for letter, name in zip("AB", pair.names, strict=True):
        console.print(f"{letter}: {name}", soft_wrap=True, markup=False)
        table.add_column(letter, justify="right")
    table.add_column("A / B", justify="right")
    table.add_row("runs", *(str(len(side)) for side in pair.results), "")
    for name, values in pair.differing.items():
        table.add_row(f"[yellow]{name}[/yellow]", *(escape(text_of(value)) for value in values), "")
    for line in pair.lines:
        cells = ["–" if value is None else line.measure.text(value) for value in line.means]
        table.add_row(f"{line.measure.heading} {line.measure.unit}".strip(), *cells, _ratio(line.ratio))
    print_table(console, table)
    same = ", ".join(f"{name} {text_of(value)}" for name, value in pair.same.items())
    console.print(f"The same for both: {same}", soft_wrap=True, markup=False)
    for sentence in pair.sentences():
        console.print(sentence, soft_wrap=True, markup=False)


def _ratio(place: Any) -> str:
    if place is None:
        return ""
    interval = f" ({place.low:.2f}–{place.high:.2f})" if place.has_interval else ""
    return f"{place.estimate:.2f}{interval}"
