"""Reads the events of a run for a page: of heartbeats and progress only as many as a plot can show.

A long run has hundreds of thousands of them, and to parse them all takes seconds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from velodrome import files
from velodrome.events.lines import LONGEST_LINE, event_files, parse_stored
from velodrome.events.models import Event

#: Events of one kind and one process that are parsed.
MOST_OF_A_KIND = 500
_BULK = re.compile(r'"kind": ?"(resources|progress|staleness|phase)"')
_PROCESS = re.compile(r'"role": ?"([^"]*)", ?"rank": ?(\d+)')
_TIME = re.compile(r'\{"time": ?([0-9.]+)')
_PHASE = re.compile(r'"phase": ?"([a-z]+)"')


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
    lines: list[str] = []
    bulk: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    with suppress(OSError):
        for line in files.read_lines(path, LONGEST_LINE, inside=path.parent):
            kind = _BULK.search(line, 0, 300)
            process = _PROCESS.search(line, 0, 120) if kind else None
            if kind and process:
                phase = _PHASE.search(line, 0, 400) if kind[1] == "phase" else None
                bulk[kind[1], process[1], process[2], phase[1] if phase else ""].append(len(lines))
            lines.append(line)
    found.total += len(lines)
    skipped: set[int] = set()
    before: dict[int, int] = {}
    for (group, *_), places in bulk.items():
        step = -(-len(places) // most)
        if group == "phase":
            # Begins and ends alternate: pairs are kept together.
            step = -(-len(places) // (4 * most))
            kept = {place for at, place in enumerate(places) if at // 2 % step == 0 or at >= len(places) - 2}
        else:
            kept = {place for at, place in enumerate(places) if at % step == step - 1 or at == len(places) - 1}
        if group == "resources":
            found.step = max(found.step, step)
            before.update(zip(places[1:], places, strict=False))
        skipped.update(place for place in places if place not in kept)
    for place, line in enumerate(lines):
        if place in skipped or (event := parse_stored(line)) is None:
            continue
        if place in before and (earlier := _TIME.match(lines[before[place]])):
            found.gaps[len(found.events)] = event.time - float(earlier[1])
        found.events.append(event)
