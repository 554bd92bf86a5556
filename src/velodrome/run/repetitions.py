"""Finds the repetitions of a run: the finished runs beside it that differ from it in their seed only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from velodrome.analysis.configuration import Configuration
from velodrome.errors import BadRequest, VelodromeError
from velodrome.run.listing import ASIDE, locate, scan
from velodrome.run.store import RunFolder
from velodrome.run.trained import examples_trained

_ALIKE = ("dataset", "model", "engine", "strategy", "workers", "servers", "batch_size")


def read(path: Path) -> dict[str, Any]:
    """A run's result with its job and the examples it trained on; `VelodromeError` if either of the first is not whole.

    Its message continues a sentence that starts with the run's name.
    """
    folder = RunFolder(path)
    result, problem = folder.read()
    if result is None:
        raise VelodromeError(problem or "it has no result yet")
    try:
        job = folder.job().model_dump()
    except VelodromeError:
        raise VelodromeError("its job.yaml cannot be read") from None
    return {**result, "run": path.name, "job": job, "examples_trained": examples_trained(path)}


def repetitions(runs: Path, name: str, skipped: Callable[[str, str], object]) -> list[dict[str, Any]]:
    """The run itself first, then the others of its configuration in the same folder.

    `skipped` is called with name and reason of runs that cannot be read.
    """
    found = locate(runs, name)
    if found.kind == "race":
        raise BadRequest(f"{name!r} is a race: name one of its runs, which `velodrome runs show {name}` lists")
    try:
        mine = read(found.path)
        if mine["status"] != "finished":
            raise VelodromeError(f"it is {mine['status']}")
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
        if summary is None or summary["status"] != "finished" or any(summary.get(f) != mine.get(f) for f in _ALIKE):
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
