"""Events are whole JSON lines behind a prefix; anything else on the same stream is a line of the log."""

from __future__ import annotations

import json
import os
import threading

import pytest

from velodrome.events.lines import PREFIX, parse, to_line
from velodrome.worker.emitter import Emitter

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "line", ["hello", "", PREFIX + "{", PREFIX + "[1]", PREFIX + '{"kind":"nonsense"}', '{"kind":"epoch"}']
)
def test_what_is_no_event_is_a_line_of_the_log(line: str) -> None:
    assert parse(line) is None


def test_numbers_that_json_does_not_know_travel_as_null() -> None:
    assert json.loads(to_line({"a": float("nan"), "b": [float("inf"), 1.0], "c": {"d": 2}})) == {
        "a": None, "b": [None, 1.0], "c": {"d": 2}
    }


def test_events_of_several_threads_never_mix() -> None:
    read, write = os.pipe()
    emitter = Emitter(write, "worker", 3)

    def speak(name: str) -> None:
        for _ in range(200):
            emitter.emit("progress", text=name * 3000)

    threads = [threading.Thread(target=speak, args=(name,)) for name in "abc"]
    lines: list[str] = []

    def listen() -> None:
        with os.fdopen(read, encoding="utf-8") as stream:
            lines.extend(stream)

    listener = threading.Thread(target=listen)
    listener.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(write)
    listener.join(timeout=20)
    events = [parse(line) for line in lines]
    assert len(events) == 600
    assert all(event is not None and len(set(event["text"])) == 1 for event in events)
    assert events[0] is not None
    assert (events[0]["role"], events[0]["rank"]) == ("worker", 3)
