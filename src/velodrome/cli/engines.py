"""`velodrome engines`: the engines and their strategies, whether each can run here, and how to install others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from velodrome.cli import completion
from velodrome.cli.options import Json
from velodrome.cli.output import say, say_json
from velodrome.cli.tables import SafeConsole, print_table

app = typer.Typer(help="List engines and strategies, and whether each can run here; install those that cannot.")


def _cost(engine: dict[str, Any]) -> str:
    """What the environment of an engine takes."""
    cost = engine["install"]
    installed = "installed" if cost["installed"] else cost["command"]
    return (f"environment of its own: {installed} ({cost['download_mb']} MB to download, {cost['disk_mb']} MB on disk, "
            f"about {cost['minutes']:g} minute{'' if cost['minutes'] == 1 else 's'})")


def _own_parts(implementation: dict[str, list[str]]) -> str:
    """What Velodrome replaces in a strategy; `--json` and the reference list all parts."""
    own = "; ".join(implementation["own"])
    return f"\nVelodrome's own: {own}" if own else ""


@app.callback(invoke_without_command=True)
def list_engines(context: typer.Context, json: Json = False) -> None:
    """List engines and strategies, and whether each can run here.

    `--implementation stock` of train and race runs a strategy without the parts that are Velodrome's own. `velodrome
    engines install NAME` adds an engine that needs an environment of its own.

    Example: `velodrome engines --json`
    """
    if context.invoked_subcommand is None:
        _list(json)


def _list(json: bool) -> None:
    from velodrome.api.engines import list_engines

    listed = list_engines()
    if json:
        say_json(listed)
        return

    console = SafeConsole()
    for engine in listed:
        upstream = f" (upstream: {engine['upstream']})"
        framework = f" --framework {engine['framework']}" if engine["framework"] else ""
        console.print(f"[bold]{engine['name']}{framework}[/bold]: {engine['description']}{upstream}", soft_wrap=True)
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, leading=1)
        for heading in ("strategy", "here", "consistency", "roles"):
            table.add_column(heading, no_wrap=heading != "roles")
        table.add_column("what it does")
        for strategy in engine["strategies"]:
            here = "[green]yes[/green]" if strategy["available"] else "[yellow]no[/yellow]"
            missing = "".join(f"\n[yellow]{escape(reason)}[/yellow]" for reason in strategy["missing"])
            table.add_row(
                strategy["name"], here, strategy["consistency"], "\n".join(strategy["roles"]),
                strategy["description"] + missing + escape(_own_parts(strategy["implementation"])),
            )
        print_table(console, table)
        if engine["install"]:
            console.print(f"[dim]{escape(_cost(engine))}[/dim]", soft_wrap=True)
        versions = ", ".join(f"{package} {version}" for package, version in engine["versions"].items())
        console.print(f"[dim]{escape(versions or 'nothing installed')} in {escape(engine['interpreter'])}[/dim]\n",
                      soft_wrap=True)


EngineName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the engine.", autocompletion=completion.field("engine")),
]
_SEVERAL = "Framework of an engine that trains with several, as horovod does"
Framework = Annotated[
    str | None,
    typer.Option("--framework", help=f"{_SEVERAL}; by default torch.", autocompletion=completion.field("framework")),
]
RemovedFramework = Annotated[
    str | None,
    typer.Option("--framework", help=f"{_SEVERAL}; by default all of them.",
                 autocompletion=completion.field("framework")),
]


@app.command("install")
def install(name: EngineName, framework: Framework = None, json: Json = False) -> None:
    """Create or repair the environment of an engine that needs other package versions than Velodrome.

    It is stored in $VELODROME_ENVIRONMENTS, by default ~/.local/share/velodrome/environments, for all projects.

    Example: `velodrome engines install mxnet`
    """
    from velodrome.api.engines import install_engine

    with progress_of(name, quiet=json) as progress:
        installed = install_engine(name, progress, framework=framework)
    if json:
        say_json(installed)
        return
    done = f"installed in {installed['seconds']:.0f} s" if installed["changed"] else "installed already"
    say(f"{name}: {done}, {installed['interpreter']}")


@app.command("remove")
def remove(name: EngineName, framework: RemovedFramework = None, json: Json = False) -> None:
    """Remove the environment of an engine; without --framework, its environments for all frameworks.

    Example: `velodrome engines remove mxnet`
    """
    from velodrome.api.engines import remove_engine

    with progress_of(name, quiet=json) as progress:
        removed = remove_engine(name, progress, framework=framework)
    if json:
        say_json({"engine": name, "removed": removed})
        return
    say(f"{name}: removed" if removed else f"{name}: not installed, nothing to remove")


@contextmanager
def progress_of(name: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """What is called with each phrase of progress; `quiet` shows none."""
    console = SafeConsole(stderr=True, markup=False)
    if quiet or not console.is_terminal:
        yield lambda phrase: None if quiet else console.print(f"{name}: {phrase}", soft_wrap=True)
        return
    with console.status(f"{name}: preparing") as status:
        yield lambda phrase: status.update(f"{name}: {phrase}")
