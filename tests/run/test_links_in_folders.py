"""Links in the folders of runs and races: whoever sent the folder could show any file of whoever reads it."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mutated_store import Store
from synthetic_races import result
from velodrome.api import runs as api
from velodrome.errors import VelodromeError
from velodrome.models.model_files import read_description
from velodrome.reporting.document import make_report
from velodrome.reporting.load import load_race
from velodrome.reporting.write import to_html, to_markdown
from velodrome.training import checkpoint


@pytest.fixture
def store(runs: Path, velodrome: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    pytest.importorskip("starlette")
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    return Store(runs, velodrome)


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
    for words in (*store.commands(), packed):
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


@pytest.mark.parametrize("name", [
    ".reserve", "events.jsonl", "logs/worker-0.log", "controller.lock", "result.json.half", "model/model.json",
    "checkpoints/epoch-0001.safetensors.half", "new",
])
def test_a_run_with_a_pipe_in_it_is_not_resumed(store: Store, name: str) -> None:
    """Whoever opens one to write waits for somebody who reads it."""
    run = store.runs / "plain"
    (run / "result.json").unlink()
    (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(exist_ok=True)
    os.mkfifo(run / name)
    done = store.command("resume", "plain", "--runs", store.runs)
    assert (done.code, f"{run / name}: it is a named pipe, not a regular file" in done.err) == (1, True), done.text


@pytest.mark.integration
@pytest.mark.parametrize("below", [".", "model"])
def test_folders_that_are_nested_without_end_are_a_sentence(store: Store, tmp_path: Path, below: str) -> None:
    """Python's own walks end in a `RecursionError`."""
    (store.runs / "plain" / "result.json").unlink()
    top = store.runs / "plain" / below
    top.mkdir(exist_ok=True)
    nested(top, 1_500)
    said = "it has folders that are nested more than 50 deep"
    for words, code in ((("list",), 0), (("show", "plain"), 0), (("check",), 1), (("check", "plain"), 1),
                        (("export", "plain", "--out", str(tmp_path / "a.zip")), 1), (("rm", "plain", "--yes"), 1)):
        done = store.command("runs", *words, "--runs", store.runs)
        assert (done.code, said in done.text) == (code, words[0] not in ("list", "show")), done.text
    done = store.command("resume", "plain", "--runs", store.runs)
    assert (done.code, said in done.err) == (1, True), done.text
    assert (store.runs / "plain").is_dir()
    if below == "model":
        with pytest.raises(OSError, match=said):
            read_description(top)
    store.read()
    subprocess.run(["rm", "-r", store.runs / "plain"], check=True)  # pytest's own removal would end in that error


def nested(top: Path, count: int) -> None:
    """Folders within folders: deeper than a path may be long."""
    folder = os.open(top, os.O_RDONLY)
    for _ in range(count):
        os.mkdir("n", dir_fd=folder)
        below = os.open("n", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)


def test_a_checkpoint_and_a_model_behind_a_link_are_not_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    checkpoint.write(run, 1, {"w": np.zeros(1)}, result(epochs=1)["history"], 1)
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
    assert shown["path"] == str(store.runs.resolve() / "moved")
    assert f"stored in {shown['path']}" in store.command("runs", "show", "moved", "--runs", store.runs).out


def test_a_file_of_holes_is_not_packed(store: Store, tmp_path: Path) -> None:
    with (store.runs / "plain" / "logs" / "worker-0.log").open("wb") as log:
        log.truncate(1 << 42)
    done = store.command("runs", "export", "plain", "--out", str(tmp_path / "a.zip"), "--runs", store.runs)
    assert done.code == 1
    assert "claims 4,398,046,511,104 bytes" in done.text.replace("\n", " ")
    assert not (tmp_path / "a.zip").exists()
