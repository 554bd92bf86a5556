"""The tables of a report as plain cells; the writers decide how they look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from velodrome.events.fields import Resource
from velodrome.judge import columns
from velodrome.judge.advice import runs_needed
from velodrome.judge.compare import Row, tasks_of
from velodrome.judge.conditions import is_loaded
from velodrome.judge.configuration import distinguishing_fields, short_arguments, short_text
from velodrome.judge.judge import Dropped, Failure
from velodrome.judge.measures import Measure, View
from velodrome.judge.question import Candidate, Question
from velodrome.judge.statistics import Ratio
from velodrome.reporting.series import CURVES, Extent, RunSeries, name_of, totals

ABSENT = "–"


@dataclass(frozen=True)
class Cell:
    """A value, its range or interval, whether it is the best of its column, and its sort key."""

    text: str
    detail: str = ""
    best: bool = False
    value: float | None = None


@dataclass(frozen=True)
class Column:
    heading: str
    unit: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """A table with a name for files and links, a title, and a note on how to read it."""

    name: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.label, row.batch_size, row.workers, row.servers, row.name))


def _who(rows: Sequence[Row]) -> tuple[list[Column], dict[str, list[Cell]]]:
    """The columns that identify the configuration of a row."""
    configurations = [row.configuration for row in rows]
    extra, short = distinguishing_fields(configurations), short_arguments(configurations)
    columns = [Column("strategy", numeric=False), Column("workers"), Column("batch"),
               *(Column(name.replace("_", " "), numeric=False) for name in extra), Column("runs")]
    cells = {}
    for row in rows:
        fields = row.configuration.fields
        scope = "per worker" if fields.get("batch_scope") == "per-worker" else "global"
        cells[row.name] = [
            Cell(row.label),
            Cell(row.configuration.size, value=row.workers + row.servers / 1000),
            Cell(str(row.batch_size or ABSENT), scope if row.workers > 1 and row.batch_size else "",
                 value=row.batch_size),
            *(Cell(short_text(row.configuration, name, short)) for name in extra),
            Cell(str(row.runs), _about_runs(row), value=row.runs),
        ]
    return columns, cells


def _about_runs(row: Row) -> str:
    loaded = sum(map(is_loaded, row.results))
    rest = row.failed - row.crashed - row.ended
    parts = ((row.crashed, "crashed"), (row.ended, "ended early"), (rest, "not finished"),
             (loaded, "beside other programs"))
    return ", ".join(f"{count} {what}" for count, what in parts if count)


def _measured(row: Row, measure: Measure, best: float | None) -> Cell:
    spread = row.spreads.get(measure.name)
    if spread is None:
        return Cell(ABSENT)
    detail = f"{measure.text(spread.low)} – {measure.text(spread.high)}" if spread.count > 1 else ""
    if measure.name == "time_to_target" and spread.count < row.attempts:
        detail = f"{spread.count} of {row.attempts} runs"
    return Cell(measure.text(spread.mean), detail, spread.mean == best, spread.mean)


def interval_text(place: Ratio, form: str = ".2f") -> str:
    if place.low is None or place.high is None:
        return ""
    low = f"{place.low:{form}}" if place.low >= 0.01 else "0"
    high = f"{place.high:{form}}" if place.high < 100 else ">100"
    return f"[{low}, {high}]"


def _placed(place: Ratio | None, best: float | None, suspect: str = "") -> Cell:
    if place is None:
        return Cell(ABSENT)
    detail = ", ".join(filter(None, [interval_text(place), suspect]))
    return Cell(f"{place.estimate:.2f}", detail, place.estimate == best and not suspect, place.estimate)


def _table(name: View, title: str, note: str, rows: Sequence[Row]) -> Table:
    rows = ordered(rows)
    headings, who = _who(rows)
    shown = columns.columns_of(rows, name)
    headings += [Column(column.measure.heading, column.measure.unit) if column.measure else Column(column.name)
                 for column in shown]
    body = [(*who[row.name], *(_cell(row, column) for column in shown)) for row in rows]
    return Table(name, title, note, tuple(headings), tuple(body))


def _cell(row: Row, column: columns.Column) -> Cell:
    best = column.best[row.name]
    if column.measure is not None:
        return _measured(row, column.measure, best)
    return _placed(getattr(row, column.name), best, column.suspect.get(row.name, ""))


def results_table(rows: Sequence[Row]) -> Table:
    several = " for each data set and model" if len(tasks_of(rows)) > 1 else ""
    reached = ""
    if any(0 < row.reached < row.attempts for row in rows):
        reached = " If only some runs reached the target, the time to target is their mean."
    return _table(
        "results", "Results",
        f"Mean over the runs, geometric for times and rates, with the range below it; the best of a column is "
        f"marked{several}. Speedup is the mean ratio of throughput to that of the same engine's single run in the same "
        "repetitions, without stragglers, scaling relative to the same strategy with one worker, "
        "efficiency is speedup divided by workers; below them their 95 % intervals. The batch size is global (divided "
        "among the workers) or per worker, as given."
        + reached,
        rows,
    )


def times_table(rows: Sequence[Row]) -> Table:
    return _table(
        "times", "Times and batches",
        "Start-up is everything before the first training step. Batches per second follow from throughput, without "
        "the first steps. Batches over all training time count these steps and the batch size as requested, as many "
        "publications do: examples × epochs × workers / (batch × seconds).",
        rows,
    )


def resources_table(rows: Sequence[Row]) -> Table:
    return _table(
        "resources", "Resources, all processes",
        "CPU and memory are means over the run, summed over the processes; 100 % is one core. The largest process is "
        "the most memory that one of them had. Network is the total that the hosts received and sent, each host "
        "counted once; loopback is traffic within a host. Sent per step is what the hosts sent, loopback included, "
        "during the whole run, divided by its training steps. Other programs are what did not belong to the run: the "
        "cores that they used during the run.",
        rows,
    )


def _extent(extent: Extent | None, curve: Resource) -> Cell:
    if extent is None:
        return Cell(ABSENT)
    mean, low, high = (format(value / curve.scale, curve.form) for value in (extent.mean, extent.low, extent.high))
    return Cell(mean, f"{low} – {high}", value=extent.mean)


def nodes_table(rows: Sequence[Row], series: dict[str, RunSeries], limit: int | None = None) -> Table:
    """A row for each process of each configuration's representative run, and one for all of them together."""
    body: list[tuple[Cell, ...]] = []
    chosen = [row for row in ordered(rows) if row.name in series]
    for row in chosen:
        if limit is not None and len(body) >= limit:
            break
        found = series[row.name]
        for process, samples in found.samples.items():
            body.append((Cell(row.name), Cell(name_of(process)), Cell(samples.host), *(
                _extent(Extent.of(samples.values[curve.name]), curve) for curve in CURVES
            )))
        whole = totals(found)
        if len(found.samples) > 1:
            body.append((Cell(row.name), Cell("total"), Cell(""), *(
                _extent(whole.get(curve.name), curve) for curve in CURVES
            )))
    shown = len({cells[0].text for cells in body})
    cut = f" {shown} of {len(chosen)} configurations are shown; the CSV files have all." if shown < len(chosen) else ""
    return Table(
        "nodes", "Resources by process",
        "Mean over the run, with minimum and maximum below it, for the run of each configuration whose throughput is "
        "nearest to the mean. Network rates are measured per host, so processes of one host show the same traffic; "
        "the total counts it once." + cut,
        (Column("configuration", numeric=False), Column("process", numeric=False), Column("host", numeric=False),
         *(Column(curve.title, curve.unit) for curve in CURVES)),
        tuple(body),
    )


