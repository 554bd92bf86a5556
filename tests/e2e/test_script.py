"""A script of the user's own as a run: measured, read, blamed and cleaned up like any other."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from scene import HERE, Scene, running, training

from velodrome.api import runs as api

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def words(scene: Scene, fault: str, *more: object, workers: int = 2) -> list[str]:
    found = ["train", "--script", "faulty_script.py", "--script-args", fault, "--engine", "torch", "--workers", workers,
             "--runs", scene.runs, "--name", scene.name, *more]
    return [str(word) for word in found]


def test_a_script_runs_as_python_would_run_it_and_its_reports_are_the_result(velodrome, scene: Scene) -> None:
    done = velodrome(*words(scene, "fine 'two words'", "--seed", 7))
    assert done.code == 0, done.text
    about, *log = (scene.path / "logs" / "worker-1.log").read_text().splitlines()
    assert json.loads(about) == {
        "argv": ["faulty_script.py", "fine", "two words"], "name": "__main__", "path": str(HERE), "cwd": str(HERE),
        "file": str(HERE / "faulty_script.py"), "seed": "7", "main": True}
    assert log == ["thread ended", "exit handler ran"]
    result = scene.result()
    assert (result["task"], result["script"], result["strategy"]) == ("script", "faulty_script.py", "script")
    assert [(row["train_loss"], row["validation_accuracy"], row["validation_f1"]) for row in result["history"]] == [
        (1.0, 0.5, 0.25), (0.5, 0.6, 0.25)]
    assert (result["test"], result["steps"], result["not_reported"]) == ({"accuracy": 0.75, "total": 200}, 8, [])
    assert not {"batch_size", "batch_of_step", "optimizer", "learning_rate"} & result.keys(), "nobody knows these"
    assert "test accuracy" in done.out
    assert "(200 examples)" in done.out
    # The examples of all ranks add up, without the first two of eight reports.
    paces = [event["pace"] for event in scene.events() if event["kind"] == "pace"]
    assert sum(pace["examples"] - pace["warmup"]["examples"] for pace in paces) == 6 * (10 + 20)
    slowest = max(pace["seconds"] for pace in paces) - max(pace["warmup"]["seconds"] for pace in paces)
    assert result["throughput"]["examples_per_second"] == pytest.approx(180 / slowest, rel=1e-3)
    assert all(node["cpu_percent"]["mean"] is not None and node["phases"]["script"] > 0 for node in result["nodes"])
    checked = api.check(scene.name, runs=scene.runs)
    assert checked["ok"], checked
    again = velodrome("runs", "show", scene.name, "--runs", scene.runs)
    assert again.code == 0, again.text


def test_what_a_script_does_not_report_is_unknown_and_stated(velodrome, scene: Scene) -> None:
    done = velodrome(*words(scene, "silent", workers=1))
    assert done.code == 0, done.text
    result = scene.result()
    assert (result["test"], result["history"], result["steps"]) == (None, [], None)
    assert result["seconds"]["train"] is None
    assert result["throughput"]["examples_per_second"] is None
    assert [sentence.partition(":")[0] for sentence in result["not_reported"]] == [
        "training", "examples", "steps", "figures of a test set"]
    assert "examples: throughput is unknown" in done.out
    assert api.check(scene.name, runs=scene.runs)["ok"]


def test_figures_are_read_from_what_a_script_prints(velodrome, scene: Scene) -> None:
    patterns = [
        r"epoch (?P<epoch>\d+) loss: (?P<loss>[0-9.]+)", r"acc: (?P<val_accuracy_percent>\d+)%", r"(?P<x>(a+)+)$",
    ]
    done = velodrome(*words(scene, "prints", *(word for one in patterns for word in ("--read", one))))
    assert done.code == 0, done.text
    history = scene.result()["history"]
    assert [(row["train_loss"], row["validation_accuracy"]) for row in history] == [
        (1.0, 0.5), (0.5, 0.51), (0.333, 0.52)]
    assert "--read '(?P<x>(a+)+)$' is not used any more" in done.err, "it would take longer than the universe exists"
    assert (scene.path / "logs" / "worker-0.log").read_text().count("epoch") == 3


@pytest.mark.parametrize(
    ("fault", "sentence", "traceback"),
    [
        pytest.param("raise", "worker 1 on 127.0.0.1: ValueError: the user's own mistake", True, id="raises"),
        pytest.param("late", "worker 1 on 127.0.0.1: ValueError: after rank 0 had ended", True, id="after-rank-0"),
        pytest.param("exit", "worker 1 on 127.0.0.1: faulty_script.py ended with exit code 3: the data is missing",
                     False, id="exit-code"),
    ],
)
def test_an_error_of_the_script_is_the_users_with_its_traceback(
    velodrome, scene: Scene, fault: str, sentence: str, traceback: bool
) -> None:
    done = velodrome(*words(scene, fault))
    assert done.code == 1, done.text
    assert f"velodrome: {sentence}" in done.err
    assert done.err.count("Traceback (most recent call last)") == traceback
    error = scene.result()["error"]
    assert (error["cause"], error["rank"]) == ("user", 1)
    assert ("faulty_script.py" in error.get("traceback", "")) == traceback


def test_a_script_that_leaves_at_once_without_an_error_has_finished(velodrome, scene: Scene) -> None:
    done = velodrome(*words(scene, "leave"))
    assert done.code == 0, done.text
    assert scene.result()["steps"] == 4


def test_a_rank_that_sleeps_for_ever_is_named_with_its_line(velodrome, scene: Scene) -> None:
    done = velodrome(*words(scene, "sleep", "--stall-timeout", 4))
    assert done.code == 1, done.text
    assert "velodrome: worker 1 on 127.0.0.1 made no progress for 4 s (--stall-timeout)" in done.err
    assert "faulty_script.py" in scene.result()["error"]["stack"]


HANGING = """
import time
import torch
import torch.distributed as dist
import velodrome

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    velodrome.log(step=1, loss=1.0)  # only the first rank reports, as in most scripts

