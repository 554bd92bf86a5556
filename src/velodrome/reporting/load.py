"""Reads a race from disk as plain data for the analysis: results with their jobs, failures, and missing runs.

A run that cannot be read becomes a failure, never a crash.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from velodrome.clusters.yaml_files import parse_yaml
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.job import Job, job_fields
from velodrome.job.names import expand
from velodrome.job.race import Race
from velodrome.job.result import Result
from velodrome.judge.budget import cut_short
from velodrome.judge.choice import Commands
from velodrome.judge.compare import has_crashed, is_whole
from velodrome.judge.conditions import labelled
from velodrome.judge.configuration import Configuration
from velodrome.judge.criteria import Criteria, Price, criteria_of
from velodrome.judge.judge import Failure, Judgement, judge
from velodrome.run.listing import ASIDE
from velodrome.run.store import RunFolder, Store, examples_trained, reason_of


@dataclass(frozen=True)
class RaceRecord:
    """A race as it is on disk."""

    name: str
    path: Path
    #: The race as requested, as the text of its file and as fields.
    text: str
    race: Race
    #: Of every readable run, with its `job` and `examples_trained`; unfinished ones have status `running`. Those of
    #: configurations that the budget left out are missing.
    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    #: Names of runs that have not begun.
    missing: tuple[str, ...]
    #: Earlier attempts that did not finish and did not crash either: kept but not counted.
    aside: int
    #: Runs that were repeated because other programs disturbed them; the attempt that counts less is kept beside.
    repeated: tuple[str, ...] = ()

    @property
    def target(self) -> str | None:
        """The target that the runs had, if they had one and the same."""
        targets = {result.target for result in self.results}
        return targets.pop() if len(targets) == 1 else None

    def criteria(
        self, objective: str | None = None, target: str | None = None, price: Price = Price(),  # noqa: B008 - frozen
        tolerance: str | float | None = None, accuracy_margin: str | float | None = None,
    ) -> Criteria:
        """What it is judged by: as requested, else as the race says."""
        return criteria_of(self.race, [self.target], objective, target, price, tolerance, accuracy_margin)

    def judged(self, criteria: Criteria | None = None) -> Judgement:
        """What its results show, by default by the race's own criteria."""
        return judge(self.results, criteria or self.criteria(), self.failures, Commands(self.path, self.race.budget))


def load_race(runs: Path, name: str, store: Store | None = None) -> RaceRecord:
    """A race by its name, or by the path of its folder; `store` is the one of a race that was read already."""
    path = runs / name
    if not (path / "race.yaml").is_file() and (Path(name) / "race.yaml").is_file():
        path = Path(name)
    if not (path / "race.yaml").is_file():
        raise BadRequest(_no_race(runs, name))
    store = store or Store(path)
    try:
        text, race = store.race()
    except (OSError, ValueError) as error:
        raise BadRequest(
            f"race {path.name!r}: {path / 'race.yaml'} is not a race file: {reason_of(error)}; restore it or run the "
            "race again"
        ) from None
    results: list[Result] = []
    failures: list[Failure] = []
    aside = 0
    repeated: list[str] = []
    names = set()
    for folder in (*store.runs(), *_without_job(path)):
        if ASIDE in folder.name:
            if (crash := _archived_crash(folder)) is not None:
                results.append(crash)
                failures.append(_failure(crash))
            elif folder.status() == "finished":
                repeated.append(folder.name.partition(ASIDE)[0])
            else:
                aside += 1
            continue
        names.add(folder.name)
        try:
            job, fields = _job(folder)
        except _UnreadableError as error:
            failures.append(Failure(folder.name, "unreadable", str(error)))
            continue
        try:
            result = _result(folder, job, fields)
        except _UnreadableError as error:
            task = Configuration.of_job(job).task
            failures.append(Failure(folder.name, "unreadable", str(error), task))
            continue
        results.append(result)
        if not is_whole(result) and result.status != "running":
            failures.append(_failure(result))
    cut = _left_out(race, names)
    results = [result for result in labelled(results) if result.run not in cut]
    tasks = {result.run: Configuration.of(result).task for result in results}
    failures = [replace(failure, task=tasks.get(failure.run, failure.task)) for failure in failures]
    # A folder may be given as `.` or through a link: its name is that of the resolved path.
    return RaceRecord(
        path.resolve().name, path, text, race, tuple(results), tuple(failures), tuple(_missing(race, names)), aside,
        tuple(repeated),
    )


