"""What `velodrome doctor` says about a cluster before there are pods, what `clean` removes, and how many pods fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from velodrome.clusters.k8s import K8sOptions
from velodrome.clusters.k8s.api import PATHS, Api, ApiError, NoAnswer
from velodrome.clusters.k8s.job import refusal_of, remove
from velodrome.clusters.k8s.manifests import MANAGED, MANAGER, RUN, Run, manifests, resources, role
from velodrome.clusters.launcher import Finding
from velodrome.errors import BadRequest, Unavailable, VelodromeError

_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
          **{f"{prefix}i": 1024.0 ** power for power, prefix in enumerate("KMGTPE", start=1)}}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)([a-zA-Z]*)")
#: What no command can do without; the rest of the Role makes messages better.
_OPTIONAL = {("", "events"), ("", "resourcequotas"), ("", "pods/log")}
_RBAC = "`velodrome clusters rbac k8s` prints the Role that allows it"


def amount(quantity: object) -> float:
    """A quantity of Kubernetes, such as `500m` or `2Gi`, as a number."""
    match = _QUANTITY.fullmatch(str(quantity))
    return float(match[1]) * _UNITS.get(match[2], 1.0) if match else 0.0


def require(api: Api, run: Run, options: K8sOptions) -> None:
    """Refuse a cluster that does not answer, or would not take what a run is made of; `BadRequest` says why."""
    try:
        for kind in {manifest["kind"]: manifest for manifest in manifests(run, options)}.values():
            api.create(kind, dry_run=True)
    except ApiError as error:
        raise BadRequest(f"--on k8s: {refusal_of(error)}") from None
    except NoAnswer as error:
        raise Unavailable(f"--on k8s: {error}; see whether `kubectl get pods` works here", [str(error)]) from None


def examine(api: Api, options: K8sOptions, pods: int) -> list[Finding]:
    """Whether the API server answers, lets us do what is needed, and has room for so many pods."""
    try:
        version = api.request("GET", "version", what="say its version")
    except ApiError as error:
        fix = "log in again: the credentials of the kubeconfig are wrong or have expired" if error.status == 401 else ""
        return [Finding("error", "reachable", None, str(error), fix)]
    except VelodromeError as error:
        return [Finding("error", "reachable", None, str(error), "see whether `kubectl get pods` works here")]
    findings = [Finding("ok", "reachable", None, f"the API server is Kubernetes {version.get('gitVersion', '?')}")]
    findings += _permissions(api, options)
    if options.kind == "jobset" and not _has_jobsets(api):
        findings.append(Finding("error", "tools", None, "kind=jobset: the cluster has no JobSets",
                             "install them, or leave kind out"))
    with suppress(ApiError):
        findings += _quotas(api, options, pods)
    return findings


def _permissions(api: Api, options: K8sOptions) -> list[Finding]:
    """What we may not do in the namespace."""
    refused: dict[bool, list[str]] = {True: [], False: []}
    for rule in role(api.namespace, options)[0]["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                name, _, sub = resource.partition("/")
                verbs = [verb for verb in rule["verbs"] if not api.may(verb, group, name, sub=sub)]
                # A stream is opened by a GET, which older API servers call so, and newer ones a creation.
                if verbs and (resource != "pods/exec" or len(verbs) == len(rule["verbs"])):
                    refused[(group, resource) in _OPTIONAL].append(f"{', '.join(verbs)} {resource}")
    findings = []
    if refused[False]:
        findings.append(Finding("error", "tools", None, f"you may not {'; '.join(refused[False])} in namespace "
                             f"{api.namespace!r}", _RBAC))
    if refused[True]:
        findings.append(Finding("warning", "tools", None, f"you may not {'; '.join(refused[True])} in namespace "
                             f"{api.namespace!r}: messages say less", _RBAC))
    return findings


def _has_jobsets(api: Api) -> bool:
    group = PATHS["JobSet"].partition("/{}")[0]
    try:
        return any(kind.get("name") == "jobsets" for kind in api.request("GET", group).get("resources") or [])
    except ApiError:
        return False


def _needed(options: K8sOptions) -> dict[str, float]:
    """What one pod takes of a quota, by its names there."""
    needed = {"pods": 1.0, "count/pods": 1.0, "count/jobs.batch": 1.0}
    for name, quantity in resources(options).items():
        for prefix in ("", "requests.", "limits."):
            needed[f"{prefix}{name}"] = amount(quantity)
    return needed


def _quotas(api: Api, options: K8sOptions, pods: int) -> list[Finding]:
    """Quotas that leave no room for so many pods."""
    findings = []
    for quota in api.list("ResourceQuota"):
        name, used = quota["metadata"]["name"], (quota.get("status") or {}).get("used") or {}
        for resource, hard in ((quota.get("status") or {}).get("hard") or {}).items():
            each = _needed(options).get(resource, 0.0)
            if amount(used.get(resource, "0")) + pods * each > amount(hard) and each:
                findings.append(Finding(
                    "error", "quota", None, f"the quota {name!r} of namespace {api.namespace!r} leaves no room for "
                    f"{pods} pods: of {resource} {hard}, {used.get(resource, '0')} is in use", "wait, or ask for less"))
            elif not each and resource.partition(".")[0] in ("limits", "requests", "cpu", "memory"):
                wanted = resource.rpartition(".")[2]
                findings.append(Finding(
                    "error", "quota", None, f"the quota {name!r} of namespace {api.namespace!r} counts {resource}, "
                    "and the pods say nothing about it", f"set {wanted} of the cluster"))
    return findings


def room(api: Api, options: K8sOptions) -> int:
    """How many more pods there is room for, by the quotas and, if we may see them, the nodes; 0 if neither is known."""
    bounds = []
    with suppress(VelodromeError):
        for quota in api.list("ResourceQuota"):
            status = quota.get("status") or {}
            for resource, hard in (status.get("hard") or {}).items():
                if each := _needed(options).get(resource, 0.0):
                    left = amount(hard) - amount((status.get("used") or {}).get(resource, "0"))
                    bounds.append(int(left // each))
    wanted = {name: amount(quantity) for name, quantity in resources(options).items()}
    with suppress(VelodromeError):
        if wanted:
            nodes = [node for node in api.list("Node") if _takes_pods(node, options)]
            pods = api.request("GET", "api/v1/pods").get("items") or []
            bounds.append(sum(_room_of(node, pods, wanted) for node in nodes))
    return max(0, min(bounds)) if bounds else 0


def _takes_pods(node: Mapping[str, Any], options: K8sOptions) -> bool:
    labels, spec = node["metadata"].get("labels") or {}, node.get("spec") or {}
    ready = any(condition["type"] == "Ready" and condition["status"] == "True"
                for condition in node["status"].get("conditions") or [])
    selected = all(labels.get(name) == value for name, value in options.node_selector.items())
    return ready and selected and not spec.get("unschedulable") and all(
        taint.get("effect") == "PreferNoSchedule" or _is_tolerated(taint, options.tolerations)
        for taint in spec.get("taints") or []
    )


def _is_tolerated(taint: Mapping[str, Any], tolerations: Sequence[Mapping[str, Any]]) -> bool:
    return any(
        toleration.get("key") in (None, taint.get("key")) and toleration.get("effect") in (None, taint.get("effect"))
        and (toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))
        for toleration in tolerations
    )


def _room_of(node: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], wanted: Mapping[str, float]) -> int:
    """How many pods fit on a node beside those that it has."""
    allocatable = node["status"].get("allocatable") or {}
    left = {name: amount(allocatable.get(name, "0")) for name in wanted}
    count = amount(allocatable.get("pods", "110"))
    for pod in pods:
        if pod["spec"].get("nodeName") != node["metadata"]["name"] or pod["status"].get("phase") in (
            "Succeeded", "Failed"
        ):
            continue
        count -= 1
        for container in pod["spec"]["containers"]:
            requests = (container.get("resources") or {}).get("requests") or {}
            for name in wanted:
                left[name] -= amount(requests.get(name, "0"))
    fitting = [int(left[name] // each) for name, each in wanted.items() if each]
    return max(0, int(min([count, *fitting])))


def leftovers(api: Api) -> dict[str, str]:
    """The names of runs whose pods are over although their objects are there, and the labels that select them."""
    phases: dict[str, set[str]] = {}
    for kind in ("Job", "JobSet", "Service", "ConfigMap", "NetworkPolicy", "Pod"):
        with suppress(ApiError):
            for item in api.list(kind, f"{MANAGED}={MANAGER}"):
                run = (item["metadata"].get("labels") or {}).get(RUN)
                if run:
                    phases.setdefault(run, set()).update(
                        [str(item["status"].get("phase"))] if kind == "Pod" else [])
    return {run: f"{MANAGED}={MANAGER},{RUN}={run}" for run, each in phases.items()
            if not each & {"Pending", "Running", "Unknown"}}


def clean(api: Api) -> list[str]:
    """Remove what runs left whose pods are over; the names of the runs."""
    left = leftovers(api)
    for selector in left.values():
        remove(api, selector)
    return [f"{name} in namespace {api.namespace}" for name in left]
