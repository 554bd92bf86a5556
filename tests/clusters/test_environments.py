"""The interpreter that trains is asked what it has, and a broken one is one clear sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from velodrome.catalog.base import Engine, Need, Probe, Strategy
from velodrome.catalog.exchange import NONE
from velodrome.catalog.registry import engine
from velodrome.clusters import environments, preflight
from velodrome.errors import BadRequest
from velodrome.job.job import Job

SINGLE = Strategy("single", "alone", consistency=NONE)
SUMMED = Strategy("allreduce", "summed", needs=(Need("mpi4py", "pip install b"),))
ENGINE = Engine("odd", "odd", (SINGLE, SUMMED), worker="", memory_bytes=0, needs=(Need("oddnet", "pip install a"),))


@pytest.fixture
def own_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter of torch's own, to be written by the test."""
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    python = tmp_path / "torch" / "bin" / "python"
    python.parent.mkdir(parents=True)
    return python


def write(python: Path, script: str) -> None:
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("modules", "strategy", "missing"),
    [
        pytest.param({"oddnet"}, SINGLE, [], id="has all"),
        pytest.param({"oddnet"}, SUMMED, ["Python module 'mpi4py' is not installed: pip install b"], id="no transport"),
        pytest.param({"mpi4py"}, SUMMED, ["Python module 'oddnet' is not installed: pip install a"], id="no framework"),
    ],
)
def test_what_is_missing_follows_from_the_probe(modules: set[str], strategy: Strategy, missing: list[str]) -> None:
    assert ENGINE.missing(strategy, Probe("/python", "3.11.7", frozenset(modules), {})) == missing


@pytest.mark.unit
def test_an_engine_trains_in_the_controllers_interpreter_by_default_and_in_its_own_if_it_has_one(
    own_interpreter: Path,
) -> None:
    assert environments.interpreter_of("torch") == Path(sys.executable)
    write(own_interpreter, "exit 0")
    assert environments.interpreter_of("torch") == own_interpreter
    assert environments.interpreter_of("tensorflow") == Path(sys.executable)


@pytest.mark.integration
def test_the_interpreter_answers_with_what_it_has() -> None:
    found = environments.probe(Path(sys.executable))
    assert found.interpreter == sys.executable
    assert found.python == sys.version.split()[0]
    assert environments.has_module(Path(sys.executable), "numpy")
    assert not environments.has_module(Path(sys.executable), "no_such_module")


@pytest.mark.integration
def test_a_folder_with_the_name_of_a_framework_is_not_that_framework_but_may_hold_the_users_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mxnet").mkdir()
    monkeypatch.chdir(tmp_path)
    environments.forget()
    assert "mxnet" not in environments.probe(Path(sys.executable)).modules
    assert environments.has_module(Path(sys.executable), "mxnet")
    environments.forget()


@pytest.mark.integration
def test_the_probe_imports_nothing_but_the_standard_library() -> None:
    script = (
        "import sys\nbefore = set(sys.modules)\n"
        "from velodrome.training import probe\nprobe.reply(['--module=numpy', '--package=numpy'])\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "print(sorted(names))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout.strip() == "['velodrome']"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        pytest.param("echo No module named velodrome >&2; exit 1", "cannot train: No module", id="bare"),
        pytest.param("exit 3", "cannot train: it ended with code 3", id="silent"),
        pytest.param("echo hello", "cannot train: it ended with code 0", id="garbage"),
        pytest.param("exec sleep 60", "did not answer within 0.5 s", id="hangs"),
        pytest.param(None, "cannot be started: Permission denied", id="not a program"),
    ],
)
def test_a_broken_interpreter_is_one_sentence_in_the_listing_and_in_the_refusal(
    own_interpreter: Path, script: str | None, reason: str, monkeypatch: pytest.MonkeyPatch, velodrome,
) -> None:
    monkeypatch.setattr(environments, "PROBE_SECONDS", 0.5)
    if script is None:
        own_interpreter.touch(0o644)
    else:
        write(own_interpreter, script)
    with pytest.raises(BadRequest, match=reason) as refusal:
        preflight.check_here(Job(engine="torch", strategy="single"))
    assert str(own_interpreter) in str(refusal.value)
    monkeypatch.setattr(environments, "PROBE_SECONDS", 30.0)  # known to be broken, it is not asked again
    listed = {engine["name"]: engine for engine in velodrome("engines", "--json").json()}
    assert reason in listed["torch"]["strategies"][0]["missing"][0]
    assert listed["torch"]["interpreter"] == str(own_interpreter)
    assert listed["torch"]["versions"] == {}


@pytest.mark.integration
def test_another_interpreter_is_asked_instead_of_the_controllers_own_modules(own_interpreter: Path, velodrome) -> None:
    answer = {
        "interpreter": "/elsewhere", "python": "3.11.0", "modules": ["torch"], "folders": [],
        "versions": {"torch": "1.0"},
    }
    write(own_interpreter, f"echo '{json.dumps(answer)}'")
    torch = engine("torch")
    assert environments.missing(torch, torch.strategies[0]) == []
    listed = {engine["name"]: engine for engine in velodrome("engines", "--json").json()}["torch"]
    assert listed["versions"] == {"torch": "1.0"}
    assert "mpi4py" in next(s for s in listed["strategies"] if s["name"] == "allreduce")["missing"][0]
    assert "torch 1.0" in velodrome("engines").out
