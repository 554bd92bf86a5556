"""Every field of every file of a run or race, replaced by everything that does not belong there: no reader crashes.

A reader answers as usual, or says in a sentence which run it cannot read. The whole product of fields, values and
readers takes minutes; of the quick tests, a sample.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from synthetic_races import events_of, repeated, result, write_race
from velodrome.api import runs as api
from velodrome.api.datasets import encode_row
from velodrome.data.base import DataError
from velodrome.data.shards.index import read_index
from velodrome.data.storage.open import open_store
from velodrome.errors import BadRequest, VelodromeError
from velodrome.events.lines import read_events
from velodrome.events.models import MODELS
from velodrome.events.result import RunResult
from velodrome.models.served import Served
from velodrome.reporting.document import make_report
from velodrome.reporting.load import load_race
from velodrome.reporting.page import to_html
from velodrome.reporting.text import nodes_to_csv, to_latex, to_markdown
from velodrome.run.store import RunFolder

pytestmark = pytest.mark.timeout(3600)

#: Texts that stand where a value should be, in JSON as in YAML.
VALUES = (
    "null", "true", "false", "0", "-1", "-0.5", "2", "1e308", "-1e308", "5e-324", "9223372036854775807", "9" * 400,
    "-" + "9" * 400, "1e400", "NaN", "-Infinity", ".nan", ".inf", '""', '"5"', '"text"', '"a:b"', '"/"', '"..%2f"',
    '"../../etc/passwd"', '"\\ud800"', '"\\u0000"', '"%s {0} <b>"', '"accuracy>=2"', json.dumps("x" * 100_000), "[]",
    "{}", "[null]", "[[]]", '[1, "a", {}]', '{"": {"a": [null]}}', '{"cores": "a"}', "[" * 40 + "]" * 40,
    json.dumps(list(range(3000))),
)
#: What is removed instead.
REMOVED = "(removed)"
_HERE = "@@here@@"
#: No answer may take longer; the usual ones take a hundredth of a second.
MOST_SECONDS = 30.0
Place = tuple[str | int, ...]


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every field, and of every list the first item."""
    if place:
        yield place
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for name, one in inner:
        yield from places(one, (*place, name))


