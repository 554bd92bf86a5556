"""The column of Kubernetes in the fault matrix: every fault is caused on a real cluster of two nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fault_scene import JOB, ended_as, other_numpy, sentence_of
from k8s_scene import MARKS, NAME, Kube
from scene import LONG, Scene, training

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
from fault_matrix import record

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import wrong_clock

pytestmark = MARKS
#: What a busy machine may take in addition to a limit.
SLACK, STALL = 40.0, 30.0
TORCH = ("torch", "ddp", *LONG, "--stall-timeout", STALL, "--on", NAME)
SERVERS = ("tensorflow", "parameter-server", "--servers", 1, *LONG, "--stall-timeout", STALL, "--on", NAME)
#: How long a pod of the tests may be silent, and Kubernetes waits for a node that does not answer.
SILENCE, NODE = 15.0, 20.0


def fails(
    velodrome: Any, scene: Scene, fault: str, words: list[str], break_it: Callable[[], object], limit: float,
    *parts: str,
) -> None:
    broke: list[float] = []

    def act() -> None:
        broke.append(time.time())
        break_it()

    scene.when_training(act)
    done = velodrome(*words)
    assert done.code == 1, done.text
    ended_as("k8s", fault, without_names(sentence_of(done.err)), scene.result()["ended"] - broke[0], limit, *parts)


def without_names(sentence: str) -> str:
    return re.sub(r"velodrome-[0-9a-f]{10}", "velodrome-…", sentence)


@pytest.mark.parametrize(
    ("fault", "number", "words", "limit"),
    [("kill worker", signal.SIGKILL, "worker 1 on worker-1 was ended by SIGKILL", SLACK),
     ("pause", signal.SIGSTOP, f"worker 1 on worker-1 made no progress for {STALL:g} s", STALL + SLACK)],
)
def test_a_worker_that_is_killed_or_suspended(
    velodrome: Any, scene: Scene, kube: Kube, fault: str, number: signal.Signals, words: str, limit: float
) -> None:
    fails(velodrome, scene, fault, scene.words(*TORCH), kube.send(number, scene.name, "worker", 1), limit, words)


@pytest.mark.parametrize("role", ["server", "chief"])
def test_a_server_or_chief_that_is_killed(velodrome: Any, scene: Scene, kube: Kube, role: str) -> None:
    kill = kube.send(signal.SIGKILL, scene.name, role, 0)
    fails(velodrome, scene, f"kill {role}", scene.words(*SERVERS, workers=1), kill, SLACK, f"{role} 0 on {role}-0",
          "SIGKILL")


def interrupted(scene: Scene, words: list[str], break_it: Callable[[], object], *parts: str) -> str:
    controller = scene.start(*words)
    scene.until(lambda events: any(event["kind"] == "checkpoint" for event in events))
    break_it()
    output, _ = controller.communicate(timeout=120)
    assert controller.returncode == 1, output
    assert scene.result()["status"] == "interrupted"
    sentence = sentence_of(output)
    for part in parts:
        assert part in sentence
    return sentence


def test_a_pod_that_is_deleted_interrupts_the_run_and_resume_continues(
    velodrome: Any, scene: Scene, kube: Kube
) -> None:
    words = scene.words("torch", "ddp", "--batch-size", 4, "--epochs", 25, "--on", NAME)
    interrupted(scene, words, lambda: kube.delete_pod("worker-1"),
                "pod 'worker-1': it was deleted, by a person, or because its node is drained")
    done = velodrome("resume", scene.name, "--runs", scene.runs, "--on", NAME, "--json")
    assert done.code == 0, done.text
    assert [row["epoch"] for row in done.json()["history"]] == list(range(1, 26))


def test_an_eviction_interrupts_the_run(scene: Scene, kube: Kube) -> None:
    """Through the API, as a drain does it."""
    def evict() -> None:
        name = kube.pods()["worker-1"]["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction",
                    "metadata": {"name": name, "namespace": "default"}}
        kube.api.request("POST", f"{kube.api.path('Pod')}/{name}/eviction", eviction)

    words = scene.words("torch", "ddp", "--batch-size", 4, "--epochs", 5000, "--on", NAME)
    interrupted(scene, words, evict, "pod 'worker-1': it was")


def test_a_pod_that_uses_more_memory_than_its_limit(velodrome: Any, scene: Scene, kube: Kube) -> None:
    kube.define(memory="200Mi")
    done = velodrome(*scene.words(*TORCH))
    assert done.code == 1, done.text
    assert "used more memory than its limit of 200Mi (OOMKilled)" in sentence_of(done.err)


def test_an_image_that_does_not_exist(velodrome: Any, scene: Scene, kube: Kube) -> None:
    kube.define(image="localhost:9/nothing:1", pull_policy="IfNotPresent", start_timeout=60)
    began = time.monotonic()
    done = velodrome(*scene.words(*TORCH))
    assert done.code == 1, done.text
    sentence = sentence_of(done.err)
    assert "cannot get its image 'localhost:9/nothing:1'" in sentence
    assert "ImagePull" in sentence
    assert "connection refused" in sentence
    assert time.monotonic() - began < 90
    assert kube.left() == []


def test_more_than_the_nodes_have(velodrome: Any, scene: Scene, kube: Kube) -> None:
    kube.define(cpu="64", start_timeout=5)
    done = velodrome(*scene.words(*TORCH))
    assert done.code == 1, done.text
    sentence = sentence_of(done.err)
    assert "not all pods ran within 5 s, so none was used: pods 'worker-0', 'worker-1': no node can take it" in sentence
    assert "2 Insufficient cpu" in sentence


def test_a_quota_that_leaves_no_room(velodrome: Any, scene: Scene, kube: Kube) -> None:
    kube.api.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"},
                     "spec": {"hard": {"pods": "1"}}})
    try:
        deadline = time.monotonic() + 20
        while not (kube.api.list("ResourceQuota")[0].get("status") or {}).get("hard"):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        kube.define(start_timeout=15)
        done = velodrome(*scene.words(*TORCH))
        assert done.code == 1, done.text
        assert "the quota 'small' of its namespace leaves no room: it needs pods=1; of pods=1, pods=1 is in use" in (
            sentence_of(done.err))
        doctor = velodrome("doctor", "--engine", "torch", "--strategy", "ddp", "--workers", 2, "--on", NAME)
        assert doctor.code == 1
        assert "the quota 'small' of namespace 'default' leaves no room for 2 pods: of pods 1" in doctor.out
    finally:
        kube.api.delete("ResourceQuota", "small")


def test_a_person_without_permissions_is_told_which_role_is_missing(
    velodrome: Any, scene: Scene, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kube.running.user_kubeconfig))
    done = velodrome(*scene.words(*TORCH))
    assert done.code == 2, done.text
    assert 'User "user" cannot create resource "jobs"' in done.err
    assert "`velodrome clusters rbac k8s` prints the Role that allows it" in done.err
    printed = velodrome("clusters", "rbac", NAME).out.replace("name: NAME", "name: user")
    applied = {"RoleBinding": "rolebindings", "Role": "roles"}
    made = [*yaml.safe_load_all(printed)]
    for manifest in made:
        kube.api.request("POST", f"apis/rbac.authorization.k8s.io/v1/namespaces/default/{applied[manifest['kind']]}",
                         manifest)
    try:
        done = velodrome(*scene.words("torch", "ddp", "--epochs", 1, "--on", NAME))
        assert done.code == 0, done.text
    finally:
        for manifest in made:
            kube.api.request("DELETE", "apis/rbac.authorization.k8s.io/v1/namespaces/default/"
                             f"{applied[manifest['kind']]}/velodrome")


def test_a_kubelet_that_is_killed_leaves_its_pods_training(scene: Scene, kube: Kube) -> None:
    """Streams go through the kubelet: they are opened again when it is back."""
    controller = scene.start(*scene.words("torch", "ddp", "--batch-size", 8, "--epochs", 40, "--no-checkpoints", "--on",
                                          NAME))
    scene.until(training)
    node = kube.node_of("worker-1")
    kube.do(f"kill kubelet-{node}")
    time.sleep(3)
    kube.do(f"kubelet {node}")
    began = time.monotonic()
    output, _ = controller.communicate(timeout=300)
    assert controller.returncode == 0, output
    assert_complete(scene, 40)
    words = "the pods train on; streams to them are opened again when the kubelet is back, and no line is lost"
    record("k8s", "kill daemon", words, time.monotonic() - began, 300.0)


def test_an_api_server_that_is_restarted_during_training(scene: Scene, kube: Kube) -> None:
    controller = scene.start(*scene.words("torch", "ddp", "--batch-size", 8, "--epochs", 40, "--no-checkpoints", "--on",
                                          NAME))
    scene.until(training)
    kube.do("kill apiserver")
    time.sleep(5)
    kube.do("api-server")
    output, _ = controller.communicate(timeout=300)
    assert controller.returncode == 0, output
    assert_complete(scene, 40)


def assert_complete(scene: Scene, epochs: int) -> None:
    """Every line came, once."""
    assert [row["epoch"] for row in scene.result()["history"]] == list(range(1, epochs + 1))
    reported = [json.dumps({**event, "received": 0}) for event in scene.events()]
    assert len(reported) == len(set(reported))
    checked = subprocess.run(
        [sys.executable, "-m", "velodrome", "runs", "check", scene.name, "--runs", str(scene.runs)],
        capture_output=True, text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_node_that_is_cut_off(velodrome: Any, scene: Scene, kube: Kube) -> None:
    kube.define(silence=SILENCE, lifeline=SILENCE)
    node: list[str] = []

    def cut() -> None:
        # Not the node of the API server, which is cut off itself then.
        node.append("n2")
        kube.do("cut n2")

    try:
        fails(velodrome, scene, "partition", scene.words(*TORCH), cut, SILENCE + NODE + STALL + SLACK, " on worker-",
              "worker-")
    finally:
        kube.do("heal n2")


def test_a_command_that_is_killed(scene: Scene, kube: Kube) -> None:
    kube.define(lifeline=10, keep=1)
    controller = scene.start(*scene.words(*TORCH))
    scene.until(training)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    began = time.monotonic()
    while kube.left():
        assert time.monotonic() - began < 90
        time.sleep(0.5)
    words = ("`velodrome attach` takes the run over within `lifeline` seconds; then its pods end themselves, and "
             "Kubernetes removes them")
    record("k8s", "kill controller", words, time.monotonic() - began, 90.0)


@pytest.fixture
def small_disk(scene: Scene) -> Iterator[None]:
    scene.runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k", "velodrome-test", scene.runs], check=True)
    yield
    subprocess.run(["umount", scene.runs], check=True)


def test_a_full_disk(velodrome: Any, scene: Scene, kube: Kube, small_disk: None) -> None:
    """That of the command, below `--runs`: checkpoints and model come there."""
    began = time.monotonic()
    done = velodrome(*scene.words("torch", "ddp", "--model", "dense-300-100", "--epochs", 50, "--on", NAME))
    assert done.code == 1, done.text
    took = time.monotonic() - began
    ended_as("k8s", "full disk", without_names(sentence_of(done.err)), took, 180, "No space left on device")


def refused(velodrome: Any, kube: Kube, runs: Path, fault: str, folder: Path, line: str, *parts: str) -> None:
    """A run whose second pod has an interpreter that does something before it starts."""
    wrapper = folder / "python"
    wrapper.write_text(f'#!/bin/sh\n[ "$(hostname)" = worker-1 ] && {line}\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    folder.chmod(0o755)
    kube.define(python=f"/wrapped{folder}/python", volumes={f"/wrapped{folder}": f"host:{folder}:ro"})
    began = time.monotonic()
    done = velodrome("train", *JOB, "--on", NAME, "--runs", runs)
    assert done.code in (1, 2), done.text
    ended_as("k8s", fault, sentence_of(done.err), time.monotonic() - began, 120, *parts)


def test_another_version_in_one_pod(velodrome: Any, runs: Path, tmp_path: Path, kube: Kube) -> None:
    other = Path("/wrapped") / other_numpy(tmp_path).relative_to("/")
    refused(velodrome, kube, runs, "other version", tmp_path, f"export PYTHONPATH={other}",
            "host 'worker-1': it has numpy 9.9.9")


@pytest.mark.skipif(bool(wrong_clock.unavailable()), reason=wrong_clock.unavailable() or "available")
def test_a_clock_that_is_an_hour_ahead(velodrome: Any, runs: Path, tmp_path: Path, kube: Kube) -> None:
    built = Path("/wrapped") / wrong_clock.build(tmp_path).relative_to("/")
    refused(velodrome, kube, runs, "clock", tmp_path, f"export LD_PRELOAD={built}",
            "host 'worker-1': its clock is 3", "ahead of this machine's")
