"""Writes the events of a training process, one per line, to a descriptor that nothing else writes to."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from velodrome.events.lines import PREFIX, to_line
from velodrome.events.models import MODELS, EventBase, Kind, Phase
from velodrome.variables import STRICT_EVENTS


class InvalidEvent(Exception):
    """An event does not fit its model: a mistake in the code that emits it."""


class Emitter:
    """Writes the events of one process to a file descriptor that nothing else writes to.

    Every event is validated against its model. An event that does not fit is a programming error: it raises where
    `VELODROME_STRICT_EVENTS` is 1, as in the tests. In a real run training is worth more than a statistic: the fields
    that do not fit are left out, and a warning names them once per kind of event.
    """

    def __init__(self, descriptor: int, role: str, rank: int) -> None:
        self._descriptor = descriptor
        self._role, self._rank = role, rank
        self._lock = threading.Lock()
        self._strict = os.environ.get(STRICT_EVENTS) == "1"
        self._warned: set[str] = set()

    def emit(self, kind: Kind, **fields: Any) -> None:
        """Write one event that happens now."""
        event = {"time": round(time.time(), 4), "role": self._role, "rank": self._rank, "kind": kind, **fields}
        model, line = MODELS[kind], to_line(event)
        try:
            # The text itself, as every reader will validate it.
            model.model_validate_json(line)
        except ValidationError as error:
            line = to_line(self._repaired(model, event, error))
        if self._strict and (unknown := event.keys() - _names(model)):
            raise InvalidEvent(f"the event {kind!r} has no field {sorted(unknown)[0]!r}")
        with self._lock:
            self._write(PREFIX + line)

    def _write(self, line: str) -> None:
        data = (line + "\n").encode()
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _repaired(self, model: type[EventBase], event: dict[str, Any], error: ValidationError) -> dict[str, Any]:
        """Return an invalid event without the fields that do not fit, or raise if events are strict."""
        from velodrome.events.problems import sentences

        kind = event["kind"]
        problems = "; ".join(sentences(error))
        if self._strict:
            raise InvalidEvent(f"the event {kind!r} {problems}")
        if kind not in self._warned:
            self._warned.add(kind)
            self.emit("warning", message=f"an event {kind!r} was wrong, please report this: it {problems}")
        wrong = {str(problem["loc"][0]) for problem in error.errors(include_url=False) if problem["loc"]}
        # Without a field that must be there it stays no event, and the controller keeps the line in the log.
        return {name: value for name, value in event.items() if name not in wrong}

    @contextmanager
    def phase(self, name: Phase, **fields: Any) -> Iterator[None]:
        """Report the begin of a phase, and its end with the seconds it took; not its end if it raises."""
        self.emit("phase", phase=name, state="begin", **fields)
        start = time.perf_counter()
        yield
        self.emit("phase", phase=name, state="end", seconds=round(time.perf_counter() - start, 6), **fields)


def _names(model: type[EventBase]) -> set[str]:
    """Names of a model's fields as they are written."""
    return {field.alias or name for name, field in model.model_fields.items()}


class LineEmitter(Emitter):
    """Passes event lines to a function, for a process that trains inside another program."""

    def __init__(self, deliver: Callable[[str], None], role: str, rank: int) -> None:
        super().__init__(-1, role, rank)
        self._deliver = deliver

    def _write(self, line: str) -> None:
        self._deliver(line)