def pairwise_table(question: Question, best: str, number: int = 1) -> Table | None:
    """The recommended configuration compared with each of the others."""
    leader = next((candidate for candidate in question.candidates if candidate.name == best), None)
    if leader is None or len(question.candidates) < 2:
        return None
    body = []
    for other in question.candidates:
        if other is leader:
            continue
        lead = question.lead(leader, other)
        body.append((
            Cell(other.name), _mean(question, other, leader),
            Cell(lead.short, lead.interval, value=lead.estimate), Cell(_finding(question, leader, other)),
        ))
    apart = "how many points" if question.scale == "points" else "how many times"
    return Table(
        "pairwise" if number == 1 else f"pairwise-{number}", f"{best} compared with the others",
        f"By {question.objective}: {apart} better the recommended configuration is, with the range in which the true "
        "difference lies. Means and leads are of the repetitions that both ran until one of them was out, without "
        "stragglers; the table of results has all runs. The ranges allow for all configurations and for looking after "
        "every repetition: the chance that anything said to be beaten is not worse is 5 % for the whole race.",
        (Column("configuration", numeric=False), Column("mean"), Column("lead"), Column("verdict", numeric=False)),
        tuple(body),
    )


def _mean(question: Question, candidate: Candidate, leader: Candidate) -> Cell:
    """What a candidate measured in the runs of the lead, and in how many it was successful if not in all."""
    if candidate.missed:
        return Cell(question.per_success(candidate), question.successes(candidate), value=candidate.value)
    return Cell(question.amount(candidate, leader), value=question.value(candidate, leader))


def _finding(question: Question, leader: Candidate, other: Candidate) -> str:
    """What is settled between the recommended configuration and another."""
    number = question.number(other)
    drop = question.standing.beaten(number)
    if drop is not None:
        by = question.candidates[drop.winner]
        return "beaten" + ("" if by is leader else f" by {by.name}") + f" after {drop.look} repetitions"
    pair = question.standing.lead(question.number(leader), number)
    if pair.within(question.standing.tolerance):
        return "tied"
    if question.standing.outcome != "open":
        return "better" if pair.high < 0 else "not settled"
    return f"open: {runs_needed(question).cost(other.name)}"


def failures_table(failures: Sequence[Failure]) -> Table:
    return Table(
        "failures", "Runs that did not finish", "They are excluded from every number above, except that a "
        "verdict by the time to a target or by cost counts what crashed runs took.",
        (Column("run", numeric=False), Column("status", numeric=False), Column("reason", numeric=False)),
        tuple((Cell(failure.run), Cell(failure.status), Cell(failure.message)) for failure in failures),
    )



def dropped_table(dropped: Sequence[Dropped]) -> Table:
    return Table(
        "dropped", "Configurations that were dropped",
        "Each was out after that repetition and ran no more. The range allows for all rivals and repetitions.",
        (Column("configuration", numeric=False), Column("after repetition"), Column("beaten by", numeric=False),
         Column("lead of that one"), Column("reason", numeric=False)),
        tuple(
            (Cell(drop.name), Cell(str(drop.after), value=drop.after), Cell(drop.beaten_by or ""),
             Cell(drop.lead.short, value=drop.lead.estimate, detail=drop.lead.interval) if drop.lead else Cell(""),
             Cell(drop.why))
            for drop in dropped
        ),
    )
