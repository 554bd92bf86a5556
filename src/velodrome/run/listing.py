"""Many runs at a glance: reads of each only what a list shows, so that ten thousand take a second and no index can be
out of date. A run that cannot be read is marked so in its row, never a crash."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic_core import from_json

from velodrome import files
from velodrome.errors import BadRequest
from velodrome.events.endings import ended_early
from velodrome.offers.models import is_own
from velodrome.run.store import LARGEST_RESULT, RunFolder, Status
from velodrome.run.yaml_files import LARGEST, parse_yaml
from velodrome.spec.names import check_name
from velodrome.spec.race import Race, combinations
from velodrome.tasks.registry import deciding_metrics, task_of_result

#: Fields of a result at the first level that a list shows.
_FIELDS = ("status", "task", "dataset", "model", "engine", "strategy", "workers", "servers", "batch_size", "started")
_PARTS = ("test", "seconds", "throughput")
_KEYS = tuple(b'\n  "%s": ' % name.encode() for name in (*_FIELDS, *_PARTS))
_BRACE = ord("{")
#: What a test has beside the metrics of a user's own task.
_NO_METRIC = frozenset({"perplexity", "accuracy", "loss", "correct", "total", "answers", "fingerprint"})
#: In the name of an attempt of a race that did not finish and was archived when the race was continued.
ASIDE = ".attempt-"
#: A race that claims to have more jobs than this is not expanded to count them.
_MOST_JOBS = 10_000
#: The status of a run or, the last ones, of a race of which jobs have not begun, or none has.
STATUSES = (*get_args(Status), "unreadable", "incomplete", "empty")


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
    found = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            kind = _kind(entry.path) if entry.is_dir(follow_symlinks=False) else None
            if kind is not None:
                with suppress(OSError):
                    found.append(Found(kind, Path(entry.path), entry.stat(follow_symlinks=False).st_mtime))
    return sorted(found, key=lambda one: (one.made, one.name))


def runs_of(race: Path) -> list[Found]:
    """The runs of a race, without archived attempts."""
    return [found for found in scan(race) if found.kind == "run" and ASIDE not in found.name]


def locate(folder: Path, name: str) -> Found:
    """A run, a race, or `race/run` in a folder of runs, by its name or by its path below it."""
    parts = Path(name).parts
    inside = folder.parts
    if parts[: len(inside)] == inside and len(parts) > len(inside):
        parts = parts[len(inside) :]
    if not 1 <= len(parts) <= 2:
        raise BadRequest(f"{name!r} is no name of a run: write RUN, RACE or RACE/RUN")
    path = folder
    for part in parts:
        path = path / check_name(part)
        if path.is_symlink():
            raise BadRequest(f"{str(path)!r} is a link to {str(path.readlink())!r}: name what it leads to, with --runs")
    kind = _kind(str(path))
    if kind is None or (kind == "race" and len(parts) == 2):
        raise BadRequest(f"no run {name!r} in {folder}: `velodrome runs list` shows what is there")
    return Found(kind, path, path.stat().st_mtime)


def _kind(path: str) -> Literal["run", "race"] | None:
    if os.path.exists(f"{path}/job.yaml") or os.path.exists(f"{path}/result.json"):  # noqa: PTH110 - ten thousand of them
        return "run"
    return "race" if os.path.exists(f"{path}/race.yaml") else None  # noqa: PTH110


def row_of_run(path: Path, race: str | None = None) -> dict[str, Any]:
    """A run as a list shows it; `problem` is what is wrong with its files, or None."""
    summary, problem = glance(path)
    if summary is None:
        status: Any = RunFolder(path).status() if problem is None else "unreadable"
        summary = {}
    else:
        status = summary["status"]
    if problem is None and not os.path.exists(f"{path}/job.yaml"):  # noqa: PTH110
        problem = "it has no job.yaml"
    test, seconds, pace = (summary.get(part) for part in _PARTS)
    return {
        "run": path.name if race is None else f"{race}/{path.name}",
        "kind": "run",
        "race": race,
        "status": status,
        **{name: summary.get(name) for name in _FIELDS[1:]},
        **{metric.name: _number(test, metric.name) for metric in deciding_metrics()},
        **_quality(summary.get("task"), test),
        "examples_per_second": _number(pace, "examples_per_second"),
        "seconds": _number(seconds, "total"),
        "problem": problem,
    }


def _quality(task: Any, test: Any) -> dict[str, Any]:
    """The metric that decides and its value on the test set; of a user's own task, the first that its test has."""
    if not isinstance(test, Mapping):
        return {"metric": None, "value": None}
    if isinstance(task, str) and is_own(task):
        name = next((name for name in test if name not in _NO_METRIC), "loss")
    else:
        name = task_of_result({"task": task, "test": test}).metric.name
    return {"metric": name, "value": _number(test, name)}


def row_of_race(path: Path) -> dict[str, Any]:
    """A race as a list shows it: how many jobs it has, how many of them have begun and how they ended."""
    statuses = Counter(_status(RunFolder(run.path)) for run in runs_of(path))
    begun = sum(statuses.values())
    jobs = max(_jobs(path), begun)
    if RunFolder(path).is_locked():
        statuses["running"] += 1
    worst = next((status for status in ("running", "failed", "interrupted") if statuses[status]), None)
    complete = "empty" if not begun else "incomplete" if begun < jobs else "finished"
    return {
        "run": path.name, "kind": "race", "race": path.name, "status": worst or complete, "jobs": jobs, "runs": begun,
        **{name: statuses[name] for name in ("finished", "failed", "interrupted")}, "problem": None,
    }


def _status(run: RunFolder) -> str:
    """How a run of a race ended; one that the race ended itself is done."""
    status = str((glance(run.path)[0] or {}).get("status") or run.status())
    if status == "interrupted" and (result := run.result()) is not None and ended_early(result):
        return "finished"
    return status


def _jobs(race: Path) -> int:
    """How many jobs a race has; 0 if that cannot be read."""
    try:
        asked = Race.model_validate(parse_yaml(files.read_text(race / "race.yaml", LARGEST)))
        count = math.prod(map(len, asked.vary.values())) * asked.repeat
        return count if count > _MOST_JOBS else len(combinations(asked).entries)
    except (OSError, ValueError):
        return 0


def _number(fields: Any, name: str) -> float | None:
    value = fields.get(name) if isinstance(fields, Mapping) else None
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def glance(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The fields of a result that a list needs, and what is wrong with it; both None if there is no result yet."""
    try:
        text = files.read_bytes(f"{path}/result.json", LARGEST_RESULT)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"its result.json cannot be read: {error.strerror}"
    summary = _picked(text)
    if summary is None:
        try:
            whole = from_json(text)
        except ValueError:
            return None, "its result.json is not whole"
        summary = whole if isinstance(whole, dict) else {}
    if summary.get("status") not in get_args(Status):
        return None, "its result.json does not say how it ended"
    return summary, None


def _picked(text: bytes) -> dict[str, Any] | None:
    """The fields that a list needs, cut out of the text of a result; None if it is formatted differently."""
    if not text.startswith(b'{\n  "') or not text.endswith((b"\n}\n", b"\n}")):
        return None
    pieces = []
    try:
        for key in _KEYS:
            begin = text.index(key) + len(key)
            end = text.index(b"\n  }", begin) + 4 if text[begin] == _BRACE else text.index(b"\n", begin)
            pieces.append(text[begin:end].rstrip(b","))
        values = from_json(b"[" + b",".join(pieces) + b"]")
        return dict(zip((*_FIELDS, *_PARTS), values, strict=True))
    except ValueError:
        return None
