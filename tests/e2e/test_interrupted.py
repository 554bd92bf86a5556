"""The controller itself is interrupted or killed: nothing runs on, and what became of the run can be seen."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scene import LONG, Scene, running, training

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture
def sleeper(tmp_path: Path) -> str:
    """A program under a name that nobody else's process has."""
    path = tmp_path / f"nap{os.getpid()}"
    shutil.copy("/bin/sleep", path)
    return str(path)


def check_gone_soon(pids: list[int], program: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) or running(program):
        assert time.monotonic() < deadline, f"still there: {left or program}"
        time.sleep(0.1)


def test_after_a_kill_of_the_controller_nothing_runs_and_the_next_command_tells(
    velodrome, scene: Scene, sleeper: str
) -> None:
    """Also what the user's model has started, in a session of its own, is gone."""
    model = ("--model", "faulty_nets:build", "--model-arg", "pause=0.01", "--model-arg", f"child={sleeper}")
    controller = scene.start(*scene.words("torch", "ddp", *model, *LONG))
    scene.until(training)
    assert running(sleeper)
    pids = [scene.pid("worker", 0), scene.pid("worker", 1)]
    assert "running" in velodrome("runs", "list", "--runs", scene.runs).out
    controller.kill()
    check_gone_soon(pids, sleeper)
    listed = velodrome("runs", "list", "--runs", scene.runs, "--json")
    assert [(row["run"], row["status"]) for row in listed.json()] == [("a", "interrupted")]
    assert "interrupted" in velodrome("runs", "show", "a", "--runs", scene.runs).out
    following = velodrome("train", "--runs", scene.runs, "--name", "a")
    assert following.code == 2
    assert f"run a was interrupted: `velodrome resume a --runs {scene.runs}` resumes it" in following.err


@pytest.mark.parametrize(
    ("signals", "code", "sentence"),
    [
        pytest.param([signal.SIGINT] * 200, 130, "interrupted by Ctrl-C", id="ctrl-c-held-down"),
        pytest.param([signal.SIGINT], 130, "interrupted by Ctrl-C", id="ctrl-c", marks=pytest.mark.slow),
        pytest.param([signal.SIGTERM], 143, "ended by SIGTERM", id="sigterm", marks=pytest.mark.slow),
        pytest.param([signal.SIGHUP], 129, "ended by SIGHUP", id="sighup", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_ends_everything_and_says_so(
    scene: Scene, signals: list[signal.Signals], code: int, sentence: str
) -> None:
    controller = scene.start(*scene.words("torch", "ddp", *LONG))
    scene.until(training)
    for number in signals:
        controller.send_signal(number)
        time.sleep(0.02)
    text, _ = controller.communicate(timeout=280)
    assert controller.returncode == code, text
    assert f"velodrome: {sentence}; nothing is left running" in text
    assert f"`velodrome resume a --runs {scene.runs}` continues this run" in text
    assert "Traceback" not in text
    result = scene.result()
    assert result["status"] == "interrupted"
    assert result["error"]["message"] == sentence


def test_ctrl_c_before_anything_has_started_ends_at_once(scene: Scene) -> None:
    controller = scene.start(*scene.words("torch", "ddp", *LONG))
    scene.until(lambda events: (scene.path / "job.yaml").exists())
    controller.send_signal(signal.SIGINT)
    text, _ = controller.communicate(timeout=280)
    assert controller.returncode == 130, text
    assert "Traceback" not in text


#: Ctrl-C in the middle of `exec` of a string, as dataclasses use it while modules are imported.
INTERRUPTED_IN_EXEC = """
import velodrome.cli.main as main

def app(*words, **options):
    try:
        exec("import signal; signal.raise_signal(signal.SIGINT)")
    except KeyboardInterrupt:
        raise SystemExit(130) from None

main.app = app
main.main([])
"""


def test_ctrl_c_has_its_exit_code_wherever_it_interrupts_python(tmp_path: Path) -> None:
    (tmp_path / "interrupted_in_exec.py").write_text(INTERRUPTED_IN_EXEC)
    done = subprocess.run(
        [sys.executable, "-m", "interrupted_in_exec"], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == "velodrome: interrupted by Ctrl-C; nothing is left running\n"


def test_what_a_model_forked_ends_with_its_job_in_a_race_of_warm_processes(scene: Scene, tmp_path: Path) -> None:
    model = ("--model", "faulty_nets:build", "--model-arg", f"fork={tmp_path / 'forked'}")
    job = ("--vary", "entry=torch/single", "--epochs", 1, "--steps", 2)
    controller = scene.start("race", *job, *model, "--runs", scene.runs, "--name", "r")
    text, _ = controller.communicate(timeout=280)
    assert controller.returncode == 0, text
    forked = [int(line) for line in (tmp_path / "forked").read_text().split()]
    # Each attempt forks twice, and a run that other programs disturbed is repeated.
    assert forked
    assert len(forked) % 2 == 0
    check_gone_soon(forked, "nothing-else")


@pytest.mark.quick("killed")
@pytest.mark.parametrize(
    ("signals", "code"),
    [
        pytest.param([signal.SIGKILL], -signal.SIGKILL, id="killed"),
        pytest.param([signal.SIGINT] * 2, 130, id="ctrl-c-twice"),
        pytest.param([signal.SIGTERM], 143, id="sigterm", marks=pytest.mark.slow),
    ],
)
def test_a_race_whose_controller_is_ended_leaves_nothing_of_its_warm_processes(
    velodrome, scene: Scene, sleeper: str, signals: list[signal.Signals], code: int
) -> None:
    model = ("--model", "faulty_nets:build", "--model-arg", "pause=0.01", "--model-arg", f"child={sleeper}")
    entry = ("--vary", "entry=torch/ddp", "--vary", "workers=2", "--no-baseline")
    controller = scene.start("race", *entry, *model, *LONG, "--runs", scene.runs, "--name", "r")
    scene.until(lambda _: any((scene.runs / "r").glob("*/events.jsonl")))
    of_race = Scene(scene.runs / "r", next((scene.runs / "r").glob("*/events.jsonl")).parent.name, scene.started)
    of_race.until(training)
    pids = [of_race.pid("worker", 0), of_race.pid("worker", 1)]
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in pids}
    assert running(sleeper)
    for number in signals:
        controller.send_signal(number)
        time.sleep(0.1)
    text, _ = controller.communicate(timeout=280)
    assert controller.returncode == code, text
    assert "Traceback" not in text
    killed = code == -signal.SIGKILL
    assert ("velodrome: 0 of 1 jobs are done; the same command runs the other 1" in text) is not killed
    check_gone_soon([*pids, *parents], sleeper)
    listed = velodrome("runs", "list", "--runs", scene.runs / "r", "--json")
    assert [row["status"] for row in listed.json()] == ["interrupted"]
