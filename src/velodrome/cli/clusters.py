"""`velodrome clusters`: the places where jobs can run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json
from velodrome.cli.output import say, say_json, say_on_stderr

app = typer.Typer(
    no_args_is_help=True, help="List, show, add, check, prepare and clean up clusters: the places where jobs can run.",
)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A cluster of clusters.yaml, or what --on takes.",
                   autocompletion=completion.launchers),
]


@app.command("list")
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


@app.command("show")
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


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new cluster.")],
    where: Annotated[str, typer.Argument(metavar="LAUNCHER[:OPTIONS]", help="As --on takes it: ssh:host1,host2.")],
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


@app.command("check")
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
    from velodrome.api.engines import doctor
    from velodrome.cli.check import print_findings

    print_findings(doctor(on=name, measure=measure, on_wait=say_on_stderr), as_json=json)


@app.command("prepare")
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


@app.command("clean")
def clean(json: Json = False) -> None:
    """Remove control groups and temporary folders of emulated clusters whose command was killed.

    The next emulated job does this as well. Namespaces, interfaces and mounts vanish with the command that made them.

    Example: `velodrome clusters clean`
    """
    from velodrome.api import clusters

    done = clusters.clean()
    if json:
        say_json(done)
        return
    for name in done["removed"]:
        say(f"removed {name}")
    if not done["removed"]:
        say("nothing is left of emulated clusters")
