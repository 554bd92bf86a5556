"""Launchers and engines of other packages are found by their entry points, and take part in a race like ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from velodrome.clusters import LAUNCHERS, OURS

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"


def command(*words: object, code: int = 0) -> tuple[str, str]:
    """What a command prints, on standard output and error, where the package is installed."""
    path = os.pathsep.join([str(PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "velodrome", *map(str, words)], capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.mark.integration
def test_a_launcher_and_an_engine_of_another_package_take_part_in_a_race(runs: Path) -> None:
    out, _ = command(
        "race", "--vary", "engine=torch,lantern", "--vary", "on=local,polite:level=7", "--strategy", "single",
        "--epochs", 1, "--dataset", "digits", "--model", "dense-300-100", "--repeat", 1, "--name", "both",
        "--runs", runs, "--json",
    )
    assert {row["engine"] for row in json.loads(out)["rows"]} == {"torch", "lantern"}
    results: list[dict[str, Any]] = [json.loads(path.read_text()) for path in (runs / "both").glob("*/result.json")]
    assert {(result["engine"], result["launcher"]) for result in results} == {
        (engine, launcher) for engine in ("torch", "lantern") for launcher in ("local", "polite")
    }
    assert all(result["status"] == "finished" for result in results)
    assert all(result["cluster"] == {"level": 7} for result in results if result["launcher"] == "polite")


def _shone(run: Path) -> list[str]:
    """What the engine of the other package reported in a run."""
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event["message"] for event in events if event["kind"] == "warning" and "shines" in event["message"]]


@pytest.mark.integration
def test_an_option_of_its_engine_works_wherever_ours_do(tmp_path: Path) -> None:
    runs, job = tmp_path / "runs", tmp_path / "job.yaml"
    usual = ("--strategy", "single", "--epochs", 1, "--runs", runs)
    # on the command line
    assert "for lantern: how brightly it shines" in " ".join(command("train", "--help")[0].lower().split())
    command("train", "--engine", "lantern", "--shine", 5, "--name", "typed", *usual)
    assert _shone(runs / "typed") == ["shines at 5"]
    assert "--shine 10: must be less than or equal to 9" in command(
        "train", "--engine", "lantern", "--shine", 10, *usual, code=2)[1]
    assert "--shine 5: strategy torch/single does not support this option (lantern/single, " in command(
        "train", "--engine", "torch", "--shine", 5, *usual, code=2)[1].replace(" and ", ", ")
    # in a file, in which it is written only where it is set
    job.write_text("engine: lantern\nshine: 7\n")
    command("train", job, "--name", "read", *usual)
    assert _shone(runs / "read") == ["shines at 7"]
    assert "shine: 7" in (runs / "read" / "job.yaml").read_text()
    command("train", "--engine", "torch", "--name", "without", *usual)
    assert "shine" not in (runs / "without" / "job.yaml").read_text()
    # as what varies in a race
    command("race", "--engine", "lantern", "--vary", "shine=2,4", "--repeat", 1, "--name", "varied", *usual)
    shone = {text for run in (runs / "varied").glob("*/result.json") for text in _shone(run.parent)}
    assert shone == {"shines at 2", "shines at 4"}


@pytest.mark.integration
def test_its_options_are_checked_and_a_package_that_cannot_be_loaded_hides_nothing(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in json.loads(command("clusters", "list", "--json")[0])}
    assert rows["polite"]["options"] == "level=LEVEL"
    assert "'broken' of package 'velodrome-polite' cannot be loaded: ModuleNotFoundError" in rows["broken"]["error"]
    assert {*OURS} <= rows.keys()
    job = ("train", "--engine", "torch", "--strategy", "single", "--runs", tmp_path)
    assert "level '20': must be less than or equal to 19" in command(*job, "--on", "polite:level=20", code=2)[1]
    assert "'speed=2' is none of level; write NAME=VALUE" in command(*job, "--on", "polite:speed=2", code=2)[1]
    assert "--on polite cannot pause; it can kill" in command(
        *job, "--on", "polite", "--fault", "pause worker0 1s..2s", code=2)[1]
    assert "'broken' of package" in command(*job, "--on", "broken", code=2)[1]


@pytest.mark.unit
def test_each_of_our_launchers_describes_itself_without_its_class() -> None:
    for name in OURS:
        described = LAUNCHERS.get(name)
        assert described.name == name
        assert described.launcher.name == name
        assert all(field.description for field in described.options.model_fields.values())


@pytest.mark.integration
def test_descriptions_are_read_without_importing_a_launcher() -> None:
    program = (
        "import sys; from velodrome.clusters import OURS, LAUNCHERS; [LAUNCHERS.get(name) for name in OURS]; "
        "print([name for name in sys.modules if name.startswith('velodrome.clusters') and "
        "name.rpartition('.')[2] in ('launcher', 'debug', 'preflight')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "['velodrome.clusters.launcher']", done.stderr
