"""The commands that look after stored runs, on folders as the controller leaves them and on broken ones."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from synthetic_races import repeated, result, write_race
from velodrome.job.job import Job
from velodrome.races.folder import RaceFolder
from velodrome.run.listing import cell
from velodrome.run.store import Store


def store_run(runs: Path, name: str, made: dict[str, Any] | None = None) -> Path:
    """A finished run on disk."""
    run = Store(runs).create(name, Job())
    (run.path / "result.json").write_text(json.dumps(result() if made is None else made, indent=2))
    run.close()
    return run.path


@pytest.fixture
def race(runs: Path) -> Path:
    results = [*repeated([1000, 1010, 990], strategy="single"), *repeated([1900, 1910, 1880], workers=2)]
    return write_race(runs, results, "first").path


# list and show


def test_runs_and_races_are_listed_with_how_they_ended(velodrome, runs: Path, race: Path) -> None:
    store_run(runs, "alone")
    Store(runs).create("left", Job()).close()
    rows = {row["run"]: row for row in velodrome("runs", "list", "--runs", runs, "--json").json()}
    assert {name: (row["kind"], row["status"]) for name, row in rows.items()} == {
        "first": ("race", "finished"), "alone": ("run", "finished"), "left": ("run", "interrupted"),
    }
    assert rows["first"]["runs"] == rows["first"]["finished"] == 6
    assert (rows["alone"]["accuracy"], rows["alone"]["examples_per_second"]) == (0.95, 1000.0)
    shown = velodrome("runs", "list", "--runs", runs).out
    assert "race of 6" in shown
    assert "0.9500" in shown


def test_runs_within_races_are_listed_when_asked_for_and_chosen_by_status(velodrome, runs: Path, race: Path) -> None:
    Store(runs).create("left", Job()).close()
    rows = velodrome("runs", "list", "--all", "--runs", runs, "--json").json()
    assert sum(row["race"] == "first" and row["kind"] == "run" for row in rows) == 6
    rows = velodrome("runs", "list", "--all", "--status", "interrupted", "--runs", runs, "--json").json()
    assert [row["run"] for row in rows] == ["left"]
    assert "no runs" in velodrome("runs", "list", "--runs", runs / "nowhere").out


def test_a_race_is_listed_with_how_many_of_its_jobs_are_done(velodrome, runs: Path, race: Path) -> None:
    (race / "race.yaml").write_text("vary: {entry: [torch/single, torch/ddp], workers: [1, 2]}\nrepeat: 3\n")
    row = velodrome("runs", "list", "--runs", runs, "--json").json()[0]
    assert (row["status"], row["jobs"], row["runs"], row["finished"]) == ("incomplete", 9, 6, 6)
    assert re.search(r"first/ +incomplete +race of 9 +6 of 9 done", velodrome("runs", "list", "--runs", runs).out)
    with RaceFolder(runs, "first").held():
        assert velodrome("runs", "list", "--runs", runs, "--json").json()[0]["status"] == "running"
    (race / "race.yaml").write_text("not: a race")
    assert velodrome("runs", "list", "--runs", runs, "--json").json()[0]["status"] == "finished"


def test_a_status_that_there_is_not_is_refused(velodrome, runs: Path, race: Path) -> None:
    done = velodrome("runs", "list", "--status", "finishd", "--runs", runs)
    assert done.code == 2
    known = "running, finished, failed, interrupted, unreadable, incomplete, empty"
    assert f"--status 'finishd': choose one of {known}" in done.err
    assert velodrome("runs", "list", "--status", "empty", "--runs", runs, "--json").json() == []


@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]", b'{"status": "odd"}', b'{\n  "run": "a",\n  "status": "fi'])
def test_a_broken_run_is_named_and_hides_no_other(velodrome, runs: Path, content: bytes) -> None:
    store_run(runs, "whole")
    (store_run(runs, "broken") / "result.json").write_bytes(content)
    done = velodrome("runs", "list", "--runs", runs)
    assert done.code == 0
    assert "broken: its result.json" in done.err
    assert "whole" in done.out
    rows = {row["run"]: row["status"] for row in velodrome("runs", "list", "--runs", runs, "--json").json()}
    assert rows == {"whole": "finished", "broken": "unreadable"}


def test_a_result_that_somebody_else_wrote_is_read_the_same(velodrome, runs: Path) -> None:
    path = store_run(runs, "a")
    before = velodrome("runs", "list", "--runs", runs, "--json").json()
    (path / "result.json").write_text(json.dumps(result()))
    assert velodrome("runs", "list", "--runs", runs, "--json").json() == before


@pytest.mark.integration
@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_runs_are_listed(runs: Path, count: int) -> None:
    """How fast, `benchmarks/large_report.py` measures."""
    text = json.dumps(result("parameter-server", 6, servers=2, epochs=25, engine="tensorflow"), indent=2) + "\n"
    for number in range(count):
        folder = runs / f"run-{number:05d}"
        folder.mkdir(parents=True)
        (folder / "job.yaml").write_text("dataset: digits\n")
        (folder / "result.json").write_text(text)
    done = subprocess.run([sys.executable, "-m", "velodrome", "runs", "list", "--runs", runs], capture_output=True)
    assert done.stdout.count(b"\n") == count + 1


def test_a_run_within_a_race_and_a_race_are_shown(velodrome, runs: Path, race: Path) -> None:
    name = sorted(path.parent.name for path in race.glob("*/result.json"))[0]
    assert "0.9500" in velodrome("runs", "show", f"first/{name}", "--runs", runs).out
    told = velodrome("runs", "show", "first", "--runs", runs, "--json").json()
    assert (told["kind"], len(told["rows"])) == ("race", 6)
    assert "velodrome report first" in velodrome("runs", "show", "first", "--runs", runs).out


@pytest.mark.parametrize("name", ["nothing", "../outside", "a/b/c", "first/nothing", "/etc"])
def test_what_is_no_run_is_refused(velodrome, runs: Path, race: Path, name: str) -> None:
    for command in ("show", "rm", "export"):
        words = [command, name, "--runs", runs, *(["--yes"] if command == "rm" else [])]
        assert velodrome("runs", *words).code == 2


# compare


def test_two_runs_are_compared_with_their_repetitions(velodrome, runs: Path, race: Path) -> None:
    names = sorted(path.parent.name for path in race.glob("*/result.json"))
    fast = next(name for name in names if "2w" in name)
    slow = next(name for name in names if "single" in name)
    told = velodrome("runs", "compare", f"first/{fast}", f"first/{slow}", "--runs", runs, "--json").json()
    assert [len(side) for side in told["repetitions"]] == [3, 3]
    assert told["differing"]["workers"] == [2, 1]
    rate = next(one for one in told["measures"] if one["name"] == "examples_per_second")
    assert [round(value) for value in rate["values"]] == [1897, 1000]
    assert rate["interval"][0] > 1.5
    assert f"throughput: first/{fast} beats first/{slow}" in " ".join(told["sentences"])
    shown = velodrome("runs", "compare", f"first/{slow}", f"first/{fast}", "--runs", runs).out
    assert "beats" in shown
    assert "The same for both: dataset digits" in shown


def test_batches_by_the_theses_formula_are_compared_and_exported(velodrome, runs: Path, tmp_path: Path) -> None:
    made = [result(rate=1000, target="accuracy>=0.4"), result(workers=2, rate=2000, target="accuracy>=0.99")]
    write_race(runs, made, "two")
    names = sorted(path.parent.name for path in runs.glob("two/*/result.json"))
    told = velodrome("runs", "compare", *(f"two/{name}" for name in names), "--runs", runs, "--json").json()
    rate = next(one for one in told["measures"] if one["name"] == "thesis_batches_per_second")
    assert rate["values"] == pytest.approx([1000 / 64, 2000 / 64])
    shown = velodrome("runs", "compare", *(f"two/{name}" for name in names), "--runs", runs).out
    assert "batches over all training time" in " ".join(shown.split())
    assert "thesis" not in shown
    assert velodrome("runs", "export", "two", "--out", tmp_path / "two.csv", "--runs", runs).code == 0
    rows = sorted(csv.DictReader((tmp_path / "two.csv").open()), key=lambda row: row["workers"])
    assert [float(row["thesis_batches_per_second"]) for row in rows] == pytest.approx([1000 / 64, 2000 / 64])
    # Two of four epochs reach 0.4; the other never gets to 0.99.
    assert [row["time_to_target"] for row in rows] == ["2.4", ""]


def test_a_name_that_looks_like_a_formula_stays_a_name_in_a_table() -> None:
    assert [cell(text) for text in ("=1+1", "+1", "-1", "@x", "\t=1", "\r=1")] == [
        "'=1+1", "'+1", "'-1", "'@x", "'\t=1", "'\r=1",
    ]
    assert [cell(value) for value in ("", "plain", -1, None)] == ["", "plain", -1, ""]


def test_one_run_of_each_beats_nobody(velodrome, runs: Path) -> None:
    write_race(runs, [result(rate=1000), result(workers=2, rate=9000)], "two")
    names = sorted(path.parent.name for path in runs.glob("two/*/result.json"))
    told = velodrome("runs", "compare", *(f"two/{name}" for name in names), "--runs", runs, "--json").json()
    assert "beats" not in " ".join(told["sentences"]).replace("beats the other", "")
    assert "Not enough runs" in told["sentences"][0]


def test_a_broken_neighbour_is_named_and_left_out(velodrome, runs: Path, race: Path) -> None:
    fast, slow = (sorted(path.name for path in race.glob(pattern)) for pattern in ("torch-ddp*", "torch-single*"))
    told = json.loads((race / fast[1] / "result.json").read_text())
    (race / fast[1] / "result.json").write_text(json.dumps({**told, "nodes": None}))
    (race / fast[2] / "result.json").write_text("{")
    words = ["runs", "compare", f"first/{fast[0]}", f"first/{slow[0]}", "--runs", runs, "--json"]
    done = velodrome(*words)
    assert done.code == 0, done.err
    assert [len(side) for side in done.json()["repetitions"]] == [1, 3]
    assert f"{fast[1]}: its result.json has 'nodes' None" in done.err
    assert f"{fast[2]}: its result.json is not whole; it is left out" in done.err
    assert done.err.count(fast[2]) == 1
    words[2] = f"first/{fast[1]}"
    refused = velodrome(*words)
    assert refused.code == 2
    assert "cannot be compared: its result.json has 'nodes' None" in refused.err


def test_an_unfinished_run_and_a_race_cannot_be_compared(velodrome, runs: Path, race: Path) -> None:
    Store(runs).create("left", Job()).close()
    store_run(runs, "whole")
    assert "cannot be compared" in velodrome("runs", "compare", "left", "whole", "--runs", runs).err
    assert "is a race" in velodrome("runs", "compare", "first", "whole", "--runs", runs).err


# rm


def test_removing_asks_and_removes_nothing_else(velodrome, runs: Path, race: Path) -> None:
    store_run(runs, "a")
    store_run(runs, "b")
    done = velodrome("runs", "rm", "a", "--runs", runs)
    assert done.code == 2
    assert "--yes" in done.err
    assert (runs / "a").is_dir()
    done = velodrome("runs", "rm", "a", "first", "--yes", "--runs", runs, "--json")
    assert done.json() == {"removed": ["a", "first"]}
    assert [path.name for path in runs.iterdir()] == ["b"]


@pytest.mark.integration
def test_a_person_may_say_no(runs: Path) -> None:
    store_run(runs, "a")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "velodrome", "runs", "rm", "a", "--runs", runs]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    os.write(ours, b"n\n")
    assert process.wait(60) == 1
    os.close(ours)
    assert (runs / "a").is_dir()


def test_a_running_run_and_its_race_are_not_removed(velodrome, runs: Path, race: Path) -> None:
    run = Store(race).create("now", Job())
    for name in ("first/now", "first"):
        done = velodrome("runs", "rm", name, "--yes", "--runs", runs)
        assert done.code == 2
        assert "running" in done.err
    run.close()
    assert velodrome("runs", "rm", "first", "--yes", "--runs", runs).code == 0


def test_links_are_never_followed_out_of_the_store(velodrome, runs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "job.yaml").write_text("dataset: digits\n")
    path = store_run(runs, "a")
    (path / "model").symlink_to(outside)
    (runs / "link").symlink_to(outside)
    done = velodrome("runs", "rm", "link", "--yes", "--runs", runs)
    assert done.code == 2
    assert "is a link" in done.err
    assert velodrome("runs", "rm", "a", "--yes", "--runs", runs).code == 0
    assert (outside / "job.yaml").exists()
    assert velodrome("runs", "list", "--runs", runs, "--json").json() == []


# export


def test_a_race_is_packed_without_checkpoints_locks_and_links(
    velodrome, runs: Path, race: Path, tmp_path: Path
) -> None:
    run = next(race.glob("*/result.json")).parent
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "epoch-1.safetensors").write_bytes(b"x")
    (run / "controller.lock").write_text("")
    (run / "secret").symlink_to("/etc/passwd")
    out = tmp_path / "first.zip"
    told = velodrome("runs", "export", "first", "--out", out, "--runs", runs, "--json").json()
    names = zipfile.ZipFile(out).namelist()
    assert told["files"] == len(names)
    assert f"first/{run.name}/result.json" in names
    assert not any(word in name for name in names for word in ("checkpoints", "lock", "secret"))
    done = velodrome("runs", "export", "first", "--out", out, "--runs", runs)
    assert done.code == 2
    assert "--force" in done.err
    packed = tmp_path / "first.tar.gz"
    assert velodrome("runs", "export", "first", "--out", packed, "--checkpoints", "--runs", runs).code == 0
    with tarfile.open(packed) as archive:
        assert f"first/{run.name}/checkpoints/epoch-1.safetensors" in archive.getnames()


def test_results_are_written_as_a_table_that_spreadsheets_read(
    velodrome, runs: Path, race: Path, tmp_path: Path
) -> None:
    (race / "broken").mkdir()
    (race / "broken" / "job.yaml").write_text("")
    out = tmp_path / "first.csv"
    done = velodrome("runs", "export", "first", "--out", out, "--runs", runs)
    assert done.out.strip() == str(out)
    assert "broken: it has no readable result" in done.err
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 6
    assert {float(row["examples_per_second"]) for row in rows} == {1000, 1010, 990, 1900, 1910, 1880}
    assert {row["strategy"] for row in rows} == {"single", "ddp"}


def test_attempts_that_were_put_aside_are_neither_exported_nor_checked_with_their_race(
    velodrome, runs: Path, race: Path, tmp_path: Path
) -> None:
    first = sorted(path.parent for path in race.glob("*/result.json"))[0]
    aside = first.rename(first.with_name(f"{first.name}.attempt-1"))
    out = tmp_path / "first.csv"
    assert velodrome("runs", "export", "first", "--out", out, "--runs", runs).code == 0
    assert len(list(csv.DictReader(out.open()))) == 5
    checked = velodrome("runs", "check", "first", "--runs", runs, "--json").json()["runs"]
    assert aside.name not in [one["run"] for one in checked]
    assert len(checked) == 5
    alone = velodrome("runs", "check", f"first/{aside.name}", "--runs", runs, "--json").json()["runs"]
    assert [one["run"] for one in alone] == [aside.name]


@pytest.mark.parametrize("words", [("--format", "rar"), ("--out", "first.rar"), ("--out", "nowhere/first.zip")])
def test_a_form_or_place_that_cannot_be_is_refused(
    velodrome, runs: Path, race: Path, words, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert velodrome("runs", "export", "first", *words, "--runs", runs).code == 2


@pytest.mark.integration
def test_an_export_unpacks_to_a_run_that_checks(velodrome, runs: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = velodrome("train", "--dataset", "digits", "--epochs", 2, "--threads", 1, "--name", "real", "--runs", runs)
    assert done.code == 0
    assert velodrome("runs", "export", "real", "--runs", runs).out.strip() == "real.zip"
    zipfile.ZipFile("real.zip").extractall("elsewhere")
    done = velodrome("runs", "check", "elsewhere/real", "--runs", runs, "--json")
    assert done.code == 0
    assert done.json()["runs"][0]["events"] > 10
    lines = (tmp_path / "elsewhere/real/events.jsonl").read_text().splitlines()
    (tmp_path / "elsewhere/real/events.jsonl").write_text("\n".join(lines[:-2]))
    done = velodrome("runs", "check", "elsewhere/real", "--runs", runs)
    assert done.code == 1
    assert "no event reports a result" in done.out
    assert yaml.safe_load((tmp_path / "elsewhere/real/job.yaml").read_text())["dataset"] == "digits"
