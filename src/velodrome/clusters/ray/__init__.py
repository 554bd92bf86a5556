"""The options of clusters that Ray manages, and what Ray's exceptions mean. Imports no Ray."""

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


#: By the name of the exception or of one that it is derived from.
_REASONS = {
    "ActorUnavailableError": "cannot be reached through Ray: the connection to its actor broke, because its Ray daemon "
    "ended or its network is down",
    "NodeDiedError": "is lost: its Ray node died",
    "OutOfMemoryError": "lost its agent: Ray's memory monitor ended it, because the node ran out of memory",
    "WorkerCrashedError": "lost its agent: the process of Ray's actor there crashed",
    "ActorDiedError": "lost its agent: Ray's actor there died",
}
_LONGEST = 300


def reason_of(error: BaseException, seconds: float | None = None) -> str:
    """Why a node failed; `seconds` is the time that was allowed for what timed out."""
    names = [kind.__name__ for kind in type(error).__mro__]
    if "GetTimeoutError" in names:
        within = "in time" if seconds is None else f"within {seconds:g} s"
        return (f"did not start Ray's actor {within}: its Ray node is busy, or is still preparing the runtime_env; "
                "raise start_timeout of the cluster")
    if "RuntimeEnvSetupError" in names:
        return f"cannot prepare the runtime_env: {_essence(error)}"
    known = next((_REASONS[name] for name in names if name in _REASONS), None)
    return known or f"cannot be reached through Ray: {_essence(error)} ({type(error).__name__})"


def _essence(error: BaseException) -> str:
    """The line of a message that names the cause: one that reports an error, else the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "Ray gave no reason")
    return cause[:_LONGEST]
