"""Every field of every file of a run or race, replaced by everything that does not belong there: no reader crashes.

A reader answers as usual, or says in a sentence which run it cannot read. The whole product of fields, values and
readers takes minutes; of the quick tests, a sample.
"""

from __future__ import annotations

import html
import json
import random
import shutil
import time
import zipfile
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
        began = time.monotonic()
        for address, _ in self.pages():
            assert time.monotonic() - began < MOST_SECONDS, address
            began = time.monotonic()
        if deep:
            self._read_report()

    def _read_report(self) -> None:
        try:
            made = make_report(load_race(self.runs, "race"))
        except VelodromeError:
            return
        for write in (to_markdown, to_latex, nodes_to_csv, lambda report: to_html(report, [])):
            write(made)

    def pages(self) -> Iterator[tuple[str, str]]:
        """Every page and answer of the web interface."""
        from starlette.testclient import TestClient

        from velodrome.web.security import Security
        from velodrome.web.ui import ui_app

        client = TestClient(ui_app(self.runs, Security()), base_url="http://127.0.0.1:8200")
        for address in (
            "/", "/api/runs", "/api/races", "/runs/plain", "/api/runs/plain/view", "/api/runs/plain/logs",
            "/api/runs/plain/wrong", f"/runs/{self.name}", "/races/race", "/api/races/race",
            f"/compare?run={self.name}&run={self.other}", f"/api/compare?run={self.name}&run=plain",
        ):
            answer = client.get(address)
            assert answer.status_code in (200, 404), (address, answer.text)
            yield address, answer.text


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


@pytest.mark.parametrize("name", ["result.json", "job.yaml", "race.yaml", "events.jsonl", "logs", "logs/worker-0.log"])
def test_a_link_in_a_folder_shows_nothing_of_what_it_leads_to(store: Store, tmp_path: Path, name: str) -> None:
    place = (store.race if name == "race.yaml" else store.victim) / name
    secret = tmp_path / "secret"
    place.rename(secret)
    file = secret / "worker-0.log" if secret.is_dir() else secret
    if name == "result.json":
        file.write_text(json.dumps({**json.loads(file.read_text()), "model": "my-secret", "class_names": ["my-secret"]},
                                   indent=2))
    elif name == "events.jsonl":
        warning = {"time": 1_800_000_001.0, "kind": "warning", "message": "my-secret"}
        file.write_text(file.read_text() + json.dumps(warning) + "\n")
    else:
        file.write_text(f"# my-secret\n{file.read_text()}")
    place.symlink_to(secret)
    said = ""
    packed = ("runs", "export", "race", "--out", str(tmp_path / "a.zip"))
    for words in (*store.commands(), *store.all_commands(), packed):
        if words[0] != "race":  # which reads a file that the user names
            done = store.command(*words, "--runs", store.runs)
            assert done.code in (0, 1, 2), done.text
            said += done.text
    said += "".join(answer for _, answer in store.pages())
    with suppress(VelodromeError):
        made = make_report(load_race(store.runs, "race"))
        said += to_markdown(made) + to_html(made, [])
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        said += "".join(archive.read(one).decode(errors="replace") for one in archive.namelist())
    assert "my-secret" not in said
    if name in ("result.json", "job.yaml", "race.yaml"):
        row = next(row for row in api.list(store.runs, within_races=True) if row["run"] == (
            "race" if name == "race.yaml" else store.name))
        assert row["problem"] == f"its {name} cannot be read: it is a link, which is not followed"
    if name in ("result.json", "job.yaml", "events.jsonl"):
        found = api.check(store.name, runs=store.runs)["runs"][0]
        assert any("it is a link, which is not followed" in problem for problem in found["problems"]), found


def test_a_folder_of_runs_may_be_a_link(store: Store, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(store.runs)
    assert api.list(tmp_path / "linked") == api.list(store.runs)
    assert load_race(tmp_path / "linked", "race").failures == ()
    assert api.show("plain", tmp_path / "linked")["status"] == "finished"


@pytest.mark.parametrize("name", ["events.jsonl", "logs", "logs/worker-0.log", "checkpoints"])
def test_a_run_with_a_link_in_it_is_not_resumed(store: Store, tmp_path: Path, name: str) -> None:
    run = store.runs / "plain"
    (run / "result.json").unlink()
    if (run / name).exists():
        (run / name).rename(tmp_path / "moved")
    (run / name).symlink_to(tmp_path / "moved")
    done = store.command("resume", "plain", "--runs", store.runs)
    assert (done.code, "it is a link, which is not followed" in done.err) == (1, True), done.text


def test_a_checkpoint_and_a_model_behind_a_link_are_not_read(tmp_path: Path) -> None:
    import numpy as np

    from velodrome.models.recipe import read_description
    from velodrome.worker import checkpoint

    run = tmp_path / "run"
    run.mkdir()
    checkpoint.write(run, 1, {"w": np.zeros(1)}, [], 1)
    assert checkpoint.latest(run) is not None
    (run / "checkpoints").rename(tmp_path / "checkpoints")
    (run / "checkpoints").symlink_to(tmp_path / "checkpoints")
    assert checkpoint.latest(run) is None
    (run / "model").mkdir()
    (tmp_path / "model.json").write_text("{}")
    (run / "model" / "model.json").symlink_to(tmp_path / "model.json")
    with pytest.raises(OSError, match="it is a link, which is not followed"):
        read_description(run / "model")


def test_a_run_is_shown_where_it_was_found(store: Store) -> None:
    (store.runs / "plain").rename(store.runs / "moved")
    shown = api.show("moved", store.runs)
    assert (shown["run"], shown["path"]) == ("moved", str(store.runs.resolve() / "moved"))
    assert f"stored in {shown['path']}" in store.command("runs", "show", "moved", "--runs", store.runs).out


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
    shown = dict(store.pages())
    assert asked in html.unescape(shown["/"])
    assert asked in html.unescape(shown["/races/race"])


def test_a_stored_race_that_would_grow_too_large_is_refused(store: Store) -> None:
    """The repetitions that it had count for what is asked for now."""
    store.write("race.yaml", json.dumps({"job": {"dataset": "digits"}, "until_sure": True, "max_repeat": 9_000}))
    done = store.command("race", "--vary", "batch_size=1,2", "--name", "race", "--dry-run", "--runs", store.runs)
    assert (done.code, "18,000 jobs" in done.err) == (2, True), done.text


def test_as_many_jobs_of_one_name_as_a_race_may_have_are_told_apart() -> None:
    from velodrome.spec.race import parse_race
    from velodrome.spec.race_names import expand

    race = parse_race({"job": {"dataset": "digits"}, "vary": {"start_timeout": [float(n) for n in range(1, 5001)]}})
    assert len({entry.name for entry in expand(race)}) == 5000
