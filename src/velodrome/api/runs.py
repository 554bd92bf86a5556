"""`runs.list`, `show`, `compare`, `check`, `verify`, `remove` and `export`: what is stored, as plain data."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.clusters import DEFAULT, Where, open_launcher
from velodrome.data.fetch import using_mirror
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.result import Result
from velodrome.judge.configuration import Configuration
from velodrome.judge.pairs import Pair, compare_pair
from velodrome.run.check import Checked, check_race, check_run
from velodrome.run.listing import (
    ASIDE,
    STATUSES,
    Found,
    form_of,
    locate,
    refuse_running,
    remove_folder,
    row_of_race,
    row_of_run,
    runs_of,
    scan,
    table,
    write_archive,
)
from velodrome.run.saved_model import verify_run
from velodrome.run.store import RunFolder, examples_trained

#: A few fields that repetitions have in common.
_fields_alike = attrgetter("dataset", "model", "engine", "strategy", "workers", "servers", "batch_size")


def list(
    runs: str | Path = "runs", *, within_races: bool = False, status: str | None = None
) -> builtins.list[dict[str, Any]]:
    """A row for each stored run and race, in the order they were made.

    A run whose files are broken has the status ``unreadable`` and the reason in ``problem``.

    Args:
        runs: folder that holds the runs.
        within_races: list the runs within races, too.
        status: only those that are ``running``, ``finished``, ``failed``, ``interrupted`` or ``unreadable``.
    """
    if status is not None and status not in STATUSES:
        raise BadRequest(f"--status {status!r}: choose one of {', '.join(STATUSES)}")
    rows: builtins.list[dict[str, Any]] = []
    for stored in scan(Path(runs)):
        rows.append(row_of_run(stored.path) if stored.kind == "run" else row_of_race(stored.path))
        if within_races and stored.kind == "race":
            rows += _rows_within(stored)
    return [row for row in rows if status is None or row["status"] == status]


def _rows_within(race: Found) -> builtins.list[dict[str, Any]]:
    return [row_of_run(run.path, race.name) for run in scan(race.path) if run.kind == "run"]


def show(name: str, runs: str | Path = "runs") -> dict[str, Any]:
    """The result of a run, or its name and status if it has none; for a race, its row and the rows of its runs.

    Args:
        name: name of a run, of a race, or ``RACE/RUN``.
        runs: folder that holds the runs.
    """
    stored = locate(Path(runs), name)
    if stored.kind == "race":
        return {**row_of_race(stored.path), "rows": _rows_within(stored)}
    folder = RunFolder(stored.path)
    result, problem = folder.read()
    # The run may have been moved: its folder is where it was found, not the recorded path.
    path = str(folder.path.resolve())
    if result is not None:
        return {**result.as_json(), "path": path}
    reason = {} if problem is None else {"problem": problem}
    return {"run": folder.name, "path": path, "status": folder.status(), **reason}


def compare(first: str, second: str, runs: str | Path = "runs") -> dict[str, Any]:
    """Two runs side by side: what differs, what each measured, and what their repetitions allow to conclude.

    Runs that differ from one of them in the seed only count as its repetitions. ``skipped`` has the reason for each
    run beside them that cannot be read.
    """
    pair, skipped = compare_runs(first, second, runs)
    return {**pair.as_json(), "skipped": skipped}


def compare_runs(
    first: str, second: str, runs: str | Path = "runs", *, alone: bool = False
) -> tuple[Pair, dict[str, str]]:
    """The comparison of two runs, and why runs beside them were skipped.

    With `alone`, and where one is a repetition of the other, each stands for itself, without its repetitions.
    """
    skipped: dict[str, str] = {}
    sides = [(name, repetitions(Path(runs), name, skipped.setdefault)) for name in (first, second)]
    if alone or some_repeat(Path(runs), (first, second)):
        sides = [(name, results[:1]) for name, results in sides]
    return compare_pair(sides[0], sides[1]), skipped


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


def repetitions(runs: Path, name: str, skipped: Callable[[str, str], object]) -> builtins.list[Result]:
    """The run itself first, then the others of its configuration in the same folder.

    `skipped` is called with name and reason of runs that cannot be read.
    """
    stored = locate(runs, name)
    if stored.kind == "race":
        raise BadRequest(f"{name!r} is a race: name one of its runs, which `velodrome runs show {name}` lists")
    try:
        mine = read(stored.path)
        if mine.status != "finished":
            raise VelodromeError(f"it is {mine.status}")
    except VelodromeError as error:
        raise BadRequest(
            f"run {name!r} cannot be compared: {error}; `velodrome runs check {name}` shows details"
        ) from None
    key = Configuration.of(mine).key
    others = []
    for beside in scan(stored.path.parent):
        if beside.kind != "run" or beside.path == stored.path or ASIDE in beside.name:
            continue
        summary, problem = RunFolder(beside.path).read()
        if problem is not None:
            skipped(beside.name, problem)
        # Comparing a few fields first avoids reading the jobs and events of thousands of other runs.
        if summary is None or summary.status != "finished" or _fields_alike(summary) != _fields_alike(mine):
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


def check(*names: str, runs: str | Path = "runs") -> dict[str, Any]:
    """Check run folders against the documented schema: ``ok``, and the problems of each run, and of each race whose own
    file cannot be read.

    Args:
        names: runs, races, ``RACE/RUN`` or paths of folders; by default everything in ``runs``.
        runs: folder that holds the runs.
    """
    checked: builtins.list[Checked] = []
    for stored in scan(Path(runs)) if not names else [_anywhere(Path(runs), name) for name in names]:
        checked += check_race(stored.path) if stored.kind == "race" else [check_run(stored.path)]
    return {"ok": not any(run.problems for run in checked), "runs": [run.as_json() for run in checked]}


def verify(
    name: str, runs: str | Path = "runs", *, on: Where = DEFAULT, mirror: str | None = None,
    trust_code: Collection[str] = (),
) -> dict[str, Any]:
    """Load a run's saved model in a fresh process and evaluate it again: ``ok``, what was ``reported`` and what is
    ``measured``, the ``tolerance`` for everything but counts, and the ``problems``.

    Args:
        name: a finished run, ``RACE/RUN`` or the path of its folder.
        runs: folder that holds the runs.
        on: the launcher: ``local``, or ``debug`` to evaluate inside this program.
        mirror: folder or URL with the publisher's files of a data set.
        trust_code: code that the run names and that may run, as ``module:function``; not needed for what was trained on
            this machine.
    """
    path = locate_run(Path(runs), name)
    with using_mirror(mirror), open_launcher(on) as launcher:
        return verify_run(path, launcher, trust_code).as_json()


def locate_run(runs: Path, name: str) -> Path:
    """The folder of a run of the store, or of any run by its path."""
    stored = _anywhere(runs, name)
    if stored.kind == "race":
        raise BadRequest(f"{name!r} is a race: name one of its runs, as {name}/RUN")
    return stored.path


def _anywhere(runs: Path, name: str) -> Found:
    """A run or race of the store, or any folder by its path."""
    try:
        return locate(runs, name)
    except BadRequest:
        path = Path(name)
        if not path.is_dir():
            raise BadRequest(f"no run or folder {name!r}: `velodrome runs list` shows what is in {runs}") from None
        race = (path / "race.yaml").exists() and not (path / "job.yaml").exists()
        return Found("race" if race else "run", path, 0.0)


def removable(names: Sequence[str], runs: str | Path = "runs") -> builtins.list[Found]:
    """The runs and races of these names, each once; refused if one of them is running."""
    entries = [*{entry.path: entry for entry in (locate(Path(runs), name) for name in names)}.values()]
    for entry in entries:
        refuse_running(entry)
    return entries


def remove(*names: str, runs: str | Path = "runs") -> dict[str, Any]:
    """Remove runs or whole races for good, without asking. What is running is never removed, and no link is followed.

    Args:
        names: runs, races or ``RACE/RUN``.
        runs: folder that holds the runs.
    """
    entries = removable(names, runs)
    for entry in entries:
        remove_folder(entry, Path(runs))
    return {"removed": [str(entry.path.relative_to(runs)) for entry in entries]}


def export(
    name: str,
    *,
    runs: str | Path = "runs",
    out: str | Path | None = None,
    format: str | None = None,
    checkpoints: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Pack a run or a race into one file without its checkpoints, or write its results as a CSV table.

    Args:
        name: a run, a race or ``RACE/RUN``.
        runs: folder that holds the runs.
        out: file to write; by default ``NAME.zip`` in the current folder.
        format: ``zip``, ``tar.gz`` or ``csv``; by default as the name of ``out`` ends, else zip.
        checkpoints: whether the checkpoints are packed, too.
        force: whether an existing file is replaced.
    """
    stored = locate(Path(runs), name)
    target = None if out is None else Path(out)
    form = form_of(format, target)
    target = target or Path(f"{stored.name}.{form}")
    if target.exists() and not force:
        raise BadRequest(f"--out {str(target)!r} exists already: choose another name, or give --force")
    if not target.resolve().parent.is_dir():
        raise BadRequest(f"--out {str(target)!r}: there is no folder {str(target.parent)!r}")
    written = {"run": stored.name, "file": str(target.resolve()), "format": form}
    if form != "csv":
        return {**written, "files": write_archive(stored.path, target, form, checkpoints=checkpoints)}
    results, skipped = [], []
    for folder in [run.path for run in runs_of(stored.path)] if stored.kind == "race" else [stored.path]:
        result = RunFolder(folder).result()
        if result is None:
            skipped.append(folder.name)
        else:
            results.append(result.model_copy(
                update={"run": folder.name, "examples_trained": examples_trained(folder)}))
    files.write_text(target, table(results), shared=True)
    return {**written, "rows": len(results), "skipped": skipped}
