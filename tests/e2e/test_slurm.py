"""Jobs on a real Slurm with two nodes: the weights of one machine, steps, interruptions, and nothing left."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file
from scene import LONG, Scene, training
from slurm_scene import MARKS, server

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
from fault_matrix import record

pytestmark = MARKS
TORCH = ("torch", "ddp")


def train(velodrome: Any, runs: Path, name: str, *words: object) -> dict[str, Any]:
    done = velodrome("train", "--runs", runs, "--name", name, "--json", *words)
    assert done.code == 0, done.text
    return done.json()


@pytest.mark.parametrize(
    ("engine", "strategy"),
    [("torch", "ddp"), ("torch", "allreduce"), ("tensorflow", "allreduce"), ("tensorflow", "multi-worker-mirrored")],
)
def test_two_nodes_train_the_weights_of_one_machine(
    velodrome: Any, runs: Path, no_strays: None, slurm: server.Slurm, on: str, engine: str, strategy: str
) -> None:
    job = ["--engine", engine, "--strategy", strategy, "--workers", 2, "--epochs", 2, "--optimizer", "sgd"]
    here = train(velodrome, runs, "here", *job)
    there = train(velodrome, runs, "there", *job, "--on", on)
    assert there["launcher"] == "slurm"
    assert there["cluster"]["nodes"] == ["n1", "n2"]
    assert there["cluster"]["job"] > 0
    assert {node["host"] for node in there["nodes"]} == {"n1", "n2"}
    addresses = {host["address"] for host in there["cluster"]["hosts"].values()}
    assert addresses == set(slurm.addresses.values())
    assert there["test"]["correct"] == here["test"]["correct"]
    if engine == "torch":
        one, other = (load_file(runs / name / "model" / "model.safetensors") for name in ("here", "there"))
        for name, value in one.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-5, atol=1e-6)


def test_each_group_of_roles_is_one_step(scene: Scene, slurm: server.Slurm, tmp_path: Path) -> None:
    words = scene.words("tensorflow", "parameter-server", "--servers", 1, *LONG, "--on",
                        f"slurm:time=20,nodes=2,shared_dir={tmp_path}", workers=1)
    controller = scene.start(*words)
    scene.until(training)
    steps = slurm.run("squeue", "--steps", "-h", "-o", "%j").split()
    assert sorted(step for step in steps if step not in ("batch", "extern")) == ["server+chief", "worker"]
    controller.send_signal(signal.SIGINT)
    output, _ = controller.communicate(timeout=60)
    assert controller.returncode == 130, output
    assert "interrupted by Ctrl-C" in output
    assert scene.result()["status"] == "interrupted"
    scene.until_gone()


def test_a_killed_command_is_replaced_by_attach_and_nothing_is_lost(
    velodrome: Any, scene: Scene, slurm: server.Slurm, on: str
) -> None:
    words = scene.words(*TORCH, "--batch-size", 8, "--epochs", 20, "--no-checkpoints", "--on", on)
    controller = scene.start(*words)
    scene.until(training)
    refused = velodrome("attach", scene.name, "--runs", scene.runs)
    assert refused.code == 2
    assert "is running" in refused.err
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    assert len(slurm.jobs()) == 1
    refused = velodrome("resume", scene.name, "--runs", scene.runs, "--on", on)
    assert refused.code == 2
    assert f"is still running as Slurm job {slurm.jobs()[0]}: `velodrome attach {scene.name}" in refused.err
    time.sleep(3)
    done = velodrome("attach", scene.name, "--runs", scene.runs, "--json")
    assert done.code == 0, done.text
    result = done.json()
    assert result["status"] == "finished"
    assert [row["epoch"] for row in result["history"]] == list(range(1, 21))
    reported = [json.dumps({**event, "received": 0}) for event in scene.events()]
    assert len(reported) == len(set(reported))
    record("slurm", "kill controller", "the job keeps running, and `velodrome attach` takes it over", 0.0, 30.0)
    again = velodrome("attach", scene.name, "--runs", scene.runs)
    assert again.code == 2
    assert "is not running any more" in again.err


def test_a_command_that_is_killed_in_the_queue_leaves_a_job_that_attach_takes_over(
    velodrome: Any, scene: Scene, slurm: server.Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {"launcher": "slurm", "nodes": 2, "time": 20, "shared_dir": str(tmp_path), "sbatch": ["--begin=now+15"]}
    (tmp_path / "clusters.yaml").write_text(yaml.safe_dump({"lab": about}))
    monkeypatch.setenv("VELODROME_CLUSTERS", str(tmp_path / "clusters.yaml"))
    controller = scene.start(*scene.words(*TORCH, "--epochs", 2, "--on", "lab"))
    deadline = time.monotonic() + 120
    while not (scene.path / "slurm.json").exists():
        assert time.monotonic() < deadline, "the job was not recorded"
        time.sleep(0.1)
    time.sleep(4)
    os.kill(controller.pid, signal.SIGKILL)
    output, _ = controller.communicate(timeout=60)
    (job,) = slurm.jobs()
    assert f"waiting for Slurm job {job}: PENDING (BeginTime)" in output
    done = velodrome("attach", scene.name, "--runs", scene.runs, "--json")
    assert done.code == 0, done.text
    assert done.json()["status"] == "finished"
    assert done.json()["cluster"]["job"] == int(job)


def test_doctor_examines_nodes_in_a_short_job(velodrome: Any, slurm: server.Slurm, on: str) -> None:
    words = ("--engine", "torch", "--strategy", "ddp", "--workers", 2)
    done = velodrome("doctor", *words, "--on", on, "--measure", "--json")
    assert done.code == 0, done.text
    found = done.json()
    assert found["findings"] == []
    assert {(pair["from"], pair["to"]) for pair in found["pairs"]} == {("n1", "n2"), ("n2", "n1")}
    broken = velodrome("doctor", *words, "--on", f"{on},python=/no/such/python", "--json")
    assert broken.code == 1, broken.text
    refused = velodrome("clusters", "check", "slurm:partition=nope")
    assert refused.code == 1
    assert "error: --on slurm: sbatch refuses the job: invalid partition specified: nope" in refused.out


def preempt(slurm: server.Slurm) -> None:
    slurm.run("sbatch", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")


def expire(slurm: server.Slurm) -> None:
    (job,) = slurm.jobs()
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=1")


@pytest.mark.parametrize(
    ("end", "words"), [(preempt, "it was pre-empted by another job"), (expire, "its time limit was reached")],
    ids=["pre-emption", "time limit"],
)
def test_nodes_that_are_taken_away_interrupt_a_run_and_resume_submits_it_again(
    velodrome: Any, scene: Scene, slurm: server.Slurm, on: str, end: Any, words: str
) -> None:
    epochs = 25 if end is preempt else 5000
    job = scene.words(*TORCH, "--batch-size", 4, "--epochs", epochs, "--on", on)
    controller = scene.start(*job)
    scene.until(lambda events: any(event["kind"] == "checkpoint" for event in events))
    end(slurm)
    output, _ = controller.communicate(timeout=240)
    assert controller.returncode == 1, output
    assert words in output
    assert "n1, n2" in output
    assert scene.result()["status"] == "interrupted"
    scene.until_gone()
    while slurm.jobs():
        time.sleep(0.2)
    if end is preempt:
        done = velodrome("resume", scene.name, "--runs", scene.runs, "--on", on, "--json")
        assert done.code == 0, done.text
        assert [row["epoch"] for row in done.json()["history"]] == list(range(1, epochs + 1))


def test_what_slurm_refuses_is_refused_before_anything_starts(velodrome: Any, runs: Path, slurm: server.Slurm) -> None:
    done = velodrome("train", "--runs", runs, "--engine", "torch", "--on", "slurm:partition=nope")
    assert done.code == 2
    assert "sbatch refuses the job: invalid partition specified: nope" in done.err
    assert not runs.exists()
