"""The options of Kubernetes clusters, in clusters.yaml and behind `k8s:`."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from velodrome.catalog.base import Engine
from velodrome.clusters.definitions import inline_fields
from velodrome.clusters.launcher import LauncherType
from velodrome.clusters.remote import RemoteOptions
from velodrome.errors import BadRequest

#: In a run's folder: by what another command finds the run's pods again.
RECORD = "k8s.json"
#: The folder of a container that is writable: for code, caches, and the folders of runs while they run.
WORK = "/velodrome"
_INLINE = ("context", "namespace", "image", "kind", "cpu", "memory", "gpus", "node_selector", "pull_secret",
           "service_account", "python", "time", "start_timeout")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kKMGTPE]i?)?")
_CLAIM = re.compile(r"(claim|host|secret):([^:]+)(:ro)?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class K8sOptions(RemoteOptions):
    """Pods that Kubernetes runs for each job."""

    context: str | None = Field(
        None, description="context of the kubeconfig; by default its current one, or, inside a pod, the pod's own "
        "service account"
    )
    namespace: str | None = Field(None, description="namespace of the pods; by default that of the context")
    image: str | None = Field(None, description="image with Python, velodrome and the engines")
    images: dict[str, str] = Field(
        default_factory=dict, description="images of engines that have one of their own, by the engine's name, with "
        "the framework if it has several: `horovod-torch`"
    )
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        "IfNotPresent", description="when a node pulls the image"
    )
    pull_secret: str | None = Field(None, description="secret with which nodes pull the image")
    kind: Literal["job", "jobset"] = Field(
        "job", description="what the pods are made of: one Job for each process, which every cluster accepts (job), or "
        "one JobSet, whose definition must be installed (jobset)"
    )
    cpu: str | None = Field(None, description="cores of each pod, as `4` or `500m`: what is reserved, and the limit")
    memory: str | None = Field(None, description="memory of each pod, as `16Gi`: what is reserved, and the limit")
    gpus: int | None = Field(None, ge=1, description="GPUs of each pod, whatever its role")
    gpu_resource: str = Field("nvidia.com/gpu", description="the name of GPUs among the resources of nodes")
    resources: dict[str, str] = Field(
        default_factory=dict, description="other resources of each pod by name, such as {rdma/hca: '1'}"
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict, description="labels of the nodes that may run pods; behind `k8s:` written NAME=VALUE"
    )
    tolerations: list[dict[str, Any]] = Field(
        default_factory=list, description="taints of nodes that do not keep pods away, as in a pod's description"
    )
    service_account: str | None = Field(
        None, description="service account of the pods; they get no token of it"
    )
    volumes: dict[str, str] = Field(
        default_factory=dict, description="what is mounted in each pod, by its path there: `claim:NAME` for a volume "
        "claim, `secret:NAME`, or `host:FOLDER` for a folder of the node, which the restricted Pod Security Standard "
        "forbids; with `:ro` behind it, processes cannot write there"
    )
    env_from: list[str] = Field(
        default_factory=list, description="secrets whose values are environment variables of all processes, such as "
        "the keys of an object store"
    )
    user: int | None = Field(
        10001, ge=1, description="number of the user and group as which processes run; null for that of the image, "
        "which must not be root"
    )
    pod: dict[str, Any] = Field(
        default_factory=dict, description="more fields of each pod's `spec`, such as {priorityClassName: low}"
    )
    annotations: dict[str, str] = Field(default_factory=dict, description="annotations of each pod")
    network_policy: bool = Field(
        True, description="let only the pods of a job connect to one another, where the network of the cluster heeds "
        "policies"
    )
    time: int = Field(
        1440, ge=1, description="minutes after which Kubernetes ends the pods (activeDeadlineSeconds)"
    )
    keep: int = Field(
        600, ge=0, description="seconds after which Kubernetes removes what has ended, if no command has "
        "(ttlSecondsAfterFinished)"
    )
    start_timeout: float = Field(
        600.0, gt=0, description="seconds within which all pods must run; otherwise none does"
    )
    lifeline: float = Field(
        120.0, ge=2, description="seconds that pods wait for a command to be heard again, before they end themselves; "
        "within them `velodrome attach` can take a run over"
    )
    root: str = Field(
        f"{WORK}/host", description="folder in each pod for code, environments and the folders of runs while they run"
    )
    silence: float = Field(
        60.0, ge=2, description="seconds without a sign of life after which a pod counts as lost"
    )

    @field_validator("cpu", "memory", mode="before")
    @classmethod
    def _is_a_quantity(cls, value: Any) -> Any:
        text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        if isinstance(text, str) and not _QUANTITY.fullmatch(text):
            raise ValueError("write it as Kubernetes does, such as 500m, 4 or 16Gi")
        return text

    @field_validator("node_selector", mode="before")
    @classmethod
    def _is_a_label(cls, value: Any) -> Any:
        """`NAME=VALUE`, as it stands behind `k8s:`."""
        if not isinstance(value, str):
            return value
        name, equals, wanted = value.partition("=")
        if not equals or not name:
            raise ValueError("write it as node_selector=NAME=VALUE")
        return {name: wanted}

    @field_validator("volumes")
    @classmethod
    def _can_be_mounted(cls, volumes: dict[str, str]) -> dict[str, str]:
        for path, source in volumes.items():
            if not path.startswith("/") or path == "/":
                raise ValueError(f"{path!r} is no absolute path in a pod")
            if path == "/tmp" or f"{path}/".startswith(f"{WORK}/"):
                raise ValueError(f"{path!r} is used already: choose another path")
            if not _CLAIM.fullmatch(source):
                raise ValueError(f"{source!r} cannot be read: write claim:NAME, secret:NAME or host:FOLDER")
        return volumes

    @field_validator("namespace", "pull_secret", "service_account")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is not None and not _NAME.fullmatch(name):
            raise ValueError("names in Kubernetes have only small letters, digits, '-' and '.'")
        return name

    @model_validator(mode="after")
    def _has_no_shared_folder(self) -> K8sOptions:
        if self.shared_dir is not None:
            raise ValueError("shared_dir: pods and this machine share no folder: files travel through the API server; "
                             "leave shared_dir out")
        return self

    @classmethod
    def inline(cls, text: str) -> dict[str, Any]:
        return dict(inline_fields(text, _INLINE, "--on k8s:image=NAME,namespace=NAME"))

    def image_of(self, engine: Engine) -> str | None:
        """The image that trains with an engine."""
        return self.images.get(engine.key) or self.image

    def required_image(self, engine: Engine) -> str:
        """The same; `BadRequest` if there is none."""
        if (image := self.image_of(engine)) is None:
            raise BadRequest(f"--on k8s: no image for engine {engine.key!r}: write --on k8s:image=NAME, or images: "
                             f"{{{engine.key}: NAME}} in clusters.yaml")
        return image


def volume_parts(source: str) -> tuple[str, str, bool]:
    """The kind and the name of what a volume has, and whether it is only read."""
    match = _CLAIM.fullmatch(source)
    assert match is not None, "volumes are checked with the options"
    return match[1], match[2], match[3] is not None


LAUNCHER = LauncherType(
    "k8s",
    "pods of Kubernetes for each run, reached through its API server only",
    "velodrome.clusters.k8s.launcher:K8sLauncher",
    here=False, inline="image=NAME,namespace=NAME", options=K8sOptions, record=RECORD,
)
