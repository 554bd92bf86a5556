"""Stored runs at a glance: reads the result of each and nothing else, so that ten thousand take a second and no index
can be out of date; removes them, and exports one as an archive without checkpoints or as a CSV table.

A run or race that cannot be read is marked so in its row, never a crash. Files are written atomically; links are left
out, so that no file from elsewhere is packed.
"""

from __future__ import annotations

import csv
import io
import os
import secrets
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from velodrome import files
from velodrome.catalog.models import is_own
from velodrome.errors import BadRequest, VelodromeError
from velodrome.files import walk
from velodrome.job.names import check_name
from velodrome.job.race import combinations
from velodrome.job.result import Result, Status
from velodrome.job.values import Target
from velodrome.judge.measures import TIME_TO_TARGET, Measure, measures_of, time_to_target
from velodrome.run.store import RunFolder, read_race
from velodrome.tasks.registry import deciding_metrics, task_of_result

#: Fields of a result at the first level that a list shows.
_FIELDS = ("task", "dataset", "model", "engine", "strategy", "workers", "servers", "batch_size", "started")
#: In the name of an attempt of a race that did not finish and was archived when the race was continued.
ASIDE = ".attempt-"
#: The status of a run or, the last ones, of a race of which jobs have not begun, or none has.
STATUSES = (*get_args(Status), "incomplete", "empty")


@dataclass(frozen=True)
class Found:
    """A run or a race in a folder of runs."""

    kind: Literal["run", "race"]
    path: Path
    made: float

    @property
    def name(self) -> str:
        return self.path.name


def scan(folder: Path) -> list[Found]:
    """The runs and races directly in a folder, in the order they were made. Links are not followed."""
    runs_and_races = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            kind = _kind(entry.path) if entry.is_dir(follow_symlinks=False) else None
            if kind is not None:
                with suppress(OSError):
                    runs_and_races.append(Found(kind, Path(entry.path), entry.stat(follow_symlinks=False).st_mtime))
    return sorted(runs_and_races, key=lambda run_or_race: (run_or_race.made, run_or_race.name))


def runs_of(race: Path) -> list[Found]:
    """The runs of a race, without archived attempts."""
    return [run for run in scan(race) if run.kind == "run" and ASIDE not in run.name]


def locate(folder: Path, name: str) -> Found:
    """A run, a race, or `race/run` in a folder of runs, by its name or by its path below it."""
    parts = Path(name).parts
    inside = folder.parts
    if parts[: len(inside)] == inside and len(parts) > len(inside):
        parts = parts[len(inside) :]
    if not 1 <= len(parts) <= 2:
        raise BadRequest(f"{name!r} is not the name of a run: write RUN, RACE or RACE/RUN")
    path = folder
    for part in parts:
        path = path / check_name(part)
        if path.is_symlink():
            raise BadRequest(f"{str(path)!r} is a link to {str(path.readlink())!r}: name its target instead, with "
                             "--runs")
    kind = _kind(str(path))
    if kind is None or (kind == "race" and len(parts) == 2):
        raise BadRequest(f"no run {name!r} in {folder}: `velodrome runs list` shows what is there")
    return Found(kind, path, path.stat().st_mtime)


def _kind(path: str) -> Literal["run", "race"] | None:
    # A link counts, whatever it leads to: it is not followed, and the run or race is listed as unreadable.
    if os.path.lexists(f"{path}/job.yaml") or os.path.lexists(f"{path}/result.json"):
        return "run"
    return "race" if os.path.lexists(f"{path}/race.yaml") else None


def row_of_run(path: Path, race: str | None = None) -> dict[str, Any]:
    """A run as a list shows it; `problem` is what is wrong with its files, or None."""
    result, problem = RunFolder(path).read()
    status = RunFolder(path).status() if result is None else result.status
    if problem is None and not os.path.exists(f"{path}/job.yaml"):  # noqa: PTH110 - ten thousand of them
        problem = "it has no job.yaml"
    elif problem is None and os.path.islink(f"{path}/job.yaml"):  # noqa: PTH114
        status, problem = "unreadable", "its job.yaml cannot be read: it is a link, which is not followed"
    test = None if result is None else result.test
    return {
        "run": path.name if race is None else f"{race}/{path.name}",
        "kind": "run",
        "race": race,
        "status": status,
        **{name: getattr(result, name, None) for name in _FIELDS},
        **{metric.name: None if test is None else test.value(metric.name) for metric in deciding_metrics()},
        **_quality(result),
        "examples_per_second": None if result is None else result.throughput.examples_per_second,
        "seconds": None if result is None else result.seconds.total,
        "problem": problem,
    }


def _quality(result: Result | None) -> dict[str, Any]:
    """The metric that decides and its value on the test set; of a user's own task, the first that its test has."""
    if result is None or result.test is None:
        return {"metric": None, "value": None}
    if is_own(result.task or ""):
        name = next(iter(result.test.model_extra or ()), "loss")
    else:
        name = task_of_result(result).metric.name
    return {"metric": name, "value": result.test.value(name)}


def row_of_race(path: Path) -> dict[str, Any]:
    """A race as a list shows it: how many jobs it has, how many of them have begun and how they ended."""
    statuses = Counter(_status(RunFolder(run.path)) for run in runs_of(path))
    begun = sum(statuses.values())
    planned, problem = _jobs(path)
    jobs = max(planned, begun)
    if RunFolder(path).is_locked():
        statuses["running"] += 1
    worst = next((status for status in ("running", "failed", "interrupted", "unreadable") if statuses[status]), None)
    none = "empty" if problem is None else "unreadable"
    complete = none if not begun else "incomplete" if begun < jobs else "finished"
    return {
        "run": path.name, "kind": "race", "race": path.name, "status": worst or complete, "jobs": jobs, "runs": begun,
        **{name: statuses[name] for name in ("finished", "failed", "interrupted")}, "problem": problem,
    }


