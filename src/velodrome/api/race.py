"""`race`: many jobs against each other. Plans a race, runs what is missing, and summarizes what is on disk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velodrome.api.race_plan import PlannedRace, admit_code, default_name, merge, plan_race, words_in
from velodrome.clusters.registry import Where
from velodrome.data.fetch import using_mirror
from velodrome.events.endings import ended_early
from velodrome.events.models import Event
from velodrome.job.job import Job, Target
from velodrome.job.race import Entry, Race
from velodrome.judge.compare import Row, compare
from velodrome.judge.progress import Ending, Saving, saving
from velodrome.judge.verdict import Recommendation
from velodrome.races.budget import Budget
from velodrome.races.jobs import run_entries, run_until_sure
from velodrome.races.observer import RaceObserver, Result
from velodrome.races.until_sure import UntilSure, criteria_of
from velodrome.run import trust
from velodrome.run.execute import JobFailed
from velodrome.run.store import RunFolder


def race(
    race: Race | str | Path | None = None,
    *,
    job: Job | Mapping[str, Any] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    repeat: int | None = None,
    until_sure: bool | None = None,
    budget: str | float | None = None,
    max_repeat: int | None = None,
    objective: str | None = None,
    tolerance: str | float | None = None,
    accuracy_margin: float | None = None,
    grace: int | None = None,
    baseline: bool | None = None,
    naming: str | None = None,
    name: str | None = None,
    runs: str | Path = "runs",
    on: Where | None = None,
    warm: bool = True,
    parallel: int | None = None,
    dry_run: bool = False,
    measure: bool | None = None,
    skip_unavailable: bool = False,
    mirror: str | None = None,
    trust_code: Collection[str] = (),
    on_event: Callable[[str, dict[str, Any]], None] | None = None,
    on_job: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Race strategies, engines, batch and cluster sizes, and return the object that ``velodrome race --json`` prints.

    It has the race's name and ``path``, a row for each configuration (``rows``), the ``verdict``, the names of jobs
    that ``failed``, their messages (``failures``), why jobs were ``skipped``, and the path of a ``figure``; with
    ``until_sure`` also how it ended (``decision``), the configurations that were dropped (``drops``) and what that
    ``saved``. A job that fails ends no race. The same call again runs only what is missing.

    With nothing to vary, every strategy that can train the model here takes part with a worker for
    each core, until one is best or 15 minutes are over.

    Args:
        race: a race, or a YAML file that holds one; the other fields are put on top of it.
        job: fields that all jobs share.
        vary: field names with their values; ``entry`` takes partial jobs.
        repeat: runs of each configuration, with seeds that count up; with ``until_sure`` at least this many.
        until_sure: run repetitions until the best configuration is known, without those that are clearly worse.
        budget: seconds that all runs together may take, or a text such as ``20m`` or ``1h30m``; with ``until_sure``
            configurations for which it is too small are left out.
        max_repeat: runs of a configuration at most, with ``until_sure``; by default 30.
        objective: what decides, as for ``recommend``.
        tolerance: differences below this share are too small to matter, by default 0.05.
        accuracy_margin: how much less accurate than the best a configuration may be and still win, by default 0.01.
        grace: epochs before which no run is ended early, and no configuration dropped for not reaching the target.
        baseline: whether each engine's ``single`` takes part where distribution varies, by default true.
        naming: how runs are named, ``plain`` or ``published``.
        name: name of the race's folder; by default the file's name, or one that follows from the fields.
        runs: folder that holds the race.
        on: where jobs run, as for ``train``; those that name their own in ``vary`` run there.
        warm: whether processes are forked from one that has imported the engine.
        parallel: how many jobs may run at the same time, each on hosts of its own; by default as many as the cluster
            has room for, which on one machine is one.
        dry_run: return the plan, jobs and expected seconds, and start nothing.
        measure: train what could only be guessed for a second, to estimate how long the race takes; by default if the
            guess may be far off and that takes less than ten seconds.
        skip_unavailable: leave out jobs for which this machine lacks a package, a device or memory, instead of
            refusing the race.
        mirror: folder or URL with the publisher's files of data sets.
        trust_code: code that the file names and that may run although it lies neither beside the file nor in the
            current folder, as ``module:function`` or the path of a script.
        on_event: called with a run's name and each of its events.
        on_job: called with the result of each job when it ends, failed ones included.

    Raises:
        BadRequest: the race cannot run as requested; nothing was started.
    """
    merged = merge(race, job, vary, {
        "repeat": repeat, "until_sure": until_sure, "budget": budget, "max_repeat": max_repeat, "objective": objective,
        "tolerance": tolerance, "accuracy_margin": accuracy_margin, "grace": grace, "baseline": baseline,
        "naming": naming,
    })
    admit_code(merged, race, name or default_name(race, merged), runs, words_in([job, vary]), trust_code, on)
    with using_mirror(mirror):
        planned = plan_race(
            merged, name or default_name(race, merged), runs, on=on, warm=warm, complete=race is None,
            leave_out=lambda _: skip_unavailable, measure=measure,
        )
        if dry_run:
            return planned.as_json()
        return run_planned(planned, _Callbacks(on_event, on_job), warm=warm, parallel=parallel).as_json()


