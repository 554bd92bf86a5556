"""Every field of every file of a run or race, replaced by everything that does not belong there: no reader crashes.

A reader answers as usual, or says in a sentence which run it cannot read. The whole product of fields, values and
readers takes minutes; of the quick tests, a sample.
"""

from __future__ import annotations

import html
import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mutated_store import (
    REMOVED,
    Place,
    Store,
    cases,
    mutated,
    one_event_of_each_kind,
    sweep,
    whole_job,
    whole_race,
    whole_result,
)
from velodrome.api import runs as api
from velodrome.api.datasets import encode_row
from velodrome.data.base import DataError
from velodrome.data.shards.index import read_index
from velodrome.data.storage.store import open_store
from velodrome.errors import BadRequest, VelodromeError
from velodrome.events import read_events
from velodrome.events.models import MODELS
from velodrome.job.names import expand
from velodrome.job.race import parse_race
from velodrome.models.description import Served
from velodrome.reporting.load import load_race
from velodrome.run.store import RunFolder, read_race

pytestmark = pytest.mark.timeout(3600)

#: How many of all cases the quick tests try.
AMOUNTS = [pytest.param(5, id="sample"), pytest.param(None, id="all", marks=pytest.mark.slow)]


@pytest.fixture
def store(runs: Path, velodrome: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    pytest.importorskip("starlette")
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    return Store(runs, velodrome)


@pytest.mark.parametrize("amount", AMOUNTS)
def test_a_result(store: Store, amount: int | None) -> None:
    for case in sweep(store, "result.json", whole_result(), amount, lambda: RunFolder(store.victim).read()[1]):
        rows = {row["run"]: row for row in api.list(store.runs, within_races=True)}
        assert (rows[store.name]["status"], rows[store.name]["problem"]) == ("unreadable", case[-1]), case
        assert rows[store.other]["status"] == "finished"


@pytest.mark.parametrize(("place", "text"), [
    (("throughput",), "2"), (("seconds", "total"), "9" * 400), (("test", "accuracy"), "9" * 400),
    (("history",), "[[]]"),
    (("history", 0, "epoch"), "null"), (("task",), "[]"), (("test", "correct"), "null"),
    (("test", "accuracy"), "1e308"),
    (("test", "accuracy"), "-1"), (("nodes", 0, "cpu_percent", "max"), "null"), (("error",), "[null]"),
    (("parameters",), REMOVED), (("confusion",), "[[1, 2, 3], [4]]"), (("started",), "[]"), (("hosts",), "[1]"),
])
def test_a_result_that_some_reader_stumbled_over(store: Store, place: Place, text: str) -> None:
    store.write("result.json", mutated(whole_result(), place, text) if place != ("error",) else json.dumps(
        {**whole_result(), "error": [None]}))
    store.read()


@pytest.mark.parametrize("amount", AMOUNTS)
def test_a_job(store: Store, amount: int | None) -> None:
    def problem() -> str | None:
        return reason_of(RunFolder(store.victim).job)

    for case in sweep(store, "job.yaml", whole_job(store), amount, problem):
        failures = [failure for failure in load_race(store.runs, "race").failures if failure.status == "unreadable"]
        assert [failure.run for failure in failures] in ([store.victim.name], []), case


@pytest.mark.parametrize("amount", AMOUNTS)
def test_a_race(store: Store, amount: int | None) -> None:
    for case in sweep(store, "race.yaml", whole_race(), amount, lambda: reason_of(lambda: read_race(store.race))):
        rows = {row["run"]: row for row in api.list(store.runs, within_races=True)}
        assert rows["race"]["problem"] == case[-1], case
        assert rows[store.name]["status"] == "finished"


def reason_of(read: Callable[[], object]) -> str | None:
    try:
        read()
    except VelodromeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("amount", AMOUNTS)
def test_the_events(store: Store, amount: int | None) -> None:
    events = one_event_of_each_kind()
    assert {event["kind"] for event in events} == MODELS.keys()
    lines = [json.dumps(event) for event in events]
    found = [(number, case) for number, event in enumerate(events) for case in cases(event, None, 0)]
    skipped = set()
    for number, (place, text) in found if amount is None else random.Random(4).sample(found, amount):
        changed = [*lines[:number], mutated(events[number], place, text), *lines[number + 1:]]
        store.write("events.jsonl", "\n".join(changed) + "\n")
        whole = sum(1 for _ in read_events(store.victim / "events.jsonl")) == len(lines)
        # A line that is no event is skipped by all readers alike.
        if whole or events[number]["kind"] not in skipped:
            store.read()
        skipped |= set() if whole else {events[number]["kind"]}


SERVED = {
    "schema": 1, "kind": "classifier", "task": "classification", "model": "m", "engine": "torch", "dataset": "digits",
    "run": "r", "inputs": [{"name": "x", "shape": [8, 8, 1], "dtype": "uint8", "image": True}], "outputs": "logits",
    "classes": ["a", "b"], "brightest": 16.0, "pixels": {"scale": 1.0}, "columns": {}, "vocabulary": ["w"],
    "context": 1, "state": [{"name": "s", "shape": [-1, 2]}], "only_batch": None, "difference": 0.0, "checked": 1,
}


@pytest.mark.parametrize("amount", AMOUNTS)
def test_the_description_of_a_served_model(tmp_path: Path, amount: int | None) -> None:
    file = tmp_path / "serving.json"
    for place, text in cases(SERVED, amount and 30 * amount, 5):
        file.write_bytes(mutated(SERVED, place, text).encode())
        with suppress(ValueError):
            Served.read(file)


COLUMNS = {
    "features": [{"name": "town", "kind": "category", "how": "onehot", "categories": ["a", "b"]},
                 {"name": "age", "kind": "number", "mean": 1.0, "deviation": 2.0}],
    "targets": [{"name": "price", "kind": "number", "mean": 1.0, "deviation": 2.0}],
}


@pytest.mark.parametrize("amount", AMOUNTS)
def test_the_columns_of_a_table(tmp_path: Path, amount: int | None) -> None:
    for place, text in cases(COLUMNS, amount and 30 * amount, 6):
        (tmp_path / "columns.json").write_bytes(mutated(COLUMNS, place, text).encode())
        with suppress(BadRequest):
            encode_row(tmp_path, {"age": 5, "town": "a"})


INDEX = {
    "schema": 1, "name": "a", "title": "b", "licence": "c", "homepage": "d", "classes": 2, "class_names": ["x", "y"],
    "shape": [8, 8, 1], "encoding": "raw", "scale": 1.0, "seed": 1, "validation": 0.1, "overlaps": ["e"],
    "parts": {"train": [{"name": "x.tfrecord", "examples": 1, "bytes": 1, "sha256": "0" * 64}]},
    "statistics": {"mean": [1.0], "deviation": [1.0]},
}


@pytest.mark.parametrize("amount", AMOUNTS)
def test_the_index_of_shards(tmp_path: Path, amount: int | None) -> None:
    (tmp_path / "index.json").write_text(json.dumps(INDEX))
    assert read_index(open_store(str(tmp_path))).classes == 2
    for place, text in cases(INDEX, amount and 30 * amount, 7):
        (tmp_path / "index.json").write_bytes(mutated(INDEX, place, text).encode())
        with suppress(DataError):
            read_index(open_store(str(tmp_path)))


SIXTY = list(range(1, 61))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("fields", "asked"), [
    ({"repeat": 1_000_000_000}, "1,000,000,000 jobs (1 × repeat 1,000,000,000)"),
    ({"repeat": 10_001}, "10,001 jobs"),
    ({"vary": {"workers": SIXTY, "batch_size": SIXTY, "epochs": SIXTY, "seed": SIXTY}}, "12,960,000 jobs"),
    ({"until_sure": True, "max_repeat": 10**12}, "max_repeat 1,000,000,000,000"),
    ({"vary": {"seed": [*range(10_100)]}, "naming": "published"}, "10,100 jobs"),
    ({"vary": {"seed": [*range(500_000)]}}, "it holds more than 100,000 values"),
], ids=["repeat", "one too many", "grid", "until sure", "published", "seeds"])
def test_a_race_of_too_many_jobs_is_refused_before_it_is_expanded(
    store: Store, fields: dict[str, Any], asked: str
) -> None:
    store.write("race.yaml", json.dumps({"job": {"dataset": "digits"}, **fields}))
    file = store.race / "race.yaml"
    for words in (("report", "race"), ("recommend", "race"), ("race", file, "--dry-run", "--name", "other"),
                  ("race", file, "--name", "race", "--dry-run")):
        done = store.command(*words, "--runs", store.runs)
        assert (done.code, asked in done.err) == (2, True), done.text
    if "values" not in asked:
        assert "a race has at most 10,000: vary fewer values, or lower" in done.err
    row = next(row for row in api.list(store.runs) if row["kind"] == "race")
    assert asked in row["problem"]
    assert row["jobs"] == 4
    assert row["problem"].startswith("its race.yaml cannot be read: it ")
    for words, code in ((("check", "race"), 1), (("check",), 1), (("show", "race"), 0)):
        done = store.command("runs", *words, "--runs", store.runs)
        assert (done.code, asked in done.text) == (code, True), done.text
    shown = dict(store.pages())
    assert asked in html.unescape(shown["/"])
    assert asked in html.unescape(shown["/races/race"])


