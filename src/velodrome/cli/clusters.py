"""`velodrome clusters`, the places where jobs can run, and `velodrome engines`, what can run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from velodrome.cli import completion
from velodrome.cli.options import Json
from velodrome.cli.output import SafeConsole, print_table, say, say_json, say_on_stderr

clusters_app = typer.Typer(
    no_args_is_help=True, help="List, show, add, check, prepare and clean up clusters: the places where jobs can run.",
)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A cluster of clusters.yaml, or launcher and options as for --on.",
                   autocompletion=completion.launchers),
]


@clusters_app.command("list")
def list_clusters(json: Json = False) -> None:
    """List the launchers, and the clusters of clusters.yaml: of this folder, then of ~/.config/velodrome.

    With VELODROME_CLUSTERS=FILE only that file is read.

    Example: `velodrome clusters list`
    """
    from velodrome.api import clusters

    rows = clusters.list()
    if json:
        say_json(rows)
        return
    for row in rows:
        where = f" ({row['file']})" if row["file"] else ""
        options = f":{row['options']}" if row["options"] else ""
        say(f"{row['name']}{options}: {row['error'] or row['description']}{where}")
        if row["hosts"]:
            say(f"  {', '.join(row['hosts'])}")


@clusters_app.command("show")
def show(name: Name, json: Json = False) -> None:
    """Show a cluster with all of its options, defaults included.

    Example: `velodrome clusters show ssh:host1,host2`
    """
    from velodrome.api import clusters

    cluster = clusters.show(name)
    if json:
        say_json(cluster)
        return
    say(f"{cluster['name']}: {cluster['description']}" + (f" ({cluster['file']})" if cluster["file"] else ""))
    for field, value in cluster["options"].items():
        say(f"  {field}: {'' if value is None else value}")


@clusters_app.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new cluster.")],
    where: Annotated[str, typer.Argument(metavar="LAUNCHER[:OPTIONS]",
        help="Launcher and options, as for --on: ssh:host1,host2.")],
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="FIELD=VALUE", help="Another option; repeat it for more.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="File to write; by default clusters.yaml of this folder.")
    ] = None,
    json: Json = False,
) -> None:
    """Add a cluster to clusters.yaml.

    Example: `velodrome clusters add lab ssh:host1,host2 --option python=/opt/velodrome/bin/python`
    """
    from velodrome.api import clusters
    from velodrome.clusters.yaml_files import parse_yaml
    from velodrome.errors import BadRequest

    fields = {}
    for word in option or []:
        field, equals, value = word.partition("=")
        if not equals:
            raise BadRequest(f"--option {word!r}: write it as FIELD=VALUE, for example python=/opt/python")
        try:
            fields[field.strip()] = parse_yaml(value)
        except ValueError as error:
            raise BadRequest(f"--option {word!r}: the value cannot be read: {error}") from None
    made = clusters.add(name, where, fields, file=file)
    if json:
        say_json(made)
    else:
        say(f"{name} is in {made['file']}: use it as --on {name}")


@clusters_app.command("check")
def check(
    name: Name,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the network between every pair of hosts.")
    ] = False,
    json: Json = False,
) -> None:
    """Examine the hosts of a cluster, as `velodrome doctor --on NAME` does for a small job.

    Example: `velodrome clusters check local`
    """
    from velodrome.api.clusters import doctor
    from velodrome.cli.check import print_findings

    print_findings(doctor(on=name, measure=measure, on_wait=say_on_stderr), as_json=json)


@clusters_app.command("prepare")
def prepare(
    name: Name,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", help="Engine that is installed there; repeat it for more; by default all that are "
                     "installed here, `none` for none.", autocompletion=completion.field("engine")),
    ] = None,
    wheelhouse: Annotated[
        Path | None,
        typer.Option("--wheelhouse", metavar="DIR", help="Folder with wheels of all packages, for hosts that reach no "
                     "package index."),
    ] = None,
    json: Json = False,
) -> None:
    """Make a Python environment on every host of a cluster, with the versions of this machine and Velodrome itself.

    An existing environment with the same versions and unchanged files is kept. `velodrome doctor` compares
    its files with what was installed. Engines that need an environment of their own are not installed there.

    Example: `velodrome clusters prepare lab --wheelhouse wheels`
    """
    from velodrome.api import clusters

    prepared = clusters.prepare(name, engines=engine, wheelhouse=wheelhouse)
    if json:
        say_json(prepared)
        return
    for host in prepared["hosts"]:
        say(f"{host['host']}: {host['python']} {'is new' if host['changed'] else 'is unchanged'}")
    for package, version in prepared["pins"].items():
        say(f"  {package} {version}")
    if prepared["to_install"]:
        commands = ", ".join(f"`{command}`" for command in prepared["to_install"])
        say(f"not prepared, because they need an environment of their own: run {commands} on each host")


@clusters_app.command("rbac")
def rbac(name: Name) -> None:
    """Print the Role and the RoleBinding of Kubernetes that a cluster's namespace must have for a person to use it.

    Example: `velodrome clusters rbac k8s`
    """
    from velodrome.api import clusters

    say(clusters.permissions(name).rstrip())


@clusters_app.command("clean")
def clean(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A cluster of Kubernetes, on which finished runs are looked for too.",
                       autocompletion=completion.launchers),
    ] = None,
    json: Json = False,
) -> None:
    """Remove control groups and temporary folders of emulated clusters whose command was killed.

    The next emulated job does this as well. Namespaces, interfaces and mounts vanish with the command that made them.
    In Kubernetes, what has ended is removed by itself after a while; with a cluster's name it is removed now.

    Example: `velodrome clusters clean`
    """
    from velodrome.api import clusters

    done = clusters.clean(name)
    if json:
        say_json(done)
        return
    for name in done["removed"]:
        say(f"removed {name}")
    if not done["removed"]:
        say("nothing is left of emulated clusters" + (f", nor in {name}" if name else ""))


engines_app = typer.Typer(help="List engines and strategies, and whether each can run here; install those that cannot.")


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


@engines_app.callback(invoke_without_command=True)
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


@engines_app.command("install")
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


@engines_app.command("remove")
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
