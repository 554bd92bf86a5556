"""Events are whole JSON lines behind a prefix; anything else on the same stream is a line of the log."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from velodrome.events import PREFIX, parse_event, to_line
from velodrome.events.models import KINDS, MODELS, ErrorEvent, LostEvent, WarningEvent
from velodrome.training.context import Emitter, InvalidEvent
from velodrome.variables import STRICT_EVENTS

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "line", ["hello", "", PREFIX + "{", PREFIX + "[1]", PREFIX + '{"kind":"nonsense"}', '{"kind":"epoch"}',
             PREFIX + '{"time":1,"kind":"epoch","epoch":"one"}', PREFIX + '{"time":1,"kind":"lost","message":"a"'],
)
def test_what_is_no_event_is_a_line_of_the_log(line: str) -> None:
    assert parse_event(line) is None


def test_an_event_that_a_newer_version_wrote_is_read() -> None:
    event = parse_event(PREFIX + '{"time":1,"kind":"lost","message":"a","why":"b"}')
    assert isinstance(event, LostEvent)
    assert event.as_json() == {"time": 1.0, "kind": "lost", "message": "a", "why": "b"}


def test_numbers_that_json_does_not_know_travel_as_null() -> None:
    assert json.loads(to_line({"a": float("nan"), "b": [float("inf"), 1.0], "c": {"d": 2}})) == {
        "a": None, "b": [None, 1.0], "c": {"d": 2}
    }


def test_numbers_of_numpy_and_text_that_is_not_unicode_can_be_written() -> None:
    numbers = {"a": np.float32(2.5), "b": np.int64(3), "c": np.float32("nan"), "d": np.float64("inf")}
    assert json.loads(to_line(numbers)) == {"a": 2.5, "b": 3, "c": None, "d": None}
    assert json.loads(to_line({"a": "x\udc80", "b": [float("nan")]})) == {"a": "x?", "b": [None]}


def test_an_event_of_the_wrong_form_raises_in_tests() -> None:
    emitter = Emitter(os.open(os.devnull, os.O_WRONLY), "worker", 0)
    with pytest.raises(InvalidEvent, match=r"'checkpoint' has 'epoch' 0, which is less than 1; has no 'file'"):
        emitter.emit("checkpoint", epoch=0)
    with pytest.raises(InvalidEvent, match="'warning' has no field 'massage'"):
        emitter.emit("warning", message="a", massage="b")


def test_an_event_of_the_wrong_form_does_not_end_a_real_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(STRICT_EVENTS)
    emitter = Emitter(os.open(tmp_path / "events", os.O_WRONLY | os.O_CREAT), "worker", 0)
    for _ in range(2):
        emitter.emit("error", message="why", traceback=["no text"])
    emitter.emit("lost")
    events = [parse_event(line) for line in (tmp_path / "events").read_text().splitlines()]
    warning, *errors = events[:3]
    assert isinstance(warning, WarningEvent)
    assert "has 'traceback' ['no text'], which is not text" in warning.message
    assert [event.message for event in errors if isinstance(event, ErrorEvent)] == ["why", "why"]
    assert isinstance(events[3], WarningEvent)
    assert events[4:] == [None], "what misses a required field is a line of the log"


def test_every_kind_of_event_has_a_model_with_a_description_of_every_field() -> None:
    assert tuple(MODELS) == KINDS
    for kind, model in MODELS.items():
        assert model.__doc__, kind
        for name, field in model.model_fields.items():
            assert field.description or name == "kind", f"{kind}.{name}"


def test_events_of_several_threads_never_mix() -> None:
    read, write = os.pipe()
    emitter = Emitter(write, "worker", 3)

    def speak(name: str) -> None:
        for _ in range(200):
            emitter.emit("warning", message=name * 3000)

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
    listener.join(timeout=100)
    events = [parse_event(line) for line in lines]
    assert len(events) == 600
    assert all(isinstance(event, WarningEvent) and len(set(event.message)) == 1 for event in events)
    assert events[0] is not None
    assert (events[0].role, events[0].rank) == ("worker", 3)
