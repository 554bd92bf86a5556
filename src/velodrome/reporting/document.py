"""The content of a report: tables, notes and verdicts of a race, in order. The writers only format it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from velodrome.events.result import Machine
from velodrome.judge.budget import saving
from velodrome.judge.compare import Row
from velodrome.judge.conditions import data_note, host_lines
from velodrome.judge.configuration import implementation_lines, text_of, varied
from velodrome.judge.criteria import OBJECTIVES, Criteria
from velodrome.judge.plausibility import drift_note
from velodrome.judge.verdict import Recommendation
from velodrome.races.hosts import rates
from velodrome.races.jobs import stored_ending
from velodrome.reporting import curves, load, tables, usage
from velodrome.reporting.figures import Looks, Picture
from velodrome.reporting.series import RunSeries, hosts_of, run_series
from velodrome.reporting.tables import Table
from velodrome.run.store import RunFolder


@dataclass(frozen=True)
class Answer:
    """The recommendation for a task, and the verdicts by other objectives."""

    task: str
    recommendation: Recommendation
    others: tuple[Recommendation, ...]


@dataclass(frozen=True)
class Report:
    """Everything that a report contains."""

    record: load.RaceRecord
    rows: tuple[Row, ...]
    #: One for each task (data set and model) of the race; the name is empty if there is only one.
    answers: tuple[Answer, ...]
    main: Table | None
    pairwise: tuple[Table, ...]
    more: tuple[Table, ...]
    failures: Table | None
    #: Parameters common to all runs, varied parameters, and the environment: names and values as text.
    shared: tuple[tuple[str, str], ...]
    varied: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    commands: tuple[str, ...]
    series: dict[str, RunSeries]
    target: str | None
    #: Of a study: what was published beside ours, and more figures and CSV files, by what their names end in.
    published: tuple[Table, ...] = ()
    more_pictures: Callable[[], Sequence[Picture]] = tuple
    more_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"Race {self.record.name}"

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(table for table in (self.main, *self.published, *self.pairwise, *self.more, self.failures)
                     if table is not None)


def make_report(record: load.RaceRecord, criteria: Criteria | None = None) -> Report:
    """Judge a race, by default by its own criteria, and gather everything that its report has."""
    judgement = record.judged(criteria)
    rows, chosen, target = judgement.rows, judgement.criteria.chosen, judgement.criteria.shown_target
    objectives = [name for name, objective in OBJECTIVES.items()
                  if name != chosen and (target or not objective.needs_target)]
    answers = tuple(Answer(task.task, task.answer, tuple(map(task.by, objectives)) if task.rows else ())
                    for task in judgement.by_task)
    pairwise = [tables.pairwise_table(task.question, task.answer.best, number)
                for number, task in enumerate(judgement.by_task, start=1) if task.answer.best]
    series = {row.name: _series(row) for row in rows}
    ending = stored_ending(record.path, record.race) if rows else None
    dropped = [tables.dropped_table(ending.dropped)] if ending and ending.dropped else []
    notes = [f"{ending.sentence} {saving(rows).sentence}"] if ending else []
    return Report(
        record, rows, answers,
        main=tables.view_table("results", rows) if rows else None,
        pairwise=tuple(table for table in pairwise if table is not None),
        more=(
            *dropped, tables.view_table("times", rows), tables.view_table("resources", rows),
            tables.nodes_table(rows, series),
        ) if rows else (),
        failures=tables.failures_table(record.failures) if record.failures else None,
        shared=_shared(rows), varied=_varied(rows), environment=_environment(record, rows),
        notes=(*notes, *_notes(record, rows)), commands=_commands(record),
        series=series, target=target,
    )


def make_pictures(report: Report) -> list[Picture]:
    """Every figure that the race has data for, in the order of the page."""
    rows = tables.ordered(report.rows)
    if not rows:
        return []
    spoken = [
        name for answer in report.answers for name in (answer.recommendation.best, answer.recommendation.rival) if name
    ]
    looks = Looks.of(rows)
    drawn = [
        curves.over_workers(rows, looks),
        *curves.of_tasks(rows, report.target, looks),
        usage.confusion(rows),
        usage.shares(rows),
        usage.bars(rows),
        usage.node_curves(rows, report.series, spoken),
        usage.timeline(rows, report.series, spoken),
    ]
    return [*(picture for picture in drawn if picture is not None), *report.more_pictures()]


def _series(row: Row) -> RunSeries:
    result = row.representative
    events = RunFolder(result.folder).events(progress=False) if result.folder else ()
    return run_series(result.started, hosts_of(result), events)


def _shared(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    if not rows:
        return ()
    differing = varied(row.configuration for row in rows)
    fields = rows[0].configuration.fields
    return tuple((name.replace("_", " "), text_of(value)) for name, value in fields.items() if name not in differing)


def _varied(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    differing = varied(row.configuration for row in rows)
    seeds = sorted({result.seed for row in rows for result in row.results if result.seed is not None})
    pairs = [(name.replace("_", " "), ", ".join(map(text_of, values))) for name, values in differing.items()]
    return (*pairs, ("seed", ", ".join(map(str, seeds))))


def _stamp(moment: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
    except (OverflowError, OSError, ValueError):  # outside the range of this platform
        return f"{moment:g} s since 1970"


def _environment(record: load.RaceRecord, rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    results = [result for row in rows for result in row.results]
    versions: dict[str, dict[str, None]] = {}
    for result in results:
        for package, version in result.versions.items():
            versions.setdefault(package, {})[version] = None
    facts = [(package, ", ".join(numbers)) for package, numbers in versions.items()]
    machines = dict.fromkeys(_machine(result.machine) for result in results if result.machine is not None)
    facts += [("machine", machine) for machine in machines]
    facts += [("host", line) for line in dict.fromkeys(line for result in results for line in host_lines(result))]
    hosts = sorted({node.host for result in results for node in result.nodes})
    if hosts:
        facts.append(("hosts", ", ".join(hosts[:20]) + (f" and {len(hosts) - 20} more" if len(hosts) > 20 else "")))
    times = [moment for result in results for moment in (result.started, result.ended) if moment]
    if times:
        facts.append(("ran", f"{_stamp(min(times))} to {_stamp(max(times))}"))
    for row in rows:
        for lines in dict.fromkeys(tuple(implementation_lines(result)) for result in row.results):
            facts += [(f"implementation of {row.label}", "; ".join(lines))] if lines else []
    parameters = sorted({result.parameters for result in results if result.parameters})
    if parameters:
        facts.append(("parameters of the model", ", ".join(f"{count:,}" for count in parameters)))
    return tuple(dict.fromkeys(facts))


def _machine(machine: Machine) -> str:
    return (f"{machine.processor}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB memory, "
            f"{machine.system}")


def _notes(record: load.RaceRecord, rows: Sequence[Row]) -> tuple[str, ...]:
    """Caveats that a reader must know."""
    notes = [*filter(None, [data_note(record.results)])]
    if rows and min(row.runs for row in rows) < 2:
        once = sum(row.runs < 2 for row in rows)
        who = "Every configuration" if once == len(rows) else f"{once} of {len(rows)} configurations"
        notes.append(f"{who} ran once: a single run has no interval, and differences may be noise. Use --repeat 3.")
    fields = [row.configuration.fields for row in rows]
    if any(field.get("threads") is None and "threads" in field for field in fields):
        notes.append("Threads were not set: the cores of a host were divided among its workers, so one worker had all "
                     "of them. Speedup then measures the gain of dividing the same cores, not of adding machines.")
    if any(field.get("batch_scope") == "per-worker" and field["workers"] > 1 for field in fields):
        notes.append("With a batch per worker, more workers process more examples per step or make more steps at once: "
                     "throughput may rise while accuracy per epoch falls.")
    hosts = {node.host for row in rows for result in row.results for node in result.nodes}
    if len(hosts) == 1 and any(row.processes > 1 for row in rows):
        notes.append("All processes ran on one host: they shared its cores and memory, and no gradient crossed a "
                     "network.")
    warmup = sorted({result.throughput.warmup_steps for row in rows for result in row.results})
    if warmup and warmup[-1]:
        span = str(warmup[-1]) if len(warmup) == 1 else f"{warmup[0]} to {warmup[-1]}"
        notes.append(f"Throughput leaves out the first {span} training steps of a run as warm-up.")
    if record.missing:
        several = len(record.missing) > 1
        notes.append(f"{len(record.missing)} run{'s' if several else ''} of the race {'have' if several else 'has'} "
                     "not started yet.")
    running = sum(result.status == "running" for result in record.results)
    if running:
        notes.append(f"The race was running when this report was written: {running} unfinished.")
    if record.aside:
        notes.append(f"{record.aside} archived attempts that did not finish are not counted.")
    if record.repeated:
        count = f"{len(record.repeated)} runs were" if len(record.repeated) > 1 else "1 run was"
        notes.append(f"{count} repeated because other programs used the machine at the same time, and the attempt "
                     f"that they disturbed less counts: {', '.join(record.repeated)}.")
    if drift := drift_note(rates(record.path)):
        notes.append(drift)
    return tuple(notes)


def _commands(record: load.RaceRecord) -> tuple[str, ...]:
    again = f"{record.name}-again"
    return (
        f"velodrome race race.yaml --name {shlex.quote(again)}",
        f"velodrome report {shlex.quote(again)}",
    )
