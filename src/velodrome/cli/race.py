"""`velodrome race`: many jobs against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from velodrome.cli.options import Json, Runs, with_job_options

if TYPE_CHECKING:
    from velodrome.run.race import RaceFolder
    from velodrome.spec.race import Entry, Race

RaceFile = Annotated[Path | None, typer.Argument(help="YAML file with job, vary and repeat.", metavar="FILE")]
Name = Annotated[
    str | None, typer.Option("--name", help="Name of the race; its file's, or made from what is raced, unless said.")
]
Vary = Annotated[list[str] | None, typer.Option("--vary", help="A field and its values, as workers=1,2; repeat it.")]
Repeat = Annotated[int | None, typer.Option("--repeat", help="How often each configuration runs. [default: 1]")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and how long it will take, and stop there.")]
Naming = Annotated[
    str | None,
    typer.Option("--naming", help="What runs are called: plain, or published, as MWM001-33000d-artType-2i-128b-…"),
]
Warm = Annotated[
    bool, typer.Option("--warm/--cold", help="Fork processes from one that has imported the engine, or start anew.")
]


@with_job_options
def command(
    file: RaceFile = None, vary: Vary = None, repeat: Repeat = None, name: Name = None, runs: Runs = Path("runs"),
    naming: Naming = None, dry_run: DryRun = False, warm: Warm = True, json: Json = False, *, fields: dict[str, Any],
) -> None:
    """Race strategies, engines, batch and cluster sizes against each other; compare them and say which to use.

    The jobs run in an order that is random but follows from the seed. A job that fails is told and the others go on.
    The same command again runs only what is missing.

    Examples:

    `velodrome race --dataset digits --vary entry=tensorflow/parameter-server:1,torch/ddp --vary workers=1,2`

    `velodrome race race.yaml --name first --repeat 3`

    `velodrome race race.yaml --dry-run`
    """
    import json as json_module

    from velodrome.cli.console import error_console
    from velodrome.run.race import RaceFolder, check

    asked = _race_from(file, vary, repeat, naming, fields)
    folder = RaceFolder(runs, name or _default_name(file, asked))
    race = folder.stamped(asked)
    entries = check(race, folder.finished())
    expected, plan = plan_in_words(folder, entries, warm=warm)
    error_console.print(plan, soft_wrap=True)
    if dry_run:
        if json:
            jobs = [{"run": one.name, "seconds": expected[one.name], **one.job.model_dump()} for one in entries]
            print(json_module.dumps({"race": folder.path.name, "seconds": sum(expected.values()), "jobs": jobs}))
        return
    folder.begin(race)
    results = run_on_board(folder, entries, expected, warm=warm)
    failed = {
        result["run"]: (result.get("error") or {}).get("message", result["status"])
        for result in results if result["status"] != "finished"
    }
    _conclude(folder, entries, failed, as_json=json)
    if failed:
        raise typer.Exit(1)


def _default_name(file: Path | None, race: Race) -> str:
    """The same for the same command, so that typing it again goes on: the file's name, or a mark of what is raced."""
    import hashlib
    import re

    if file is not None and (name := re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).lstrip("._-")):
        return name[:100]
    return f"race-{hashlib.sha256(race.model_dump_json(exclude_defaults=True).encode()).hexdigest()[:8]}"


def _race_from(
    file: Path | None, vary: list[str] | None, repeat: int | None, naming: str | None, fields: dict[str, Any]
) -> Race:
    """The race of a YAML file with options on top."""
    from velodrome.cli.options import parse_model_args
    from velodrome.errors import BadRequest
    from velodrome.spec.race import parse_race, parse_vary
    from velodrome.spec.read import read_yaml

    content = read_yaml(file) if file is not None else {}
    for key, example in (("job", "epochs: 5"), ("vary", "workers: [1, 2]")):
        if not isinstance(content.get(key) or {}, dict):
            raise BadRequest(f"{key}: {content[key]!r} in {str(file)!r}: give fields by name, such as '{example}'")
    if "model_args" in fields:
        fields = {**fields, "model_args": parse_model_args(fields["model_args"])}
    content["job"] = {**(content.get("job") or {}), **fields}
    content["vary"] = {**(content.get("vary") or {}), **parse_vary(vary or [])}
    if repeat is not None:
        content["repeat"] = repeat
    if naming is not None:
        content["naming"] = naming
    return parse_race(content)


