"""Finds the repetitions of a run: the finished runs beside it that differ from it in their seed only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from velodrome.analysis.configuration import Configuration
from velodrome.errors import BadRequest, VelodromeError
from velodrome.run.listing import ASIDE, glance, locate, scan
from velodrome.run.store import RunFolder
from velodrome.run.trained import examples_trained

#: What a result must say for a comparison to be possible.
_NEEDED = {"engine", "strategy", "workers", "batch_size", "seconds", "throughput", "nodes", "history"}
_ALIKE = ("dataset", "model", "engine", "strategy", "workers", "servers", "batch_size")


def read(path: Path) -> dict[str, Any] | None:
    """A run's result with its job and the examples it trained on, or None if either of the first is not whole."""
    folder = RunFolder(path)
    result = folder.result()
    if result is None or not result.keys() >= _NEEDED:
        return None
    try:
        job = folder.job().model_dump()
    except VelodromeError:
        return None
    return {**result, "run": path.name, "job": job, "examples_trained": examples_trained(path)}


def repetitions(runs: Path, name: str) -> list[dict[str, Any]]:
    """The run itself first, then the others of its configuration in the same folder."""
    found = locate(runs, name)
    if found.kind == "race":
        raise BadRequest(f"{name!r} is a race: name one of its runs, which `velodrome runs show {name}` lists")
    mine = read(found.path)
    if mine is None or mine["status"] != "finished":
        what = "its result cannot be read" if mine is None else f"it is {mine['status']}"
        raise BadRequest(f"run {name!r} cannot be compared: {what}; `velodrome runs check {name}` tells more")
    key = Configuration.of(mine).key
    others = []
    for beside in scan(found.path.parent):
        if beside.kind != "run" or beside.path == found.path or ASIDE in beside.name:
            continue
        told = glance(beside.path)[0]
        # A look at the first fields spares reading thousands of unlike runs in full.
        if told is None or told["status"] != "finished" or any(told.get(f) != mine.get(f) for f in _ALIKE):
            continue
        result = read(beside.path)
        if result is not None and Configuration.of(result).key == key:
            others.append(result)
    return [mine, *others]
