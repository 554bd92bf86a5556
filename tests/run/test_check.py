"""A run folder that is whole passes; each kind of damage is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

import velodrome
from velodrome.events.fields import Amount, Number
from velodrome.job.job import Job
from velodrome.run.check import check_run
from velodrome.run.store import Store
from velodrome.tasks.correctness_bits import encode

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that really trained."""
    runs = tmp_path_factory.mktemp("runs")
    velodrome.train(Job(dataset="digits", epochs=3, threads=1), name="real", runs=runs)
    return runs / "real"


@pytest.fixture
def run(real: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(real, tmp_path / "real"))


def edit_result(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    told = json.loads((run / "result.json").read_text())
    change(told)
    (run / "result.json").write_text(json.dumps(told))


def edit_events(run: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines() if line]
    change(events)
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == kind]


def swap_epochs(events: list[dict[str, Any]]) -> None:
    first, second, _ = of_kind(events, "epoch")
    first["epoch"], second["epoch"] = second["epoch"], first["epoch"]


def test_a_real_run_is_whole_also_when_it_was_copied(run: Path) -> None:
    checked = check_run(run)
    assert checked.problems == []
    assert checked.status == "finished"
    assert checked.as_json()["ok"]


@pytest.mark.timeout(120)
def test_a_real_run_of_a_language_model_is_whole(tmp_path: Path) -> None:
    """A row of its batch counts as many examples as there are time steps."""
    (tmp_path / "book.txt").write_text("to be or not to be that is the question\n" * 300)
    job = Job(dataset=f"text:{tmp_path / 'book.txt'}", model="lstm-small", batch_size=4, unroll=10, epochs=1, threads=1)
    velodrome.train(job, name="words", runs=tmp_path / "runs")
    run = tmp_path / "runs" / "words"
    assert json.loads((run / "result.json").read_text())["throughput"]["batches_per_second"] > 0
    assert check_run(run).problems == []
    edit_result(run, lambda result: result["throughput"].update(batches_per_second=1e6))
    assert "batches per second of 40 are not" in check_run(run).problems[0]


@pytest.mark.parametrize(("name", "told"), [
    ("job.yaml", "job.yaml is missing"), ("events.jsonl", "events.jsonl is missing"),
    ("result.json", "result.json is missing"),
])
def test_a_missing_file_is_named(run: Path, name: str, told: str) -> None:
    (run / name).unlink()
    assert any(told in problem for problem in check_run(run).problems)


@pytest.mark.parametrize(("change", "told"), [
    (lambda r: r.pop("engine"), "result.json has no 'engine'"),
    (lambda r: r.update(status="odd"), "not one of finished, failed, interrupted"),
    (lambda r: r.update(workers="two"), "'workers' 'two'"),
    (lambda r: r["test"].update(correct=r["test"]["total"] + 1), "exceeds total"),
    (lambda r: r["test"].update(accuracy=0.123), "test accuracy 0.123 is not"),
    (lambda r: r["test"].update(correct=1, accuracy=1 / r["test"]["total"]), "and the events"),
    (lambda r: r["history"].reverse(), "should count up"),
    (lambda r: r["history"].pop(), "history has 2"),
    (lambda r: r["history"][0].update(train_accuracy=0.5), "train_accuracy 0.5 is not"),
    (lambda r: r["history"][0].pop("seconds"), "history[0] has no 'seconds'"),
    (lambda r: r["seconds"].update(train=1e6), "is not the sum of history"),
    (lambda r: r["throughput"].update(batches_per_second=1e6), "batches per second"),
    (lambda r: r.update(seed=99), "seed 99, and job.yaml 1"),
    (lambda r: r.update(ended=0), "ended before it started"),
    (lambda r: r.update(test=None), "status finished and no test"),
    (lambda r: r.update(nodes=["x"]), "nodes[0] is not an object"),
    (lambda r: r.update(status="failed"), "does not say why"),
    (lambda r: r["test"].update(answers="?"), "the answers cannot be decoded"),
    (lambda r: r["test"].update(answers=encode(np.ones(300, bool))), "the answers are not those of 359 examples"),
    (lambda r: r["test"].update(answers=encode(np.ones(359, bool))), "the answers have 359 correct"),
    (lambda r: r.update(confusion=[[1, 2], [3]]), "not square"),
    (lambda r: r.update(confusion=[[1, 2], [3, 4]]), "confusion matrix counts 5 of 10"),
])
def test_a_result_that_does_not_add_up_is_named(run: Path, change, told: str) -> None:
    edit_result(run, change)
    problems = check_run(run).problems
    assert any(told in problem for problem in problems), problems


