"""`velodrome new` writes a file that trains as it is, with the command that is printed, and overwrites nothing."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

slow = pytest.mark.slow


@pytest.mark.unit
def test_an_existing_file_is_not_overwritten(velodrome, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    assert velodrome("new", "model", file, "--engine", "torch").code == 0
    before = file.read_text()
    done = velodrome("new", "data", file)
    assert done.code == 2
    assert "exists already, and is not overwritten" in done.err
    assert file.read_text() == before


@pytest.mark.unit
@pytest.mark.parametrize(("words", "sentence"), [
    (["net"], "no starter file for 'net': choose model, task, data, script"),
    (["model", "my-model.py"], "'my-model.py' cannot be imported"),
    (["model", "torch.py"], "would hide the module 'torch'"),
    (["model", "random.py"], "would hide the module 'random'"),
    (["model", "here/mine.py"], "'here/mine.py' cannot be written: No such file or directory"),
    (["model", "--engine", "jax"], "--engine 'jax': choose tensorflow or torch"),
])
def test_what_cannot_be_written_is_refused(
    velodrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = velodrome("new", *words)
    assert done.code == 2
    assert sentence in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.unit
@pytest.mark.parametrize("engine", ["torch", "tensorflow"])
@pytest.mark.parametrize("kind", ["model", "task", "data", "script"])
def test_the_command_is_printed_and_stands_in_the_file(velodrome, tmp_path: Path, kind: str, engine: str) -> None:
    written = velodrome("new", kind, tmp_path / "of_mine.py", "--engine", engine, "--json").json()
    text = (tmp_path / "of_mine.py").read_text()
    command = written["command"].partition(" && ")[2]
    assert written["command"].startswith(f"cd {tmp_path} && velodrome train ")
    assert "of_mine" in command
    assert command in text
    assert not [word for word in ("COMMAND", "MODULE", "FILE") if word in text]
    compile(text, "of_mine.py", "exec")


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "engine"), [
    ("model", "torch"), ("task", "torch"), pytest.param("data", "torch", marks=slow),
    pytest.param("script", "torch", marks=slow), pytest.param("model", "tensorflow", marks=slow),
    pytest.param("task", "tensorflow", marks=slow), pytest.param("script", "tensorflow", marks=slow),
])
def test_a_starter_file_trains_as_it_is(
    velodrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, engine: str
) -> None:
    pytest.importorskip(engine)
    monkeypatch.chdir(tmp_path)
    done = velodrome("new", kind, f"my_{kind}_{engine}.py", "--engine", engine)
    assert done.code == 0, done.text
    command = shlex.split(done.out.strip().splitlines()[-1])
    assert command[:2] == ["velodrome", "train"]
    trained = velodrome(*command[1:], "--json")
    assert trained.code == 0, trained.text
    result = trained.json()
    assert result["status"] == "finished"
    if kind == "script":
        assert result["test"]["accuracy"] > 0.6
    else:
        assert result["history"][-1]["train_loss"] < result["history"][0]["train_loss"]
