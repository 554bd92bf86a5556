"""What a run is in Kubernetes: pure functions from pods and options to manifests, plain JSON objects.

Each process is a Job of one pod, whose host name below the headless service of the run is that of the process. The
first Job owns everything else: with it, all of it is removed. `kind: jobset` has one JobSet instead.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from velodrome.clusters.k8s import WORK, K8sOptions, volume_parts

Manifest = dict[str, Any]

#: Of everything that belongs to a run, and of its pods.
MANAGED, RUN, POD, ROLE = "app.kubernetes.io/managed-by", "velodrome/run", "velodrome/pod", "velodrome/role"
MANAGER = "velodrome"
CONTAINER = "process"
_API_OF_JOBSET = "jobset.x-k8s.io/v1alpha2"
#: How long a process may take to end that is asked to.
_GRACE_SECONDS = 5
#: Variables without which libraries look for a user of the system, and for a home that is writable.
_USER = {"HOME": f"{WORK}/home", "USER": "velodrome", "LOGNAME": "velodrome", "TMPDIR": "/tmp"}


def user_variables() -> Collection[str]:
    """The variables that describe a user in every pod, unless a pod has others."""
    return _USER.keys()


@dataclass(frozen=True)
class Pod:
    """A pod of a run, and what its container starts."""

    #: `worker-0`: its host name, and the last part of its Job's name.
    name: str
    role: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """The pods of a run."""

    #: A name that no other run of the namespace has.
    name: str
    pods: Sequence[Pod]
    image: str
    #: Files that every pod sees, by name, in `files_folder`, where its process starts: a ConfigMap has them, so they
    #: are no secrets.
    files: Mapping[str, str] = field(default_factory=dict)
    files_folder: str = f"{WORK}-files"
    #: By what a person finds it: the name of the velodrome run, the engine and the strategy.
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        return {MANAGED: MANAGER, RUN: self.name}

    @property
    def selector(self) -> str:
        """What selects everything of the run."""
        return ",".join(f"{key}={value}" for key, value in self.labels.items())

    def address(self, pod: str) -> str:
        """The name by which the other pods reach one."""
        return f"{pod}.{self.name}"


def manifests(run: Run, options: K8sOptions) -> list[Manifest]:
    """Everything of a run; the first one owns the others (`owned_by`)."""
    jobs = [_jobset(run, options)] if options.kind == "jobset" else [_job(run, pod, options) for pod in run.pods]
    others = [service(run)]
    if run.files:
        others.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(run, run.name),
                       "data": {_key(name): text for name, text in run.files.items()}})
    if options.network_policy:
        others.append(network_policy(run))
    return [*jobs, *others]


def owned_by(manifest: Manifest, owner: Manifest) -> Manifest:
    """A manifest whose object is removed with another one, as the API server returned that."""
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
                 "uid": owner["metadata"]["uid"], "controller": False, "blockOwnerDeletion": False}
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def service(run: Run) -> Manifest:
    """The headless service: it gives every pod a name, from the moment on at which it has an address."""
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": _metadata(run, run.name),
        "spec": {"clusterIP": "None", "selector": run.labels, "publishNotReadyAddresses": True},
    }


def network_policy(run: Run) -> Manifest:
    """Only the pods of a run connect to its pods; what they connect to, such as a storage, is not limited."""
    return {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": _metadata(run, run.name),
        "spec": {
            "podSelector": {"matchLabels": run.labels}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": run.labels}}]}],
        },
    }


def _metadata(run: Run, name: str, **labels: str) -> Manifest:
    metadata: Manifest = {"name": name, "labels": {**run.labels, **labels}}
    return metadata | ({"annotations": dict(run.annotations)} if run.annotations else {})


def _job_spec(run: Run, pod: Pod, options: K8sOptions) -> Manifest:
    # One attempt: what fails is reported, and `velodrome resume` starts it again.
    return {"backoffLimit": 0, "completions": 1, "parallelism": 1, "template": pod_template(run, pod, options)}


def _job(run: Run, pod: Pod, options: K8sOptions) -> Manifest:
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": _metadata(run, f"{run.name}-{pod.name}", **{POD: pod.name, ROLE: pod.role}),
        "spec": {**_job_spec(run, pod, options), "activeDeadlineSeconds": options.time * 60,
                 "ttlSecondsAfterFinished": options.keep},
    }


def _jobset(run: Run, options: K8sOptions) -> Manifest:
    """One JobSet: when one of its Jobs fails, it ends the others."""
    replicated = []
    for pod in run.pods:
        spec = {**_job_spec(run, pod, options), "activeDeadlineSeconds": options.time * 60}
        replicated.append({"name": pod.name, "replicas": 1, "template": {"spec": spec}})
    return {
        "apiVersion": _API_OF_JOBSET, "kind": "JobSet", "metadata": _metadata(run, run.name),
        "spec": {
            "ttlSecondsAfterFinished": options.keep, "failurePolicy": {"maxRestarts": 0},
            # The service is ours: it names the pods as the processes are called.
            "network": {"enableDNSHostnames": False}, "replicatedJobs": replicated,
        },
    }


def pod_template(run: Run, pod: Pod, options: K8sOptions) -> Manifest:
    """One pod; it is never started a second time."""
    labels = {**run.labels, POD: pod.name, ROLE: pod.role}
    annotations = {**run.annotations, **options.annotations}
    mounts, volumes = _volumes(run, options)
    environment = {**_USER, **pod.environment}
    container: Manifest = {
        "name": CONTAINER, "image": run.image, "imagePullPolicy": options.pull_policy, "command": [*pod.command],
        "workingDir": run.files_folder if run.files else WORK,
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumeMounts": mounts, "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if options.env_from:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in options.env_from]
    if amounts := resources(options):
        container["resources"] = {"requests": amounts, "limits": amounts}
    spec: Manifest = {
        "restartPolicy": "Never", "hostname": pod.name, "subdomain": run.name, "automountServiceAccountToken": False,
        "enableServiceLinks": False, "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": _security(options), "containers": [container], "volumes": volumes,
    }
    if options.pull_secret:
        spec["imagePullSecrets"] = [{"name": options.pull_secret}]
    if options.service_account:
        spec["serviceAccountName"] = options.service_account
    if options.node_selector:
        spec["nodeSelector"] = dict(options.node_selector)
    if options.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in options.tolerations]
    metadata: Manifest = {"labels": labels}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": {**spec, **options.pod}}


def _security(options: K8sOptions) -> Manifest:
    """As the restricted Pod Security Standard wants it."""
    context: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if options.user is not None:
        context |= {"runAsUser": options.user, "runAsGroup": options.user, "fsGroup": options.user}
    return context


def resources(options: K8sOptions) -> dict[str, str]:
    """What every pod reserves, and may use at most."""
    amounts = dict(options.resources)
    if options.cpu is not None:
        amounts["cpu"] = options.cpu
    if options.memory is not None:
        amounts["memory"] = options.memory
    if options.gpus is not None:
        amounts[options.gpu_resource] = str(options.gpus)
    return amounts


def _key(name: str) -> str:
    """The key of a file in a ConfigMap, which has no folders and few characters: one that no other file has."""
    if re.fullmatch(r"[A-Za-z0-9._]{1,200}", name):
        return name
    return f"{re.sub('[^A-Za-z0-9._]', '-', name)[-200:]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _volumes(run: Run, options: K8sOptions) -> tuple[list[Manifest], list[Manifest]]:
    """The mounts of a container, and the volumes of its pod."""
    mounts: list[Manifest] = [{"name": "work", "mountPath": WORK}, {"name": "tmp", "mountPath": "/tmp"},
                              {"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[Manifest] = [{"name": "work", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}},
                               {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if run.files:
        mounts.append({"name": "files", "mountPath": run.files_folder, "readOnly": True})
        items = [{"key": _key(name), "path": name} for name in run.files]
        volumes.append({"name": "files", "configMap": {"name": run.name, "items": items}})
    for number, (path, source) in enumerate(options.volumes.items()):
        kind, name, read_only = volume_parts(source)
        what: Manifest = {
            "claim": {"persistentVolumeClaim": {"claimName": name}}, "secret": {"secret": {"secretName": name}},
            "host": {"hostPath": {"path": name}},
        }[kind]
        volumes.append({"name": f"volume-{number}", **what})
        mounts.append({"name": f"volume-{number}", "mountPath": path} | ({"readOnly": True} if read_only else {}))
    return mounts, volumes


def role(namespace: str, options: K8sOptions) -> list[Manifest]:
    """The Role with everything that a command needs in a namespace."""
    rules = [
        (["batch"], ["jobs"], ["create", "get", "list", "delete"]),
        ([""], ["services", "configmaps"], ["create", "list", "delete"]),
        (["networking.k8s.io"], ["networkpolicies"], ["create", "list", "delete"]),
        ([""], ["pods"], ["get", "list", "delete"]),
        ([""], ["pods/log"], ["get"]),
        ([""], ["pods/exec"], ["get", "create"]),
        ([""], ["events", "resourcequotas"], ["list"]),
    ]
    if options.kind == "jobset":
        rules.append((["jobset.x-k8s.io"], ["jobsets"], ["create", "get", "list", "delete"]))
    named = {"name": "velodrome", "namespace": namespace}
    return [
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": named,
         "rules": [{"apiGroups": groups, "resources": kinds, "verbs": verbs} for groups, kinds, verbs in rules]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": named,
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "velodrome"},
         "subjects": [{"kind": "User", "name": "NAME", "apiGroup": "rbac.authorization.k8s.io"}]},
    ]
