"""Why a pod does not run, in a few words: pure functions of what the API server says about it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from velodrome.clusters.k8s.manifests import CONTAINER
from velodrome.errors import headline

Object = Mapping[str, Any]
Phase = Literal["waiting", "running", "over"]

#: Reasons of a container that no waiting will change.
_FINAL = {
    "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
    "CrashLoopBackOff",
}
_PULLING = {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"}
#: How a pod ended that somebody took away: nobody's mistake, and the run can continue.
_TAKEN_AWAY = {
    "Evicted": "it was evicted", "Preempted": "it was pre-empted by pods of a higher priority",
    "Preempting": "it was pre-empted by pods of a higher priority", "Shutdown": "its node was shut down",
    "NodeShutdown": "its node was shut down", "Terminated": "its node was shut down",
    "PreemptionByScheduler": "it was pre-empted by pods of a higher priority",
    "EvictionByEvictionAPI": "it was evicted", "TerminationByKubelet": "its node ended it",
    "DeletionByTaintManager": "its node was tainted, and it does not tolerate that",
    "TaintManagerEviction": "its node does not answer or was tainted, and Kubernetes gave it up",
    "DeletionByPodGC": "its node is gone", "DeadlineExceeded": "its time limit was reached",
}
_QUOTA = re.compile(r"exceeded quota: (\S+), requested: (.*), used: (.*), limited: (.*)")
_STANDARD = re.compile(r'violates PodSecurity "([^"]+)": (.*)')


@dataclass(frozen=True)
class PodState:
    """A pod of a run as it is now."""

    phase: Phase
    #: Why it does not run, as the end of a sentence that begins with its name; empty while it does.
    reason: str = ""
    #: Whether waiting changes nothing.
    is_final: bool = False
    #: Whether it was taken away, so that the run is interrupted and has not failed.
    was_interrupted: bool = False
    #: Whether its node does not answer.
    is_silent: bool = False
    #: Its own name and that of its node, once it has them.
    pod: str = ""
    node: str = ""


def state_of(pod: Object | None, events: Sequence[Object] = (), *, seen: bool = False, end: str = "") -> PodState:
    """The state of a pod, of which `events` may say more; `seen` if it ran before, `end` is the end of its log."""
    if pod is None:
        return _vanished(events) if seen else _not_created(events)
    status, name = pod.get("status") or {}, str(pod["metadata"]["name"])
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    if status.get("phase") in ("Failed", "Succeeded"):
        return _over(pod, status, end, name, node)
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    if pod["metadata"].get("deletionTimestamp"):
        disruption = conditions.get("DisruptionTarget", {}).get("reason")
        gone = _taken_away(disruption, events)
        return PodState("over", gone, True, True, "TaintManager" in str(_reasons(events)), name, node)
    container = _container(status)
    if (container.get("state") or {}).get("running") is not None:
        silent = conditions.get("Ready", {}).get("status") == "False" and bool(container.get("ready"))
        reason = f"its node {node!r} does not answer Kubernetes (NotReady)" if silent else ""
        return PodState("running", reason, is_silent=silent, pod=name, node=node)
    waiting = (container.get("state") or {}).get("waiting")
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return PodState("waiting", f"no node can take it: {_short(scheduled.get('message'))} (Unschedulable)", pod=name)
    return _waiting(pod, waiting or {}, events, name, node)


def holds_a_process(pod: Object) -> bool:
    """Whether a process may run in a pod that is being deleted: kubelets take seconds to forget one that has ended."""
    status = pod.get("status") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        return False
    if not status.get("containerStatuses"):  # a pod without a node is deleted at once
        return bool((pod.get("spec") or {}).get("nodeName"))
    return "terminated" not in (_container(status).get("state") or {})


def _container(status: Object) -> Object:
    statuses = status.get("containerStatuses") or []
    return next((each for each in statuses if each.get("name") == CONTAINER), {})


def _waiting(pod: Object, waiting: Object, events: Sequence[Object], name: str, node: str) -> PodState:
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    image = pod["spec"]["containers"][0].get("image")
    if reason in _PULLING | {"InvalidImageName", "ErrImageNeverPull"}:
        cause = _newest(events, lambda event: "ailed to pull image" in str(event.get("message"))) or message
        cause = _short(cause.rpartition(" desc = ")[2].removeprefix(f'Failed to pull image "{image}": '))
        return PodState("waiting", f"node {node!r} cannot get its image {image!r}: {cause} ({reason})",
                        reason in _FINAL, pod=name, node=node)
    if reason in _FINAL:
        return PodState("waiting", f"its container cannot be started: {_short(message)} ({reason})", True, pod=name,
                        node=node)
    stuck = _newest(events, lambda event: event.get("reason") in (
        "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"))
    if stuck:
        return PodState("waiting", f"node {node!r} cannot prepare it: {_short(stuck)}", pod=name, node=node)
    doing = "its container is being created" if node else "it waits for a node"
    return PodState("waiting", f"{doing}{f' on node {node!r}' if node else ''}", pod=name, node=node)


def _over(pod: Object, status: Object, end: str, name: str, node: str) -> PodState:
    reason = str(status.get("reason") or "")
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    disruption = str(conditions.get("DisruptionTarget", {}).get("reason") or "")
    for known in (reason, disruption):
        if known in _TAKEN_AWAY:
            said = _short(status.get("message"))
            words = f"{_TAKEN_AWAY[known]}{f': {said}' if said else ''} ({known})"
            return PodState("over", words, True, True, pod=name, node=node)
    if reason == "NodeLost":
        return PodState("over", f"its node {node!r} is lost (NodeLost)", True, is_silent=True, pod=name, node=node)
    ended = (_container(status).get("state") or {}).get("terminated") or {}
    return PodState("over", _end_of_container(pod, ended, status, end), True, pod=name, node=node)


def _end_of_container(pod: Object, ended: Object, status: Object, end: str) -> str:
    reason, code = str(ended.get("reason") or ""), ended.get("exitCode")
    if reason == "OOMKilled":
        return f"it used more memory than {_limit(pod)} (OOMKilled)"
    if reason in ("StartError", "ContainerCannotRun"):
        return f"its container cannot be started: {_short(ended.get('message'))} ({reason})"
    if code is None:
        said = _short(status.get("message")) or "Kubernetes gives no reason"
        return f"it was refused by its node: {said}" + (f" ({status['reason']})" if status.get("reason") else "")
    if code == 0:
        return "its agent ended"
    last = _short(end or str(ended.get("message") or "")[-400:].strip().rpartition("\n")[2])
    return f"its container ended with code {code}" + (f"; its log ends with {last!r}" if last else "")


def _limit(pod: Object) -> str:
    limits = (pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    return f"its limit of {limits['memory']}" if "memory" in limits else "its node had"


def _not_created(events: Sequence[Object]) -> PodState:
    """A pod that its Job has not made: a quota or a policy may keep it from that."""
    message = _newest(events, lambda event: event.get("reason") == "FailedCreate")
    if not message:
        return PodState("waiting", "Kubernetes has not created it yet")
    if (reason := refusal(message)) is not None:
        return PodState("waiting", reason, "PodSecurity" in reason)
    return PodState("waiting", f"Kubernetes cannot create it: {_short(message)}")


def refusal(message: str) -> str | None:
    """What a quota or a policy refuses, in words; None if the message is about something else."""
    if match := _QUOTA.search(message):
        quota, requested, used, limited = match.groups()
        return (f"the quota {quota!r} of its namespace leaves no room: it needs {requested}; of {limited}, {used} is "
                "in use")
    if match := _STANDARD.search(message):
        return f"its namespace allows only pods of the standard {match[1]!r} (PodSecurity): {_short(match[2])}"
    return None


def _vanished(events: Sequence[Object]) -> PodState:
    return PodState("over", _taken_away(None, events), True, True)


def _taken_away(disruption: str | None, events: Sequence[Object]) -> str:
    """Why a pod was deleted that ran."""
    for reason in (disruption, *_reasons(events)):
        if reason in _TAKEN_AWAY:
            return f"{_TAKEN_AWAY[reason]} ({reason})"
    return "it was deleted, by a person, or because its node is drained"


def _reasons(events: Sequence[Object]) -> list[str]:
    return [str(event.get("reason")) for event in events]


def _newest(events: Sequence[Object], wanted: Any) -> str:
    """The message of the newest event that is wanted; empty if there is none."""
    matching = [event for event in events if wanted(event)]
    matching.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return str(matching[-1].get("message") or "") if matching else ""


def _short(message: object) -> str:
    return headline(str(message or "").strip()).rstrip(".")[:400]
