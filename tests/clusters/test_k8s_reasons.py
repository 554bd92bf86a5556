"""Why a pod does not run: what Kubernetes says about it, in one sentence, and whether waiting or resuming helps.

The objects are what API servers return, shortened: most were seen on the cluster of the tests, the rest is as newer
versions document it.
"""

from __future__ import annotations

from typing import Any

import pytest

from velodrome.clusters.k8s.job import RunState, sentence
from velodrome.clusters.k8s.reasons import PodState, state_of

pytestmark = pytest.mark.unit


def pod(phase: str = "Pending", *, node: str = "n1", memory: str = "", deleted: bool = False, **status: Any) -> Any:
    resources = {"limits": {"memory": memory}} if memory else {}
    metadata = {"name": "velodrome-1-worker-0-abcde"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec: dict[str, Any] = {"containers": [{"name": "process", "image": "reg/torch:1", "resources": resources}]}
    return {"metadata": metadata, "spec": spec | ({"nodeName": node} if node else {}),
            "status": {"phase": phase, **status}}


def container(ready: bool = False, **state: Any) -> list[dict[str, Any]]:
    return [{"name": "process", "ready": ready, "state": state}]


def event(reason: str, message: str) -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": "2026-01-01T00:00:00Z"}


QUOTA = event("FailedCreate", 'Error creating: pods "x" is forbidden: exceeded quota: small, requested: pods=1, used: '
              "pods=2, limited: pods=2")
STANDARD = event("FailedCreate", 'Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest": '
                 "restricted volume types (volume \"volume-0\" uses restricted volume type \"hostPath\")")
PULL = event("Failed", 'Failed to pull image "reg/torch:1": rpc error: code = NotFound desc = failed to resolve '
             'reference "reg/torch:1": not found')


@pytest.mark.parametrize(("seen", "events", "reason", "final"), [
    (None, [], "Kubernetes has not created it yet", False),
    (None, [QUOTA], "the quota 'small' of its namespace leaves no room: it needs pods=1; of pods=2, pods=2 is in use",
     False),
    (None, [STANDARD], "its namespace allows only pods of the standard 'restricted:latest' (PodSecurity): restricted "
     'volume types (volume "volume-0" uses restricted volume type "hostPath")', True),
    (pod(node="", conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                               "message": "0/2 nodes are available: 2 Insufficient cpu."}]), [],
     "no node can take it: 0/2 nodes are available: 2 Insufficient cpu (Unschedulable)", False),
    (pod(containerStatuses=container(waiting={"reason": "ImagePullBackOff", "message": "Back-off"})), [PULL],
     "node 'n1' cannot get its image 'reg/torch:1': failed to resolve reference \"reg/torch:1\": not found "
     "(ImagePullBackOff)", False),
    (pod(containerStatuses=container(waiting={"reason": "InvalidImageName", "message": "couldn't parse image"})), [],
     "node 'n1' cannot get its image 'reg/torch:1': couldn't parse image (InvalidImageName)", True),
    (pod(containerStatuses=container(waiting={"reason": "CreateContainerConfigError",
                                              "message": 'secret "s3-keys" not found'})), [],
     'its container cannot be started: secret "s3-keys" not found (CreateContainerConfigError)', True),
    (pod(containerStatuses=container(waiting={"reason": "ContainerCreating"})),
     [event("FailedMount", 'MountVolume.SetUp failed for volume "volume-0": configmap "x" not found')],
     'node \'n1\' cannot prepare it: MountVolume.SetUp failed for volume "volume-0": configmap "x" not found', False),
    (pod(containerStatuses=container(waiting={"reason": "ContainerCreating"})), [],
     "its container is being created on node 'n1'", False),
])
def test_what_keeps_a_pod_from_running(seen: Any, events: list[Any], reason: str, final: bool) -> None:
    state = state_of(seen, events)
    assert (state.phase, state.reason, state.is_final, state.was_interrupted) == ("waiting", reason, final, False)


@pytest.mark.parametrize(("seen", "events", "reason", "interrupted"), [
    (pod("Failed", memory="512Mi", containerStatuses=container(terminated={"reason": "OOMKilled", "exitCode": 137})),
     [], "it used more memory than its limit of 512Mi (OOMKilled)", False),
    (pod("Failed", containerStatuses=container(terminated={
        "reason": "Error", "exitCode": 2, "message": "a\nno module x"})), [],
     "its container ended with code 2; its log ends with 'no module x'", False),
    (pod("Failed", containerStatuses=container(terminated={
        "reason": "StartError", "exitCode": 128, "message": 'exec: "python3": executable file not found in $PATH'})),
     [], 'its container cannot be started: exec: "python3": executable file not found in $PATH (StartError)', False),
    (pod("Failed", reason="OutOfcpu", message="Pod Node didn't have enough resource: cpu"), [],
     "it was refused by its node: Pod Node didn't have enough resource: cpu (OutOfcpu)", False),
    (pod("Failed", reason="Evicted", message="The node was low on resource: memory."), [],
     "it was evicted: The node was low on resource: memory (Evicted)", True),
    (pod("Failed", conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]), [],
     "it was pre-empted by pods of a higher priority (PreemptionByScheduler)", True),
    (pod("Running", deleted=True), [event("Preempted", "Preempted by default/urgent on node n1")],
     "it was pre-empted by pods of a higher priority (Preempted)", True),
    (pod("Running", deleted=True), [event("TaintManagerEviction", "Marking for deletion")],
     "its node does not answer or was tainted, and Kubernetes gave it up (TaintManagerEviction)", True),
    (pod("Running", deleted=True), [], "it was deleted, by a person, or because its node is drained", True),
    (None, [], "it was deleted, by a person, or because its node is drained", True),
])
def test_how_a_pod_ended(seen: Any, events: list[Any], reason: str, interrupted: bool) -> None:
    state = state_of(seen, events, seen=True)
    assert (state.phase, state.reason, state.was_interrupted) == ("over", reason, interrupted)


def test_a_pod_on_a_node_that_does_not_answer_still_counts_as_running() -> None:
    running = container(True, running={"startedAt": "2026-01-01T00:00:00Z"})
    silent = pod("Running", conditions=[{"type": "Ready", "status": "False"}], containerStatuses=running)
    state = state_of(silent)
    assert (state.phase, state.is_silent) == ("running", True)
    assert state.reason == "its node 'n1' does not answer Kubernetes (NotReady)"
    well = pod("Running", conditions=[{"type": "Ready", "status": "True"}], containerStatuses=running)
    assert state_of(well) == PodState("running", pod="velodrome-1-worker-0-abcde", node="n1")


def test_pods_with_the_same_reason_are_named_together() -> None:
    assert sentence({"a": "it waits", "b": "it waits", "c": "it was evicted"}) == (
        "pods 'a', 'b': it waits; pod 'c': it was evicted")
    assert sentence({f"w{number}": "it waits" for number in range(9)}) == (
        "pods 'w0', 'w1', 'w2', 'w3' and 5 more: it waits")


def test_a_run_is_ready_when_all_of_its_pods_are() -> None:
    running, over = PodState("running"), PodState("over")
    assert RunState({"a": running, "b": running}).are_running
    assert not RunState({"a": running, "b": PodState("waiting")}).are_running
    assert not RunState().are_running
    assert RunState({"a": running, "b": over}).is_ending
    assert not RunState({"a": running, "b": over}).is_over