def hold_up():
    time.sleep(10_000)

if dist.get_rank() == {hanging}:
    hold_up()
dist.all_reduce(torch.ones(4))
"""


@pytest.mark.quick("1")
@pytest.mark.parametrize("hanging", [1, 0])
def test_the_rank_that_others_wait_for_in_a_collective_is_named_with_its_stack_first(
    velodrome, scene: Scene, tmp_path: Path, no_strays: None, hanging: int
) -> None:
    script = tmp_path / "hanging.py"
    script.write_text(HANGING.replace("{hanging}", str(hanging)))
    done = velodrome("train", "--script", script, "--engine", "torch", "--workers", 2, "--runs", scene.runs, "--name",
                     scene.name, "--stall-timeout", 5)
    assert done.code == 1, done.text
    assert (f"velodrome: worker {hanging} on 127.0.0.1 made no progress for 5 s (--stall-timeout), and worker "
            f"{1 - hanging} waits for it") in done.err
    error = scene.result()["error"]
    first, _, second = error["stack"].partition(f"worker {1 - hanging} waits for it:")
    assert error["rank"] == hanging
    assert "hold_up" in first
    assert "all_reduce" in second
    assert "hold_up" not in second


def test_ctrl_c_ends_a_script_and_all_that_it_started(scene: Scene, tmp_path: Path) -> None:
    sleeper = str(tmp_path / f"nap{os.getpid()}")
    shutil.copy("/bin/sleep", sleeper)
    controller = scene.start(*words(scene, f"last {sleeper}"))
    scene.until(training)
    assert running(sleeper)
    controller.send_signal(signal.SIGINT)
    controller.communicate(timeout=280)
    assert controller.returncode == 130
    scene.until_gone()
    assert not running(sleeper)
    assert scene.result()["status"] == "interrupted"


def test_a_race_of_arguments_is_compared_by_time_where_no_examples_are_reported(
    velodrome, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    race = ["race", "--script", "faulty_script.py", "--vary", "script_args=silent,silent twice", "--runs", scene.runs,
            "--name", "r", "--engine", "torch"]
    done = velodrome(*race)
    assert done.code == 0, done.text
    assert sorted(path.name for path in (scene.runs / "r").iterdir() if path.is_dir() and ".attempt" not in path.name) \
        == ["torch-script-1w-silent-1", "torch-script-1w-silent-twice-1"]
    assert "Not reported by the script: training" in done.out
    judged = velodrome("recommend", "r", "--runs", scene.runs, "--json").json()
    assert "s in total" in judged["why"]
    assert "torch/script with 1 worker, arguments silent" in (judged["best"], judged["rival"])
    assert "No run reported examples, so the time of whole runs decides." in judged["caveats"]
    written = velodrome("report", "r", "--runs", scene.runs)
    assert written.code == 0, written.text
    page = (scene.runs / "r" / "report.html").read_text()
    assert "Not reported by the script" in page


IMPORTING = """
import os
import time
import velodrome
rank = int(os.environ["RANK"])
import slow_{rank}  # imports take 1.5 s in rank 0 and nothing in rank 1
for epoch in range(2):
    for step in range(3):
        time.sleep(0.1)
        if rank == 1:
            velodrome.log(step=step + 1, epoch=epoch)
    if rank == 0:
        velodrome.log(epoch=epoch, loss=1.0, val_acc=50.0 + epoch)
