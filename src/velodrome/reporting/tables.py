"""The columns in which configurations are compared, for reports and terminals alike, and the tables of a report as
plain cells; the writers decide how they look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from velodrome.events.fields import Resource
from velodrome.judge.choice import runs_needed
from velodrome.judge.compare import Row, measure_of, qualities_of, tasks_of
from velodrome.judge.conditions import is_loaded
from velodrome.judge.configuration import Baselines, distinguishing_fields, short_arguments, short_text
from velodrome.judge.judge import Dropped, Failure
from velodrome.judge.measures import MEASURES, QUALITIES, THROUGHPUT, TIME_TO_TARGET, Measure, Ratio, View
from velodrome.judge.plausibility import suspects
from velodrome.judge.question import Candidate, Question
from velodrome.reporting.series import CURVES, Extent, RunSeries, name_of, totals

#: Ratios of throughput, which are fields of a row: the views in which each is a column, with its place there.
RATIOS: Mapping[str, Mapping[View, int]] = {
    "speedup": {"results": 10, "terminal": 2},
    "scaling": {"results": 11, "terminal": 3},
    "efficiency": {"results": 12},
}
#: What rounding to two digits may change of a ratio, and a little more.
_ROUNDED = 0.01


@dataclass(frozen=True)
class MeasureColumn:
    """A measure or a ratio of configurations, of which at least one has it."""

    name: str
    #: None for a ratio.
    measure: Measure | None
    #: For each row, by name, the best of its task; None where nothing is marked.
    best: Mapping[str, float | None]
    #: What to write beside values that do not hold, by the name of the row.
    suspect: Mapping[str, str]


def columns_of(rows: Sequence[Row], view: View) -> list[MeasureColumn]:
    """The columns of a view that have values, in their order."""
    measures = [*qualities_of(rows), *(measure for measure in MEASURES if measure not in QUALITIES)]
    places = {measure.name: measure.shown[view] for measure in measures if view in measure.shown}
    places |= {name: shown[view] for name, shown in RATIOS.items() if view in shown}
    doubtful = suspects(rows)
    columns = []
    for name in sorted(places, key=lambda name: places[name]):
        if name in RATIOS:
            if any(getattr(row, name) is not None for row in rows):
                columns.append(MeasureColumn(name, None, _best_ratios(rows, name), doubtful))
        elif any(name in row.spreads for row in rows):
            columns.append(MeasureColumn(name, measure_of(rows, name), bests_of(rows, name), {}))
    return columns


def best_of(rows: Sequence[Row], measure: str) -> float | None:
    """The best mean of a column, or None if none is better than another."""
    better = measure_of(rows, measure).better
    if measure == TIME_TO_TARGET.name:
        rows = [row for row in rows if row.reached == row.attempts]
    values = [value for row in rows if (value := row.mean(measure)) is not None]
    if better is None or len(set(values)) < 2:
        return None
    return max(values) if better == "more" else min(values)


def bests_of(rows: Sequence[Row], measure: str) -> dict[str, float | None]:
    """For each row, by name, the best mean of its task."""
    return {row.name: best for members in tasks_of(rows).values() for best in [best_of(members, measure)]
            for row in members}


def _achieved(row: Row, name: str) -> bool:
    """Whether a ratio may be marked as the best: one worker scales ideally by definition."""
    return getattr(row, name) != Ratio(1.0) and (row.workers > 1 or name == "speedup")


def _best_ratios(rows: Sequence[Row], name: str) -> dict[str, float | None]:
    """For each row, by name, the best ratio of its task."""
    bests: dict[str, float | None] = {}
    for members in tasks_of(rows).values():
        doubtful = suspects(members)
        others = [held.estimate for row in members
                  if (held := getattr(row, name)) and _achieved(row, name) and row.name not in doubtful]
        best = max(others, default=0.0)
        # A single ratio, or a best one that is slower than its baseline, is not marked.
        marked = len(others) > 1 and (best > 1 or name == "efficiency")
        bests.update({row.name: best if marked and _achieved(row, name) else None for row in members})
    return bests


def ratios_of_fewer(rows: Sequence[Row]) -> bool:
    """Whether a speedup or scaling is not the ratio of the means beside it, because it is of fewer runs: of the
    repetitions that both ran, without stragglers."""
    baselines = Baselines(row.configuration for row in rows)
    means = {row.configuration.key: row.mean(THROUGHPUT.name) for row in rows}
    for row in rows:
        for place, key in ((row.speedup, baselines.single(row.configuration)),
                           (row.scaling, baselines.alone(row.configuration))):
            mine, other = means[row.configuration.key], means.get(key or "")
            if place is not None and mine and other and abs(mine / other / place.estimate - 1) > _ROUNDED:
                return True
    return False


ABSENT = "–"
#: Rows of the table of processes; the CSV file has all.
MOST_NODE_ROWS = 150


@dataclass(frozen=True)
class Cell:
    """A value, its range or interval, whether it is the best of its column, and its sort key."""

    text: str
    detail: str = ""
    best: bool = False
    value: float | None = None
    #: Why the value does not hold; empty if it does.
    suspect: str = ""


@dataclass(frozen=True)
class Column:
    heading: str
    unit: str = ""
    numeric: bool = True
    #: Whether it is a measure or a ratio; other columns say which configuration it is.
    measured: bool = False


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


def _cell(row: Row, column: MeasureColumn) -> Cell:
    best, measure = column.best[row.name], column.measure
    if measure is None:
        return _ratio_cell(getattr(row, column.name), best, column.suspect.get(row.name, ""))
    spread = row.spreads.get(measure.name)
    if spread is None:
        return Cell(ABSENT)
    detail = f"{measure.text(spread.low)} – {measure.text(spread.high)}" if spread.count > 1 else ""
    if measure.name == "time_to_target" and spread.count < row.attempts:
        detail = f"{spread.count} of {row.attempts} runs"
    return Cell(measure.text(spread.mean), detail, spread.mean == best, spread.mean)


def _ratio_cell(ratio: Ratio | None, best: float | None, suspect: str) -> Cell:
    if ratio is None:
        return Cell(ABSENT)
    interval = ""
    if ratio.low is not None and ratio.high is not None:
        low = f"{ratio.low:.2f}" if ratio.low >= 0.01 else "0"
        interval = f"[{low}, {ratio.high:.2f}]" if ratio.high < 100 else f"[{low}, >100]"
    detail = ", ".join(filter(None, [interval, suspect]))
    return Cell(f"{ratio.estimate:.2f}", detail, ratio.estimate == best and not suspect, ratio.estimate, suspect)


#: Title and note of a table of every view.
_VIEWS: Mapping[View, tuple[str, str]] = {
    "terminal": ("Comparison", ""),
    "results": (
        "Results",
        "Mean over the runs, geometric for times and rates, with the range below it; the best of a column is "
        "marked{several}. Speedup is the mean ratio of throughput to that of the same engine's single run in the same "
        "repetitions, without stragglers, scaling relative to the same strategy with one worker, "
        "efficiency is speedup divided by workers; below them their 95 % intervals. The batch size is global (divided "
        "among the workers) or per worker, as given.{reached}"),
    "times": (
        "Times and batches",
        "Start-up is everything before the first training step. Batches per second follow from throughput, without "
        "the first steps. Batches over all training time count these steps and the batch size as requested, as many "
        "publications do: examples × epochs × workers / (batch × seconds)."),
    "resources": (
        "Resources, all processes",
        "CPU and memory are means over the run, summed over the processes; 100 % is one core. The largest process is "
        "the most memory that one of them had. Network is the total that the hosts received and sent, each host "
        "counted once; loopback is traffic within a host. Sent per step is what the hosts sent, loopback included, "
        "during the whole run, divided by its training steps. Other programs are what did not belong to the run: the "
        "cores that they used during the run."),
}


def view_table(view: View, rows: Sequence[Row]) -> Table:
    """Configurations with the measures of a view."""
    rows, (title, note) = ordered(rows), _VIEWS[view]
    several = " for each data set and model" if len(tasks_of(rows)) > 1 else ""
    some = any(0 < row.reached < row.attempts for row in rows)
    reached = " If only some runs reached the target, the time to target is their mean." if some else ""
    headings, who = _who(rows)
    shown = columns_of(rows, view)
    headings += [Column(column.measure.heading, column.measure.unit, measured=True) if column.measure
                 else Column(column.name, measured=True) for column in shown]
    body = [(*who[row.name], *(_cell(row, column) for column in shown)) for row in rows]
    return Table(view, title, note.format(several=several, reached=reached), tuple(headings), tuple(body))


def _extent(extent: Extent | None, curve: Resource) -> Cell:
    if extent is None:
        return Cell(ABSENT)
    mean, low, high = (format(value / curve.scale, curve.form) for value in (extent.mean, extent.low, extent.high))
    return Cell(mean, f"{low} – {high}", value=extent.mean)


def nodes_table(rows: Sequence[Row], series: Mapping[str, RunSeries]) -> Table:
    """A row for each process of each configuration's representative run, and one for all of them together."""
    body: list[tuple[Cell, ...]] = []
    chosen = [row for row in ordered(rows) if row.name in series]
    for row in chosen:
        if len(body) >= MOST_NODE_ROWS:
            break
        run = series[row.name]
        lines = [
            (name_of(process), samples.host, {name: Extent.of(values) for name, values in samples.values.items()})
            for process, samples in run.samples.items()
        ]
        if len(lines) > 1:
            lines.append(("total", "", {**totals(run)}))
        for process, host, extents in lines:
            cells = (_extent(extents.get(curve.name), curve) for curve in CURVES)
            body.append((Cell(row.name), Cell(process), Cell(host), *cells))
    shown = len({cells[0].text for cells in body})
    cut = f" {shown} of {len(chosen)} configurations are shown; the CSV files have all." if shown < len(chosen) else ""
    return Table(
        "nodes", "Resources by process",
        "Mean over the run, with minimum and maximum below it, for the run of each configuration whose throughput is "
        "nearest to the mean. Network rates are measured per host, so processes of one host show the same traffic; "
        "the total counts it once." + cut,
        (*(Column(heading, numeric=False) for heading in ("configuration", "process", "host")),
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
        f"By {question.objective.name}: {apart} better the recommended configuration is, with the range in which the "
        "true difference lies. Means and leads are from the repetitions that both ran before one of them was dropped, "
        "without stragglers; the results table includes all runs. The ranges account for all configurations and for "
        "judging after every repetition: the chance that anything reported as beaten is not worse is 5 % for the "
        "whole race.",
        (Column("configuration", numeric=False), Column("mean"), Column("lead"), Column("verdict", numeric=False)),
        tuple(body))


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
        "failures", "Runs that did not finish",
        "They are excluded from every number above. Only verdicts by time to a target or by cost count what "
        "crashed runs took.",
        (Column("run", numeric=False), Column("status", numeric=False), Column("reason", numeric=False)),
        tuple((Cell(failure.run), Cell(failure.status), Cell(failure.message)) for failure in failures),
    )


def dropped_table(dropped: Sequence[Dropped]) -> Table:
    return Table(
        "dropped", "Configurations that were dropped",
        "Each was dropped after that repetition and did not run again. The range accounts for all rivals and "
        "repetitions.",
        (Column("configuration", numeric=False), Column("after repetition"), Column("beaten by", numeric=False),
         Column("lead of the better"), Column("reason", numeric=False)),
        tuple(
            (Cell(drop.name), Cell(str(drop.after), value=drop.after), Cell(drop.beaten_by or ""),
             Cell(drop.lead.short, value=drop.lead.estimate, detail=drop.lead.interval) if drop.lead else Cell(""),
             Cell(drop.why))
            for drop in dropped
        ),
    )
