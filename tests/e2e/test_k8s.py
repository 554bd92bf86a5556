"""Jobs on a real Kubernetes with two nodes: the weights of one machine, interruptions, and nothing left."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from k8s_scene import MARKS, NAME, Kube
from safetensors.numpy import load_file
from scene import Scene, training

from velodrome.clusters import environments

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import mxnet_environment

pytestmark = MARKS
TORCH = ("torch", "ddp")


def train(velodrome: Any, runs: Path, name: str, *words: object) -> dict[str, Any]:
    done = velodrome("train", "--runs", runs, "--name", name, "--json", *words)
    assert done.code == 0, done.text
    found: dict[str, Any] = done.json()
    return found


def test_two_pods_train_the_weights_of_one_machine(velodrome: Any, runs: Path, no_strays: None, kube: Kube) -> None:
    job = ["--engine", "torch", "--strategy", "ddp", "--workers", 2, "--epochs", 2, "--optimizer", "sgd"]
    here = train(velodrome, runs, "here", *job)
    there = train(velodrome, runs, "there", *job, "--on", NAME)
    assert there["launcher"] == "k8s"
    assert set(there["cluster"]["nodes"].values()) == {"n1", "n2"}
    name = there["cluster"]["pods"]
    assert [host["address"] for host in there["cluster"]["hosts"].values()] == [f"worker-0.{name}", f"worker-1.{name}"]
    assert there["test"]["correct"] == here["test"]["correct"]
    one, other = (load_file(runs / run / "model" / "model.safetensors") for run in ("here", "there"))
    for key, value in one.items():
        np.testing.assert_allclose(other[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(bool(mxnet_environment.unavailable()), reason=mxnet_environment.unavailable() or "available")
def test_the_servers_of_mxnet_are_pods_too(
    velodrome: Any, runs: Path, no_strays: None, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(mxnet_environment.HOME))
    mxnet_environment.prepare()
    job = ["--engine", "mxnet", "--strategy", "kvstore", "--workers", 2, "--servers", 1, "--epochs", 2, "--optimizer",
           "sgd"]
    here = train(velodrome, runs, "here", *job)
    there = train(velodrome, runs, "there", *job, "--on", NAME)
    assert {"worker-0", "worker-1", "server-0"} < set(there["cluster"]["nodes"])
    assert there["test"]["correct"] == here["test"]["correct"]


def test_manifests_that_are_applied_by_hand_train_without_a_command(
    velodrome: Any, runs: Path, no_strays: None, kube: Kube
) -> None:
    job = ["--engine", "torch", "--strategy", "ddp", "--workers", 2, "--epochs", 2, "--optimizer", "sgd"]
    here = train(velodrome, runs, "here", *job)
    planned = velodrome("plan", *job, "--name", "alone", "--format", "k8s", "--on", NAME, "--json")
    assert planned.code == 0, planned.text
    made = list(yaml.safe_load_all(planned.json()["file"]))
    secrets = f"api/v1/namespaces/{kube.api.namespace}/secrets"
    try:
        for manifest in made:
            if manifest["kind"] == "Secret":
                kube.api.request("POST", secrets, manifest)
            else:
                kube.api.create(manifest)
        pods = ended(kube, "velodrome/run=velodrome-alone")
        logs = {name: kube.api.log(pod["metadata"]["name"], 50) for name, pod in pods.items()}
        assert {name: pod["status"]["phase"] for name, pod in pods.items()} == {
            "worker-0": "Succeeded", "worker-1": "Succeeded"}, logs
        counted = f"({here['test']['correct']} of {here['test']['total']})"
        assert re.search(rf"worker 0: test accuracy 0\.\d+ {re.escape(counted)}", logs["worker-0"]), logs
        assert "the result is in /velodrome/runs/alone/result.json" in logs["worker-0"]
    finally:
        for manifest in made:
            if manifest["kind"] == "Secret":
                kube.api.request("DELETE", f"{secrets}/{manifest['metadata']['name']}")
            else:
                kube.api.delete(manifest["kind"], manifest["metadata"]["name"])


def ended(kube: Kube, selector: str) -> dict[str, dict[str, Any]]:
    """The pods that carry a label, by the names of their processes, when none of them runs any more."""
    deadline = time.monotonic() + 180
    while True:
        found = {pod["metadata"]["labels"]["velodrome/pod"]: pod for pod in kube.api.list("Pod", selector)}
        if len(found) == 2 and all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in found.values()):
            return found
        assert time.monotonic() < deadline, {name: pod["status"] for name, pod in found.items()}
        time.sleep(0.5)


def test_ctrl_c_leaves_nothing(scene: Scene, kube: Kube) -> None:
    controller = scene.start(*scene.words(*TORCH, "--batch-size", 8, "--epochs", 5000, "--on", NAME))
    scene.until(training)
    assert sorted(kube.pods()) == ["worker-0", "worker-1"]
    controller.send_signal(signal.SIGINT)
    output, _ = controller.communicate(timeout=90)
    assert controller.returncode == 130, output
    assert kube.left() == [], "the command waits until everything has ended"


def test_a_killed_command_is_replaced_by_attach_and_nothing_is_lost(velodrome: Any, scene: Scene, kube: Kube) -> None:
    controller = scene.start(*scene.words(*TORCH, "--batch-size", 8, "--epochs", 20, "--no-checkpoints", "--on", NAME))
    scene.until(training)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    refused = velodrome("resume", scene.name, "--runs", scene.runs, "--on", NAME)
    assert refused.code == 2
    assert "is still running as pods 'velodrome-" in refused.err
    time.sleep(3)
    done = velodrome("attach", scene.name, "--runs", scene.runs, "--json")
    assert done.code == 0, done.text
    result = done.json()
    assert result["status"] == "finished"
    assert [row["epoch"] for row in result["history"]] == list(range(1, 21))
    reported = [json.dumps({**event, "received": 0}) for event in scene.events()]
    assert len(reported) == len(set(reported))
    again = velodrome("attach", scene.name, "--runs", scene.runs)
    assert again.code == 2
    assert "are not running any more" in again.err


def test_pods_whose_command_was_killed_end_themselves_and_kubernetes_removes_them(scene: Scene, kube: Kube) -> None:
    kube.define(lifeline=10, keep=1)
    controller = scene.start(*scene.words(*TORCH, "--batch-size", 8, "--epochs", 5000, "--on", NAME))
    scene.until(training)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    deadline = time.monotonic() + 90
    while left := kube.left():
        assert time.monotonic() < deadline, left
        time.sleep(0.5)


def test_doctor_examines_the_cluster_and_its_pods(velodrome: Any, kube: Kube) -> None:
    words = ("--engine", "torch", "--strategy", "ddp", "--workers", 2)
    done = velodrome("doctor", *words, "--on", NAME, "--json")
    assert done.code == 0, done.text
    found = done.json()
    assert [finding["message"] for finding in found["findings"] if finding["level"] != "ok"] == []
    assert any("the API server is Kubernetes" in finding["message"] for finding in found["findings"])


def test_clean_removes_finished_runs_and_nothing_else(velodrome: Any, scene: Scene, kube: Kube) -> None:
    kube.define(lifeline=25, keep=600)
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "not-ours"}, "data": {}}
    kube.api.create(other)
    controller = scene.start(*scene.words(*TORCH, "--batch-size", 8, "--epochs", 5000, "--on", NAME))
    scene.until(training)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    running = velodrome("clusters", "clean", NAME, "--json").json()["removed"]
    assert running == [], "its pods may still be taken over"
    deadline = time.monotonic() + 60
    while any(pod["status"]["phase"] == "Running" for pod in kube.pods().values()):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    (removed,) = velodrome("clusters", "clean", NAME, "--json").json()["removed"]
    assert removed.startswith("velodrome-")
    assert "in namespace default" in removed
    assert "not-ours" in [item["metadata"]["name"] for item in kube.api.list("ConfigMap")]
    kube.api.delete("ConfigMap", "not-ours")
