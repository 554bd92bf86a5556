"""`velodrome race`: many jobs against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from velodrome.cli import completion
from velodrome.cli.options import (
    RACE,
    JobMirror,
    Json,
    On,
    Place,
    Runs,
    TrustCode,
    asking,
    command_on,
    tell_code,
    where,
    with_job_options,
)
from velodrome.cli.output import complain, say_json
from velodrome.errors import BadRequest

if TYPE_CHECKING:
    from velodrome.api.race import FinishedRace
    from velodrome.api.race_plan import PlannedRace
    from velodrome.cli.console import JobProgress
    from velodrome.races.check import CheckedRace

RaceFile = Annotated[Path | None, typer.Argument(help="YAML file with job, vary and repeat.", metavar="FILE")]
Name = Annotated[
    str | None,
    typer.Option("--name", help="Name of the race; by default the file's name, or one made from the fields."),
]
#: Caveats that are printed below a verdict; the report has all.
_MOST_CAVEATS = 4
#: Where a duration may be this many times another one, both are given.
_MOST_SPREAD = 2.0
#: Lines that a race ends with: table and verdicts come first, and what else there is room for.
_MOST_LINES = 25
Vary = Annotated[
    list[str] | None,
    typer.Option("--vary", help="A field and its values, as workers=1,2; may be repeated.", rich_help_panel=RACE,
                 autocompletion=completion.vary),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan and its expected duration, and exit.", rich_help_panel=RACE)
]
Measure = Annotated[
    bool | None,
    typer.Option("--measure/--no-measure", help="Train each model that never ran here for a second, to estimate how "
                 "long the race takes. [default: if a guess may be far off and that takes less than 10 s]",
                 rich_help_panel=RACE, show_default=False),
]
SkipUnavailable = Annotated[
    bool,
    typer.Option("--skip-unavailable", help="Leave out jobs for which this machine lacks a package, a device or "
                 "memory, instead of refusing the race.", rich_help_panel=RACE),
]
Warm = Annotated[
    bool,
    typer.Option("--warm/--cold", help="Fork processes from one that has imported the engine, or start new "
                 "interpreters.", rich_help_panel=RACE),
]

Parallel = Annotated[
    str,
    typer.Option("--parallel", metavar="N", help="Jobs that run at the same time, each on hosts of its own: auto for "
                 "as many as the cluster has room for; on one machine that is one.", rich_help_panel=RACE,
                 autocompletion=completion.one_of("auto", "1", "2", "4")),
]


def parallel_of(text: str) -> int | None:
    """The number of `--parallel`, None for `auto`."""
    if text == "auto":
        return None
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:4]) <= 999:
        raise BadRequest(f"--parallel {text!r}: give auto, or a number of jobs from 1 to 999")
    return int(text)




@with_job_options
def race_command(
    file: RaceFile = None, vary: Vary = None, name: Name = None, runs: Runs = Path("runs"), dry_run: DryRun = False,
    measure: Measure = None, skip_unavailable: SkipUnavailable = False, on: On = None, place: Place = None,
    warm: Warm = True, parallel: Parallel = "auto", mirror: JobMirror = None, trust_code: TrustCode = None,
    json: Json = False, *, race_fields: dict[str, Any], fields: dict[str, Any],
) -> None:
    """Race strategies, engines, batch and cluster sizes against each other, compare them and recommend one.

    Each repetition runs every configuration once, in a new random order. A job that fails is reported and the others
    run. The same command again runs only what is missing; with a larger --repeat it adds repetitions. Where something
    is not installed, a race on a terminal asks whether to run the rest.

    With --until-sure it repeats until the best configuration is known, or the best are tied, and stops
    running configurations that are clearly worse. With nothing to vary, every strategy that can train the model here
    takes part, with one worker and with a worker for each core, until one is best or 15 minutes are over.

    Examples:

    `velodrome race --dataset digits --model dense-300-100`

    `velodrome race --dataset digits --vary batch-size=32,128,512 --until-sure --budget 20m`

    `velodrome race --dataset digits --vary entry=tensorflow/parameter-server:1,torch/ddp --vary workers=1,2`

    `velodrome race --script train.py --vary script-args="--lr 0.1","--lr 0.01" --vary workers=1,2`

    `velodrome race --script train.py --script-args "--batch-size {64/workers}" --vary workers=1,2`

    `velodrome race race.yaml --name first --repeat 3`

    `velodrome race race.yaml --dry-run`
    """
    from velodrome.api.race import run_planned
    from velodrome.api.race_plan import admit_code, default_name, merge, plan_race, words_in
    from velodrome.cli.board import Board
    from velodrome.cli.console import data_progress, error_console
    from velodrome.cli.options import parse_model_args
    from velodrome.data.fetch import using_mirror
    from velodrome.job.race import parse_vary

    at_once = parallel_of(parallel)
    if "model_args" in fields:
        fields = {**fields, "model_args": parse_model_args(fields["model_args"])}
    varied = parse_vary(vary or [])
    asked = merge(file, fields, varied, race_fields)
    called = name or default_name(file, asked)
    tell_code(str(file), asking(
        lambda names: admit_code(asked, file, called, runs, words_in([fields, varied]), names, on), trust_code
    ))
    shared = asked.job.get("on")
    target = where(on or (shared if isinstance(shared, str) else None), place)
    with using_mirror(mirror), data_progress() as progress:
        planned = plan_race(
            asked, called, runs, on=target if on is not None or place else None, warm=warm,
            complete=file is None, on_download=progress.data,
            leave_out=lambda checked: skip_unavailable or (not dry_run and _agreed(checked, progress)),
            measure=measure, note=lambda text: error_console.print(text, highlight=False, soft_wrap=True, markup=False),
        )
    error_console.print(plan_text(planned), soft_wrap=True)
    if dry_run:
        if json:
            say_json(planned.as_json())
        return
    board = Board(error_console, planned.entries, planned.seconds, live=not target.launcher.interactive,
                  until_sure=planned.race.until_sure)
    with using_mirror(mirror), board.counting():
        finished = run_planned(planned, board, warm=warm, parallel=at_once)
    if json:
        say_json(finished.as_json())
    else:
        _show(finished)
    if finished.failures:
        raise typer.Exit(1)


def plan_text(planned: PlannedRace) -> str:
    """How many jobs a race has, how long they will take, their names, and what is left out or adapted."""
    from rich.markup import escape

    names = [entry.name for entry in planned.certain]
    shown = [f"  {name}" for name in (names if len(names) <= 24 else [*names[:20], f"… and {len(names) - 20} more"])]
    done = f", {len(planned.stored)} of them stored already" if planned.stored else ""
    missing = len(names) - len(planned.stored)
    total = _duration(planned, None) if missing else "nothing to do"
    total += f" ({_basis(planned)})" if missing else ""
    jobs = "1 job" if len(names) == 1 else f"{len(names)} jobs"
    path = planned.folder.path
    notes = [*(f"left out: {escape(reason)}" for reason in planned.reasons), *map(escape, planned.notes)]
    if planned.race.until_sure:
        return "\n".join([f"[bold]{path.name}[/bold]: {_until_sure(planned)}", *shown, *notes])
    return "\n".join([f"[bold]{path.name}[/bold]: {jobs}{done}, {total}, in {escape(str(path))}", *shown, *notes])


def _duration(planned: PlannedRace, budget: float | None) -> str:
    """How long a race takes, within its budget: a range where that is guessed."""
    from velodrome.judge.estimate import in_words

    if planned.unknown_scripts:
        return "for an unknown time"
    least, most = (seconds if budget is None else min(seconds, budget) for seconds in planned.bounds)
    if most > _MOST_SPREAD * least:
        return f"{in_words(least)} to {in_words(most)}"
    return f"about {in_words(planned.most_seconds if budget is not None else sum(planned.seconds.values()))}"


def _basis(planned: PlannedRace) -> str:
    """What the expected time rests on, and how to know better."""
    guesses = [one for one in planned.estimates.values() if not one.measured]
    if not guesses:
        return planned.basis
    if planned.unknown_scripts:
        return "the script never ran here with these arguments: --measure tries it"
    return f"{planned.basis}, which may be off by several times: --measure trains each model for a second"


def _until_sure(planned: PlannedRace) -> str:
    """What a race that ends when it is sure runs in any case, and what it can cost."""
    from rich.markup import escape

    from velodrome.judge.estimate import in_full

    race = planned.race
    count = planned.configurations
    budget = f", budget {in_full(race.budget)}" if race.budget is not None else ""
    stored = f", {len(planned.stored)} stored already" if planned.stored else ""
    first = "repetition" if race.repeat == 1 else f"{race.repeat} repetitions"
    return (f"{count} configuration{'' if count == 1 else 's'} until one is best, in {escape(str(planned.folder.path))}"
            f"; at most {race.most} repetitions ({len(planned.entries)} jobs{stored}, "
            f"{_duration(planned, race.budget)}{budget}, {_basis(planned)}); the first {first}:")


def _agreed(checked: CheckedRace, progress: JobProgress) -> bool:
    """Ask whether to run what can run; no where nobody can be asked."""
    import sys

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    progress.end()
    for reason in checked.reasons:
        complain(reason)
    total = len(checked.entries) + len(checked.skipped)
    if not typer.confirm(f"Run the other {len(checked.entries)} of {total} jobs?", default=True, err=True):
        raise typer.Exit(2)
    return True


def _show(finished: FinishedRace) -> None:
    """Comparison, failures, what was dropped, and the verdict on stdout; everything else is in the report."""
    from velodrome.cli.compare import print_comparison
    from velodrome.cli.tables import SafeConsole

    console = SafeConsole()
    report = command_on("report", finished.path)
    lines = print_comparison(console, finished.rows, report) if finished.rows else 0
    found = [*(f"Did not finish: {name}: {message}" for name, message in finished.failures.items()), *_ended(finished)]
    for task, answer in finished.answers.items():
        found += [f"{task}:"] if task else []
        found += answer.lines
    caveats = _caveats(finished)
    room = _MOST_LINES - lines - len(found) - 1
    shown = caveats[:min(_MOST_CAVEATS, max(1, room - bool(finished.reasons)))]
    found += [f"  - {caveat}" for caveat in shown]
    hidden = len(caveats) - len(shown)
    rest = f"{hidden} more caveat{'' if hidden == 1 else 's'}" if hidden else "every figure"
    found += _left_out(finished.reasons, room - len(shown))
    found.append(f"Report: `{report}` ({rest})" + (f"; plot: {finished.figure}" if finished.figure else ""))
    for line in found:
        console.print(line, soft_wrap=True, markup=False)


def _caveats(finished: FinishedRace) -> list[str]:
    """What a reader must know beside the verdicts; with the task where another task has not the same."""
    several = len(finished.answers) > 1
    everywhere = set.intersection(*(set(answer.caveats) for answer in finished.answers.values())) if several else set()
    found = [caveat if caveat in everywhere or not several else f"{task}: {caveat}"
             for task, answer in finished.answers.items() for caveat in answer.caveats]
    return list(dict.fromkeys(found))


def _left_out(reasons: Sequence[str], room: int) -> list[str]:
    """What did not run and why, as far as there is room; what was left out before the start was said then."""
    shown = reasons if len(reasons) <= room else reasons[len(reasons) - max(0, room - 1):]
    others = len(reasons) - len(shown)
    more = [f"Left out: {others} {'more' if shown else 'groups of configurations'}, as named before the start."]
    return [*(f"Left out: {reason}" for reason in shown), *(more if others else [])]


def _ended(finished: FinishedRace) -> list[str]:
    """What a race that runs until it is sure saved, and why it ended."""
    if finished.ending is None or finished.saved is None:
        return []
    return [f"{finished.ending.sentence} {finished.saved.sentence}"]
