"""What is not installed is named once, and what is installed can run without it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from velodrome.catalog.base import Probe
from velodrome.clusters import environments, preflight

WORDS = ("--dataset", "digits", "--epochs", 1, "--vary", "entry=torch/single,torch/ddp,torch/allreduce,"
         "tensorflow/single,tensorflow/allreduce,tensorflow/parameter-server:1", "--vary", "workers=1,2")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The modules that the training interpreter has, to be changed by the test."""
    modules = {"torch"}
    monkeypatch.setattr(
        environments, "probe", lambda python: Probe(str(python), "3.11.0", frozenset(modules), {})
    )
    return modules


def test_a_race_that_lacks_packages_has_one_line_for_each(velodrome, runs: Path, installed: set[str]) -> None:
    done = velodrome("race", *WORDS, "--runs", runs)
    assert done.code == 2
    assert done.err.splitlines() == [
        "velodrome: this race cannot run:",
        "  Python module 'mpi4py' is not installed: pip install \"velodrome[mpi]\" "
        "(4 of 10 jobs: torch/allreduce, tensorflow/allreduce)",
        "  Python module 'tensorflow' is not installed: pip install \"velodrome[tensorflow]\" "
        "(5 of 10 jobs: tensorflow/single, tensorflow/allreduce, tensorflow/parameter-server)",
        "add --skip-unavailable to run the other 3 jobs",
    ]
    assert not runs.exists()


def test_the_rest_of_a_race_is_planned_without_what_is_missing(velodrome, runs: Path, installed: set[str]) -> None:
    done = velodrome("race", *WORDS, "--skip-unavailable", "--dry-run", "--json", "--runs", runs)
    assert done.code == 0, done.err
    told = done.json()
    assert sorted(job["run"] for job in told["jobs"]) == [
        "torch-ddp-1w-128b-1", "torch-ddp-2w-128b-1", "torch-single-1w-128b-1",
    ]
    assert len(told["skipped"]) == 7
    assert "mpi4py" in told["skipped"]["torch-allreduce-2w-128b-1"]
    both = told["skipped"]["tensorflow-allreduce-1w-128b-1"]
    assert "'mpi4py'" in both
    assert "'tensorflow'" in both
    assert "left out: Python module 'mpi4py' is not installed" in done.err
    assert "torch/single takes part with 1 worker" in done.err
    installed.update({"tensorflow", "mpi4py"})
    assert len(velodrome("race", *WORDS, "--dry-run", "--json", "--runs", runs).json()["jobs"]) == 10


def test_only_a_baseline_that_can_run_is_announced(velodrome, runs: Path, installed: set[str]) -> None:
    words = ("--dataset", "digits", "--vary", "entry=torch/ddp,tensorflow/mirrored", "--vary", "workers=1,2")
    done = velodrome("race", *words, "--skip-unavailable", "--dry-run", "--runs", runs)
    assert done.code == 0, done.err
    said = done.out + done.err
    assert "torch/single takes part, as the baseline" in said
    assert "tensorflow/single takes part" not in said
    assert "no baseline tensorflow/single" in said


def test_a_race_of_which_nothing_can_run_is_refused_all_the_same(velodrome, runs: Path, installed: set[str]) -> None:
    installed.clear()
    done = velodrome("race", *WORDS, "--skip-unavailable", "--runs", runs)
    assert done.code == 2
    assert "'torch' is not installed" in done.err
    assert "--skip-unavailable" not in done.err


def test_what_nobody_could_run_is_refused_and_not_skipped(velodrome, runs: Path, installed: set[str]) -> None:
    done = velodrome("race", *WORDS, "--batch-size", 100_000, "--skip-unavailable", "--runs", runs)
    assert done.code == 2
    assert "--batch-size 100000" in done.err


def test_a_job_that_needs_more_memory_than_is_free_can_be_skipped(
    velodrome, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "available_memory", lambda: 2**30)
    words = ("--strategy", "ddp", "--vary", "workers=1,50", "--no-baseline", "--runs", runs, "--dry-run", "--json")
    assert velodrome("race", *words).code == 2
    told = velodrome("race", *words, "--skip-unavailable").json()
    assert [job["workers"] for job in told["jobs"]] == [1]


@pytest.mark.parametrize(("modules", "engine"), [
    ({"torch", "tensorflow"}, "torch"), ({"torch"}, "torch"), ({"tensorflow"}, "tensorflow"), (set(), "torch"),
])
def test_the_engine_is_one_that_is_installed(velodrome, installed: set[str], modules: set[str], engine: str) -> None:
    installed.clear()
    installed.update(modules)
    assert environments.default_engine() == engine
    planned = velodrome("plan", "--dataset", "digits", "--json").json()
    assert planned["run"].startswith(f"{engine}-single-")


@pytest.mark.parametrize("command", ["train", "race"])
def test_the_first_example_of_the_help_runs_with_whatever_is_installed(
    velodrome, runs: Path, installed: set[str], command: str
) -> None:
    help_text = velodrome(command, "--help").out
    first = re.search(rf"velodrome {command} (--dataset .*?)\s*│?\n", help_text)
    assert first is not None
    assert "torch" not in first[1]
    assert "tensorflow" not in first[1]
    installed.clear()
    installed.add("tensorflow")
    if command == "race":
        done = velodrome("race", *first[1].split(), "--dry-run", "--json", "--runs", runs)
        assert {job["engine"] for job in done.json()["jobs"]} == {"tensorflow"}
    assert "velodrome train --dataset digits" in velodrome("--help").out


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_a_person_at_a_terminal_is_asked_whether_the_rest_shall_run(tmp_path: Path, runs: Path) -> None:
    """PyTorch has an interpreter of its own that has no MPI."""
    python = tmp_path / "environments" / "torch" / "bin" / "python"
    python.parent.mkdir(parents=True)
    answer = {"interpreter": str(python), "python": "3.11.0", "modules": ["torch"], "folders": [], "versions": {}}
    python.write_text(f"#!/bin/sh\ncase \"$*\" in *{environments.PROBE}*) echo '{json.dumps(answer)}';; "
                      f"*) exec {sys.executable} \"$@\";; esac\n")
    python.chmod(0o755)
    command = [sys.executable, "-m", "velodrome", "race", "--epochs", "1", "--threads", "1", "--name", "rest",
               "--vary", "entry=torch/single,torch/allreduce", "--runs", str(runs), "--json"]
    environment = {**os.environ, environments.FOLDER: str(tmp_path / "environments"), "COLUMNS": "200"}

    def answered(word: str) -> tuple[int, str, str]:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            command, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
        )
        os.close(theirs)
        os.write(ours, f"{word}\n".encode())
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the other side has closed it
            pass
        out = process.stdout.read() if process.stdout else ""
        return process.wait(60), out, shown.decode(errors="replace")

    code, _, shown = answered("n")
    assert code == 2, shown
    assert "'mpi4py' is not installed" in shown
    assert "Run the other 1 of 2 jobs?" in shown
    assert not runs.exists()
    code, out, shown = answered("y")
    assert code == 0, shown
    told = json.loads(out.splitlines()[-1])
    assert [row["strategy"] for row in told["rows"]] == ["single"]
    assert list(told["skipped"]) == ["torch-allreduce-1w-128b-1"]
