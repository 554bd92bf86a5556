"""Reads the events of a run for a page, and keeps points of curves: only as many as a plot can show.

A long run has hundreds of thousands of them, and to parse them all takes seconds. No file is held in memory.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from velodrome import files
from velodrome.events import LONGEST_LINE, MOST_STRANGE, event_files, parse_stored
from velodrome.events.models import Event

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
    found = Thinned()
    for path in event_files(folder):
        _read(path, most, found)
    return found


def _read(path: Path, most: int, found: Thinned) -> None:
    """Read a file twice, first to count the events of each group: it may be larger than what should be held."""
    counts = _counted(path, found)
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
                    found.step = max(found.step, step)
                    times[group] = line[:_BEGINNING]
                if not _is_kept(group, place, count, step):
                    continue
            event = parse_stored(line)
            if event is not None:
                if before is not None and (earlier := _TIME.match(before)):
                    found.gaps[len(found.events)] = event.time - float(earlier[1])
                found.events.append(event)
            strange += event is None
            if strange > MOST_STRANGE or len(found.events) >= _MOST_EVENTS:
                return


def _counted(path: Path, found: Thinned) -> Counter[Group]:
    """How many events each group has, for as many groups as a run can have; adds the lines of the file to `found`."""
    counts: Counter[Group] = Counter()
    with suppress(OSError):
        for line in files.read_lines(path, LONGEST_LINE, inside=path.parent):
            found.total += 1
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
