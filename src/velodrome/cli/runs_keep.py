"""`velodrome runs check`, `rm` and `export`: what is stored stays whole, goes, or travels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from velodrome.cli.options import Json, Runs

if TYPE_CHECKING:
    from velodrome.run.listing import Found


def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Runs, races or folders; everything unless said.")
    ] = None,
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Check run folders against the documented schema: files, events, epochs in order, counts that add up.

    Takes names, RACE/RUN, and paths of folders that came from elsewhere. Exit code 1 if something is wrong. Attempts
    that a race put aside are checked only by their own names.

    Examples:

    `velodrome runs check`

    `velodrome runs check my-run /tmp/unpacked/their-run`
    """
    import json as json_module

    from velodrome.run.check import check_run
    from velodrome.run.listing import runs_of, scan

    folders: list[Path] = []
    for found in scan(runs) if not names else [_anywhere(runs, name) for name in names]:
        folders += [run.path for run in runs_of(found.path)] if found.kind == "race" else [found.path]
    checked = [check_run(folder) for folder in folders]
    wrong = [one for one in checked if one.problems]
    if json:
        print(json_module.dumps({"ok": not wrong, "runs": [one.as_json() for one in checked]}))
    else:
        for one in wrong:
            print(f"{one.path}:")
            for problem in one.problems:
                print(f"  {problem}")
        print(f"{len(checked)} checked, {len(wrong)} with something wrong" if checked else f"no runs in {runs}")
    if wrong:
        raise typer.Exit(1)


def _anywhere(runs: Path, name: str) -> Found:
    """A run or race of the store, or any folder by its path."""
    from velodrome.errors import BadRequest
    from velodrome.run.listing import Found, locate

    try:
        return locate(runs, name)
    except BadRequest:
        path = Path(name)
        if not path.is_dir():
            raise BadRequest(f"no run or folder {name!r}: `velodrome runs list` shows what is in {runs}") from None
        race = (path / "race.yaml").exists() and not (path / "job.yaml").exists()
        return Found("race" if race else "run", path, 0.0)


def remove(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names of runs or races, or RACE/RUN.")],
    runs: Runs = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Remove runs or whole races for good. Asks first; what is running is never removed, and no link is followed.

    Examples:

    `velodrome runs rm my-run`

    `velodrome runs rm old-race other-race/torch-ddp-2w-128b-1 --yes`
    """
    import json as json_module
    import sys

    from velodrome.errors import BadRequest
    from velodrome.run.listing import locate
    from velodrome.run.remove import refuse_running, remove_folder

    found = list({one.path: one for one in (locate(runs, name) for name in names)}.values())
    for one in found:
        refuse_running(one)
    what = ", ".join(f"{one.kind} {one.path.relative_to(runs)}" for one in found)
    if not yes:
        if not sys.stdin.isatty():
            raise BadRequest(f"this would remove {what}: say --yes, because there is nobody here to ask")
        typer.confirm(f"Remove {what} for good?", abort=True)
    for one in found:
        remove_folder(one, runs)
    if json:
        print(json_module.dumps({"removed": [str(one.path.relative_to(runs)) for one in found]}))
    else:
        print(f"removed {what}")


def export(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run or race, or RACE/RUN.")],
    runs: Runs = Path("runs"),
    out: Annotated[Path | None, typer.Option("--out", help="File to write; NAME.zip here unless said.")] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="zip, tar.gz or csv (results only); as --out says, else zip.")
    ] = None,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Pack the checkpoints too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: Json = False,
) -> None:
    """Pack a run or a race into one file without its checkpoints, or write its results as a CSV table.

    Prints the path of the file it wrote.

    Examples:

    `velodrome runs export first --out first.tar.gz`

    `velodrome runs export first --format csv`
    """
    import json as json_module
    import sys

    from velodrome.errors import BadRequest
    from velodrome.run.export import form_of, table, write_archive
    from velodrome.run.listing import locate, runs_of
    from velodrome.run.store import RunFolder, write_whole
    from velodrome.run.trained import examples_trained

    found = locate(runs, name)
    kind = form_of(form, out)
    target = out if out is not None else Path(f"{found.name}.{kind}")
    if target.exists() and not force:
        raise BadRequest(f"--out {str(target)!r} is there already: choose another name, or say --force")
    if not target.resolve().parent.is_dir():
        raise BadRequest(f"--out {str(target)!r}: there is no folder {str(target.parent)!r}")
    if kind == "csv":
        folders = [one.path for one in runs_of(found.path)] if found.kind == "race" else [found.path]
        results = []
        for folder in folders:
            result = RunFolder(folder).result()
            if result is None:
                print(f"velodrome: {folder.name}: it has no readable result and is left out", file=sys.stderr)
            else:
                results.append({**result, "run": folder.name, "examples_trained": examples_trained(folder)})
        write_whole(target, table(results))
        count = len(results)
    else:
        count = write_archive(found.path, target, kind, checkpoints=checkpoints)
    if json:
        key = "rows" if kind == "csv" else "files"
        print(json_module.dumps({"run": found.name, "file": str(target.resolve()), "format": kind, key: count}))
    else:
        print(target)
