"""Everything that the page of a run draws, as plain data: phases, marks, curves, resources, staleness and shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from velodrome.errors import shown
from velodrome.events import event_files
from velodrome.events.models import (
    CheckpointEvent,
    ErrorEvent,
    LostEvent,
    WarningEvent,
)
from velodrome.job.result import Result
from velodrome.judge.conditions import host_lines, load_note
from velodrome.judge.configuration import implementation_lines, text_of
from velodrome.reporting.series import FaultSpan, hosts_of, merged, name_of, series_of
from velodrome.run.samples import Key, Span, waited
from velodrome.run.state import RunState
from velodrome.run.store import RunFolder
from velodrome.tasks.registry import task_of_result
from velodrome.web.live_run import LiveRun
from velodrome.web.run_files import read_thinned

#: Bars of a process in the timeline, marks in it, and points of staleness.
MOST_SPANS, MOST_MARKS, MOST_POINTS = 400, 100, 400
#: Pairs of classes that are confused most.
MOST_PAIRS = 10
#: Classes of a confusion matrix that is drawn.
MOST_CLASSES = 60


def run_view(path: Path) -> dict[str, Any]:
    """The data of a run's page; of a run that has ended it is read once."""
    read = [file for file in (path / "result.json", *event_files(path)) if file.exists()]
    state = tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in read)
    ended = (path / "result.json").exists() and not RunFolder(path).is_locked()
    return _kept_view(path, state) if ended else _view(path)


