"""Finds runs that resemble others: the repetitions of a run, which differ from it in their seed only, and the finished
runs of the models that a race is about to train."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.job import Job
from velodrome.job.result import Result
from velodrome.judge.configuration import Configuration
from velodrome.machine import describe_machine
from velodrome.run.listing import ASIDE, Found, locate, runs_of, scan
from velodrome.run.store import RunFolder, Store, examples_trained

#: Runs of a folder that are looked at for similar ones, the newest first, and how many of those are read.
_MOST_LOOKED_AT, _MOST_READ = 3000, 60
_alike = attrgetter("dataset", "model", "engine", "strategy", "workers", "servers", "batch_size")


def read(path: Path) -> Result:
    """A run's result with its job and the examples it trained on; `VelodromeError` if either of the first is not whole.

    Its message continues a sentence that starts with the run's name.
    """
    folder = RunFolder(path)
    result, problem = folder.read()
    if result is None:
        raise VelodromeError(problem or "it has no result yet")
    try:
        job = folder.job()
    except VelodromeError:
        raise VelodromeError("its job.yaml cannot be read") from None
    return result.with_job(job, run=path.name, examples_trained=examples_trained(path))


def repetitions(runs: Path, name: str, skipped: Callable[[str, str], object]) -> list[Result]:
    """The run itself first, then the others of its configuration in the same folder.

    `skipped` is called with name and reason of runs that cannot be read.
    """
    found = locate(runs, name)
    if found.kind == "race":
        raise BadRequest(f"{name!r} is a race: name one of its runs, which `velodrome runs show {name}` lists")
    try:
        mine = read(found.path)
        if mine.status != "finished":
            raise VelodromeError(f"it is {mine.status}")
    except VelodromeError as error:
        raise BadRequest(
            f"run {name!r} cannot be compared: {error}; `velodrome runs check {name}` shows details"
        ) from None
    key = Configuration.of(mine).key
    others = []
    for beside in scan(found.path.parent):
        if beside.kind != "run" or beside.path == found.path or ASIDE in beside.name:
            continue
        summary, problem = RunFolder(beside.path).read()
        if problem is not None:
            skipped(beside.name, problem)
        # Comparing a few fields first avoids reading the jobs and events of thousands of other runs.
        if summary is None or summary.status != "finished" or _alike(summary) != _alike(mine):
            continue
        try:
            result = read(beside.path)
        except VelodromeError as error:
            skipped(beside.name, str(error))
            continue
        if Configuration.of(result).key == key:
            others.append(result)
    return [mine, *others]


def some_repeat(runs: Path, names: Sequence[str]) -> bool:
    """Whether one of these runs is a repetition of another; those that cannot be read are not."""
    seen = set()
    for name in names:
        path = locate(runs, name).path
        with suppress(VelodromeError):
            key = path.parent, Configuration.of(read(path)).key
            if key in seen:
                return True
            seen.add(key)
    return False


def similar(race: Store, jobs: Iterable[Job], launcher: str) -> list[tuple[Job, Result]]:
    """Finished runs with the engine, model and data set of one of these jobs, on machines like these, newest first: of
    a race, and of everything else in the folder that it lies in.

    Of a folder with very many runs only the newest are found; those that cannot be read are skipped.
    """
    wanted = {(job.engine, job.model, job.dataset) for job in jobs}
    machine, found = describe_machine(), list[tuple[Job, Result]]()
    for looked, path in enumerate(_newest(race.path.parent)):
        if looked >= _MOST_LOOKED_AT or len(found) >= _MOST_READ:
            break
        folder = race.at(path) if path.parent == race.path else RunFolder(path)
        result = folder.result()
        if result is None or result.status != "finished" or (result.launcher or "local") != launcher:
            continue
        if (result.engine, result.model, result.dataset) not in wanted:
            continue
        here = result.machine
        if here is None or (here.processor, here.cores) != (machine["processor"], machine["cores"]):
            continue
        with suppress(VelodromeError):
            found.append((folder.job(), result))
    return found


def _newest(runs: Path) -> Iterator[Path]:
    """The runs of a folder and of its races, the newest first."""
    def inside(found: Found) -> Sequence[Found]:
        return runs_of(found.path) if found.kind == "race" else (found,)

    for one in reversed(scan(runs)):
        yield from (run.path for run in reversed(inside(one)))
