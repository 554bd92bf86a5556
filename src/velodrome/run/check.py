"""Whether a run folder is what the reference says: files, events and their fields, epochs in order, counts that add up.

Reads any folder, also one that was copied from elsewhere, and names everything that is wrong; changes nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from velodrome.errors import VelodromeError
from velodrome.events.lines import PREFIX
from velodrome.run import schema
from velodrome.run.store import RunFolder
from velodrome.spec.read import parse_yaml

#: Nobody reads more than so many lines about one kind of mistake.
_MOST = 5


@dataclass
class Checked:
    """What was found of one run; without problems it is whole."""

    path: Path
    status: str = "unreadable"
    events: int = 0
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"run": self.path.name, "path": str(self.path), "status": self.status, "events": self.events,
                "ok": not self.problems, "problems": self.problems}


def check_run(path: Path) -> Checked:
    """Check one run folder."""
    found = Checked(path)
    folder = RunFolder(path)
    if not path.is_dir():
        found.problems.append(f"{path} is no folder")
        return found
    found.status = folder.status()
    job = _check_job(folder, found.problems)
    _check_plan(path, found.problems)
    events = _Events(found.problems)
    for file in _event_files(path, found.problems):
        events.read(file, cut_off=found.status in ("running", "interrupted"))
    found.events = events.count
    result = _read_result(path, found.problems)
    if result is not None:
        _check_result(result, job, events, found.problems)
    elif found.status != "running" and not (path / "result.json").exists():
        found.problems.append("result.json is missing: the run was interrupted before it could say how it ended")
    for name in ("logs", "checkpoints", "tensorboard", "model"):
        if (path / name).exists() and not (path / name).is_dir():
            found.problems.append(f"{name} is not a folder")
    for half in sorted(path.rglob("*.half")):
        if found.status != "running":
            found.problems.append(f"{half.relative_to(path)} was left half written")
    return found


def _check_job(folder: RunFolder, problems: list[str]) -> Mapping[str, Any]:
    if not (folder.path / "job.yaml").is_file():
        problems.append("job.yaml is missing")
        return {}
    try:
        return folder.job().model_dump()
    except VelodromeError as error:
        problems.append(f"job.yaml: {' '.join(str(error).partition(': ')[2].split())}")
    try:
        told = parse_yaml((folder.path / "job.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _check_plan(path: Path, problems: list[str]) -> None:
    try:
        plan = json.loads((path / "plan.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return  # a run that was started by hand or ended early has none
    except (OSError, ValueError) as error:
        problems.append(f"plan.json cannot be read: {error}")
        return
    if not isinstance(plan, dict) or not isinstance(plan.get("processes"), list):
        problems.append("plan.json has no list of processes")


def _event_files(path: Path, problems: list[str]) -> list[Path]:
    by_hand = sorted(path.glob("events-*.jsonl"))
    if not (path / "events.jsonl").is_file() and not by_hand:
        problems.append("events.jsonl is missing")
    return [file for file in (path / "events.jsonl", *by_hand) if file.is_file()]


def _begins(event: Mapping[str, Any]) -> bool:
    """Whether a process says its first word."""
    return event.get("kind") == "phase" and event.get("phase") == "import" and event.get("state") == "begin"


class _Events:
    """Reads the events of a run one by one and remembers what they say together."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self._told: dict[str, int] = {}
        self.count = 0
        self.epochs: dict[int, Mapping[str, Any]] = {}
        self.result: Mapping[str, Any] | None = None
        self._last_epoch = self._last_steps = 0

    def read(self, file: Path, *, cut_off: bool) -> None:
        """Who is killed in the middle of a line leaves it half: the last of a run that ended so, or was resumed."""
        half: int | None = None
        try:
            with file.open(encoding="utf-8", errors="replace") as stream:
                for number, line in enumerate(stream, start=1):
                    if not line.strip():
                        continue
                    event = self._parsed(line)
                    if half is not None and (event is None or not _begins(event)):
                        self._say_half(file, half)
                    half = number if event is None else None
                    if event is not None:
                        self._take(event, f"{file.name}, line {number}")
        except OSError as error:
            self._problems.append(f"{file.name} cannot be read: {error.strerror}")
        if half is not None and not cut_off:
            self._say_half(file, half)

    def _say_half(self, file: Path, number: int) -> None:
        self._say("broken", f"{file.name}, line {number} is no event: it was cut off or altered")

    @staticmethod
    def _parsed(line: str) -> Mapping[str, Any] | None:
        try:
            event = json.loads(line.removeprefix(PREFIX))
        except (ValueError, RecursionError):
            return None
        return event if isinstance(event, dict) else None

    def _say(self, kind: str, problem: str) -> None:
        self._told[kind] = self._told.get(kind, 0) + 1
        if self._told[kind] <= _MOST:
            self._problems.append(problem)
        elif self._told[kind] == _MOST + 1:
            self._problems.append("… and more of this kind")

    def _take(self, event: Mapping[str, Any], where: str) -> None:
        self.count += 1
        wrong = schema.EVERY_EVENT.wrong(event)
        kind = event.get("kind")
        if isinstance(kind, str) and kind not in schema.EVENTS:
            wrong.append(f"is of the unknown kind {kind!r}")
        elif isinstance(kind, str):
            wrong += schema.EVENTS[kind].wrong(event)
        for problem in wrong:
            self._say(f"{kind} {problem[:20]}", f"{where}: the event {problem}")
        if wrong:
            return
        if _begins(event):
            self._last_epoch = self._last_steps = 0  # a run that is resumed says its last epoch again
        elif kind == "epoch":
            self._take_epoch(event, where)
        elif kind == "result":
            self.result = event

    def _take_epoch(self, event: Mapping[str, Any], where: str) -> None:
        epoch, steps = event["epoch"], event["steps"]
        if epoch <= self._last_epoch:
            self._say("order", f"{where}: epoch {epoch} comes after epoch {self._last_epoch}")
        if steps < self._last_steps:
            self._say("steps", f"{where}: {steps} steps were done after {self._last_steps}")
        self._last_epoch, self._last_steps = epoch, steps
        self.epochs[epoch] = event