@pytest.mark.parametrize(("change", "told"), [
    (swap_epochs, "epoch 1 comes after epoch 2"),
    (lambda e: of_kind(e, "epoch")[0].pop("train"), "has no 'train'"),
    (lambda e: of_kind(e, "epoch")[1].update(steps=0), "0 steps were done after"),
    (lambda e: of_kind(e, "epoch")[0]["train"].update(correct=10**9), "exceeds total"),
    (lambda e: of_kind(e, "epoch")[0]["train"].pop("correct"), "and the event counts no correct ones"),
    (lambda e: of_kind(e, "epoch")[0]["validation"].update(correct=None), "and the event counts no correct ones"),
    (lambda e: of_kind(e, "result")[0]["test"].pop("correct"), "no count of correct ones"),
    (lambda e: e[0].update(time=float("nan")), "'time' nan, which is not a finite number"),
    (lambda e: e[0].update(kind="gossip"), "unknown kind 'gossip'"),
    (lambda e: e[0].pop("time"), "has no 'time'"),
    (lambda e: of_kind(e, "phase")[0].update(phase="lunch"), "'phase' 'lunch'"),
    (lambda e: [e.remove(event) for event in of_kind(e, "result")], "no event reports a result"),
    (lambda e: [e.remove(event) for event in of_kind(e, "epoch")], "epoch 1 is in result.json and not in the events"),
])
def test_events_that_are_not_as_documented_are_named(run: Path, change, told: str) -> None:
    edit_events(run, change)
    problems = check_run(run).problems
    assert any(told in problem for problem in problems), problems


@pytest.mark.parametrize("altered", [{"safe_mode": False}, {"custom_objects": {"Lambda": "os:system"}}])
def test_code_that_the_description_of_a_model_of_the_zoo_names_is_reported(run: Path, altered: dict[str, Any]) -> None:
    file = run / "model" / "model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **altered}))
    assert any("it names code, which a model of the zoo never needs" in problem for problem in check_run(run).problems)


def test_a_line_that_was_cut_off_is_named_unless_a_kill_explains_it(run: Path) -> None:
    text = (run / "events.jsonl").read_text()
    (run / "events.jsonl").write_text('{"time": 1, "ki\n' + text)
    assert check_run(run).problems == []  # a resumed run begins after the line that its killed predecessor left
    (run / "events.jsonl").write_text(text + '{"time": 1, "ki')
    assert any("cut off" in problem for problem in check_run(run).problems)
    (run / "result.json").unlink()
    assert [problem for problem in check_run(run).problems if "cut off" in problem] == []


def test_many_mistakes_of_a_kind_are_told_a_few_times(run: Path) -> None:
    edit_events(run, lambda events: [event.pop("time") for event in events])
    problems = check_run(run).problems
    assert len(problems) < 40
    assert "… and more of this kind" in problems


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"{"])
@pytest.mark.parametrize("name", ["result.json", "job.yaml", "plan.json", "events.jsonl"])
def test_nothing_on_disk_makes_the_check_itself_fail(run: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    assert check_run(run).problems


def test_other_damage_is_named(run: Path) -> None:
    shutil.rmtree(run / "logs")
    (run / "logs").write_text("")
    (run / "result.json.half").write_text("")
    problems = check_run(run).problems
    assert "logs is not a folder" in problems
    assert "result.json.half was left half written" in problems
    assert check_run(run / "nothing").problems == [f"{run / 'nothing'} is not a folder"]


def test_a_run_under_way_is_no_mistake(tmp_path: Path) -> None:
    run = Store(tmp_path).create("now", Job())
    checked = check_run(run.path)
    run.close()
    assert (checked.status, checked.problems) == ("running", [])


@pytest.mark.parametrize("kind", [Number, Amount])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 10**400, True, "1", None])
def test_what_nobody_can_count_with_is_no_number(value: object, kind: Any) -> None:
    validator = TypeAdapter(kind)
    with pytest.raises(ValidationError):
        validator.validate_python(value, strict=True)
    assert validator.validate_python(1e300, strict=True) == 1e300


def test_a_newer_schema_is_named(run: Path) -> None:
    edit_result(run, lambda result: result.update(schema=99))
    assert any("schema 99 is newer" in problem for problem in check_run(run).problems)


def test_fields_of_a_newer_version_are_no_mistake(run: Path) -> None:
    edit_result(run, lambda result: (result.update(weather="fair"), result["test"].update(recall=0.5)))
    edit_events(run, lambda events: [event.update(mood="calm") for event in events])
    assert check_run(run).problems == []