def mutated(value: Any, place: Place, text: str) -> str:
    """The JSON text of a value with another one in one place."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for name in place[:-1]:
        inner = inner[name]
    if text == REMOVED:
        del inner[place[-1]]
        return json.dumps(copy)
    inner[place[-1]] = _HERE
    return json.dumps(copy).replace(f'"{_HERE}"', text)


def whole_result() -> dict[str, Any]:
    """A result with every field that one can have."""
    made = result("ddp", 2, task="classification", implementation={"kind": "stock", "own": ["a"], "framework": ["b"],
                                                                   "path": "mpi"})
    host = {"hostname": "here", "interpreter": "/opt/python", "python": "3.11", "versions": {"torch": "2"}, "cores": 2,
            "memory_bytes": 2**34, "gpus": ["one"], "cpu": {"busy": 2.0, "own": 1.0, "foreign": 1.0, "seconds": 9.0},
            "network_bytes": {"in": 1, "out": 2, "loopback": 3}}
    made |= {
        "schema": 1, "launcher": "emulated", "effective_rate": 0.1, "pixels": "unit", "hosts": [host],
        "cluster": {"hosts": {"a": {"cores": 2}}, "asked": {"bandwidth": 1e9, "latency": 0.001},
                    "measured": {"bandwidth": 1e9, "round_trip": 0.002, "latency": 0.001},
                    "accuracy": {"bandwidth": 1.0, "latency": 1.0}, "made_by": {"latency": "tbf", "limits": "cgroups"}},
        "shares": {"compute": 0.7, "wait": 0.1, "communicate": 0.2}, "staleness": {"mean": 1.0, "max": 2.0},
        "confusion": [[4, 1], [0, 5]], "class_names": ["ant", "bee"], "warnings": ["a warning"],
        "faults": [{"fault": "kill worker1 at 1s", "action": "kill", "target": "worker1", "host": "a", "factor": 2.0,
                    "start": 1.0, "end": 2.0}],
        "metrics": [{"name": "accuracy", "better": "more", "form": ".4f", "margin": 0.01, "relative_margin": False}],
        "not_reported": ["loss"], "a_newer_field": {"b": [1]},
    }
    made["test"] |= {"perplexity": None, "answers": "eJwDAAAAAAE=", "fingerprint": "abc", "f1": 0.5}
    RunResult.model_validate(made)
    return made


class Store:
    """A race of four runs, of which the first is the victim, and everything that reads it."""

    def __init__(self, runs: Path, command: Callable[..., Any]) -> None:
        others = [*repeated([1000.0, 1010.0], strategy="ddp", workers=2)[1:], *repeated([900.0, 905.0])]
        results = [whole_result(), *others]
        self.runs, self.command = runs, command
        self.race = write_race(runs, results, "race").path
        self.victim = self.race / sorted(path.name for path in self.race.iterdir() if path.is_dir())[2]
        for run in self.race.glob("*/job.yaml"):
            (run.parent / "logs").mkdir()
            (run.parent / "logs" / "worker-0.log").write_text("a line\n")
        shutil.copytree(self.victim, runs / "plain")
        self.name, self.other = f"race/{self.victim.name}", next(
            f"race/{path.name}" for path in sorted(self.race.iterdir()) if path.is_dir() and path != self.victim)

    def write(self, name: str, text: str) -> None:
        for folder in (self.race,) if name == "race.yaml" else (self.victim, self.runs / "plain"):
            (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))

    def commands(self) -> Iterator[tuple[str, ...]]:
        yield from (("runs", "list", "--all"), ("runs", "list", "--all", "--json"), ("runs", "show", self.name),
                    ("runs", "show", "plain", "--json"), ("runs", "show", "race"))

    def all_commands(self) -> Iterator[tuple[str, ...]]:
        yield from (("runs", "compare", self.name, self.other), ("runs", "check"), ("recommend", "race"),
                    ("recommend", "race", "--objective", "time-to-accuracy", "--target", "accuracy>=0.5", "--json"),
                    ("runs", "export", "race", "--format", "csv", "--force", "--out", str(self.runs.parent / "t.csv")),
                    ("runs", "export", "plain", "--force", "--out", str(self.runs.parent / "t.zip")),
                    ("race", str(self.race / "race.yaml"), "--name", "race", "--dry-run"))

    def read(self, *, deep: bool) -> None:
        """Call every reader; without `deep` those that show why a run cannot be read."""
        for words in (*self.commands(), *(self.all_commands() if deep else ())):
            began = time.monotonic()
            done = self.command(*words, "--runs", self.runs)
            assert done.code in (0, 1, 2), (words, done)
            assert "Traceback" not in done.text, (words, done.text[-2000:])
            assert time.monotonic() - began < MOST_SECONDS, words
        self._read_pages()
        if deep:
            self._read_report()

    def _read_report(self) -> None:
        try:
            made = make_report(load_race(self.runs, "race"))
        except VelodromeError:
            return
        for write in (to_markdown, to_latex, nodes_to_csv, lambda report: to_html(report, [])):
            write(made)

    def _read_pages(self) -> None:
        from starlette.testclient import TestClient

        from velodrome.web.security import Security
        from velodrome.web.ui import ui_app

        client = TestClient(ui_app(self.runs, Security()), base_url="http://127.0.0.1:8200")
        for address in (
            "/", "/api/runs", "/api/races", "/runs/plain", "/api/runs/plain/view", "/api/runs/plain/logs",
            "/api/runs/plain/wrong", f"/runs/{self.name}", "/races/race", "/api/races/race",
            f"/compare?run={self.name}&run={self.other}", f"/api/compare?run={self.name}&run=plain",
        ):
            began = time.monotonic()
            assert client.get(address).status_code in (200, 404, 422), address
            assert time.monotonic() - began < MOST_SECONDS, address


def whole_job(store: Store) -> dict[str, Any]:
    from velodrome.spec.job import Job

    return Job.model_validate(yaml.safe_load((store.victim / "job.yaml").read_text())).model_dump()


def whole_race() -> dict[str, Any]:
    return {
        "job": {"dataset": "digits", "epochs": 2},
        "vary": {"workers": [1, 2], "entry": [{"engine": "torch", "strategy": "ddp"}], "seed": [1]},
        "repeat": 2, "until_sure": True, "max_repeat": 3, "budget": 60.0, "objective": "throughput", "tolerance": 0.05,
        "accuracy_margin": 0.01, "grace": 1, "baseline": True, "naming": "published", "stamp": "230713-102652",
        "sizes": {"digits, validation 0.1, bad data fail": 100}, "machine": "local-2c", "prefix": ["model"],
        "named_by": ["epochs"], "engine": "torch", "fitted": {"a": 1},
    }


def cases(fields: Any, sample: int | None, seed: int) -> list[tuple[Place, str]]:
    found = [(place, text) for place in places(fields) for text in (*VALUES, REMOVED)]
    return found if sample is None else random.Random(seed).sample(found, min(sample, len(found)))


#: How many of all cases the quick tests try.
AMOUNTS = [pytest.param(12, id="sample"), pytest.param(None, id="all", marks=pytest.mark.slow)]


@pytest.fixture
def store(runs: Path, velodrome: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    pytest.importorskip("starlette")
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    return Store(runs, velodrome)


@pytest.mark.parametrize("amount", AMOUNTS)
def test_a_result(store: Store, amount: int | None) -> None:
    fields = whole_result()
    refused = set()
    for place, text in cases(fields, amount, 1):
        store.write("result.json", mutated(fields, place, text))
        problem = RunFolder(store.victim).read()[1]
        # All that cannot be read look alike to whoever asks, but for the reason.
        kind = problem and problem.partition(" which is ")[2][:30]
        store.read(deep=kind not in refused)
        if problem is not None:
            refused.add(kind)
            rows = {row["run"]: row for row in api.list(store.runs, within_races=True)}
            assert (rows[store.name]["status"], rows[store.name]["problem"]) == ("unreadable", problem), (place, text)
            assert rows[store.other]["status"] == "finished"


@pytest.mark.parametrize("amount", AMOUNTS)
def test_a_job(store: Store, amount: int | None) -> None:
    fields = whole_job(store)
    refused = False
    for place, text in cases(fields, amount, 2):
        store.write("job.yaml", mutated(fields, place, text))
        try:
            RunFolder(store.victim).job()
            readable = True
        except VelodromeError:
            readable = False
        store.read(deep=readable or not refused)
        refused = refused or not readable


@pytest.mark.parametrize("amount", AMOUNTS)
def test_a_race(store: Store, amount: int | None) -> None:
    fields = whole_race()
    for place, text in cases(fields, amount, 3):
        store.write("race.yaml", mutated(fields, place, text))
        store.read(deep=True)


def one_event_of_each_kind() -> list[dict[str, Any]]:
    base = {"time": 1_800_000_003.0, "role": "worker", "rank": 0, "received": 1_800_000_003.0}
    network = {"in": 1, "out": 2, "loopback": 3}
    found = [event for event in events_of(result("ddp", 2)) if event["kind"] in ("epoch", "resources", "phase")][:40]
    return [
        *found,
        {**base, "kind": "hello", "host": "h", "clock": 1.0, "interpreter": "p", "python": "3", "versions": {"a": "1"},
         "cores": 2, "memory_bytes": 5, "gpus": ["g"], "heartbeat_seconds": 1.0, "machine": "m", "schema": 1},
        {**base, "kind": "progress", "epoch": 1, "step": 1, "steps": 2, "examples": 3, "seconds": 0.5, "loss": 1.0,
         "accuracy": 0.5, "metrics": {"accuracy": 0.5}, "learning_rate": 0.1},
        {**base, "kind": "resources", "cpu_percent": 5.0, "memory_bytes": 5, "network": network, "steps": 1, "seen": 1,
         "waiting": False, "cpu_time": {"seconds": 1.0, "busy": 1.0, "own": 1.0, "controller": 0.0}},
        {**base, "kind": "staleness", "epoch": 1, "mean": 1.0, "max": 2.0, "updates": 3},
        {**base, "kind": "shares", "train_seconds": 2.0, "collective_seconds": 1.0},
        {**base, "kind": "checkpoint", "epoch": 1, "file": "epoch-0001.safetensors"},
        {**base, "kind": "warning", "message": "w"}, {**base, "kind": "error", "cause": "user", "message": "e",
                                                      "traceback": "t"},
        {**base, "kind": "pace", "pace": {"seconds": 1.0, "examples": 2, "steps": 1,
                                          "warmup": {"steps": 1, "examples": 1, "seconds": 0.1}}},
        {**base, "kind": "lost", "message": "l"}, {**base, "kind": "wait", "message": "w"},
        {**base, "kind": "fault", "state": "begin", "fault": "f", "action": "kill", "target": "t", "host": "h",
         "factor": 2.0},
        {**base, "kind": "traffic", "host": "h", "network": network},
        {**base, "kind": "result", "test": {"correct": 1, "total": 2, "loss_sum": 1.0}, "test_answers": "x",
         "test_fingerprint": "f", "history": result()["history"], "parameters": 5, "confusion": [[1]],
         "class_names": ["a"], "steps": 2, "reached_target": False, "test_seconds": 0.1,
         "pace": {"seconds": 1.0, "examples": 2, "steps": 1, "warmup": {"steps": 1, "examples": 1, "seconds": 0.1}},
         "implementation": {"kind": "stock"}, "pixels": "unit",
         "metrics": [{"name": "a", "better": "more", "form": ".4g", "margin": 0.0, "relative_margin": False}]},
        {**base, "kind": "inspection", "layers": [{"name": "a"}], "batch": 1, "seconds": 1.0, "weight_bytes": 1,
         "gradient_bytes": 1, "data_bytes": 1},
    ]


@pytest.mark.parametrize("amount", AMOUNTS)
def test_the_events(store: Store, amount: int | None) -> None:
    events = one_event_of_each_kind()
    assert {event["kind"] for event in events} == MODELS.keys()
    lines = [json.dumps(event) for event in events]
    found = [(number, case) for number, event in enumerate(events) for case in cases(event, None, 4)]
    skipped = set()
    for number, (place, text) in found if amount is None else random.Random(4).sample(found, amount):
        changed = [*lines[:number], mutated(events[number], place, text), *lines[number + 1:]]
        store.write("events.jsonl", "\n".join(changed) + "\n")
        count = sum(1 for _ in read_events(store.victim / "events.jsonl"))
        if count < len(lines) and events[number]["kind"] in skipped:
            continue  # a line that is no event is skipped by all readers alike
        skipped |= {events[number]["kind"]} if count < len(lines) else set()
        store.read(deep=True)


SERVED = {
    "schema": 1, "kind": "classifier", "task": "classification", "model": "m", "engine": "torch", "dataset": "digits",
    "run": "r", "inputs": [{"name": "x", "shape": [8, 8, 1], "dtype": "uint8", "image": True}], "outputs": "logits",
    "classes": ["a", "b"], "brightest": 16.0, "pixels": {"scale": 1.0}, "columns": {}, "vocabulary": ["w"],
    "context": 1, "state": [{"name": "s", "shape": [-1, 2]}], "only_batch": None, "difference": 0.0, "checked": 1,
}


def test_the_description_of_a_served_model(tmp_path: Path) -> None:
    file = tmp_path / "serving.json"
    for place, text in cases(SERVED, None, 5):
        file.write_bytes(mutated(SERVED, place, text).encode())
        with suppress(ValueError):
            Served.read(file)


COLUMNS = {
    "features": [{"name": "town", "kind": "category", "how": "onehot", "categories": ["a", "b"]},
                 {"name": "age", "kind": "number", "mean": 1.0, "deviation": 2.0}],
    "targets": [{"name": "price", "kind": "number", "mean": 1.0, "deviation": 2.0}],
}


def test_the_columns_of_a_table(tmp_path: Path) -> None:
    for place, text in cases(COLUMNS, None, 6):
        (tmp_path / "columns.json").write_bytes(mutated(COLUMNS, place, text).encode())
        with suppress(BadRequest):
            encode_row(tmp_path, {"age": 5, "town": "a"})


INDEX = {
    "schema": 1, "name": "a", "title": "b", "licence": "c", "homepage": "d", "classes": 2, "class_names": ["x", "y"],
    "shape": [8, 8, 1], "encoding": "raw", "scale": 1.0, "seed": 1, "validation": 0.1, "overlaps": ["e"],
    "parts": {"train": [{"name": "x.tfrecord", "examples": 1, "bytes": 1, "sha256": "0" * 64}]},
    "statistics": {"mean": [1.0], "deviation": [1.0]},
}


def test_the_index_of_shards(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(json.dumps(INDEX))
    assert read_index(open_store(str(tmp_path))).classes == 2
    for place, text in cases(INDEX, None, 7):
        (tmp_path / "index.json").write_bytes(mutated(INDEX, place, text).encode())
        with suppress(DataError):
            read_index(open_store(str(tmp_path)))
