"""Folders of runs that other programs have damaged, linked or named: the pages show what is left, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from synthetic_races import result, typed
from ui_server import stored_race
from velodrome.api.runs import export
from velodrome.events import read_events, to_event
from velodrome.run.check import check_run
from velodrome.run.store import examples_trained
from velodrome.web.app import encoded
from velodrome.web.live_run import LiveRun
from velodrome.web.run_files import read_thinned
from velodrome.web.run_view import confusion_of
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


HEARTBEAT = (
    '{"time": %d.5, "role": "worker", "rank": 0, "kind": "resources", "cpu_percent": 1, "memory_bytes": 1, '
    '"network": {"in": 0, "out": 0, "loopback": 0}}\n'
)
COUNTS = {"total": 10, "correct": 5, "loss_sum": 1}
WARNING = '{"time": 1.5, "role": "worker", "rank": 0, "kind": "warning", "message": "mind"}\n'


@pytest.mark.timeout(60)
def test_a_file_of_line_breaks_has_no_events_and_costs_nothing(run: Path) -> None:
    (run / "events.jsonl").write_bytes(b"\n" * (20 << 20) + (HEARTBEAT % 3).encode() + b"\n" * (20 << 20))
    tracemalloc.start()
    try:
        assert client(run.parent).get("/api/runs/plain/view").json()["events"] == 1
        assert [event.time for event in read_events(run / "events.jsonl")] == [3.5]
        live = LiveRun(run)
        live.poll()
        live.read_ended()
        assert examples_trained(run) is None
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_events_are_thinned_out_without_holding_the_file(run: Path) -> None:
    long = HEARTBEAT.replace("\n", f"{' ' * 600}\n")
    (run / "events.jsonl").write_text(WARNING + "".join(long % second for second in range(20_000)))
    read_thinned(run, 10)  # imports and models are made once
    tracemalloc.start()
    try:
        found = read_thinned(run, 10)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert (found.total, found.step, len(found.events)) == (20_001, 2_000, 11)
    assert [event.time for event in found.events[1:]] == [second + 0.5 for second in range(1_999, 20_000, 2_000)]
    assert set(found.gaps.values()) == {1.0}


@pytest.mark.parametrize("strange", ['{"kind": 1}\n', "1\n"])
def test_a_file_with_far_too_many_lines_that_are_no_events_is_read_no_further(
    run: Path, strange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("events", "run.check", "web.run_files", "web.live_run"):
        monkeypatch.setattr(f"velodrome.{module}.MOST_STRANGE", 50)
    (run / "events.jsonl").write_text(strange * 50 + WARNING + strange * 2 + WARNING)
    assert len(list(read_events(run / "events.jsonl"))) == len(read_thinned(run).events) == 1
    assert "events.jsonl has more than 50 lines that are not events; reading stopped at line 52" in \
        check_run(run).problems


def test_a_million_epochs_take_the_time_of_a_million_events(run: Path) -> None:
    live = LiveRun(run)
    for _ in range(2):  # the second time as a run that was resumed from its beginning
        for epoch in range(1, 30_001):
            live.state.add(to_event({
                "time": 1.0, "role": "worker", "rank": 0, "kind": "epoch", "epoch": epoch, "seconds": 1,
                "evaluate_seconds": 0, "steps": epoch, "train": COUNTS, "validation": COUNTS,
            }))
    assert len(live.curve) == 30_000
    sent = live.as_json()["curve"]["epoch"]
    assert (len(sent), sent[0], sent[-1]) == (2_000, 1, 30_000)


def test_names_with_line_breaks_are_shown_and_exported_on_one_line(run: Path) -> None:
    file = run / "result.json"
    changed = {**json.loads(file.read_text()), "class_names": ["two\nlines", "bee", "cicada"]}
    file.write_text(json.dumps(changed))
    assert "two\\nlines" in client(run.parent).get("/runs/plain").text
    export("plain", runs=run.parent, out=run.parent / "t.csv")
    assert len((run.parent / "t.csv").read_text().splitlines()) == 2


def test_half_surrogates_make_a_result_unreadable_and_break_no_page_and_no_table(run: Path) -> None:
    file = run / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model": "net \ud800"}))
    pages = client(run.parent)
    assert [pages.get(address).status_code for address in ("/", "/runs/plain")] == [200, 200]
    assert "is not whole" in pages.get("/runs/plain").text
    export("plain", runs=run.parent, out=run.parent / "t.csv")
    assert not (run.parent / "t.csv").read_text().splitlines()[1:]


@pytest.mark.timeout(60)
def test_a_confusion_matrix_of_many_classes_is_read_in_the_time_of_its_cells() -> None:
    table = [[int(row == column or column == row + 1) for column in range(1_500)] for row in range(1_500)]
    found = confusion_of(typed(result(confusion=table)))
    assert found is not None
    assert found.pairs[0] == ("0", "1", 1, 0.5)


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
