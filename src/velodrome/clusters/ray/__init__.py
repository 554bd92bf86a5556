"""The options of clusters that Ray manages."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from velodrome.clusters.launcher import LauncherType
from velodrome.clusters.remote import RemoteOptions


class RayOptions(RemoteOptions):
    """A Ray cluster: one that runs, or one on this machine that exists as long as the command."""

    address: str | None = Field(
        None, description="address of a running cluster, as `ray.init` takes it (HOST:PORT, or auto); by default a new "
        "one on this machine"
    )
    cpus: float | None = Field(
        None, gt=0, description="CPUs that are reserved for each process; by default those of its node, divided by the "
        "processes there, because other work would disturb what is measured"
    )
    gpus: float = Field(0.0, ge=0, description="GPUs that are reserved for each process")
    resources: dict[str, float] = Field(
        default_factory=dict, description="other resources that are reserved for each process; only nodes that have "
        "them are used"
    )
    runtime_env: dict[str, Any] = Field(
        default_factory=dict, description="Ray's runtime environment of the processes, such as {pip: [velodrome]}"
    )
    start_timeout: float | None = Field(
        None, gt=0, description="seconds that starting an actor on a node may take; by default 60, or 600 with a "
        "runtime_env, whose packages are installed first"
    )
    reserve_timeout: float = Field(60.0, gt=0, description="seconds to wait until the resources are free")

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address is None or address == "auto" or "://" in address:
            return address
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port[:6]) < 65_536:
            raise ValueError("write it as HOST:PORT, such as 10.0.0.5:6379, or auto")
        return address

    @classmethod
    def inline(cls, text: str) -> dict[str, Any]:
        return {"address": text} if text else {}


LAUNCHER = LauncherType(
    "ray",
    "the nodes of a Ray cluster: a running one, or one on this machine that ends with the command",
    "velodrome.clusters.ray.launcher:RayLauncher",
    here=False, inline="ADDRESS", options=RayOptions,
)