def test_epochs_without_what_their_metric_is_computed_from(store: Store) -> None:
    lines = [json.loads(line) for line in (store.victim / "events.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "epoch":
            del line["train"]["correct"], line["validation"]["correct"]
    assert any(line["kind"] == "epoch" for line in lines)
    store.write("events.jsonl", "\n".join(map(json.dumps, lines)) + "\n")
    store.read()


def test_baselines_count_as_jobs(store: Store) -> None:
    vary = {"entry": ["torch/ddp", "torch/fsdp"]}
    store.write("race.yaml", json.dumps({"job": {"dataset": "digits"}, "vary": vary, "repeat": 5000}))
    done = store.command("race", store.race / "race.yaml", "--dry-run", "--name", "other", "--runs", store.runs)
    assert (done.code, "it asks for 15,000 jobs with its baselines, but a race" in done.err) == (2, True), done.text
    store.read()


def test_a_stored_race_that_would_grow_too_large_is_refused(store: Store) -> None:
    """The repetitions that it had count for what is asked for now."""
    store.write("race.yaml", json.dumps({"job": {"dataset": "digits"}, "until_sure": True, "max_repeat": 9_000}))
    done = store.command("race", "--vary", "batch_size=1,2", "--name", "race", "--dry-run", "--runs", store.runs)
    assert (done.code, "18,000 jobs" in done.err) == (2, True), done.text


def test_as_many_jobs_of_one_name_as_a_race_may_have_are_told_apart() -> None:
    race = parse_race({"job": {"dataset": "digits"}, "vary": {"start_timeout": [float(n) for n in range(1, 5001)]}})
    assert len({entry.name for entry in expand(race)}) == 5000
