"""`--on debug` trains inside the command: the same weights, breakpoints that stop, tracebacks that show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scene import Scene, left_in

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NET = """
import os
import torch

def build(input_shape, classes, **arguments):
    print("built in", os.getpid(), flush=True)
    {line}
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(classes))
"""


def debug(scene: Scene, folder: Path, line: str, keys: str = "") -> tuple[subprocess.Popen[str], str, str]:
    (folder / "net.py").write_text(NET.format(line=line))
    words = scene.words("torch", "single", "--on", "debug", "--model", "net:build", "--epochs", 1)
    process = subprocess.Popen(
        [sys.executable, "-m", "velodrome", *words], cwd=folder, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONBREAKPOINT": ""},
    )
    out, err = process.communicate(keys, timeout=280)
    return process, out, err


def test_debug_gives_the_weights_of_local_and_neither_leaves_temporary_files(scene: Scene, tmp_path: Path) -> None:
    weights = []
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    for name in ("local", "debug"):
        scene.name = name
        process = scene.start(*scene.words("torch", "single", "--epochs", 2, "--on", name), TMPDIR=str(temporary))
        text, _ = process.communicate(timeout=280)
        assert process.returncode == 0, text
        result = scene.result()
        assert (result["status"], result["launcher"]) == ("finished", name)
        assert result["nodes"][0]["memory_bytes"]["max"] > 0
        assert result["hosts"][0]["cpu"]["own"] > 0
        weights.append((scene.path / "model" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    assert left_in(temporary) == []


def test_a_breakpoint_in_the_users_model_stops_and_no_process_is_started(scene: Scene, tmp_path: Path) -> None:
    process, out, err = debug(scene, tmp_path, "breakpoint()", "p 'answer', 6 * 7\nc\n")
    assert process.returncode == 0, err
    assert "('answer', 42)" in out
    assert f"built in {process.pid}" in out


@pytest.mark.slow
def test_an_error_shows_its_traceback_and_fails_the_run(scene: Scene, tmp_path: Path) -> None:
    process, _, err = debug(scene, tmp_path, "raise ValueError('odd')")
    assert process.returncode == 1
    assert f'File "{tmp_path}/net.py", line 7, in build' in err
    assert "velodrome: worker 0 on 127.0.0.1: ValueError: odd" in err
    assert scene.result()["error"]["cause"] == "user"


@pytest.mark.parametrize(("words", "sentence"), [
    (("--on", "debug"), "--on 'debug': it trains one process inside this command"),
    (("--on", "moon"), "--on 'moon': no such launcher; choose one of local, debug"),
])
def test_what_a_launcher_cannot_do_is_refused(velodrome, scene: Scene, words: tuple[str, str], sentence: str) -> None:
    done = velodrome(*scene.words("torch", "ddp", *words))
    assert done.code == 2
    assert sentence in done.err
    assert not scene.path.exists()
    raced = velodrome("race", "--vary", "strategy=ddp", "--vary", "workers=2", *words, "--runs", scene.runs)
    assert raced.code == 2
    assert sentence in raced.err
