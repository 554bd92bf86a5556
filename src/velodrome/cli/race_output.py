"""A race on the terminal: its plan, what is asked before it starts, and at its end the comparison and the verdict.

The table that is drawn while it runs is in `board.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from velodrome.api.race import FinishedRace
from velodrome.cli.board import Board
from velodrome.cli.console import JobProgress, data_progress, error_console
from velodrome.cli.options import command_on
from velodrome.cli.output import SafeConsole, complain, least_width, print_table
from velodrome.judge.compare import Row
from velodrome.judge.conditions import is_loaded
from velodrome.judge.measures import BY_NAME, THROUGHPUT
from velodrome.judge.phrases import in_full, in_words
from velodrome.races.plan import PlannedRace
from velodrome.races.request import RaceObserver
from velodrome.reporting.tables import RATIOS, Cell, Column, ordered, ratios_of_fewer, view_table
from velodrome.reporting.tables import Table as Comparison

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

    def skips(self, reasons: Sequence[str], others: int, total: int) -> bool:
        if not (self._asks and sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        self._progress.end()
        for reason in reasons:
            complain(reason)
        if not typer.confirm(f"Run the other {others} of {total} jobs?", default=True, err=True):
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
        return "the script has not run here with these arguments; --measure runs it briefly"
    return f"{planned.basis}, which may be several times too high or too low; --measure trains each model for a second"


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
    lines = print_comparison(console, finished.judgement.rows, report) if finished.judgement.rows else 0
    messages = [f"Did not finish: {name}: {message}" for name, message in finished.failures.items()]
    messages += _ended(finished)
    for task, answer in finished.judgement.answers.items():
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
    answers = finished.judgement.answers
    several = len(answers) > 1
    everywhere = set.intersection(*(set(answer.caveats) for answer in answers.values())) if several else set()
    caveats = [caveat if caveat in everywhere or not several else f"{task}: {caveat}"
             for task, answer in answers.items() for caveat in answer.caveats]
    return list(dict.fromkeys(caveats))


def _left_out(reasons: Sequence[str], room: int) -> list[str]:
    """What did not run and why, as far as there is room; what was left out before the start was said then."""
    shown = reasons if len(reasons) <= room else reasons[len(reasons) - max(0, room - 1):]
    others = len(reasons) - len(shown)
    more = [f"Left out: {others} {'more' if shown else 'groups of configurations'}, as listed before the start."]
    return [*(f"Left out: {reason}" for reason in shown), *(more if others else [])]


def _ended(finished: FinishedRace) -> list[str]:
    """What a race that runs until it is sure saved, and why it ended."""
    if finished.ending is None or finished.saved is None:
        return []
    return [f"{finished.ending.sentence} {finished.saved.sentence}"]


def print_comparison(console: SafeConsole, rows: Sequence[Row], report: str) -> int:
    """Print the configurations of a race, and return how many lines that took; `report` is the command that shows all
    of their numbers.

    Speedup is over the engine's `single`, scaling over the strategy's own one-worker run. On a terminal that is too
    narrow, columns are left out from the right, and their names are printed.
    """
    compared = view_table("terminal", rows)
    left_out = {"runs", *(["batch"] if len({row.batch_size for row in rows}) == 1 else [])}
    if any(column.heading == THROUGHPUT.heading for column in compared.columns):
        left_out.add(BY_NAME["total_seconds"].heading)  # it decides only where throughput is not known
    places = [place for place, column in enumerate(compared.columns) if column.heading not in left_out]
    fewest = 2 + sum(not compared.columns[place].measured for place in places)
    shown = len(places)
    table = _table(rows, compared, places)
    while shown > fewest and console.is_terminal and least_width(console, table) > console.width:
        shown -= 1
        table = _table(rows, compared, places[:shown])
    lines = len(console.render_lines(table, console.options.update(width=10_000), pad=False))
    print_table(console, table)
    if hidden := ", ".join(_heading(compared.columns[place]).replace("\n", " ") for place in places[shown:]):
        console.print(
            f"Not shown, because the terminal is {console.width} columns wide: {hidden}. `{report}` has every number.",
            soft_wrap=True, markup=False,
        )
    return lines + bool(hidden)


def _table(rows: Sequence[Row], compared: Comparison, places: Sequence[int]) -> Table:
    """Some of the columns of a comparison; a batch that all have is in its title."""
    batches = {row.batch_size for row in rows}
    of_batch = f", batch {min(batches)}" if len(batches) == 1 and any(batches) else ""
    table = Table(title=f"{compared.title}{of_batch}", title_justify="left", box=box.SIMPLE_HEAD,
                  padding=(0, 1, 0, 0), show_edge=False)
    columns = [compared.columns[place] for place in places]
    for column in columns:
        table.add_column(
            _heading(column), justify="right" if column.measured or column.heading == "batch" else "left",
            no_wrap=column.heading in ("strategy", "workers"),
        )
    loaded = {row.name for row in rows if any(map(is_loaded, row.results))}
    notes = ["* other programs were running at the same time"] if loaded else []
    if any(column.heading in RATIOS for column in columns) and ratios_of_fewer(rows):
        notes.append("speedup, scaling: from the repetitions that both ran")
    table.caption, table.caption_justify = "; ".join(notes) or None, "left"
    for row, cells in zip(ordered(rows), compared.rows, strict=True):
        label, *others = (_text(cells[place]) for place in places)
        table.add_row(f"{label}{' *' if row.name in loaded else ''}", *others)
    return table


def _heading(column: Column) -> str:
    if column.heading == THROUGHPUT.heading:
        return "examples\n/s"
    heading = f"{column.heading} {column.unit.removesuffix(' of a core')}".strip()
    return heading.replace(" ", "\n", 1) if column.measured else heading


def _text(cell: Cell) -> str:
    text = escape(f"{cell.text}\n{cell.suspect}" if cell.suspect else cell.text)
    return f"[bold green]{text}[/bold green]" if cell.best else text
