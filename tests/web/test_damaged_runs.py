"""Folders of runs that other programs have damaged, linked or named: the pages show what is left, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from ui_server import stored_race
from velodrome.web.json_answer import encoded
from velodrome.web.security import CSRF_HEADER, Security
from velodrome.web.ui import ui_app

SECURITY = Security()


@pytest.fixture
def run(runs: Path) -> Path:
    """A finished run beside its race."""
    first = next(stored_race(runs).glob("*/result.json")).parent
    shutil.copytree(first, runs / "plain")
    return runs / "plain"


def client(runs: Path) -> TestClient:
    return TestClient(ui_app(runs, SECURITY), base_url="http://127.0.0.1:8200", raise_server_exceptions=False)


def strict(text: str) -> object:
    def refuse(word: str) -> object:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_are_not_finite_are_null_in_every_answer(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    result["test"]["accuracy"] = float("inf")
    result["throughput"]["examples_per_second"] = float("nan")
    (run / "result.json").write_text(json.dumps(result))
    pages = client(run.parent)
    assert pages.get("/").status_code == 200
    assert pages.get("/runs/plain").status_code == 200
    for address in ("/api/runs", "/api/runs/plain/view", "/api/compare?run=plain"):
        answer = pages.get(address)
        assert answer.status_code == 200, address
        strict(answer.text)


def test_answers_and_live_messages_are_strict_json_in_ascii() -> None:
    text = encoded({"a": [1.5, float("nan")], "b": (float("-inf"), "\ud800ü"), "c": {"d": float("inf")}})
    assert text.isascii()
    assert strict(text) == {"a": [1.5, None], "b": [None, "\ud800ü"], "c": {"d": None}}


@pytest.mark.parametrize("damage", [{"throughput": 1.5}, {"history": 3}, {"nodes": "none"}])
def test_a_result_of_another_shape_is_a_sentence_and_not_a_failure(run: Path, damage: dict[str, object]) -> None:
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, **damage}))
    pages = client(run.parent)
    for address in ("/", "/api/runs", "/api/runs/plain/view", "/runs/plain"):
        answer = pages.get(address)
        assert answer.status_code in (200, 422), address
        if answer.status_code == 422:
            assert "velodrome runs check" in answer.text


def test_links_out_of_the_folder_lead_nowhere(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(run, elsewhere / "secret")
    (elsewhere / "secret" / "logs" / "worker-0.log").write_text("a secret line")
    (run.parent / "linked").symlink_to(elsewhere / "secret")
    (run.parent / "loop").symlink_to(run.parent)
    (run / "logs" / "worker-1.log").symlink_to(elsewhere / "secret" / "logs" / "worker-0.log")
    (run / "result.json").unlink()
    (run / "result.json").symlink_to("/etc/passwd")
    pages = client(run.parent)
    addresses = ["/", "/api/runs", "/runs/linked", "/api/runs/linked/logs", "/runs/loop/plain", "/runs/plain",
                 "/api/runs/plain/logs", "/api/runs/plain/logs?process=worker-1", "/api/runs/plain/view"]
    for address in addresses:
        answer = pages.get(address)
        assert answer.status_code in (200, 404), address
        assert "a secret line" not in answer.text, address
        assert "root:" not in answer.text, address
    assert pages.get("/runs/linked").status_code == 404


def test_a_pipe_in_place_of_the_events_blocks_nobody(run: Path) -> None:
    (run / "events.jsonl").unlink(missing_ok=True)
    os.mkfifo(run / "events.jsonl")
    assert client(run.parent).get("/api/runs/plain/view").status_code == 200


def test_names_that_other_programs_made_are_escaped_wherever_they_stand(run: Path) -> None:
    for name in ("<script>alert(1)</script>", "a%2fb&c=d\"e", "\u202egnp.exe"):
        shutil.copytree(run, run.parent / name.replace("/", "-"))
    (Path(os.fsdecode(bytes(run.parent) + b"/bad\xff"))).mkdir()
    shutil.copy(run / "result.json", os.fsdecode(bytes(run.parent) + b"/bad\xff/result.json"))
    pages = client(run.parent)
    listed = pages.get("/")
    assert listed.status_code == 200
    assert "<script>alert" not in listed.text
    assert "\u202e" not in listed.text
    strict(pages.get("/api/runs").text)


@pytest.mark.parametrize("field", ["name", "dataset", "model"])
def test_a_field_that_no_command_line_can_hold_is_refused_at_the_field(runs: Path, field: str) -> None:
    answer = client(runs).post("/api/check", content=b'{"%s": "\\ud800"}' % field.encode(),
                               headers={CSRF_HEADER: SECURITY.csrf, "Content-Type": "application/json"})
    assert answer.status_code == 200
    assert set(answer.json()["errors"]) == {field}
