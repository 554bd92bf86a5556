"""Reads a race from disk as plain data for the analysis: results with their jobs, failures, and what is missing.

A run that cannot be read is named and passed over, never a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from velodrome.analysis.compare import is_whole
from velodrome.errors import BadRequest, VelodromeError
from velodrome.run.store import RunFolder, Store
from velodrome.spec.race import Race, expand

_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: An attempt that did not finish and was put aside when the race went on.
_ASIDE = ".attempt-"


@dataclass(frozen=True)
class Failure:
    """A run that gave no result, and why."""

    run: str
    status: str
    message: str


@dataclass(frozen=True)
class RaceRecord:
    """All that is on disk of a race."""

    name: str
    path: Path
    #: The race as it was asked for, as its file's text and as fields.
    text: str
    spec: Mapping[str, Any]
    #: Of every run that can be read, with its `job` and `examples_trained`; those under way have status `running`.
    results: tuple[Mapping[str, Any], ...]
    failures: tuple[Failure, ...]
    #: Names of runs that have not begun.
    missing: tuple[str, ...]
    #: Earlier attempts that are kept but not counted.
    aside: int

    @property
    def target(self) -> str | None:
        """The target that the runs had, if they had one and the same."""
        targets = {result.get("target") or (result.get("job") or {}).get("target") for result in self.results}
        return targets.pop() if len(targets) == 1 else None


def load_race(runs: Path, name: str) -> RaceRecord:
    """A race by its name, or by the path of its folder."""
    path = runs / name
    if not (path / "race.yaml").is_file() and (Path(name) / "race.yaml").is_file():
        path = Path(name)
    if not (path / "race.yaml").is_file():
        raise BadRequest(_no_race(runs, name))
    text = (path / "race.yaml").read_text(encoding="utf-8", errors="replace")
    spec = _mapping(text)
    if spec is None:
        raise VelodromeError(f"race {path.name!r}: {path / 'race.yaml'} is no race file; restore it or race again")
    results, failures, aside = [], [], 0
    names = set()
    for folder in Store(path).runs():
        if _ASIDE in folder.name:
            aside += 1
            continue
        names.add(folder.name)
        result = _result(folder)
        if result is not None:
            results.append(result)
        if result is None or (not is_whole(result) and result["status"] != "running"):
            failures.append(_failure(folder.name, result))
    return RaceRecord(
        path.name, path, text, spec, tuple(results), tuple(failures), tuple(_missing(spec, names)), aside
    )


def _no_race(runs: Path, name: str) -> str:
    if (runs / name / "job.yaml").is_file():
        return f"{name!r} is a run, not a race: `velodrome runs show {name}` shows it"
    races = sorted(file.parent.name for file in runs.glob("*/race.yaml")) if runs.is_dir() else []
    known = f"; there are {', '.join(races[:8])}{' and more' if len(races) > 8 else ''}" if races else ""
    return f"no race {name!r} in {str(runs)!r}{known}: --runs says where to look"


def _mapping(text: str) -> dict[str, Any] | None:
    try:
        content = yaml.load(text, Loader=_YAML)
    except yaml.YAMLError:
        return None
    return content if isinstance(content, dict) else None


def _result(folder: RunFolder) -> dict[str, Any] | None:
    """The result with its job; for a run without one, what is known of it; None if nothing can be made of it."""
    job: dict[str, Any] = {}
    with suppress(OSError):
        job = _mapping((folder.path / "job.yaml").read_text(encoding="utf-8", errors="replace")) or {}
    result = folder.result()
    if result is None:
        if not {"engine", "strategy", "workers", "batch_size"} <= job.keys():
            return None
        return {**job, "run": folder.name, "status": folder.status(), "job": job}
    if not {"engine", "strategy", "workers", "batch_size", "seconds", "throughput", "nodes"} <= result.keys():
        return None
    # The run may have been moved since: it is where it was found, not where it says.
    return {**result, "run": folder.name, "job": job, "folder": folder.path, "examples_trained": _examples(folder)}


def _examples(folder: RunFolder) -> int | None:
    """Examples that all workers trained on together, over all epochs."""
    trained: dict[int, int] = {}
    with suppress(OSError), (folder.path / "events.jsonl").open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if '"epoch"' in line and '"validation"' in line:
                with suppress(ValueError, KeyError, TypeError):
                    event = json.loads(line)
                    if event["kind"] == "epoch":
                        trained[event["epoch"]] = event["train"]["total"]
    return sum(trained.values()) or None


def _failure(name: str, result: Mapping[str, Any] | None) -> Failure:
    if result is None:
        return Failure(name, "unreadable", "its files are not whole")
    error = result.get("error")
    message = error.get("message") if isinstance(error, Mapping) else None
    default = "it finished without a test result" if result["status"] == "finished" else "its controller ended"
    return Failure(name, result["status"], str(message or default))


def _missing(spec: Mapping[str, Any], names: set[str]) -> list[str]:
    """Runs that the race asks for and that have no folder; unknown if an engine of the race is not known here."""
    try:
        return [entry.name for entry in expand(Race.model_validate(dict(spec))) if entry.name not in names]
    except (VelodromeError, ValueError):
        return []