@lru_cache(maxsize=8)
def _kept_view(path: Path, state: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    return _view(path)


def _view(path: Path) -> dict[str, Any]:
    thinned = read_thinned(path)
    live = LiveRun.ended(path, thinned)
    result, state = live.result, live.state
    began = (result.started if result else state.began) or 0.0
    history = result.as_json()["history"] if result else []
    series = series_of(began, hosts_of(result) if result and result.nodes else _hosts(state), state)
    shown = live.as_json()
    return {
        "status": live.status, "events": thinned.total, "every": thinned.step, "metric": shown["metric"],
        "seconds": live.seconds, "done": shown["done"], "epoch": shown["epoch"], "epochs": shown["epochs"],
        "phases": [
            {"process": name_of(process), "spans": [[span.phase, round(span.start, 3), round(span.end, 3)]
                                                    for span in _fewer(spans)]}
            for process, spans in series.spans.items()
        ],
        "marks": _most_urgent([*_marks(state, began), *map(_fault, series.faults)]),
        "nodes": shown["nodes"], "pace": shown["pace"], "curve": shown["curve"], "history": _columns(history),
        "staleness": _staleness(state, began), "shares": _shares(state),
    }


def _hosts(state: RunState) -> dict[Key, str]:
    """The processes of a run without a result, and their hosts."""
    return {key: process.hostname for key, process in state.processes.items() if process.hostname}


def _fewer(spans: list[Span]) -> list[Span]:
    """The same, with neighbours joined until there are few enough to draw."""
    if not spans:
        return []
    gap = (spans[-1].end - spans[0].start) / 1500
    joined = merged(spans, gap)
    while len(joined) > MOST_SPANS:
        gap *= 2
        joined = merged(joined, gap)
    return joined


def _marks(state: RunState, began: float) -> list[dict[str, Any]]:
    """Errors, lost processes, warnings and checkpoints with their times."""
    marks = []
    for event in state.incidents:
        match event:
            case ErrorEvent():
                kind, text = "error", event.message
            case LostEvent():
                kind, text = "lost", event.message
            case WarningEvent():
                kind, text = "warning", event.message
            case CheckpointEvent():
                kind, text = "checkpoint", f"checkpoint after epoch {event.epoch}"
        process = "" if event.role is None or event.rank is None else name_of((event.role, event.rank))
        marks.append({"kind": kind, "seconds": round(max(0.0, event.controller_time - began), 3), "end": None,
                      "text": text, "process": process})
    return marks


def _fault(fault: FaultSpan) -> dict[str, Any]:
    """Injected faults (`--fault`), with their beginning and end."""
    end = None if fault.end is None else round(fault.end, 3)
    return {"kind": "fault", "seconds": round(fault.start, 3), "end": end, "text": f"--fault {fault.fault}",
            "process": ""}


def _most_urgent(marks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    order = ("error", "lost", "fault", "warning", "checkpoint")
    kept = sorted(marks, key=lambda mark: order.index(mark["kind"]))[:MOST_MARKS]
    return sorted(kept, key=lambda mark: mark["seconds"])


def _columns(history: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = list(dict.fromkeys(name for row in history for name in row))
    return {name: [row.get(name) for row in history] for name in names}


def _staleness(state: RunState, began: float) -> dict[str, list[float]] | None:
    events = state.updates.rows
    if not events:
        return None
    events = events[:: -(-len(events) // MOST_POINTS)]
    return {
        "seconds": [round(event.controller_time - began, 2) for event in events],
        "mean": [event.mean for event in events], "max": [event.max for event in events],
    }


def _shares(state: RunState) -> list[dict[str, Any]]:
    """Training time of each process: computing, waiting for others, and communicating, where the engine exposes it."""
    events = {(event.role or "", event.rank or 0): event
              for event in state.collectives if event.train_seconds > 0}
    if not events:
        return []
    shares = []
    for process, event in sorted(events.items()):
        inside = min(event.collective_seconds, event.train_seconds)
        wait = min(waited(event, events.values()), inside)
        shares.append({
            "process": name_of(process), "compute": (event.train_seconds - inside) / event.train_seconds,
            "wait": wait / event.train_seconds, "communicate": (inside - wait) / event.train_seconds,
        })
    return shares


@dataclass(frozen=True)
class Confusion:
    """The confusion matrix of a run: rows are true classes, columns predicted ones."""

    names: list[str]
    counts: list[list[int]]
    #: True class, predicted class, how often, and the share of the true class.
    pairs: list[tuple[str, str, int, float]]

    @property
    def drawn(self) -> bool:
        return 2 <= len(self.names) <= MOST_CLASSES


def confusion_of(result: Result) -> Confusion | None:
    """None if there is none, or it is not square."""
    table = result.confusion
    if not table or any(len(row) != len(table) for row in table):
        return None
    given = [shown(name) for name in result.class_names or ()]
    names = given if len(given) == len(table) else [str(place) for place in range(len(table))]
    wrong = [
        (names[true], names[predicted], count, count / total)
        for true, row in enumerate(table) for total in (max(1, sum(row)),)
        for predicted, count in enumerate(row) if count and true != predicted
    ]
    return Confusion(names, table, sorted(wrong, key=lambda pair: -pair[2])[:MOST_PAIRS])


def environment_of(result: Result) -> list[tuple[str, str]]:
    """What a run ran on, as names and values."""
    environment = [*result.versions.items()]
    if (machine := result.machine) is not None:
        environment.append(("machine", f"{machine.processor}, {machine.cores} cores, "
                                 f"{machine.memory_bytes / 2**30:.0f} GiB memory, {machine.system}"))
    environment += [("host", line) for line in host_lines(result)]
    environment += [("implementation", line) for line in implementation_lines(result)]
    environment.append(("launcher", result.launcher or "local"))
    return environment


def score_of(result: Result) -> tuple[str, float | None]:
    """The metric that decides, and its value on the test set."""
    metric = task_of_result(result).metric.name
    return metric, result.test.value(metric) if result.test else None


def notes_of(result: Result) -> list[str]:
    """What a reader of a run should know."""
    note = load_note([result])
    return [f"Not reliable: {note}; repeat the run on an idle machine."] if note else []


def configuration_of(path: Path) -> list[tuple[str, str]]:
    """The fields of a run's job as text."""
    job = RunFolder(path).job()
    return [(name.replace("_", " "), text_of(value)) for name, value in job.model_dump().items()]
