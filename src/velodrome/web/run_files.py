"""What pages read of runs on disk: the rows of a folder of runs, and the events of one run.

A row is read again only after its folder has changed, so that thousands are listed at once. Of events only as many are
parsed as a plot can show: a long run has hundreds of thousands, which would take seconds. No file is held in memory.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.events import LONGEST_LINE, MOST_STRANGE, event_files, parse_stored
from velodrome.events.models import Event
from velodrome.run.listing import Found, row_of_race, row_of_run, scan

Row = dict[str, Any]
#: Rows that are read however long it takes: as many as a screen shows.
_FIRST_ROWS = 50
#: Seconds for which a scan of the folder counts as current: pages that ask at the same time share it. A large folder is
#: scanned no more often than after so many times of what that took.
_FRESH_SECONDS, _PATIENCE = 0.5, 20.0


@dataclass(frozen=True)
class Listed:
    """Some rows of a folder, and how many there are in all."""

    rows: list[Row]
    #: How many fit the question.
    found: int
    #: How many there are.
    total: int
    #: Whether some were left out because reading them takes long.
    partial: bool = False


class RunIndex:
    """The rows of a folder of runs, kept as long as nothing in their folders changes."""

    def __init__(self, runs: Path, clock: Callable[[], float]) -> None:
        self.runs, self._clock = runs, clock
        self._rows: dict[Path, tuple[Any, Row]] = {}
        self._lock = threading.Lock()
        self._scanned: tuple[float, list[Found]] = (float("-inf"), [])
        self._fresh = _FRESH_SECONDS

    def listed(
        self, text: str = "", status: str = "", kind: str = "", offset: int = 0, limit: int = 1000,
        seconds: float | None = None,
    ) -> Listed:
        """The newest first; of those whose name contains a text, that have a status, or are of a kind.

        With `seconds` only as many as are read in that time, unless a status is wanted.
        """
        with self._lock:
            entries = self._entries()
            end = None if seconds is None else self._clock() + seconds
            wanted = [entry for entry in entries if text.lower() in entry.name.lower() and kind in ("", entry.kind)]
            if not status:
                asked = wanted[offset : offset + limit]
                rows: list[Row] = []
                for entry in asked:
                    if end is not None and len(rows) >= _FIRST_ROWS and self._clock() > end:
                        break
                    rows.append(self._row(entry))
                return Listed(rows, len(wanted), len(entries), len(rows) < len(asked))
            rows = [row for entry in wanted if (row := self._row(entry))["status"] == status]
            return Listed(rows[offset : offset + limit], len(rows), len(entries))

    def row(self, entry: Found) -> Row:
        with self._lock:
            return self._row(entry)

    def _entries(self) -> list[Found]:
        now = self._clock()
        if now - self._scanned[0] > self._fresh:
            entries = scan(self.runs)[::-1]
            self._fresh = max(_FRESH_SECONDS, _PATIENCE * (self._clock() - now))
            self._scanned = (now, entries)
            there = {entry.path for entry in entries}
            for path in self._rows.keys() - there:
                del self._rows[path]
        return self._scanned[1]

    def _row(self, entry: Found) -> Row:
        state = _state(entry)
        known = self._rows.get(entry.path)
        if known is not None and known[0] == state and known[1]["status"] != "running":
            return known[1]
        row = row_of_run(entry.path) if entry.kind == "run" else row_of_race(entry.path)
        row["made"] = entry.made
        self._rows[entry.path] = (state, row)
        return row


def _state(run_or_race: Found) -> Any:
    """What changes when a row does: files of a run are replaced in its folder, whose time changes with them."""
    try:
        own = os.stat(run_or_race.path).st_mtime_ns  # noqa: PTH116 - thousands of them
        if run_or_race.kind == "run":
            return own
        with os.scandir(run_or_race.path) as entries:
            newest = [entry.stat(follow_symlinks=False).st_mtime_ns for entry in entries if entry.is_dir()]
    except OSError:
        return None
    return own, len(newest), max(newest, default=0)


#: Events of one kind and one process that are parsed.
MOST_OF_A_KIND = 500
#: Events of a file that are parsed in all, and kinds and processes that are counted separately.
_MOST_EVENTS, _MOST_GROUPS = 200_000, 20_000
#: Characters of a line that has its time.
_BEGINNING = 64
_BULK = re.compile(r'"kind": ?"(resources|progress|staleness|phase)"')
_PROCESS = re.compile(r'"role": ?"([^"]*)", ?"rank": ?(\d+)')
_TIME = re.compile(r'\{"time": ?([0-9]+(?:\.[0-9]+)?)')
_PHASE = re.compile(r'"phase": ?"([a-z]+)"')
#: Kind, role, rank and phase.
Group = tuple[str, str, str, str]


@dataclass
class Thinned:
    """Events in the order of the file, and how many the file has."""

    events: list[Event] = field(default_factory=list)
    total: int = 0
    #: Every how many heartbeats one was read, at most.
    step: int = 1
    #: Seconds between a heartbeat that was read and the one before it, which may have been left out.
    gaps: dict[int, float] = field(default_factory=dict)


def read_thinned(folder: Path, most: int = MOST_OF_A_KIND) -> Thinned:
    """The events of a run, evenly thinned out where there are too many of a kind."""
    thinned = Thinned()
    for path in event_files(folder):
        _read(path, most, thinned)
    return thinned


def _read(path: Path, most: int, thinned: Thinned) -> None:
    """Read a file twice, first to count the events of each group: it may be larger than what should be held."""
    counts = _counted(path, thinned)
    places: Counter[Group] = Counter()
    times: dict[Group, str] = {}
    strange = 0
    with suppress(OSError):
        for line in files.read_lines(path, LONGEST_LINE, inside=path.parent):
            group, before = _group(line), None
            if group is not None:
                place, before, count = places[group], times.get(group), counts.get(group, 0)
                if not count:
                    continue
                places[group] += 1
                step = -(-count // (4 * most if group[0] == "phase" else most))
                if group[0] == "resources":
                    thinned.step = max(thinned.step, step)
                    times[group] = line[:_BEGINNING]
                if not _is_kept(group, place, count, step):
                    continue
            event = parse_stored(line)
            if event is not None:
                if before is not None and (earlier := _TIME.match(before)):
                    thinned.gaps[len(thinned.events)] = event.time - float(earlier[1])
                thinned.events.append(event)
            strange += event is None
            if strange > MOST_STRANGE or len(thinned.events) >= _MOST_EVENTS:
                return


def _counted(path: Path, thinned: Thinned) -> Counter[Group]:
    """How many events each group has, for as many groups as a run can have; adds the lines of the file to `thinned`."""
    counts: Counter[Group] = Counter()
    with suppress(OSError):
        for line in files.read_lines(path, LONGEST_LINE, inside=path.parent):
            thinned.total += 1
            group = _group(line)
            if group is not None and (group in counts or len(counts) < _MOST_GROUPS):
                counts[group] += 1
    return counts


def _group(line: str) -> Group | None:
    """Kind and process of an event of which there are many, and its phase; None for the others."""
    kind = _BULK.search(line, 0, 300)
    process = _PROCESS.search(line, 0, 120) if kind else None
    if kind is None or process is None:
        return None
    phase = _PHASE.search(line, 0, 400) if kind[1] == "phase" else None
    return kind[1], process[1], process[2], phase[1] if phase else ""


def _is_kept(group: Group, place: int, count: int, step: int) -> bool:
    """Whether the event at this place of its group is read, every `step` of them and the last."""
    if group[0] == "phase":  # begins and ends alternate: pairs are kept together
        return place // 2 % step == 0 or place >= count - 2
    return place % step == step - 1 or place == count - 1
