"""A stored race of which every field can be replaced by what does not belong there, and everything that reads it."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from synthetic_races import events_of, repeated, result, write_race
from velodrome.errors import VelodromeError
from velodrome.events.result import RunResult
from velodrome.reporting.document import make_report
from velodrome.reporting.load import load_race
from velodrome.reporting.write import nodes_to_csv, to_html, to_latex, to_markdown

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
                    ("runs", "show", "plain", "--json"), ("runs", "show", "race"),
                    ("runs", "compare", self.name, self.other), ("runs", "check"), ("recommend", "race"),
                    ("recommend", "race", "--objective", "time-to-accuracy", "--target", "accuracy>=0.5", "--json"),
                    ("runs", "export", "race", "--format", "csv", "--force", "--out", str(self.runs.parent / "t.csv")),
                    ("runs", "export", "plain", "--force", "--out", str(self.runs.parent / "t.zip")),
                    ("race", str(self.race / "race.yaml"), "--name", "race", "--dry-run"))

    def read(self) -> None:
        """Call every reader: none crashes, and none takes long."""
        for words in self.commands():
            began = time.monotonic()
            done = self.command(*words, "--runs", self.runs)
            assert done.code in (0, 1, 2), (words, done)
            assert "Traceback" not in done.text, (words, done.text[-2000:])
            assert time.monotonic() - began < MOST_SECONDS, words
        began = time.monotonic()
        for address, _ in self.pages():
            assert time.monotonic() - began < MOST_SECONDS, address
            began = time.monotonic()
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
    from velodrome.job.job import Job

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


def sweep(
    store: Store, name: str, fields: Any, sample: int | None, problem: Callable[[], str | None]
) -> Iterator[tuple[Place, str, str]]:
    """Call every reader on every case of a file that can be read; yield those of which `problem` returns a reason.

    Of the others, only the first of each reason: to a reader they all look alike, but for that sentence.
    """
    seen = set()
    for place, text in cases(fields, sample, seed=len(name)):
        store.write(name, mutated(fields, place, text))
        reason = problem()
        kind = reason and reason[-20:]
        if kind is None or kind not in seen:
            store.read()
        if reason is not None:
            seen.add(kind)
            yield place, text, reason


def cases(fields: Any, sample: int | None, seed: int) -> list[tuple[Place, str]]:
    found = [(place, text) for place in places(fields) for text in (*VALUES, REMOVED)]
    return found if sample is None else random.Random(seed).sample(found, min(sample, len(found)))


def one_event_of_each_kind() -> list[dict[str, Any]]:
    base = {"time": 1_800_000_003.0, "role": "worker", "rank": 0, "received": 1_800_000_003.0}
    network = {"in": 1, "out": 2, "loopback": 3}
    usual = {event["kind"]: event for event in events_of(result("ddp", 2))}
    return [
        *(usual[kind] for kind in ("epoch", "phase")),
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
        {**base, "kind": "data", "train": 3, "validation": 1, "test": 2, "fingerprint": "f", "seeded": False},
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