def _status(run: RunFolder) -> str:
    """How a run of a race ended; one that the race ended itself is done."""
    if (result := run.result()) is None:
        return run.status()
    return "finished" if result.ended_early else result.status


def _jobs(race: Path) -> tuple[int, str | None]:
    """How many jobs a race has; 0 and the reason if that cannot be read."""
    try:
        return len(combinations(read_race(race)).entries), None
    except VelodromeError as error:
        return 0, str(error)


def refuse_running(run_or_race: Found) -> None:
    """Refuse a run or race that a controller is writing."""
    runs = scan(run_or_race.path) if run_or_race.kind == "race" else []
    for each in (run_or_race, *runs):
        if RunFolder(each.path).is_locked():
            raise BadRequest(f"{each.kind} {each.name!r} is running: end it first")


def remove_folder(run_or_race: Found, store: Path) -> None:
    """Remove a folder of the store: renamed first, so that nobody sees half of it."""
    if run_or_race.path.is_symlink() or not run_or_race.path.resolve().is_relative_to(store.resolve()):
        raise BadRequest(f"{str(run_or_race.path)!r} leads out of {str(store)!r}: remove it manually")
    refuse_running(run_or_race)
    aside = run_or_race.path.with_name(f".removed-{secrets.token_hex(4)}-{run_or_race.name}")
    try:
        for _ in walk(run_or_race.path):  # what cannot be removed stays whole
            pass
        run_or_race.path.rename(aside)
        shutil.rmtree(aside)  # removes links, not their targets
    except OSError as error:
        raise VelodromeError(f"cannot remove {str(run_or_race.path)!r}: {error.strerror or error}") from error


Form = Literal["zip", "tar.gz", "csv"]
FORMS: tuple[Form, ...] = ("zip", "tar.gz", "csv")
#: A file of more bytes than this, of which less than this share is on the disk, is one of holes.
_LARGE, _LEAST_STORED = 1 << 30, 0.001
_LEFT_OUT = {"controller.lock", ".reserve"}
_JOB = (
    "dataset", "model", "engine", "strategy", "workers", "servers", "batch_size", "batch_scope", "optimizer",
    "learning_rate", "seed",
)


def form_of(form: str | None, out: Path | None) -> Form:
    """The format: as requested, or from the name of the file."""
    if form is None:
        name = out.name if out is not None else "x.zip"
        form = next((known for known in FORMS if name.endswith(f".{known}")), "tgz" if name.endswith(".tgz") else None)
        form = "tar.gz" if form == "tgz" else form
    if form not in FORMS:
        shown = f"--format {form!r}" if form is not None else f"--out {str(out)!r}"
        raise BadRequest(f"{shown}: choose one of {', '.join(FORMS)}")
    return form  # type: ignore[return-value]


def files_of(folder: Path, *, checkpoints: bool) -> Iterator[Path]:
    """The plain files of a run or race, in order."""
    for top, below, names in walk(folder):
        below[:] = sorted(
            name for name in below if (checkpoints or name != "checkpoints") and not (top / name).is_symlink()
        )
        for name in sorted(names):
            path = top / name
            if name not in _LEFT_OUT and not name.endswith(files.PARTIAL) and path.is_file() and not path.is_symlink():
                yield path


def write_archive(folder: Path, out: Path, form: Form, *, checkpoints: bool = False) -> int:
    """Pack a run or race under its own name and return the number of files."""
    try:
        paths = list(files_of(folder, checkpoints=checkpoints))
    except OSError as error:
        raise VelodromeError(f"cannot pack {str(folder)!r}: {error.strerror or error}") from error
    _refuse_holes(paths)
    try:
        with files.atomic_path(out, shared=True) as partial:
            if form == "zip":
                with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
                    for path in paths:
                        archive.write(path, f"{folder.name}/{path.relative_to(folder)}")
            else:
                with tarfile.open(partial, "w:gz") as tar:
                    for path in paths:
                        tar.add(path, f"{folder.name}/{path.relative_to(folder)}", recursive=False)
    except OSError as error:
        raise VelodromeError(f"cannot write {str(out)!r}: {error.strerror or error}") from error
    return len(paths)


def _refuse_holes(paths: Sequence[Path]) -> None:
    """Refuse files that claim far more bytes than they have: packing their zeros would take hours."""
    for path in paths:
        about = path.stat()
        if about.st_size > _LARGE and about.st_blocks * 512 < _LEAST_STORED * about.st_size:
            raise VelodromeError(f"{str(path)!r} claims {about.st_size:,} bytes, but only {about.st_blocks * 512:,} "
                                 "are on the disk: Velodrome writes no such file; remove it to export the rest")


def table(results: Sequence[Result]) -> str:
    """One row for each result: the job, its status, and all measures in plain units.

    Batches over all training time are there for results with `examples_trained`, time to target for those with one.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    measures = measures_of(results)
    writer.writerow(["run", "status", *_JOB, "epochs", "parameters", *(measure.name for measure in measures)])
    for result in results:
        cells = [getattr(result, name) for name in ("run", "status", *_JOB, "epochs", "parameters")]
        writer.writerow(map(cell, [*cells, *(_value(measure, result) for measure in measures)]))
    return stream.getvalue()


def _value(measure: Measure, result: Result) -> float | None:
    """The value of a measure; None if its files are broken."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        if measure is not TIME_TO_TARGET:
            return measure.read(result)
        if result.target:
            return time_to_target(result, Target.parse(result.target))
    return None


def cell(value: object) -> object:
    """A cell of a CSV table; an apostrophe keeps spreadsheets from running a text that looks like a formula."""
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