class _Callbacks(RaceObserver):
    """Passes what happens on to two plain functions."""

    def __init__(
        self, on_event: Callable[[str, dict[str, Any]], None] | None, on_job: Callable[[Result], None] | None
    ) -> None:
        self._on_event, self._on_job = on_event, on_job

    def event(self, entry: Entry, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(entry.name, event.as_json())

    def end(self, entry: Entry, result: Result, error: JobFailed | None) -> None:
        if self._on_job is not None:
            self._on_job(result)


@dataclass(frozen=True)
class FinishedRace:
    """What a race ended with, read from disk, so that `report` and `recommend` agree with it."""

    path: Path
    rows: tuple[Row, ...]
    #: The answer for each task, by its name.
    answers: Mapping[str, Recommendation]
    figure: Path | None
    #: Messages of jobs that did not finish, by name.
    failures: Mapping[str, str]
    #: As in the plan.
    skipped: Mapping[str, str]
    reasons: tuple[str, ...]
    #: Of a race that ran until it was sure: how it ended, and what that saved.
    ending: Ending | None = None
    saved: Saving | None = None

    @property
    def verdict(self) -> str:
        """The first line of every answer."""
        return "\n".join(f"Verdict{f' for {task}' if task else ''}: {answer.verdict}"
                         for task, answer in self.answers.items())

    def as_json(self) -> dict[str, Any]:
        decided: dict[str, Any] = {}
        if self.ending is not None and self.saved is not None:
            decided = {"decision": self.ending.as_json(), "drops": [drop.as_json() for drop in self.ending.dropped],
                       "saved": self.saved.as_json()}
        return {
            "race": self.path.name, "path": str(self.path.resolve()), "rows": [row.as_json() for row in self.rows],
            "failed": list(self.failures), "failures": dict(self.failures), "skipped": dict(self.skipped),
            "figure": str(self.figure.resolve()) if self.figure else None, "verdict": self.verdict, **decided,
            "answers": [{"task": task, **answer.as_json()} for task, answer in self.answers.items()],
        }


def run_missing(
    planned: PlannedRace, observer: RaceObserver, *, warm: bool, parallel: int | None = None
) -> dict[str, str]:
    """Run the jobs of a plan that are not finished; messages of those that failed, by name."""
    planned.folder.begin(planned.race, grown=planned.may_grow)
    budget = Budget(planned.folder, planned.race.budget, planned.entries, planned.seconds)
    ran = run_entries(
        planned.folder, planned.entries, observer, on=planned.on, warm=warm, parallel=parallel, budget=budget
    )
    return _failures(ran)


def _failures(results: Iterable[Result]) -> dict[str, str]:
    return {
        result["run"]: str((result.get("error") or {}).get("message", result["status"]))
        for result in results if result["status"] != "finished" and not ended_early(result)
    }


def run_planned(
    planned: PlannedRace, observer: RaceObserver, *, warm: bool, parallel: int | None = None
) -> FinishedRace:
    """Run what is missing, compare the configurations, draw them, and judge."""
    trust.record(entry.job for entry in planned.entries)  # also of jobs that a race which is stopped does not reach
    ending: Ending | None = None
    if planned.race.until_sure:
        failures, ending = _run_until_sure(planned, observer, warm=warm, parallel=parallel)
    else:
        failures = run_missing(planned, observer, warm=warm, parallel=parallel)
    from velodrome.reporting.figures import race_figure
    from velodrome.reporting.load import load_race

    path = planned.folder.path
    record = load_race(path.parent, path.name)
    rows = compare(record.results, Target.parse(record.target) if record.target else None)
    answers = record.answers(rows)
    figure = race_figure(rows, path / "race.png", title_of([entry.job for entry in planned.entries])) if rows else None
    skipped, reasons = dict(planned.skipped), planned.reasons
    if ending is None and planned.race.budget is not None:
        late = [entry.name for entry in planned.entries if not (path / entry.name).exists()]
        skipped.update(dict.fromkeys(late, "the budget was over"))
        reasons += (f"{len(late)} of {len(planned.entries)} jobs, because the budget was over; a larger --budget runs "
                    f"them: {', '.join(late[:8])}{' …' if late[8:] else ''}",) if late else ()
    return FinishedRace(
        path, tuple(rows), answers, figure, failures, skipped, reasons, ending,
        saving(rows) if ending is not None else None,
    )


def _run_until_sure(
    planned: PlannedRace, observer: RaceObserver, *, warm: bool, parallel: int | None
) -> tuple[dict[str, str], Ending]:
    race, folder = planned.race, planned.folder
    folder.begin(race)
    criteria = criteria_of(race, (entry.job.target for entry in planned.entries))
    loop = UntilSure(folder, race, planned.entries, planned.seconds, criteria, planned.promise)
    ending, results = run_until_sure(
        loop, folder, planned.entries, observer, on=planned.on, warm=warm, parallel=parallel
    )
    ran = (results.get(entry.name) or RunFolder(folder.path / entry.name).result() for entry in planned.entries)
    return _failures(result for result in ran if result is not None), ending


def title_of(jobs: Sequence[Job]) -> str:
    """What a race trains, with every value that occurs."""

    def every(field: str) -> str:
        values = list(dict.fromkeys(str(getattr(job, field)) for job in jobs))
        return ", ".join(values[:6]) + (" …" if values[6:] else "")

    if all(job.script is not None for job in jobs):
        return every("model")
    epochs = every("epochs") + (" epoch" if every("epochs") == "1" else " epochs")
    return f"{every('model')} on {every('dataset')}, {epochs}, batch {every('batch_size')}"
