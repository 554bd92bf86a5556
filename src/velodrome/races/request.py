"""What a race starts with: the request (a file or fields, its name, and how it is to run), and who observes it."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.clusters import Where
from velodrome.clusters.yaml_files import read_yaml
from velodrome.errors import BadRequest
from velodrome.events.models import Event
from velodrome.job.job import Job, job_fields
from velodrome.job.names import check_name
from velodrome.job.race import LIMITS, Entry, Race, combinations, parse_race
from velodrome.job.result import Result
from velodrome.job.values import in_words
from velodrome.judge.criteria import objective_of
from velodrome.run.attempt import JobFailed
from velodrome.run.state import RunState
from velodrome.run.trust import Code, admit_file, admit_race

if TYPE_CHECKING:
    from velodrome.judge.judge import Dropped
    from velodrome.races.plan import PlannedRace


@dataclass(frozen=True)
class RaceRequest:
    """A race, its folder, and how it is to run."""

    race: Race
    name: str
    runs: Path
    #: Where jobs run that name no cluster of their own; None for the one that all jobs share, or this machine.
    on: Where | None = None
    #: Whether processes are forked from one that has imported the engine.
    warm: bool = True
    #: How many jobs run at the same time at most; None for as many as there is room for.
    parallel: int | None = None
    #: Whether only to plan it.
    dry_run: bool = False
    #: Whether what can only be guessed is measured; None for if that matters and takes a few seconds.
    measure: bool | None = None
    #: Whether to run what can run if not everything can.
    skip_unavailable: bool = False
    mirror: str | None = None
    #: The address below which finished runs are copied when the race ends.
    artifacts: str | None = None
    #: Whether it stands for every strategy if nothing varies.
    complete: bool = False
    #: Code that its file names and that may run.
    codes: Sequence[Code] = ()


def read_request(
    race: Race | str | Path | None, job: Job | Mapping[str, Any] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None, fields: Mapping[str, Any] | None = None, *,
    name: str | None = None, runs: str | Path = "runs", trust_code: Collection[str] = (), **how: Any,
) -> RaceRequest:
    """What was asked for: a race or its file with fields on top, and `how` it is to run, fields of the request.

    Refused if the file names code that may not run: what is neither beside it nor given otherwise, nor in `trust_code`.
    """
    merged = merge(race, job, vary, fields)
    asked = RaceRequest(merged, name or default_name(race, merged), Path(runs), complete=race is None, **how)
    if race is None or isinstance(race, Race):
        return asked
    return replace(asked, codes=_admit_code(asked, Path(race), words_in([job, vary]), trust_code))


def merge(
    race: Race | str | Path | None, job: Job | Mapping[str, Any] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None, fields: Mapping[str, Any] | None = None,
) -> Race:
    """A race, or that of a YAML file, with a job's fields, what varies and other fields of a race on top, unless they
    are None."""
    if isinstance(race, Race):
        content = race.model_dump(exclude_unset=True)
    else:
        content = read_yaml(Path(race)) if race is not None else {}
        if content and content.keys() <= job_fields().keys():
            raise BadRequest(
                f"{str(race)!r} is a job: run it with `velodrome train {shlex.quote(str(race))}`, or put its fields "
                "under 'job', and what varies under 'vary'"
            )
        for key, example in (("job", "epochs: 5"), ("vary", "workers: [1, 2]")):
            if not isinstance(content.get(key) or {}, dict):
                given = in_words(content[key])
                raise BadRequest(f"{key} {given!r} in {str(race)!r}: give fields by name, such as '{example}'")
    of_job = job.model_dump(exclude_unset=True) if isinstance(job, Job) else job
    content["job"] = {**(content.get("job") or {}), **(of_job or {})}
    content["vary"] = {**(content.get("vary") or {}), **{field: list(values) for field, values in (vary or {}).items()}}
    budget = (fields or {}).get("budget")
    if isinstance(budget, str) and re.fullmatch(r"[\d.,]+", budget.strip()):
        raise BadRequest(f"--budget {budget!r} has no unit: write minutes as {budget.strip()}m, seconds as "
                         f"{budget.strip()}s, or hours and minutes as 1h30m")
    content.update({name: value for name, value in (fields or {}).items() if value is not None})
    asked = parse_race(content)
    if asked.objective is not None:
        objective_of(asked.objective)
    return asked


def words_in(given: Any) -> set[str]:
    """Every text in what was given on the command line, or to a function."""
    if isinstance(given, Job):
        given = given.model_dump(exclude_unset=True)
    if isinstance(given, Mapping):
        given = list(given.values())
    if isinstance(given, list | tuple):
        return set().union(*map(words_in, given))
    return {given} if isinstance(given, str) else set()


def _admit_code(
    asked: RaceRequest, file: Path, given: Collection[str], trusted: Collection[str]
) -> list[Code]:
    """The code that the file of a race names, besides what is `given`; refused unless it may run.

    A race that is resumed in the folder that its file lies in is a stored one. A cluster that was asked for replaces
    the one that the race names.
    """
    job = asked.race.job if asked.on is None else {**asked.race.job, "on": None}
    once = asked.race.model_copy(update={"repeat": 1, "job": job})
    jobs = [entry.job for entry in combinations(once).entries]
    folder = asked.runs / check_name(asked.name)
    if file.absolute().parent.resolve() == folder.resolve():
        return admit_race(jobs, f"race {asked.name!r}", folder, given, trusted)
    return admit_file(jobs, file, given, trusted)


def default_name(file: Race | str | Path | None, race: Race) -> str:
    """The same name for the same race, however often it is repeated, so that the same call resumes it: the file's, or a
    hash of what is raced."""
    if isinstance(file, str | Path) and (name := re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).stem).lstrip("._-")):
        return name[:100]
    raced = race.model_dump_json(exclude_defaults=True, exclude={*LIMITS, *(("baseline",) if race.baseline else ())})
    return f"race-{hashlib.sha256(raced.encode()).hexdigest()[:8]}"


class RaceObserver:
    """Every method does nothing by default."""

    def planning(self) -> AbstractContextManager[object]:
        """A context that is open while the race is planned."""
        return nullcontext()

    def data(self, done: int, total: int, label: str) -> None:
        """How much of a data set has been fetched or read."""

    def skips(self, reasons: Sequence[str], others: int, total: int) -> bool:
        """Whether to run the `others` of all jobs, where the rest cannot run for these reasons."""
        return False

    def planned(self, plan: PlannedRace) -> RaceObserver:
        """The plan is made; returns who observes the race from here."""
        return self

    def session(self) -> AbstractContextManager[object]:
        """A context that is open from the plan to the verdict."""
        return nullcontext()

    def importing(self) -> AbstractContextManager[object]:
        """A context that is open while warm processes import their engines."""
        return nullcontext()

    def running(self) -> AbstractContextManager[object]:
        """A context that is open while jobs run."""
        return nullcontext()

    def stored(self, entry: Entry, result: Result) -> None:
        """A job that finished in an earlier attempt."""

    def begin(self, entry: Entry) -> None:
        """A job starts."""

    def event(self, entry: Entry, state: RunState, event: Event) -> None:
        """An event of the running job, and the state that its events add up to."""

    def end(self, entry: Entry, result: Result, error: JobFailed | None) -> None:
        """A job ended: with its result, and the error if it failed."""

    def note(self, text: str) -> None:
        """A sentence for the user."""

    def block(self, repetition: int, entries: Sequence[Entry]) -> None:
        """A repetition with these jobs begins, in a race that runs until it is sure."""

    def dropped(self, drop: Dropped) -> None:
        """A configuration is out, in a race that runs until it is sure."""


#: Observes nothing.
SILENT = RaceObserver()
