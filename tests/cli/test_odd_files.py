"""Pipes, devices and monstrous files in the place of those that a command reads are refused at once, in a sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from synthetic_races import repeated, write_race
from velodrome.models.model_files import DESCRIPTION, read_description
from velodrome.training import checkpoint

pytestmark = pytest.mark.timeout(60)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 42)


def deep(path: Path) -> None:
    path.write_text("[" * 200_000)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def assert_one_sentence(done, name: str) -> None:
    assert done.code in (1, 2), done.text
    assert "Traceback" not in done.text
    assert name in done.err
    assert len(done.err.splitlines()) == 1, done.err


@pytest.mark.parametrize("make", [pipe, zeros, sparse, deep])
@pytest.mark.parametrize("words", [
    ("train", "f.yaml"), ("race", "f.yaml", "--dry-run"), ("plan", "f.yaml"),
    ("data", "prepare", "path:f.csv"), ("data", "prepare", "path:f.npz"), ("data", "prepare", "path:f.zip"),
    ("data", "verify", "shards:."), ("data", "prepare", "shards:."),
])
def test_a_file_that_the_user_names(velodrome, words, make):
    name = words[-1].partition(":")[2] or words[1]
    path = Path("index.json" if name == "." else name)
    make(path)
    assert_one_sentence(velodrome(*words), path.name)


@pytest.mark.parametrize("make", [pipe, zeros, sparse])
def test_a_text_that_the_user_names(velodrome, make):
    make(Path("f.txt"))
    assert_one_sentence(velodrome("data", "prepare", "text:f.txt"), "f.txt")


#: Each file and each way once; all pairs only where time does not matter, because each writes a report.
PAIRS = [("job.yaml", deep), ("result.json", sparse), ("plan.json", zeros), ("events.jsonl", pipe),
         ("controller.lock", pipe)]
REST = [(name, make) for name, _ in PAIRS for make in (pipe, zeros, sparse, deep) if (name, make) not in PAIRS]


@pytest.mark.parametrize(
    ("name", "make"), [*PAIRS, *(pytest.param(name, make, marks=pytest.mark.slow) for name, make in REST)]
)
def test_a_file_of_a_run(velodrome, runs, name, make):
    race = write_race(runs, repeated([1000, 1010]), "race").path
    run = next(race.glob("*/job.yaml")).parent
    file = run / name
    file.unlink(missing_ok=True)
    make(file)
    for words in (("list", "--all"), ("show", f"race/{run.name}"), ("check",), ("compare", *[f"race/{run.name}"] * 2)):
        done = velodrome("runs", *words, "--runs", runs)
        assert done.code in (0, 1, 2)
        assert "Traceback" not in done.text
    if name != "controller.lock":
        assert name in velodrome("runs", "check", f"race/{run.name}", "--runs", runs).out
    for words in (("report", "race"), ("recommend", "race")):
        done = velodrome(*words, "--runs", runs)
        assert done.code == 0, done.text


@pytest.mark.parametrize("make", [pipe, zeros, sparse, deep])
def test_the_file_of_a_race(velodrome, runs, make):
    race = write_race(runs, repeated([1000, 1010]), "race").path
    (race / "race.yaml").unlink()
    make(race / "race.yaml")
    for words in (("report", "race"), ("recommend", "race")):
        assert_one_sentence(velodrome(*words, "--runs", runs), "race")
    done = velodrome("race", "--vary", "workers=1", "--name", "race", "--runs", runs)
    assert done.code == 2
    assert "holds another race" in done.err


@pytest.mark.parametrize("make", [pipe, zeros, sparse, deep])
def test_a_checkpoint(tmp_path, make):
    (tmp_path / "checkpoints").mkdir()
    make(tmp_path / "checkpoints" / "epoch-0002.safetensors")
    assert checkpoint.latest(tmp_path) is None


@pytest.mark.parametrize("make", [pipe, zeros, sparse, deep])
def test_the_description_of_a_saved_model(tmp_path, make):
    make(tmp_path / DESCRIPTION)
    with pytest.raises((OSError, ValueError)):
        read_description(tmp_path)


@pytest.mark.parametrize("make", [pipe, zeros, sparse, deep])
def test_what_pages_read_of_a_run(runs, make):
    pytest.importorskip("starlette")
    from velodrome.web.live_run import LiveRun
    from velodrome.web.served_models import _test_of

    race = write_race(runs, repeated([1000, 1010]), "race").path
    run = next(race.glob("*/job.yaml")).parent
    for name in ("events.jsonl", "result.json"):
        (run / name).unlink()
        make(run / name)
    page = LiveRun(run)
    page.poll()
    assert page.result is None
    assert _test_of(run) == {}