def _read_result(path: Path, problems: list[str]) -> Mapping[str, Any] | None:
    try:
        result = json.loads((path / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        problems.append(f"result.json cannot be read: {error}")
        return None
    if not isinstance(result, dict):
        problems.append("result.json holds no object")
        return None
    return result


def _check_result(
    result: Mapping[str, Any], job: Mapping[str, Any], events: _Events, problems: list[str]
) -> None:
    wrong = list(_wrong_in_result(result))
    problems += [f"result.json {problem}" for problem in wrong]
    if wrong:
        return  # what follows trusts the fields
    for name in ("dataset", "model", "engine", "strategy", "workers", "batch_size", "seed"):
        if name in job and name in result and job[name] != result[name]:
            problems.append(f"result.json says {name} {result[name]!r}, and job.yaml {job[name]!r}")
    problems += [f"result.json: {problem}" for problem in _sums(result)]
    problems += _against_events(result, events)


def wrong_fields(result: Mapping[str, Any]) -> Iterator[str]:
    """What does not fit in a result and in its parts, each as the end of a sentence."""
    yield from schema.RESULT.wrong(result)
    parts: list[tuple[str, Any, schema.Fields]] = [
        ("test", result.get("test"), schema.TEST), ("seconds", result.get("seconds"), schema.SECONDS_PARTS),
        ("throughput", result.get("throughput"), schema.THROUGHPUT),
    ]
    for name, fields in (("history", schema.HISTORY), ("nodes", schema.NODE)):
        rows = result.get(name)
        parts += [(f"{name}[{place}]", row, fields) for place, row in enumerate(rows if isinstance(rows, list) else ())]
    for name, value, fields in parts:
        if isinstance(value, Mapping):
            yield from (f"{name} {problem}" for problem in fields.wrong(value))
        elif value is not None or name.endswith("]"):
            yield f"{name} is no object"


def _wrong_in_result(result: Mapping[str, Any]) -> Iterator[str]:
    yield from wrong_fields(result)
    if result.get("status") == "finished" and result.get("test") is None:
        yield "says finished and has no test"
    if result.get("status") != "finished" and "error" not in result:
        yield "does not say why the run ended"


def _near(one: float, other: float, share: float = 1e-6, least: float = 1e-9) -> bool:
    return math.isclose(one, other, rel_tol=share, abs_tol=least)


def _sums(result: Mapping[str, Any]) -> Iterator[str]:
    """What can be recomputed from the result alone."""
    test, seconds, history = result["test"], result["seconds"], result["history"]
    if test and isinstance(test.get("correct"), int):
        if test["correct"] > test["total"]:
            yield f"test has {test['correct']} correct of {test['total']}"
        elif test.get("accuracy") is not None and not _near(test["accuracy"], test["correct"] / test["total"]):
            yield f"test accuracy {test['accuracy']} is not {test['correct']} of {test['total']}"
    perplexity, loss = (test.get("perplexity"), test["loss"]) if test else (None, None)
    if perplexity is not None and loss is not None and not _near(perplexity, math.exp(min(loss, 700.0)), 1e-4):
        yield f"test perplexity {perplexity} is not exp of the loss {loss}"
    epochs = [row["epoch"] for row in history]
    if epochs != sorted(set(epochs)):
        yield f"the epochs of history are {epochs}, and should count up"
    if result["epochs"] != len(history):
        yield f"it says {result['epochs']} epochs, and history has {len(history)}"
    if not _near(seconds["train"], sum(row["seconds"] for row in history), 1e-3, 1e-2):
        yield f"seconds.train {seconds['train']} is not the sum of history"
    if result["ended"] < result["started"]:
        yield "it ended before it started"
    confusion = result.get("confusion")
    if test and confusion:
        yield from _confusion(confusion, test, result.get("class_names", []))
    rate, batches = (result["throughput"][name] for name in ("examples_per_second", "batches_per_second"))
    batch = result.get("batch_of_step")
    if rate and batches and batch and not _near(rate / batch, batches, 1e-3, 1e-3):
        yield f"{batches} batches a second of {batch} are not {rate} examples a second"


def _confusion(confusion: Sequence[Any], test: Mapping[str, Any], names: Sequence[Any]) -> Iterator[str]:
    square = all(isinstance(row, list) and len(row) == len(confusion) for row in confusion)
    if not square or not all(schema.COUNT.fits(cell) for row in confusion for cell in row):
        yield "confusion is no square of counts"
        return
    total, right = sum(map(sum, confusion)), sum(row[place] for place, row in enumerate(confusion))
    if total != test["total"] or right != test.get("correct"):
        yield f"confusion counts {right} of {total}, and test {test.get('correct')} of {test['total']}"
    if names and (len(names) != len(confusion) or not all(isinstance(name, str) for name in names)):
        yield f"class_names are not the names of {len(confusion)} classes"


def _against_events(result: Mapping[str, Any], events: _Events) -> Iterator[str]:
    """What the result and the events both say."""
    test, said = result["test"], events.result
    if test and said is None:
        yield "result.json has a test, and no event says a result"
    if test and said is not None:
        counted = said["test"]
        right = counted.get("correct")
        if counted["total"] != test["total"] or test.get("correct") not in (None, right):
            said_right = "no count of correct ones" if right is None else right
            yield (f"result.json has {test.get('correct')} of {test['total']} in test, and the events "
                   f"{said_right} of {counted['total']}")
    for row in result["history"]:
        event = events.epochs.get(row["epoch"])
        if event is None:
            yield f"epoch {row['epoch']} is in result.json and not in the events"
            continue
        for part in ("train", "validation"):
            told, right, total = row.get(f"{part}_accuracy"), event[part].get("correct"), event[part]["total"]
            if told is not None and right is None:
                yield f"epoch {row['epoch']}: {part}_accuracy is {told}, and the event counts no correct ones"
            elif told is not None and total and not _near(told, right / total):
                yield f"epoch {row['epoch']}: {part}_accuracy {told} is not {right} of {total}"