def _without_job(path: Path) -> list[RunFolder]:
    """Runs that have a result but no job: they cannot be counted, and must not go unnoticed."""
    lost = (file.parent for file in path.glob("*/result.json") if not (file.parent / "job.yaml").is_file())
    return [RunFolder(folder) for folder in sorted(lost)]


def _no_race(runs: Path, name: str) -> str:
    if (runs / name / "job.yaml").is_file():
        return f"{name!r} is a run, not a race: `velodrome runs show {name}` shows it"
    races = sorted(file.parent.name for file in runs.glob("*/race.yaml")) if runs.is_dir() else []
    known = f"; there are {', '.join(races[:8])}{' and more' if len(races) > 8 else ''}" if races else ""
    return f"no race {name!r} in {str(runs)!r}{known}: choose the folder with --runs"


class _UnreadableError(Exception):
    """A run cannot be read, and the reason."""


def _job(folder: RunFolder) -> tuple[Job, dict[str, Any]]:
    """The job of a run, and the fields that its file has: those of other versions are kept and not checked."""
    try:
        fields = parse_yaml(folder.read_text("job.yaml", errors="replace"))
    except OSError as error:
        raise _UnreadableError(f"its job.yaml cannot be read: {error.strerror}") from error
    except ValueError:
        fields = None
    if not fields or not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise _UnreadableError("its job.yaml is not whole")
    try:
        job = Job.model_validate({name: value for name, value in fields.items() if name in job_fields()})
    except ValidationError as error:
        raise _UnreadableError(f"its job.yaml has {reason_of(error)}") from error
    if missing := [name for name in ("engine", "strategy", "workers", "batch_size") if name not in fields]:
        raise _UnreadableError(f"its job.yaml has no {missing[0]!r}")
    # A text such as '2' is a number to a job, and must be one for the analysis.
    return job, {**fields, **job.model_dump(include=fields.keys() & job_fields().keys())}


def _result(folder: RunFolder, job: Job, fields: dict[str, Any]) -> Result:
    """The result with its job; for a run without one, what is known of it."""
    result, problem = folder.read()
    if problem is not None:
        raise _UnreadableError(problem)
    if result is None:
        return Result.unfinished(folder.name, folder.status(), job, fields, folder.path)
    # The run may have been moved: its folder is where it was found, not the recorded path.
    return result.with_job(
        job, fields, run=folder.name, target=job.target, examples_trained=examples_trained(folder.path)
    )


def _archived_crash(folder: RunFolder) -> Result | None:
    """The result of an attempt that crashed before it was run again: that counts against its configuration.

    An error in the user's own code does not: it is what one mends before running again.
    """
    try:
        result = _result(folder, *_job(folder))
    except _UnreadableError:
        return None
    return result if has_crashed(result) and (result.error is None or result.error.cause != "user") else None


def _failure(result: Result) -> Failure:
    message = result.error.message if result.error is not None else None
    default = "it finished without a test result" if result.status == "finished" else "its controller ended"
    return Failure(result.run, result.status, message or default, Configuration.of(result).task)


def _left_out(race: Race, names: Container[str]) -> set[str]:
    """Runs of configurations that the budget of a race left out after they had run: they are compared with nothing."""
    if not race.until_sure or race.budget is None:
        return set()
    try:
        entries = [entry for entry in expand(race.model_copy(update={"repeat": race.most})) if entry.name in names]
    except VelodromeError:
        return set()
    begun: dict[str, list[int]] = {}
    for entry in entries:
        begun.setdefault(entry.configuration, []).append(entry.repetition)
    cut = cut_short(begun)
    return {entry.name for entry in entries if entry.configuration in cut}


def _missing(race: Race, names: set[str]) -> list[str]:
    """Runs that the race asks for and that have no folder; unknown if an engine of the race is not known here."""
    try:
        return [entry.name for entry in expand(race) if entry.name not in names]
    except VelodromeError:
        return []