def plan_in_words(folder: RaceFolder, entries: Sequence[Entry], *, warm: bool) -> tuple[dict[str, float], str]:
    """Seconds that each missing job is expected to take, and the plan in words."""
    import math

    from velodrome.analysis.estimate import estimate, in_words
    from velodrome.data import catalogue
    from velodrome.machine import cores

    stored = folder.finished()
    expected, rough = {}, False
    for entry in entries:
        about = catalogue.describe(entry.job.dataset, validation=entry.job.validation)
        pixels = math.prod(about.input_shape) if about.input_shape else None
        guess = estimate(entry.job, about.train, pixels, cores(), stored.values(), warm=warm)
        expected[entry.name] = 0.0 if entry.name in stored else guess.seconds
        rough = rough or not guess.measured
    names = [entry.name for entry in entries]
    shown = [f"  {name}" for name in (names if len(names) <= 24 else [*names[:20], f"… and {len(names) - 20} more"])]
    missing = sum(name not in stored for name in names)
    done = f", {len(names) - missing} of them stored already" if missing < len(names) else ""
    much = "rough guess" if rough else "from runs like these"
    total = f"about {in_words(sum(expected.values()))} ({much})" if missing else "nothing to do"
    jobs = "1 job" if len(names) == 1 else f"{len(names)} jobs"
    return expected, "\n".join([f"[bold]{folder.path.name}[/bold]: {jobs}{done}, {total}, in {folder.path}", *shown])


def run_on_board(
    folder: RaceFolder, entries: Sequence[Entry], expected: dict[str, float], *, warm: bool
) -> list[dict[str, Any]]:
    """Run what is missing, shown on a board; refused if somebody else runs this race already."""
    import sys

    from velodrome.cli.board import Board
    from velodrome.cli.console import error_console, show_failure
    from velodrome.cluster.local import cold as local
    from velodrome.cluster.local.warm import WarmLauncher
    from velodrome.run.execute import JobFailed
    from velodrome.run.race import run_race

    folder.refuse_running()
    board = Board(error_console, entries, expected)
    stored = folder.finished()
    for entry in entries:
        if entry.name in stored:
            board.already(entry.name, stored[entry.name])

    def show(entry: Entry) -> dict[str, Any]:
        board.begin(entry.name)
        return {"listener": board.event}

    def ended(entry: Entry, result: dict[str, Any], error: JobFailed | None) -> None:
        if error is not None:
            show_failure(error)
            print(f"velodrome: {entry.name}: {error}", file=sys.stderr)
        board.end(entry.name, result)

    launcher = WarmLauncher()
    try:
        if warm:
            for engine in dict.fromkeys(entry.job.engine for entry in entries if entry.name not in stored):
                launcher.warm_up(engine)
            with error_console.status("importing engines …"):
                launcher.wait_until_ready()
        with board:
            return run_race(folder, entries, show, ended, launcher.start if warm else local.start)
    finally:
        launcher.close()


def _conclude(folder: RaceFolder, entries: Sequence[Entry], failed: dict[str, str], *, as_json: bool) -> None:
    """Comparison, picture and verdict: of what is on disk, so that `report` and `recommend` say the same."""
    import json as json_module

    from rich.console import Console

    from velodrome.analysis.compare import compare
    from velodrome.analysis.recommend import verdict
    from velodrome.cli.compare import comparison
    from velodrome.reporting.figures import race_figure
    from velodrome.reporting.load import load_race
    from velodrome.spec.job import Target

    record = load_race(folder.path.parent, folder.path.name)
    rows = compare(record.results, Target.parse(record.target) if record.target else None)
    answer = verdict(rows, record.target)
    picture = race_figure(rows, folder.path / "race.png", _title(entries)) if rows else None
    if as_json:
        print(json_module.dumps({
            "race": folder.path.name, "path": str(folder.path.resolve()), "rows": [row.as_json() for row in rows],
            "failed": list(failed), "figure": str(picture.resolve()) if picture else None, "verdict": answer,
        }))
        return
    console = Console(highlight=False)
    if rows:
        console.print(comparison(rows, console.width))
    if picture:
        console.print(f"Plot: {picture}", soft_wrap=True)
    for name, message in failed.items():
        console.print(f"Did not finish: {name}: {message}", soft_wrap=True, markup=False)
    console.print(answer, soft_wrap=True, markup=False)


def _title(entries: Sequence[Entry]) -> str:
    """What the race trains, with every value that occurs."""

    def every(field: str) -> str:
        values = list(dict.fromkeys(str(getattr(entry.job, field)) for entry in entries))
        return ", ".join(values[:6]) + (" …" if values[6:] else "")

    epochs = every("epochs") + (" epoch" if every("epochs") == "1" else " epochs")
    return f"{every('model')} on {every('dataset')}, {epochs}, batch {every('batch_size')}"
