"""The runs and races of a folder as rows, newest first. A row is read again only after its folder has changed, so that
thousands are listed at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
            found = self._found()
            end = None if seconds is None else self._clock() + seconds
            wanted = [one for one in found if text.lower() in one.name.lower() and kind in ("", one.kind)]
            if not status:
                asked = wanted[offset : offset + limit]
                rows: list[Row] = []
                for one in asked:
                    if end is not None and len(rows) >= _FIRST_ROWS and self._clock() > end:
                        break
                    rows.append(self._row(one))
                return Listed(rows, len(wanted), len(found), len(rows) < len(asked))
            rows = [row for one in wanted if (row := self._row(one))["status"] == status]
            return Listed(rows[offset : offset + limit], len(rows), len(found))

    def row(self, found: Found) -> Row:
        with self._lock:
            return self._row(found)

    def _found(self) -> list[Found]:
        now = self._clock()
        if now - self._scanned[0] > self._fresh:
            found = scan(self.runs)[::-1]
            self._fresh = max(_FRESH_SECONDS, _PATIENCE * (self._clock() - now))
            self._scanned = (now, found)
            there = {one.path for one in found}
            for path in self._rows.keys() - there:
                del self._rows[path]
        return self._scanned[1]

    def _row(self, found: Found) -> Row:
        state = _state(found)
        known = self._rows.get(found.path)
        if known is not None and known[0] == state and known[1]["status"] != "running":
            return known[1]
        row = row_of_run(found.path) if found.kind == "run" else row_of_race(found.path)
        row["made"] = found.made
        self._rows[found.path] = (state, row)
        return row


def _state(found: Found) -> Any:
    """What changes when a row does: files of a run are replaced in its folder, whose time changes with them."""
    try:
        own = os.stat(found.path).st_mtime_ns  # noqa: PTH116 - thousands of them
        if found.kind == "run":
            return own
        with os.scandir(found.path) as entries:
            newest = [entry.stat(follow_symlinks=False).st_mtime_ns for entry in entries if entry.is_dir()]
    except OSError:
        return None
    return own, len(newest), max(newest, default=0)
