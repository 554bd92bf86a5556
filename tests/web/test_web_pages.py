"""The pages of stored races and runs, asked for as a browser does."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from starlette.testclient import TestClient

from synthetic_races import events_of, repeated, result, write_race
from velodrome import files
from velodrome.run.store import LOCK
from velodrome.tasks.correctness_bits import encode
from velodrome.web.run_files import RunIndex
from velodrome.web.security import CSRF_HEADER, Security
from velodrome.web.ui import ui_app

JSON = {CSRF_HEADER: "the-token", "Content-Type": "application/json"}
HOSTILE = '<img src=x onerror=alert(1)>"\'&'


def pages(runs: Path, *, read_only: bool = False) -> TestClient:
    return TestClient(ui_app(runs, Security(csrf="the-token", read_only=read_only)), base_url="http://127.0.0.1:8200",
                      follow_redirects=False)


@pytest.fixture
def race(runs: Path) -> Path:
    """A race of two configurations with three runs each."""
    results = [
        *repeated([1000.0, 1010.0, 990.0], strategy="single"),
        *repeated([1900.0, 1910.0, 1890.0], strategy="ddp", workers=2),
    ]
    return write_race(runs, results, "first").path


def names(race: Path) -> list[str]:
    return sorted(path.parent.name for path in race.glob("*/job.yaml"))


def test_the_list_has_races_and_runs_newest_first(runs: Path, race: Path) -> None:
    listed = pages(runs).get("/api/races").json()
    assert [row["run"] for row in listed["races"]] == ["first"]
    page = pages(runs).get("/").text
    assert 'href="/races/first"' in page
    inside = pages(race).get("/").text
    assert all(f'href="/runs/{name}"' in inside for name in names(race))


def test_an_empty_folder_says_how_to_begin(runs: Path) -> None:
    assert "velodrome race --dataset digits" in pages(runs).get("/").text
    assert "No match" not in pages(runs).get("/").text


def test_the_list_is_filtered_by_name_status_and_kind(race: Path) -> None:
    client = pages(race)
    assert client.get("/api/runs?q=ddp").json()["found"] == 3
    assert client.get("/api/runs?status=failed").json()["found"] == 0
    assert client.get("/api/runs?status=finished").json()["found"] == 6
    assert client.get("/api/runs?kind=race").json()["found"] == 0
    assert "No match" in client.get("/?q=nothing-like-this").text


@pytest.mark.parametrize("query", ["page=0", "page=-1", "page=x", "page=99999999999999999999", "status=x", "kind=y",
                                   "q=" + "a" * 5000, "page=²"])
def test_no_query_breaks_the_list(race: Path, query: str) -> None:
    assert pages(race).get(f"/?{query}").status_code == 200


def test_a_row_is_read_again_after_its_run_changed(race: Path) -> None:
    client = pages(race)
    assert client.get("/api/runs?status=failed").json()["found"] == 0
    file = race / names(race)[0] / "result.json"
    changed = json.loads(file.read_text())
    changed["status"], changed["error"] = "failed", {"message": "it broke", "cause": "engine"}
    files.write_text(file, json.dumps(changed))
    client.app.state.index._scanned = (float("-inf"), [])  # type: ignore[attr-defined]
    assert client.get("/api/runs?status=failed").json()["found"] == 1


def test_a_race_has_its_jobs_speedup_with_intervals_and_verdict(runs: Path, race: Path) -> None:
    state = pages(runs).get("/api/races/first").json()
    assert len(state["jobs"]) == 6
    assert {job["status"] for job in state["jobs"]} == {"finished"}
    assert state["jobs"][0]["curve"]["epoch"] == [1, 2, 3, 4]
    assert state["jobs"][0]["nodes"][0]["cpu"]
    ddp = next(row for row in state["standing"]["rows"] if row["workers"] == 2)
    assert ddp["speedup"] == pytest.approx(1.9, rel=0.02)
    low, high = ddp["speedup_interval"]
    assert low < 1.9 < high
    assert "torch/ddp" in state["standing"]["verdicts"][0]["verdict"]
    page = pages(runs).get("/races/first").text
    assert "Use torch/ddp" in page
    assert 'id="stop"' in page


def test_a_race_of_which_jobs_have_not_begun_lists_them(runs: Path, race: Path) -> None:
    (race / "race.yaml").write_text(yaml.safe_dump({"job": {"dataset": "digits"}, "vary": {"batch_size": [32, 64]}}))
    state = pages(runs).get("/api/races/first").json()
    assert state["race"]["waiting"] == ["torch-single-1w-32b-1", "torch-single-1w-64b-1"]
    assert (state["race"]["labels"], state["race"]["sizes"]) == (["torch/single"], [1])
    assert state["race"]["status"] == "incomplete"
    assert "waiting" in pages(runs).get("/races/first").text


@pytest.mark.parametrize("text", ["", "[", "job: 3", "vary: {workers: [x]}\njob: {engine: nothing}", "\0"])
def test_a_race_whose_file_is_broken_says_so(runs: Path, race: Path, text: str) -> None:
    (race / "race.yaml").write_text(text)
    assert pages(runs).get("/races/first").status_code == 200
    assert pages(runs).get("/").status_code == 200


def test_a_run_has_everything_on_one_page(race: Path) -> None:
    name = names(race)[0]
    page = pages(race).get(f"/runs/{name}").text
    for part in ("Timeline", "Accuracy", "Loss", "CPU", "Memory", "Network", "Staleness", "A training step", "Logs",
                 "Configuration", "Repeat this", "Environment", "TensorBoard"):
        assert part in page
    assert f"velodrome train {race / name / 'job.yaml'} --name {name}-again" in page
    assert "velodrome serve" not in page
    (race / name / "model").mkdir()
    (race / name / "model" / "model.json").write_text("{}")
    assert f"velodrome serve {race / name}" in pages(race).get(f"/runs/{name}").text
    view = pages(race).get(f"/api/runs/{name}/view").json()
    assert view["phases"][0]["process"] == "worker 0"
    assert [span[0] for span in view["phases"][0]["spans"]] == ["import", "build", "train"]
    assert view["nodes"][0]["network"][1] == pytest.approx(2 * 2**20, rel=0.01)
    assert view["history"]["validation_accuracy"][-1] == pytest.approx(0.95)


def test_the_view_of_a_run_has_faults_staleness_and_shares(race: Path) -> None:
    folder = race / next(name for name in names(race) if "ddp" in name)
    began = 1_800_000_000.0
    more = [
        {"time": began + 3, "role": "worker", "rank": 1, "kind": "warning", "message": "something odd"},
        {"time": began + 4, "role": "worker", "rank": 1, "kind": "lost", "message": "worker 1 went away"},
        {"time": began + 5, "role": "worker", "rank": 0, "kind": "checkpoint", "epoch": 1, "file": "a"},
        {"time": began + 3.5, "kind": "fault", "state": "begin", "fault": "pause worker1 3s..6s", "action": "pause",
         "target": "worker1", "host": "here"},
        {"time": began + 6, "kind": "fault", "state": "end", "fault": "pause worker1 3s..6s", "action": "pause",
         "target": "worker1", "host": "here"},
        {"time": began + 7, "kind": "fault", "state": "begin", "fault": "kill worker1 at 7s", "action": "kill",
         "target": "worker1", "host": "here"},
        {"time": began + 3, "role": "chief", "rank": 0, "kind": "staleness", "mean": 1.5, "max": 3.0, "updates": 9},
        {"time": began + 6, "role": "worker", "rank": 0, "kind": "shares", "train_seconds": 10.0,
         "collective_seconds": 2.0},
        {"time": began + 6, "role": "worker", "rank": 1, "kind": "shares", "train_seconds": 10.0,
         "collective_seconds": 5.0},
    ]
    with (folder / "events.jsonl").open("a") as stream:
        stream.writelines(json.dumps(event) + "\n" for event in more)
    view = pages(race).get(f"/api/runs/{folder.name}/view").json()
    assert [(mark["kind"], mark["seconds"], mark["end"]) for mark in view["marks"]] == [
        ("warning", 3.0, None), ("fault", 3.5, 6.0), ("lost", 4.0, None), ("checkpoint", 5.0, None),
        ("fault", 7.0, None),
    ]
    assert view["marks"][1]["text"] == "--fault pause worker1 3s..6s"
    assert view["marks"][2]["process"] == "worker 1"
    assert view["staleness"] == {"seconds": [3.0], "mean": [1.5], "max": [3.0]}
    assert view["shares"] == [
        {"process": "worker 0", "compute": 0.8, "wait": 0.0, "communicate": 0.2},
        {"process": "worker 1", "compute": 0.5, "wait": pytest.approx(0.3), "communicate": 0.2},
    ]


def test_the_confusion_matrix_names_the_pairs_that_are_confused_most(race: Path) -> None:
    folder = race / names(race)[0]
    made = json.loads((folder / "result.json").read_text())
    made["confusion"], made["class_names"] = [[8, 2, 0], [0, 9, 1], [5, 0, 5]], ["ant", "bee", HOSTILE]
    (folder / "result.json").write_text(json.dumps(made))
    page = pages(race).get(f"/runs/{folder.name}").text
    pairs = re.findall(r'<td class="name">([^<]*)</td><td class="name">([^<]*)</td><td class="number">(\d+)', page)
    assert [(first, second, count) for first, second, count in pairs][1] == ("ant", "bee", "2")
    assert pairs[0][2] == "5"
    assert HOSTILE not in page


def test_wrong_test_images_are_shown_from_the_recorded_answers(runs: Path) -> None:
    from velodrome.data import catalogue
    from velodrome.tasks.correctness_bits import fingerprint

    test = catalogue.load("digits", seed=1, validation=0.1).test
    right = np.ones(len(test), dtype=np.bool_)
    right[[3, 7]] = False
    made = result(strategy="single")
    made["test"] = {"accuracy": 0.9, "loss": 0.1, "correct": int(right.sum()), "total": len(test),
                    "answers": encode(right), "fingerprint": fingerprint(test.images, test.labels)}
    made["confusion"], made["class_names"] = [[1, 0], [0, 1]], ["a", "b"]
    race = write_race(runs, [made]).path
    client = pages(race)
    found = client.get(f"/api/runs/{names(race)[0]}/wrong").json()
    assert (found["count"], found["total"]) == (2, len(test))
    assert [one["place"] for one in found["images"]] == [3, 7]
    assert [one["class"] for one in found["images"]] == [str(test.labels[3]), str(test.labels[7])]
    assert [one["predicted"] for one in found["images"]] == [None, None]
    picture = client.get(found["images"][0]["address"])
    assert picture.headers["Content-Type"] == "image/png"
    assert picture.content.startswith(b"\x89PNG")
    assert client.get(found["images"][0]["address"].replace("/3", "/99999999")).status_code == 404
    made["test"]["fingerprint"] = "0" * 16
    (race / names(race)[0] / "result.json").write_text(json.dumps(made))
    assert "has changed" in client.get(f"/api/runs/{names(race)[0]}/wrong").json()["reason"]


def test_what_a_wrong_image_was_taken_for_follows_from_the_confusion_matrix_if_only_one_class_is_left(
    runs: Path
) -> None:
    from velodrome.data import catalogue

    test = catalogue.load("digits", seed=1, validation=0.1).test
    right = np.ones(len(test), dtype=np.bool_)
    right[[3, 7]] = False
    confusion = np.zeros((10, 10), int)
    confusion[test.labels[3], (test.labels[3] + 1) % 10] = 1
    confusion[test.labels[7], [(test.labels[7] + 1) % 10, (test.labels[7] + 2) % 10]] = 1
    made = result(strategy="single") | {"confusion": confusion.tolist(), "class_names": list("0123456789")}
    made["test"] = {"accuracy": 0.9, "loss": 0.1, "correct": int(right.sum()), "total": len(test),
                    "answers": encode(right)}
    race = write_race(runs, [made]).path
    found = pages(race).get(f"/api/runs/{names(race)[0]}/wrong").json()["images"]
    assert test.labels[3] != test.labels[7]
    assert [one["predicted"] for one in found] == [str((test.labels[3] + 1) % 10), None]


@pytest.mark.integration
def test_predictions_of_wrong_images_and_the_page_of_the_model_come_at_a_press(velodrome, runs: Path) -> None:
    pytest.importorskip("onnxruntime")
    job = ["--dataset", "digits", "--model", "linear", "--engine", "torch", "--epochs", "1"]
    assert velodrome("train", *job, "--name", "one", "--runs", runs).code == 0
    with pages(runs) as client:
        page = client.get("/runs/one").text
        assert 'id="serve"' in page
        assert 'id="predictions"' in page
        assert client.post("/api/runs/one/export", headers=JSON).json() == {"exported": "one"}
        images = client.get("/api/runs/one/wrong").json()["images"]
        assert images
        assert all(one["predicted"] not in (None, one["class"]) for one in images)
        address = client.post("/api/runs/one/serve", headers=JSON).json()["address"]
        with urllib.request.urlopen(f"{address}api/models", timeout=60) as answer:
            assert b"linear" in answer.read()
        assert client.post("/api/runs/one/serve", headers=JSON).json()["address"] == address
    with pytest.raises(OSError):
        urllib.request.urlopen(address, timeout=5)


def test_a_verdict_is_emphasised_when_it_is_decided(runs: Path) -> None:
    once = [result("single", 1, 100.0), result("ddp", 2, 150.0)]
    write_race(runs, once, "once")
    write_race(runs, [*repeated([100, 101, 99], strategy="single"), *repeated([150, 151, 149], workers=2)], "thrice")
    assert '<section class="verdict open">' in pages(runs).get("/races/once").text
    assert '<section class="verdict use decided">' in pages(runs).get("/races/thrice").text


def test_users_code_is_not_run_to_show_images(race: Path, tmp_path: Path) -> None:
    folder = race / names(race)[0]
    job = yaml.safe_load((folder / "job.yaml").read_text())
    job["dataset"] = "evil:data"
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    made = json.loads((folder / "result.json").read_text())
    made["test"]["answers"] = encode(np.ones(10_000, dtype=np.bool_))
    (folder / "result.json").write_text(json.dumps(made))
    assert "function of yours" in pages(race).get(f"/api/runs/{folder.name}/wrong").json()["reason"]


def test_logs_are_searched_and_escaped(race: Path, tmp_path: Path) -> None:
    folder = race / names(race)[0] / "logs"
    folder.mkdir()
    (folder / "worker-0.log").write_text("one\nTWO \x1b[31mred\n" + "three\n" * 1000)
    (folder / "worker-1.log").write_text("two again\n")
    secret = tmp_path / "secret.log"
    secret.write_text("two secrets")
    (folder / "leak.log").symlink_to(secret)
    client = pages(race)
    found = client.get(f"/api/runs/{names(race)[0]}/logs?q=two").json()
    assert [(line["process"], line["number"]) for line in found["lines"]] == [("worker-0", 2), ("worker-1", 1)]
    assert "\\x1b[31m" in found["lines"][0]["text"]
    every = client.get(f"/api/runs/{names(race)[0]}/logs").json()
    assert every["total"] == 1003
    assert len(every["lines"]) == 400
    assert client.get(f"/api/runs/{names(race)[0]}/logs?process=../../secret").json()["total"] == 0


def test_runs_are_compared_with_differences_curves_and_ratios(runs: Path, race: Path) -> None:
    single, ddp = (next(name for name in names(race) if kind in name) for kind in ("single", "ddp"))
    query = f"run=first/{single}&run=first/{ddp}"
    page = pages(runs).get(f"/compare?{query}").text
    differing = page[page.index('class="differs"'):page.index("fields that are the same")]
    assert "strategy" in differing
    assert "epochs" not in differing
    ratio = re.search(r"<small>1\.90× \(([\d.]+) to ([\d.]+)\)</small>", page)
    assert ratio
    assert float(ratio[1]) < 1.9 < float(ratio[2])
    curves = pages(runs).get(f"/api/compare?{query}").json()["runs"]
    assert curves[1]["curve"]["examples"] == [1200, 2400, 3600, 4800]
    assert len(curves[1]["curve"]["steps"]) == 4


def test_comparing_says_what_it_cannot(runs: Path, race: Path) -> None:
    client = pages(runs)
    assert "Choose two or more runs" in client.get("/compare").text
    assert client.get("/compare?run=nothing&run=first").status_code == 404
    many = "&".join(f"run=first/r{number}" for number in range(13))
    answer = client.get(f"/compare?{many}")
    assert answer.status_code == 400
    assert "At most 12" in answer.text


NAMES = [
    "...", "%2e%2e", "..%2f..%2fetc%2fpasswd", "..%5c..%5cetc", "first%2f..%2f..", "%00", "first%00", "nothing", "-rf",
    "a" * 300, "first%2ffirst%2ffirst", "ü", "%ff", "con%20", "link", "%2e%2e%2frace.yaml", "first;ls", "$(ls)",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_the_store(runs: Path, race: Path, tmp_path: Path, name: str) -> None:
    outside = write_race(tmp_path / "outside", repeated([1.0], strategy="single"), "other").path
    (runs / "link").symlink_to(outside)
    client = pages(runs)
    for address in (f"/races/{name}", f"/api/races/{name}", f"/api/races/{name}/stream", f"/races/{name}/report",
                    f"/runs/{name}", f"/runs/first/{name}", f"/api/runs/{name}/view", f"/api/runs/first/{name}/logs",
                    f"/api/runs/{name}/images/1", f"/compare?run={name}&run=first"):
        answer = client.get(address)
        assert answer.status_code == 404
        assert "root:" not in answer.text
    for address in (f"/api/races/{name}/stop", f"/api/races/{name}/resume", f"/api/runs/{name}/tensorboard"):
        assert client.post(address, headers={CSRF_HEADER: "the-token"}).status_code in (404, 405)


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"epochs": {"a": 1}}', b'{"epochs": 1}', b'{"__class__": "x"}',
    b'{"name": "../../x"}', b'{"name": "\\u0000"}', b"[" * 100_000, b'{"vary": "workers=' + b"9" * 3000 + b'"}',
    b'{"dataset": "' + b"a" * 900_000 + b'"}',
])
def test_no_body_starts_anything_or_breaks_the_server(runs: Path, body: bytes) -> None:
    client = pages(runs)
    for address in ("/api/check", "/api/races"):
        answer = client.post(address, content=body, headers=JSON)
        wanted = {200, 400, 413, 415, 422} if address == "/api/check" else {400, 413, 415, 422}
        assert answer.status_code in wanted
    assert not client.app.state.control.commands  # type: ignore[attr-defined]


def test_a_body_that_is_not_json_by_its_type_is_refused(runs: Path) -> None:
    answer = pages(runs).post("/api/races", content=b"{}", headers={**JSON, "Content-Type": "text/plain"})
    assert answer.status_code == 415


def test_read_only_has_no_button_and_no_form(runs: Path, race: Path) -> None:
    client = pages(runs, read_only=True)
    assert "/new" not in client.get("/").text
    assert client.get("/new").status_code == 403
    assert 'id="stop"' not in client.get("/races/first").text
    assert 'id="tensorboard"' not in client.get(f"/runs/first/{names(race)[0]}").text
    assert client.post("/api/races/first/resume", headers={CSRF_HEADER: "the-token"}).status_code == 403


def test_names_of_runs_and_texts_of_files_are_escaped(runs: Path, race: Path) -> None:
    folder = race / names(race)[0]
    made = json.loads((folder / "result.json").read_text())
    made |= {"status": "failed", "error": {"message": HOSTILE, "cause": "user", "traceback": HOSTILE}, "model": HOSTILE}
    (folder / "result.json").write_text(json.dumps(made))
    (race / "race.yaml").write_text(f"job: {{dataset: digits}}\n# {HOSTILE}\n")
    client = pages(runs)
    for address in ("/", "/races/first", f"/runs/first/{folder.name}", f"/?q={HOSTILE}", f"/new?name={HOSTILE}"):
        assert HOSTILE not in client.get(address).text


def test_pages_load_nothing_from_elsewhere_and_have_no_inline_script_or_style(runs: Path, race: Path) -> None:
    client = pages(runs)
    name = names(race)[0]
    for address in ("/", "/new", "/compare", "/races/first", f"/runs/first/{name}", "/nothing",
                    f"/compare?run=first/{name}&run=first/{names(race)[1]}"):
        text = client.get(address).text
        assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", text)
        assert not re.findall(r"<script(?![^>]*\bsrc=)", text)
        assert not re.findall(r"<style|\sstyle=|\son[a-z]+=", text)
        for file in re.findall(r'(?:src|href)="(/static/[^"]+)"', text):
            assert client.get(file).status_code == 200


def test_stopping_what_does_not_run_is_refused(runs: Path, race: Path) -> None:
    answer = pages(runs).post("/api/races/first/stop", headers={CSRF_HEADER: "the-token"})
    assert answer.status_code == 400
    assert answer.json()["error"] == "'first' is not running"


def test_a_process_that_is_not_ours_is_never_stopped(runs: Path, race: Path) -> None:
    lock = files.FileLock(race / LOCK)
    assert lock.acquire()
    try:
        for number in ("1", "0", "-1", "99999999999", "x", ""):
            lock.path.write_text(number)
            answer = pages(runs).post("/api/races/first/stop", headers={CSRF_HEADER: "the-token"})
            assert answer.status_code == 400
            assert "cannot be found here" in answer.json()["error"]
    finally:
        lock.release(remove=True)


def test_the_report_is_a_file_to_keep(runs: Path, race: Path) -> None:
    answer = pages(runs).get("/races/first/report")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="first.html"'
    assert "Race first" in answer.text


def test_a_run_of_many_events_is_thinned_out_without_changing_its_rates(runs: Path) -> None:
    made = result(strategy="ddp", workers=2, rate=10.0, epochs=20)
    made["seconds"]["total"] = 5000.0
    race = write_race(runs, [made]).path
    events: list[dict[str, Any]] = events_of(made)
    assert len(events) > 9000
    view = pages(race).get(f"/api/runs/{names(race)[0]}/view").json()
    assert view["events"] == len(events)
    assert view["every"] == 10
    for node in view["nodes"]:
        assert 100 < len(node["seconds"]) <= 300
        assert node["network"][5:-5] == [2 * 2**20] * len(node["network"][5:-5])
    assert len(view["curve"]["epoch"]) == 20


def test_a_race_that_ran_elsewhere_is_not_resumed_here(runs: Path, race: Path) -> None:
    folder = race / names(race)[0]
    made = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**made, "launcher": "emulated"}))
    answer = pages(runs).post("/api/races/first/resume", headers={CSRF_HEADER: "the-token"})
    assert answer.status_code == 409
    assert "'emulated'" in answer.json()["error"]


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["run", "race"])
def test_a_page_resumes_no_code_that_is_not_trusted(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    marker = tmp_path / "ran"
    Path("evil.py").write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n")
    (runs / "sent").mkdir(parents=True)
    if kind == "run":
        (runs / "sent" / "job.yaml").write_text("{script: evil.py, engine: torch}\n")
    else:
        (runs / "sent" / "race.yaml").write_text("{job: {script: evil.py, engine: torch}, vary: {workers: [1]}}\n")
    with pages(runs) as client:
        answer = client.post(f"/api/{kind}s/sent/resume", headers={CSRF_HEADER: "the-token"})
    assert (answer.status_code, marker.exists()) == (422, False)
    said = answer.json()["error"]
    assert f"script 'evil.py' ({tmp_path / 'evil.py'})" in said
    assert "add --trust-code evil.py to this command in a terminal: velodrome r" in said


def test_a_list_that_takes_long_to_read_begins_with_a_part_of_it(race: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("velodrome.web.run_files._FIRST_ROWS", 2)
    now = iter(range(1000))
    index = RunIndex(race, lambda: float(next(now)))
    part = index.listed(seconds=2.0)
    assert part.partial
    assert 2 <= len(part.rows) < 6
    assert part.found == 6
    whole = index.listed()
    assert not whole.partial
    assert len(whole.rows) == 6
