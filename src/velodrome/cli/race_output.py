"""A race on the terminal: its plan, what is asked before it starts, and its end. Its table is in `board.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.markup import escape

from velodrome.api.race import FinishedRace
from velodrome.cli.board import Board
from velodrome.cli.compare import print_comparison
from velodrome.cli.console import JobProgress, data_progress, error_console
from velodrome.cli.options import command_on
from velodrome.cli.output import complain
from velodrome.cli.tables import SafeConsole
from velodrome.judge.phrases import in_full, in_words
from velodrome.races.check import CheckedRace
from velodrome.races.observer import RaceObserver
from velodrome.races.plan import PlannedRace

#: Caveats that are printed below a verdict; the report has all.
_MOST_CAVEATS = 4
#: Where a duration may be this many times another one, both are given.
_MOST_SPREAD = 2.0
#: Lines that a race ends with: table and verdicts come first, and what else there is room for.
_MOST_LINES = 25


class TerminalRace(RaceObserver):
    """Shows how data is read and what is measured, asks whether to skip what cannot run, and prints the plan."""

    def __init__(self, *, live: bool, asks: bool = False) -> None:
        """The table is drawn anew all the time if it may be `live`; whoever `asks` gets an answer on a terminal."""
        self._live, self._asks = live, asks
        self._progress = JobProgress()

    @contextmanager
    def planning(self) -> Iterator[None]:
        with data_progress() as self._progress:
            yield

    def data(self, done: int, total: int, label: str) -> None:
        self._progress.data(done, total, label)

    def note(self, text: str) -> None:
        error_console.print(text, highlight=False, soft_wrap=True, markup=False)

    def skips(self, checked: CheckedRace) -> bool:
        if not (self._asks and sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        self._progress.end()
        for reason in checked.reasons:
            complain(reason)
        total = len(checked.entries) + len(checked.skipped)
        if not typer.confirm(f"Run the other {len(checked.entries)} of {total} jobs?", default=True, err=True):
            raise typer.Exit(2)
        return True

    def planned(self, plan: PlannedRace) -> Board:
        error_console.print(plan_text(plan), soft_wrap=True)
        return Board(error_console, plan.entries, plan.seconds, live=self._live, until_sure=plan.race.until_sure)


def plan_text(planned: PlannedRace) -> str:
    """How many jobs a race has, how long they will take, their names, and what is left out or adapted."""
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
    if planned.unknown_scripts:
        return "for an unknown time"
    least, most = (seconds if budget is None else min(seconds, budget) for seconds in planned.bounds)
    if most > _MOST_SPREAD * least:
        return f"{in_words(least)} to {in_words(most)}"
    return f"about {in_words(planned.most_seconds if budget is not None else sum(planned.seconds.values()))}"


def _basis(planned: PlannedRace) -> str:
    """What the expected time rests on, and how to know better."""
    guesses = [estimate for estimate in planned.estimates.values() if not estimate.measured]
    if not guesses:
        return planned.basis
    if planned.unknown_scripts:
        return "the script never ran here with these arguments: --measure tries it"
    return f"{planned.basis}, which may be off by several times: --measure trains each model for a second"


def _until_sure(planned: PlannedRace) -> str:
    """What a race that ends when it is sure runs in any case, and what it can cost."""
    race = planned.race
    count = planned.configurations
    budget = f", budget {in_full(race.budget)}" if race.budget is not None else ""
    stored = f", {len(planned.stored)} stored already" if planned.stored else ""
    first = "repetition" if race.repeat == 1 else f"{race.repeat} repetitions"
    return (f"{count} configuration{'' if count == 1 else 's'} until one is best, in {escape(str(planned.folder.path))}"
            f"; at most {race.most} repetitions ({len(planned.entries)} jobs{stored}, "
            f"{_duration(planned, race.budget)}{budget}, {_basis(planned)}); the first {first}:")


def show_race(finished: FinishedRace) -> None:
    """Comparison, failures, what was dropped, and the verdict on stdout; everything else is in the report."""
    console = SafeConsole()
    report = command_on("report", finished.path)
    lines = print_comparison(console, finished.rows, report) if finished.rows else 0
    messages = [f"Did not finish: {name}: {message}" for name, message in finished.failures.items()]
    messages += _ended(finished)
    for task, answer in finished.answers.items():
        messages += [f"{task}:"] if task else []
        messages += answer.lines
    caveats = _caveats(finished)
    room = _MOST_LINES - lines - len(messages) - 1
    shown = caveats[:min(_MOST_CAVEATS, max(1, room - bool(finished.reasons)))]
    messages += [f"  - {caveat}" for caveat in shown]
    hidden = len(caveats) - len(shown)
    rest = f"{hidden} more caveat{'' if hidden == 1 else 's'}" if hidden else "every figure"
    messages += _left_out(finished.reasons, room - len(shown))
    messages.append(f"Report: `{report}` ({rest})" + (f"; plot: {finished.figure}" if finished.figure else ""))
    for line in messages:
        console.print(line, soft_wrap=True, markup=False)


def _caveats(finished: FinishedRace) -> list[str]:
    """What a reader must know beside the verdicts; with the task where another task has not the same."""
    several = len(finished.answers) > 1
    everywhere = set.intersection(*(set(answer.caveats) for answer in finished.answers.values())) if several else set()
    caveats = [caveat if caveat in everywhere or not several else f"{task}: {caveat}"
             for task, answer in finished.answers.items() for caveat in answer.caveats]
    return list(dict.fromkeys(caveats))


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