"""


def test_the_parts_of_the_time_of_two_ranks_that_report_at_different_moments_add_up(
    velodrome, scene: Scene, tmp_path: Path
) -> None:
    for rank, seconds in enumerate((1.5, 0.0)):
        (tmp_path / f"slow_{rank}.py").write_text(f"import time\ntime.sleep({seconds})\n")
    script = tmp_path / "importing.py"
    script.write_text(IMPORTING.replace("import slow_{rank}", "if rank: import slow_1\nelse: import slow_0"))
    done = velodrome("train", "--script", script, "--engine", "torch", "--workers", 2, "--runs", scene.runs, "--name",
                     scene.name)
    assert done.code == 0, done.text
    result = scene.result()
    seconds = result["seconds"]
    assert seconds["startup"] + seconds["train"] + seconds["evaluate"] <= seconds["total"] + 1e-3
    assert seconds["startup"] >= 1.5, "imports are start-up"
    assert seconds["train"] >= 0.6, "the first epoch began when the imports were over"
    assert [row["validation_accuracy"] for row in result["history"]] == [0.5, 0.51]
    assert result["test"] == {"accuracy": 0.51}
    assert "'val_acc' is read as validation accuracy in per cent" in done.err
    assert api.check(scene.name, runs=scene.runs)["ok"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        pytest.param(["--script", "absent.py"], "--script 'absent.py' is not a file in", id="absent"),
        pytest.param(["--script", "."], "--script '.' is a folder", id="folder"),
        pytest.param(["--script", "faulty_script.py", "--epochs", "9"], "--epochs: a script decides that", id="field"),
    ],
)
def test_a_request_that_cannot_run_is_refused_before_anything_starts(
    velodrome, scene: Scene, more: list[str], sentence: str
) -> None:
    done = velodrome("train", *more, "--engine", "torch", "--runs", scene.runs)
    assert done.code == 2, done.text
    assert sentence in done.err
    assert not scene.runs.exists()


def test_a_script_runs_inside_the_command_for_a_debugger(velodrome, scene: Scene) -> None:
    done = velodrome(*words(scene, "fine", "--on", "debug", workers=1))
    assert done.code == 0, done.text
    result: dict[str, Any] = scene.result()
    assert result["test"]["accuracy"] == 0.75
