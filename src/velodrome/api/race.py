"""`race`: many jobs against each other. Plans a race, runs what is missing, and summarizes what is on disk."""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from velodrome.clusters import DEFAULT, Where, open_cluster
from velodrome.data.fetch import using_mirror
from velodrome.events.models import Event
from velodrome.job.job import Job
from velodrome.job.race import OPTIONS, Entry, Race
from velodrome.job.result import Result
from velodrome.judge.budget import Ending, Saving, saving
from velodrome.judge.judge import Judgement
from velodrome.races.jobs import check_destination, run_jobs, send_finished
from velodrome.races.plan import PlannedRace, plan_race
from velodrome.races.request import RaceObserver, RaceRequest, read_request
from velodrome.run.attempt import JobFailed
from velodrome.run.state import RunState


def _with_options(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The function with a keyword for each option of a race, as `Race` declares it, in place of its `fields`."""
    signature = inspect.signature(function)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    place = [parameter.name for parameter in own].index("vary") + 1
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None,
                          annotation=Race.model_fields[name].annotation)
        for name in OPTIONS
    ]
    declared = signature.replace(parameters=[*own[:place], *options, *own[place:]])

    @functools.wraps(function)
    def wrapped(*args: Any, **given: Any) -> dict[str, Any]:
        declared.bind(*args, **given)
        return function(*args, **given)

    wrapped.__signature__ = declared  # type: ignore[attr-defined]
    wrapped.__doc__ = (function.__doc__ or "").replace("        OPTIONS\n", "".join(map(_described, OPTIONS)))
    return wrapped


def _described(name: str) -> str:
    """An option of a race as a docstring has it."""
    about = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", Race.model_fields[name].description or "").replace("`", "``")
    return textwrap.fill(f"{name}: {about}.", 120, initial_indent=" " * 8, subsequent_indent=" " * 12) + "\n"


@_with_options
def race(
    race: Race | str | Path | None = None, *, job: Job | Mapping[str, Any] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None, name: str | None = None, runs: str | Path = "runs",
    on: Where | None = None, warm: bool = True, parallel: int | None = None, dry_run: bool = False,
    measure: bool | None = None, skip_unavailable: bool = False, mirror: str | None = None,
    artifacts: str | None = None, trust_code: Collection[str] = (),
    on_event: Callable[[str, dict[str, Any]], None] | None = None,
    on_job: Callable[[dict[str, Any]], None] | None = None, **fields: Any,
) -> dict[str, Any]:
    """Race strategies, engines, batch and cluster sizes, and return the object that ``velodrome race --json`` prints.

    It has the race's name and ``path``, a row for each configuration (``rows``), the ``verdict``, the names of jobs
    that ``failed``, their messages (``failures``), why jobs were ``skipped``, and the path of a ``figure``; with
    ``until_sure`` also how it ended (``decision``), the configurations that were dropped (``drops``) and what that
    ``saved``. A job that fails ends no race. The same call again runs only what is missing. With nothing to vary, every
    strategy that can train the model here takes part with a worker for each core, until one is best or 15 minutes are
    over. A race that cannot run as requested is refused (``BadRequest``), and nothing is started.

    Args:
        race: a race, or a YAML file that holds one; the other fields are put on top of it.
        job: fields that all jobs share.
        vary: field names with their values; ``entry`` takes partial jobs.
        OPTIONS
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
        artifacts: address below which every finished run is copied when the race ends, to ADDRESS/RACE/RUN; the answer
            has that of the race as ``artifacts``.
        trust_code: code that the file names and that may run although it lies neither beside the file nor in the
            current folder, as ``module:function`` or the path of a script.
        on_event: called with a run's name and each of its events.
        on_job: called with the result of each job when it ends, failed ones included.
    """
    asked = read_request(
        race, job, vary, fields, name=name, runs=runs, trust_code=trust_code, on=on, warm=warm, parallel=parallel,
        dry_run=dry_run, measure=measure, skip_unavailable=skip_unavailable, mirror=mirror,
        artifacts=artifacts,
    )
    return run_race(asked, _Callbacks(on_event, on_job)).as_json()


def run_race(asked: RaceRequest, observer: RaceObserver) -> PlannedRace | FinishedRace:
    """Plan a race, run what is missing, and judge it; of a dry run, the plan."""
    check_destination(asked.artifacts)
    with using_mirror(asked.mirror), open_cluster(asked.on or DEFAULT) as cluster:
        with observer.planning():
            planned = plan_race(asked, cluster, observer)
        observer = observer.planned(planned)
        if asked.dry_run:
            return planned
        with observer.session():
            failures, ending = run_jobs(planned, cluster, observer, warm=asked.warm, parallel=asked.parallel)
            finished = _finished(planned, failures, ending)
            return finished if asked.artifacts is None else replace(finished, artifacts=send_finished(
                planned, asked.artifacts))


class _Callbacks(RaceObserver):
    """Passes what happens on to two plain functions."""

    def __init__(
        self, on_event: Callable[[str, dict[str, Any]], None] | None, on_job: Callable[[dict[str, Any]], None] | None
    ) -> None:
        self._on_event, self._on_job = on_event, on_job

    def event(self, entry: Entry, state: RunState, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(entry.name, event.as_json())

    def end(self, entry: Entry, result: Result, error: JobFailed | None) -> None:
        if self._on_job is not None:
            self._on_job(result.as_json())


@dataclass(frozen=True)
class FinishedRace:
    """What a race ended with, read from disk, so that `report` and `recommend` agree with it."""

    path: Path
    judgement: Judgement
    figure: Path | None
    #: Messages of jobs that did not finish, by name.
    failures: Mapping[str, str]
    #: As in the plan.
    skipped: Mapping[str, str]
    reasons: tuple[str, ...]
    #: Of a race that ran until it was sure: how it ended, and what that saved.
    ending: Ending | None = None
    saved: Saving | None = None
    #: The address that its finished runs were copied to, if that was asked for.
    artifacts: str | None = None

    @property
    def verdict(self) -> str:
        """The first line of every answer."""
        return "\n".join(f"Verdict{f' for {task}' if task else ''}: {answer.verdict}"
                         for task, answer in self.judgement.answers.items())

    def as_json(self) -> dict[str, Any]:
        decided: dict[str, Any] = {}
        if self.ending is not None and self.saved is not None:
            decided = {"decision": self.ending.as_json(), "drops": [drop.as_json() for drop in self.ending.dropped],
                       "saved": self.saved.as_json()}
        return {
            "race": self.path.name, "path": str(self.path.resolve()),
            "rows": [row.as_json() for row in self.judgement.rows],
            "failed": list(self.failures), "failures": dict(self.failures), "skipped": dict(self.skipped),
            "figure": str(self.figure.resolve()) if self.figure else None, "verdict": self.verdict, **decided,
            "answers": [{"task": task, **answer.as_json()} for task, answer in self.judgement.answers.items()],
            **({"artifacts": self.artifacts} if self.artifacts else {}),
        }


def _finished(planned: PlannedRace, failures: Mapping[str, str], ending: Ending | None) -> FinishedRace:
    """Compare the configurations of a race, draw them, and judge."""
    from velodrome.reporting.figures import race_figure
    from velodrome.reporting.load import load_race

    path = planned.folder.path
    judgement = load_race(path.parent, path.name, planned.folder.store).judged()
    rows = judgement.rows
    figure = race_figure(rows, path / "race.png", title_of([entry.job for entry in planned.entries])) if rows else None
    skipped, reasons = dict(planned.skipped), planned.reasons
    if ending is None and planned.race.budget is not None:
        late = [entry.name for entry in planned.entries if not (path / entry.name).exists()]
        skipped.update(dict.fromkeys(late, "the budget was over"))
        reasons += (f"{len(late)} of {len(planned.entries)} jobs, because the budget was over; a larger --budget runs "
                    f"them: {', '.join(late[:8])}{' …' if late[8:] else ''}",) if late else ()
    return FinishedRace(
        path, judgement, figure, failures, skipped, reasons, ending,
        saving(rows) if ending is not None else None,
    )


def title_of(jobs: Sequence[Job]) -> str:
    """What a race trains, with every value that occurs."""

    def every(field: str) -> str:
        values = list(dict.fromkeys(str(getattr(job, field)) for job in jobs))
        return ", ".join(values[:6]) + (" …" if values[6:] else "")

    if all(job.script is not None for job in jobs):
        return every("model")
    epochs = every("epochs") + (" epoch" if every("epochs") == "1" else " epochs")
    return f"{every('model')} on {every('dataset')}, {epochs}, batch {every('batch_size')}"
